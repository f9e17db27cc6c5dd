package report

import (
	"fmt"
	"slices"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// kernelTables show what the observer counted.
func kernelTables(r *result.Result, all []*row) []table {
	list := []table{unobserved(r)}
	all = slices.DeleteFunc(slices.Clone(all), func(r *row) bool { return !r.observed() })
	if len(all) == 0 {
		return list
	}
	t := table{title: "What the kernel did", left: 2, above: []string{"What the kernel did, in an observed pass after each run: the figures above are not of that pass."}}
	if r.Observer.Mode == result.ObservedAll {
		t.above = []string{"What the kernel did, observed throughout (--observe=all): every figure above is of an observed run too, and no measure of an unobserved one."}
	}
	t.head = append(cols("phase", "group", "arms"), two("failed", "arms"), two("kmalloc per", "arm"), two("kmalloc per", "failed arm"), two("kfree per", "failed arm"), two("kmalloc per", "message"))
	t.head = append(t.head, under("failed arms, us from syscall", "p50", "p99", "<= 6", "> 40")...)
	t.head = append(t.head, two("1 behind", ""))
	missed := int64(0)
	for _, r := range all {
		t.add(r.where(r.figures("kernel_arms", "kernel_eagain", "kmalloc_per_arm", "kmalloc_per_failed_arm", "kfree_per_failed_arm", "kmalloc_per_message",
			"kernel_failure.p50", "kernel_failure.p99", "kernel_within_6us", "kernel_over_40us", "kernel_one_behind")...)...)
		sum := int64(0)
		for _, g := range r.groups {
			sum += g.Kernel.MissedEvents
		}
		missed = max(missed, sum)
	}
	t.below = []string{"Allocations are those within the arming of waits. " + timedBy(all[0].groups[0].Kernel.Timing)}
	list = append(list, t)
	if missed > 0 {
		list = append(list, table{silent: true, below: []string{
			fmt.Sprintf("The kernel skipped the observer for up to %s events a phase, of all threads of the machine: a thread had preempted another one inside", metric.Comma(missed)),
			"the observer. Arms and failed arms are complete, allocations may lack some."}})
	}
	return append(list, overheadTable(all), siteTable(all))
}

// timedBy says how the moment of a failure is known.
func timedBy(timing string) string {
	how := "the tracepoint of the CQE, which comes a little after the failure, and for several arms of one io_uring_enter after the last; fentry and fexit are refused here"
	if timing == "fexit" {
		how = "fexit of io_futex_wait(), so exactly"
	}
	return "The moment of a failure is known by " + how + "."
}

// observed says whether every run of the row has a kernel part.
func (r *row) observed() bool {
	return !slices.ContainsFunc(r.groups, func(g metric.Group) bool { return g.Kernel == nil })
}

// overheadTable shows what observing cost.
func overheadTable(all []*row) table {
	t := table{title: "What observing cost", above: []string{"what observing cost"}, left: 2, head: cols("phase", "group", "re-arm p50, us", "observed", "ratio")}
	for _, r := range all {
		without, ok := r.value("rearm.p50")
		with, observed := r.value("kernel_rearm.p50")
		if ok && observed && without > 0 {
			t.add(r.where(append(r.figures("rearm.p50", "kernel_rearm.p50"), metric.Ratio.Format(with/without))...)...)
		}
	}
	return t
}

// siteTable shows where the kernel allocated and freed.
func siteTable(all []*row) table {
	t := table{title: "Where the kernel allocated", left: 4, head: cols("phase", "group", "while arming", "in", "bytes", "slab", "count")}
	unplaced := int64(0)
	for _, r := range all {
		var sites []result.KernelSite
		for _, g := range r.groups {
			unplaced += g.Kernel.Unplaced
			for _, s := range g.Kernel.Sites {
				i := slices.IndexFunc(sites, func(have result.KernelSite) bool { have.Count = s.Count; return have == s })
				if i < 0 {
					sites = append(sites, s)
				} else {
					sites[i].Count += s.Count
				}
			}
		}
		for _, s := range sites {
			t.add(r.where(siteCells(s)...)...)
		}
	}
	if unplaced > 0 {
		t.silent = true
		t.below = []string{fmt.Sprintf("%s more allocations and frees are missing in this table.", metric.Comma(unplaced))}
	}
	return t
}

func siteCells(s result.KernelSite) []string {
	operation := s.Operation
	if s.Waking {
		operation += ", waking"
	}
	return []string{operation, s.Function, bytesOf(s.Size), bytesOf(s.Room), metric.Comma(s.Count)}
}
