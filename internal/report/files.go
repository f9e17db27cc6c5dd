package report

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// word makes a name one that file names, tags and benchmark names take.
func word(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.', r == '+':
			return r
		}
		return '_'
	}, strings.TrimSpace(name))
}

// distributions calls f for each latency distribution that has values, of each run.
func distributions(r *result.Result, f func(run int, phase, group, quantity string, h *result.Histogram) error) error {
	for i, run := range r.Runs {
		for _, p := range run.Phases {
			for j := range p.Groups {
				for _, d := range metric.Distributions {
					h := d.Of(&p.Groups[j])
					if h.Count() == 0 || d.Unit != metric.Nanoseconds || d.Kernel {
						continue
					}
					if err := f(i, p.Name, p.Groups[j].Name, d.Key, h); err != nil {
						return err
					}
				}
			}
		}
		for _, m := range run.Micro {
			for _, l := range m.Latencies {
				if l.Histogram.Count() == 0 {
					continue
				}
				if err := f(i, "micro", m.Name, l.Name, l.Histogram); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// create makes a file in dir, and dir.
func create(dir, name string, write func(w io.Writer) error) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	return errors.Join(write(w), w.Flush(), f.Close())
}
