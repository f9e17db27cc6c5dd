package report

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

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
			for _, g := range p.Groups {
				for name, h := range g.Histograms.All() {
					if *h == nil || (*h).Count() == 0 || name == "eagain_rate_ppm" {
						continue
					}
					if err := f(i, p.Name, g.Name, name, *h); err != nil {
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
	err = write(w)
	if e := w.Flush(); err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// HGRM writes the percentile distribution of every latency, in us, to a file of its own in
// dir, as HdrHistogram's plotter reads it.
func HGRM(dir string, r *result.Result) error {
	return distributions(r, func(run int, phase, group, quantity string, h *result.Histogram) error {
		name := fmt.Sprintf("%s-run%d-%s-%s-%s.hgrm", word(r.Scenario.Name), run+1, word(phase), word(group), word(quantity))
		return create(dir, name, func(w io.Writer) error {
			const ticks, scale = 5, 1000 // per half distance; ns a us
			_, err := h.HDR().PercentilesPrint(w, ticks, scale)
			return err
		})
	})
}

// HLog writes all latencies of a result as one histogram log to a file in dir, a line a run,
// phase, group and quantity, which its tag names; values are ns.
func HLog(dir string, r *result.Result) error {
	started, err := time.Parse(time.RFC3339, r.Started)
	if err != nil {
		return fmt.Errorf("the result's start, %q, is no time: %w", r.Started, err)
	}
	return create(dir, word(r.Scenario.Name)+".hlog", func(w io.Writer) error {
		log := hdr.NewHistogramLogWriter(w)
		base := started.UnixMilli()
		if err := log.OutputLogFormatVersion(); err != nil {
			return err
		}
		if err := log.OutputComment("[Logged by aossim]"); err != nil {
			return err
		}
		if err := log.OutputStartTime(base); err != nil {
			return err
		}
		log.SetBaseTime(base)
		if err := log.OutputLegend(); err != nil {
			return err
		}
		at := base
		lengths := map[int]map[string]int64{}
		for i, run := range r.Runs {
			lengths[i] = map[string]int64{}
			for _, p := range run.Phases {
				lengths[i][p.Name] = p.DurationNS / 1e6
			}
		}
		last := ""
		length := int64(0)
		return distributions(r, func(run int, phase, group, quantity string, h *result.Histogram) error {
			if this := fmt.Sprint(run, phase); this != last {
				at, last, length = at+length, this, max(1, lengths[run][phase])
			}
			out := h.HDR()
			out.SetTag(fmt.Sprintf("run%d/%s/%s/%s", run+1, word(phase), word(group), word(quantity)))
			out.SetStartTimeMs(at)
			out.SetEndTimeMs(at + length)
			return log.OutputIntervalHistogramWithLogOptions(out, hdr.DefaultHistogramLogOptions())
		})
	})
}

// GoBench writes a result as Go benchmarks, a line a run, of a micro-benchmark a line a
// round, for benchstat.
func GoBench(w io.Writer, r *result.Result) error {
	b := bufio.NewWriter(w)
	e := &r.Environment
	fmt.Fprintf(b, "kernel: %s\nkernel-version: %s\ngoarch: %s\ncpu: %s\nscenario: %s\n", e.KernelRelease, e.KernelVersion, e.Machine, e.CPU, r.Scenario.Name)
	fmt.Fprintf(b, "Unit messages/s better=higher\nUnit ops/s/thread better=higher\n")
	for _, run := range r.Runs {
		for _, p := range run.Phases {
			for _, g := range p.Groups {
				if g.Subscribers == 0 {
					continue
				}
				fmt.Fprintf(b, "Benchmark%s/phase=%s/group=%s 1", title(r.Scenario.Name), word(p.Name), word(g.Name))
				for name, h := range g.Histograms.All() {
					if *h == nil || name == "eagain_rate_ppm" {
						continue
					}
					for _, q := range []float64{50, 99, 99.9} {
						if v, ok := (*h).Percentile(q); ok {
							fmt.Fprintf(b, " %d %s-p%g-ns", v, name, q)
						}
					}
				}
				if g.Arms > 0 {
					fmt.Fprintf(b, " %.6g eagain-percent", 100*float64(g.EAGAIN)/float64(g.Arms))
				}
				if p.DurationNS > 0 {
					fmt.Fprintf(b, " %.6g messages/s", float64(g.Handled)/float64(g.Subscribers)/(float64(p.DurationNS)/1e9))
				}
				if k := g.Kernel; k != nil && k.Arms > 0 {
					fmt.Fprintf(b, " %.6g kmalloc/arm", float64(k.Kmalloc)/float64(k.Arms))
				}
				fmt.Fprintln(b)
			}
		}
		for _, m := range run.Micro {
			for i, v := range m.Rounds {
				fmt.Fprintf(b, "Benchmark%s/point=%s %d %.6f %s", title(r.Scenario.Name), word(m.Name), m.Operations, v, m.Unit)
				for _, f := range m.Figures {
					if i < len(f.Rounds) {
						fmt.Fprintf(b, " %.6g %s", f.Rounds[i], word(f.Name))
					}
				}
				if k := m.Kernel; k != nil && k.Arms > 0 {
					fmt.Fprintf(b, " %.6g kmalloc/wait", float64(k.Kmalloc)/float64(k.Arms))
				}
				fmt.Fprintln(b)
			}
		}
	}
	return b.Flush()
}

// title makes a name one that a Go benchmark may have.
func title(name string) string {
	var out strings.Builder
	for _, part := range strings.FieldsFunc(name, func(r rune) bool { return word(string(r)) == "_" || r == '-' || r == '.' || r == '+' }) {
		out.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return out.String()
}

// KTAP writes a result as KTAP, version 1: a test a run, in it a test a check and
// threshold, and one that is skipped for what could not be observed.
func KTAP(w io.Writer, r *result.Result) error {
	b := bufio.NewWriter(w)
	line := func(s string) string { return strings.NewReplacer("\n", " ", "#", "%").Replace(s) }
	fmt.Fprintf(b, "KTAP version 1\n1..%d\n", max(1, len(r.Runs)))
	if len(r.Runs) == 0 {
		fmt.Fprintf(b, "not ok 1 %s # %s\n", line(r.Scenario.Name), line(r.Broken))
	}
	for i, run := range r.Runs {
		checks := run.AllChecks()
		whole := ""
		if last := i == len(r.Runs)-1; last && (r.Broken != "" || r.Interrupted) {
			if whole = r.Broken; r.Interrupted {
				whole = "interrupted"
			}
			checks = append(checks, result.Check{Name: "the run came to its end", Detail: whole})
		}
		tests := len(checks)
		if r.Observer.Missing != "" {
			tests++
		}
		fmt.Fprintf(b, "  KTAP version 1\n  # Subtest: %s run %d\n  1..%d\n", line(r.Scenario.Name), i+1, tests)
		pass := true
		for n, c := range checks {
			pass = pass && c.Pass
			fmt.Fprintf(b, "  %s %d %s # detail=%q\n", verdict(c.Pass), n+1, line(c.Name), line(c.Detail))
		}
		if r.Observer.Missing != "" {
			fmt.Fprintf(b, "  ok %d observer # SKIP %s\n", tests, line(r.Observer.Missing))
		}
		var values []string
		for _, p := range run.Phases {
			for _, g := range p.Groups {
				if g.Arms > 0 {
					values = append(values, fmt.Sprintf("%s.%s.arms=%d", word(p.Name), word(g.Name), g.Arms), fmt.Sprintf("%s.%s.eagain=%d", word(p.Name), word(g.Name), g.EAGAIN))
				}
				if h := g.Histograms.Rearm; h != nil {
					if v, ok := h.Percentile(99); ok {
						values = append(values, fmt.Sprintf("%s.%s.rearm_p99_ns=%d", word(p.Name), word(g.Name), v))
					}
				}
			}
		}
		for _, m := range run.Micro {
			values = append(values, fmt.Sprintf("%s.median=%.3f", word(m.Name), m.Median), fmt.Sprintf("%s.cv=%.4f", word(m.Name), m.CV))
		}
		fmt.Fprintf(b, "%s %d %s run %d", verdict(pass), i+1, line(r.Scenario.Name), i+1)
		if len(values) > 0 {
			fmt.Fprintf(b, " # %s", strings.Join(values, " "))
		}
		fmt.Fprintln(b)
	}
	return b.Flush()
}

func verdict(pass bool) string {
	if pass {
		return "ok"
	}
	return "not ok"
}
