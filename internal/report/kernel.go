package report

import (
	"fmt"
	"slices"

	"aossim/internal/result"
)

// kernel shows what the observer counted.
func (t *text) kernel() {
	o := t.r.Observer
	if o.Missing != "" {
		t.printf("What the kernel did was not observed: %s\n\n", o.Missing)
	}
	var rows []*row
	for _, r := range t.rows() {
		if r.observed() {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return
	}
	if o.Mode == result.ObservedAll {
		t.printf("What the kernel did, observed throughout (--observe=all): every figure above is of an observed run too, and no measure of an unobserved one.\n")
	} else {
		t.printf("What the kernel did, in an observed pass after each run: the figures above are not of that pass.\n")
	}
	tab := table{left: 2}
	tab.add("", "", "", "failed", "kmalloc per", "kmalloc per", "kfree per", "kmalloc per", "failed arms, us from syscall", "", "", "", "1 behind")
	tab.add("phase", "group", "arms", "arms", "arm", "failed arm", "failed arm", "message", "p50", "p99", "<= 6", "> 40", "")
	for _, r := range rows {
		cells := []string{r.phase, r.group, comma(r.kernelTotal(kernelArms)), comma(r.kernelTotal(kernelEAGAIN)),
			r.kernelPer(kmallocs, kernelArms), r.kernelPer(kmallocs, kernelEAGAIN), r.kernelPer(func(k *result.Kernel) int64 { return k.Kfree }, kernelEAGAIN),
			r.kernelPer(kmallocs, kernelMessages)}
		for _, p := range []float64{50, 99} {
			cells = append(cells, micros(r.median(func(_ *result.Phase, g *result.Group) (float64, bool) {
				v, ok := g.Kernel.Failure.Percentile(p)
				return float64(v), ok
			})))
		}
		tab.add(append(cells, r.kernelShare(within6us), r.kernelShare(over40us), r.kernelShare(func(k *result.Kernel) int64 { return k.Behind[1] }))...)
	}
	tab.write(t)
	how := "the tracepoint of the CQE, which comes a little after the failure, and for several arms of one io_uring_enter after the last; fentry and fexit are refused here"
	if rows[0].groups[0].Kernel.Timing == "fexit" {
		how = "fexit of io_futex_wait(), so exactly"
	}
	t.printf("Allocations are those within the arming of waits. The moment of a failure is known by %s.\n\n", how)
	missed := int64(0)
	for _, r := range rows {
		missed = max(missed, r.total(func(g *result.Group) int64 { return g.Kernel.MissedEvents }))
	}
	if missed > 0 {
		t.printf("The kernel skipped the observer for up to %s events a phase, of all threads of the machine: a thread had preempted another one inside\nthe observer. Arms and failed arms are complete, allocations may lack some.\n\n", comma(missed))
	}
	t.overhead(rows)
	t.sites(rows)
}

func kernelArms(k *result.Kernel) int64     { return k.Arms }
func kernelEAGAIN(k *result.Kernel) int64   { return k.EAGAIN }
func kernelMessages(k *result.Kernel) int64 { return k.Messages }
func kmallocs(k *result.Kernel) int64       { return k.Kmalloc }
func within6us(k *result.Kernel) int64      { return k.Within6us }
func over40us(k *result.Kernel) int64       { return k.Over40us }

// observed says whether every run of the row has a kernel part.
func (r *row) observed() bool {
	return !slices.ContainsFunc(r.groups, func(g *result.Group) bool { return g.Kernel == nil })
}

// kernelTotal returns the sum over runs of a count of the kernel.
func (r *row) kernelTotal(n func(k *result.Kernel) int64) int64 {
	return r.total(func(g *result.Group) int64 { return n(g.Kernel) })
}

// kernelPer is the median over runs of one count per another.
func (r *row) kernelPer(n, of func(k *result.Kernel) int64) string {
	v, ok := r.median(func(_ *result.Phase, g *result.Group) (float64, bool) {
		return float64(n(g.Kernel)) / float64(of(g.Kernel)), of(g.Kernel) > 0
	})
	if !ok {
		return none
	}
	return fmt.Sprintf("%.2f", v)
}

// kernelShare is a count as a share of the failed arms of all runs.
func (r *row) kernelShare(n func(k *result.Kernel) int64) string {
	failed := r.kernelTotal(kernelEAGAIN)
	return percent(float64(r.kernelTotal(n))/float64(failed), failed > 0)
}

// overhead shows what observing cost.
func (t *text) overhead(rows []*row) {
	tab := table{left: 2}
	tab.add("phase", "group", "re-arm p50, us", "observed", "ratio")
	for _, r := range rows {
		p50 := func(pick func(g *result.Group) *result.Histogram) (float64, bool) {
			return r.median(func(_ *result.Phase, g *result.Group) (float64, bool) {
				v, ok := pick(g).Percentile(50)
				return float64(v), ok
			})
		}
		without, ok := p50(func(g *result.Group) *result.Histogram { return g.Histograms.Rearm })
		with, observed := p50(func(g *result.Group) *result.Histogram { return g.Kernel.Rearm })
		if ok && observed && without > 0 {
			tab.add(r.phase, r.group, micros(without, true), micros(with, true), fmt.Sprintf("%.2f", with/without))
		}
	}
	if len(tab.rows) > 1 {
		t.printf("what observing cost\n")
		tab.write(t)
	}
}

// sites shows where the kernel allocated and freed.
func (t *text) sites(rows []*row) {
	tab := table{left: 4}
	tab.add("phase", "group", "while arming", "in", "bytes", "slab", "count")
	unplaced := int64(0)
	for _, r := range rows {
		var all []result.KernelSite
		for _, g := range r.groups {
			unplaced += g.Kernel.Unplaced
			for _, s := range g.Kernel.Sites {
				i := slices.IndexFunc(all, func(have result.KernelSite) bool { have.Count = s.Count; return have == s })
				if i < 0 {
					all = append(all, s)
				} else {
					all[i].Count += s.Count
				}
			}
		}
		for _, s := range all {
			tab.add(r.phase, r.group, s.Operation, s.Function, size(s.Size), size(s.Room), comma(s.Count))
		}
	}
	if len(tab.rows) > 1 {
		tab.write(t)
	}
	if unplaced > 0 {
		t.printf("%s more allocations and frees are missing in this table.\n\n", comma(unplaced))
	}
}
