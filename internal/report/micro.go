package report

import (
	"fmt"
	"slices"
	"strings"

	"aossim/internal/result"
)

// points returns the micro-benchmarks by point, over all runs that have it.
func (t *text) points() (points [][]*result.Micro) {
	for i := range t.r.Runs {
		for j := range t.r.Runs[i].Micro {
			m := &t.r.Runs[i].Micro[j]
			at := slices.IndexFunc(points, func(p []*result.Micro) bool { return p[0].Name == m.Name })
			if at < 0 {
				points = append(points, nil)
				at = len(points) - 1
			}
			points[at] = append(points[at], m)
		}
	}
	return points
}

// pointName names a point of the i-th run, with the run where there are several.
func pointName(runs []*result.Micro, i int) string {
	if len(runs) > 1 {
		return fmt.Sprintf("run %d: %s", i+1, runs[i].Name)
	}
	return runs[i].Name
}

// micro is the table of points: a line a run of each.
func (t *text) micro() {
	points := t.points()
	if len(points) == 0 {
		return
	}
	tab, more := table{left: 2}, table{left: 2}
	tab.add("", "", "", "", "", "", "first round dropped", "", "")
	tab.add("point", "unit", "rounds", "mean", "median", "CV", "mean", "median", "CV")
	for _, p := range points {
		for i, m := range p {
			name := pointName(p, i)
			if len(m.Rounds) == 0 {
				tab.add(name, m.Unit, "0", none, none, none, none, none, none)
				continue
			}
			d := m.WithoutFirst
			cells := []string{name, m.Unit, fmt.Sprint(len(m.Rounds)), figure(m.Mean), figure(m.Median), percent(m.CV, len(m.Rounds) > 1)}
			if len(m.Rounds) > 1 {
				cells = append(cells, figure(d.Mean), figure(d.Median), percent(d.CV, len(m.Rounds) > 2))
			} else {
				cells = append(cells, none, none, none)
			}
			tab.add(cells...)
			for _, f := range m.Figures {
				more.add(name, f.Name, fmt.Sprintf("%.4g", result.SpreadOf(f.Rounds).Median))
			}
		}
	}
	tab.write(t)
	t.printf("CV: the standard deviation of the rounds over their mean.\n\n")
	if len(more.rows) > 0 {
		more.rows = slices.Insert(more.rows, 0, []string{"point", "figure", "median over rounds"})
		more.write(t)
	}
	calls := table{left: 2}
	for _, p := range points {
		for i, m := range p {
			name := pointName(p, i)
			for _, l := range m.Latencies {
				cells := []string{name, l.Name}
				for _, q := range quantiles {
					v, ok := l.Histogram.Percentile(q)
					cells = append(cells, micros(float64(v), ok))
				}
				calls.add(append(cells, micros(float64(l.Histogram.Max()), true), comma(l.Histogram.Count()))...)
			}
		}
	}
	if len(calls.rows) > 0 {
		calls.rows = slices.Insert(calls.rows, 0, []string{"point", "latency, us", "p50", "p90", "p99", "p99.9", "max", "count"})
		calls.write(t)
	}
}

// figure writes a figure with three decimals, as published ones are, or without where
// it is large.
func figure(v float64) string {
	if v >= 1e5 {
		return comma(int64(v + 0.5))
	}
	return fmt.Sprintf("%.3f", v)
}

// microKernel shows what the observer counted in the observed rounds.
func (t *text) microKernel() {
	if t.r.Observer.Missing != "" {
		t.printf("What the kernel did was not observed: %s\n\n", t.r.Observer.Missing)
	}
	tab, sites := table{left: 1}, table{left: 3}
	tab.add("point", "waits", "failed", "kmalloc per wait", "kfree per wait")
	sites.add("point", "while arming", "in", "bytes", "slab", "count")
	for _, p := range t.points() {
		for _, m := range p {
			k := m.Kernel
			if k == nil || k.Arms == 0 {
				continue
			}
			per := func(n int64) string { return fmt.Sprintf("%.2f", float64(n)/float64(k.Arms)) }
			tab.add(m.Name, comma(k.Arms), comma(k.EAGAIN), per(k.Kmalloc), per(k.Kfree))
			for _, s := range k.Sites {
				sites.add(m.Name, s.Operation, s.Function, size(s.Size), size(s.Room), comma(s.Count))
			}
		}
	}
	if len(tab.rows) == 1 {
		return
	}
	if t.r.Observer.Mode == result.ObservedAll {
		t.printf("What the kernel did, observed throughout (--observe=all): the figures above are of observed rounds too.\n")
	} else {
		t.printf("What the kernel did, in further, observed rounds: the figures above are not of those.\n")
	}
	tab.write(t)
	if len(sites.rows) > 1 {
		sites.write(t)
	}
}

// size writes a number of bytes, where there is one.
func size(n int64) string {
	if n == 0 {
		return none
	}
	return comma(n)
}

// microChecks adds the checks of the points: those that passed in one line a point.
func (t *text) microChecks(tab *table) {
	for _, p := range t.points() {
		for i, m := range p {
			name := pointName(p, i)
			var passed []string
			for _, c := range m.Checks {
				if c.Pass && c.Name != "observer" {
					passed = append(passed, c.Name)
					continue
				}
				verdict := map[bool]string{true: "ok", false: "FAILED"}[c.Pass]
				tab.add(verdict, name+": "+c.Name, c.Detail)
			}
			if len(passed) > 0 {
				tab.add("ok", name, "in every round: "+strings.Join(passed, ", "))
			}
		}
	}
}
