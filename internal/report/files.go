package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"aossim/internal/metric"
	"aossim/internal/refusal"
	"aossim/internal/result"
)

// distribution is a latency distribution that has values, in words that word made.
type distribution struct {
	run                    int
	phase, group, quantity string
	began, length          int64 // Unix time and duration, ns; began is 0 where the result has none
	*result.Histogram
}

// words name the distribution.
func (d *distribution) words() []string {
	return []string{fmt.Sprintf("run%d", d.run+1), d.phase, d.group, d.quantity}
}

// distributions are those of all runs, in order of time, and those of micro-benchmarks by point.
func distributions(r *result.Result) (list []distribution) {
	for i, run := range r.Runs {
		for _, p := range run.Phases {
			for j := range p.Groups {
				for _, d := range metric.Distributions {
					if h := d.Of(&p.Groups[j]); h.Count() > 0 && d.Unit == metric.Nanoseconds && !d.Kernel {
						list = append(list, distribution{i, Word(p.Name), Word(p.Groups[j].Name), d.Key, p.BeganNS, p.DurationNS, h})
					}
				}
			}
		}
		for _, m := range run.Micro {
			for _, l := range m.Latencies {
				if l.Histogram.Count() > 0 {
					list = append(list, distribution{i, "micro", Word(m.Name), Word(l.Name), m.BeganNS, m.DurationNS, l.Histogram})
				}
			}
		}
	}
	return list
}

// file is one of a report.
type file struct {
	name  string
	write func(w io.Writer) error
}

// create makes files in a directory, and it, all of them whole or none.
func create(dir string, files ...file) (err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return refusal.Usage("the report cannot be written: %w; name another directory", err)
	}
	var made []string
	defer func() {
		if err != nil {
			for _, name := range made {
				os.Remove(name)
			}
			err = fmt.Errorf("writing %s: %w", dir, err)
		}
	}()
	for _, file := range files {
		f, err := os.CreateTemp(dir, ".aossim-*")
		if err != nil {
			return err
		}
		made = append(made, f.Name())
		w := bufio.NewWriter(f)
		if err := errors.Join(file.write(w), w.Flush(), f.Chmod(0o644), f.Close()); err != nil {
			return err
		}
	}
	for i, file := range files {
		if err := os.Rename(made[i], filepath.Join(dir, file.name)); err != nil {
			return err
		}
	}
	return nil
}
