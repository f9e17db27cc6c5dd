package report

import (
	"fmt"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// pointName names a point of the i-th run, with the run where there are several.
func pointName(runs []*result.Micro, i int) string {
	if len(runs) > 1 {
		return fmt.Sprintf("run %d: %s", i+1, runs[i].Name)
	}
	return runs[i].Name
}

// microTables are those of points: a line a run of each.
func microTables(r *result.Result) []table {
	t := table{title: "Micro-benchmarks", left: 2, head: append(cols("point", "unit", "rounds", "mean", "median", "CV"), under("first round dropped", "mean", "median", "CV")...)}
	t.below = []string{"CV: the standard deviation of the rounds over their mean."}
	more := table{title: "Further figures", left: 2, head: cols("point", "figure", "median over rounds")}
	calls := table{title: "Latencies of calls", left: 2, head: cols("point", "latency, us")}
	for _, p := range metric.Percentiles {
		calls.head = append(calls.head, cols(fmt.Sprintf("p%g", p))...)
	}
	calls.head = append(calls.head, cols("max", "count")...)
	for _, p := range points(r) {
		for i, m := range p {
			name := pointName(p, i)
			t.add(append([]string{name, m.Unit, fmt.Sprint(len(m.Rounds))}, append(spreadCells(m.Spread, len(m.Rounds)), spreadCells(m.WithoutFirst, len(m.Rounds)-1)...)...)...)
			if len(m.Rounds) > 0 {
				for _, f := range m.Figures {
					more.add(name, f.Name, fmt.Sprintf("%.4g", result.SpreadOf(f.Rounds).Median))
				}
			}
			for _, l := range m.Latencies {
				cells := []string{name, l.Name}
				for _, q := range metric.Percentiles {
					cell := none
					if v, ok := l.Histogram.Percentile(q); ok {
						cell = metric.Nanoseconds.Format(float64(v))
					}
					cells = append(cells, cell)
				}
				calls.add(append(cells, metric.Nanoseconds.Format(float64(l.Histogram.Max())), metric.Comma(l.Histogram.Count()))...)
			}
		}
	}
	return []table{t, more, calls}
}

// spreadCells are the mean, median and CV of so many rounds.
func spreadCells(s result.Spread, n int) []string {
	switch {
	case n < 1:
		return []string{none, none, none}
	case n == 1:
		return []string{value(s.Mean), value(s.Median), none}
	}
	return []string{value(s.Mean), value(s.Median), metric.Fraction.Format(s.CV)}
}

// microKernelTables show what the observer counted in the observed rounds.
func microKernelTables(r *result.Result) []table {
	t := table{title: "What the kernel did", left: 1, head: cols("point", "waits", "failed", "kmalloc per wait", "kfree per wait"),
		above: []string{"What the kernel did, in further, observed rounds: the figures above are not of those."}}
	if r.Observer.Mode == result.ObservedAll {
		t.above = []string{"What the kernel did, observed throughout (--observe=all): the figures above are of observed rounds too."}
	}
	sites := table{title: "Where the kernel allocated", left: 3, head: cols("point", "while arming", "in", "bytes", "slab", "count")}
	for _, p := range points(r) {
		for _, m := range p {
			k := m.Kernel
			if k == nil || k.Arms == 0 {
				continue
			}
			per := func(n int64) string { return metric.Ratio.Format(float64(n) / float64(k.Arms)) }
			t.add(m.Name, metric.Comma(k.Arms), metric.Comma(k.EAGAIN), per(k.Kmalloc), per(k.Kfree))
			for _, s := range k.Sites {
				sites.add(append([]string{m.Name}, siteCells(s)...)...)
			}
		}
	}
	return []table{unobserved(r), t, sites}
}
