package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// longest is how many rows the tables of a live observation have: the busiest.
const longest = 40

// liveTables show what observed processes did.
func liveTables(r *result.Result, all []*row) (list []table) {
	if len(all) == 0 {
		return append([]table{{silent: true, below: []string{"No process that was observed used a futex."}}}, costTable(r))
	}
	list = append(list, processTable(all), armTable(all), callTable(all), lockTable(r, all), wakeTable(all), latencyTable(all), siteTable(all), threadTable(all))
	list = append(list, wordTable(r), costTable(r))
	return list
}

// total adds up what a row's runs counted.
func total(r *row, of func(l *result.Live) int64) (n int64) {
	for _, g := range r.groups {
		n += of(g.Live)
	}
	return n
}

// cut keeps a table readable.
func (t *table) cut(what string) {
	if n := len(t.rows) - longest; n > 0 {
		t.rows = t.rows[:longest]
		t.below = append(t.below, fmt.Sprintf("%s more %s are in the result file.", metric.Comma(int64(n)), what))
	}
}

func processTable(all []*row) table {
	t := table{title: "Processes", left: 3, head: append(cols("process", "pid", "policy", "threads", "arms/s", "-EAGAIN/s", "rate"), two("waiting", "calls/s"), two("mis-", "matches"), two("wakes/s", ""))}
	busy := slices.Clone(all)
	events := func(r *row) int64 {
		return total(r, func(l *result.Live) (n int64) {
			for _, th := range l.Threads {
				n += th.Arms + th.Waits + th.Wakes
			}
			return n
		})
	}
	slices.SortStableFunc(busy, func(a, b *row) int { return cmp.Compare(events(b), events(a)) })
	for _, r := range busy {
		g := r.groups[0]
		policy := g.Policy
		if g.Priority != 0 {
			policy = fmt.Sprintf("%s %d", g.Policy, g.Priority)
		}
		pid := fmt.Sprint(g.Live.PID)
		if r.groups[len(r.groups)-1].Live.Ended {
			pid += ", ended"
		}
		t.add(append([]string{r.group, pid, policy, metric.Comma(int64(len(g.Live.Threads)))},
			r.figures("arms_per_second", "eagain_per_second", "eagain_rate", "wait_calls_per_second", "mismatch_share", "wake_calls_per_second")...)...)
	}
	t.below = []string{"arms: waits issued on io_uring; -EAGAIN: those that found another value. Waiting calls: futex(2), futex_wait, futex_waitv; mismatches:",
		"their share that found another value. Threads are those that used a futex. What began before the observation is not counted."}
	t.cut("processes")
	return t
}

func armTable(all []*row) table {
	t := table{title: "Arms", left: 1, head: append(cols("process", "arms"), two("failed", "arms"), two("1 behind", ""))}
	t.head = append(t.head, under("failed arms, us from syscall", "p50", "p99", "<= 6", "> 40")...)
	t.head = append(t.head, two("kmalloc per", "arm"), two("kmalloc per", "failed arm"), two("kfree per", "failed arm"))
	for _, r := range all {
		if r.any("arms") {
			t.add(append([]string{r.group}, r.figures("arms", "eagain", "kernel_one_behind", "kernel_failure.p50", "kernel_failure.p99", "kernel_within_6us", "kernel_over_40us",
				"kmalloc_per_arm", "kmalloc_per_failed_arm", "kfree_per_failed_arm")...)...)
		}
	}
	t.below = []string{"1 behind: of the failed arms, those that found the word exactly one past the armed value."}
	if len(all) > 0 && all[0].groups[0].Kernel != nil {
		t.below = append(t.below, timedBy(all[0].groups[0].Kernel.Timing))
	}
	t.cut("processes")
	return t
}

func callTable(all []*row) table {
	t := table{title: "Waiting system calls", left: 3, head: append(cols("process", "call", "outcome", "calls", "share"), two("us a call,", "mean"))}
	for _, r := range all {
		type key struct{ call, outcome string }
		sum, calls := map[key]result.WaitCalls{}, int64(0)
		var order []key
		for _, g := range r.groups {
			for _, w := range g.Live.Waits {
				k := key{w.Call, w.Outcome}
				s, ok := sum[k]
				if !ok {
					order = append(order, k)
				}
				s.Calls, s.NS, calls = s.Calls+w.Calls, s.NS+w.NS, calls+w.Calls
				sum[k] = s
			}
		}
		for _, k := range order {
			s := sum[k]
			if s.Calls > 0 {
				t.add(r.group, k.call, k.outcome, metric.Comma(s.Calls), metric.Fraction.Format(float64(s.Calls)/float64(calls)), metric.Nanoseconds.Format(float64(s.NS)/float64(s.Calls)))
			}
		}
	}
	t.cut("rows")
	return t
}

func lockTable(r *result.Result, all []*row) table {
	t := table{title: "Locks of futex hash buckets", left: 2, above: []string{"futex_q_lock() in waiting system calls: the lock of a futex hash bucket, with the wait for it"},
		head: append(cols("process", "outcome"), two("took the", "lock"), two("us, mean", ""), two("share of", "lock time"), two("> 1 us", ""))}
	for _, r := range all {
		sum, ns := map[string]result.Outcome{}, int64(0)
		var order []string
		for _, g := range r.groups {
			for _, o := range g.Live.Outcomes {
				s, ok := sum[o.Outcome]
				if !ok {
					order = append(order, o.Outcome)
				}
				s.Locked, s.LockNS, s.LockOver, ns = s.Locked+o.Locked, s.LockNS+o.LockNS, s.LockOver+o.LockOver, ns+o.LockNS
				sum[o.Outcome] = s
			}
		}
		for _, name := range order {
			if s := sum[name]; s.Locked > 0 {
				t.add(r.group, name, metric.Comma(s.Locked), metric.Nanoseconds.Format(float64(s.LockNS)/float64(s.Locked)), metric.Fraction.Format(float64(s.LockNS)/float64(ns)), metric.Fraction.Format(float64(s.LockOver)/float64(s.Locked)))
			}
		}
	}
	waits := slices.ContainsFunc(all, func(r *row) bool { return r.any("wait_calls_per_second") })
	if o := r.Runs[0].Observing; o != nil && !o.LockTimes && waits {
		return table{silent: true, below: []string{"How long waiting calls took for the lock of their hash bucket cannot be told here: this kernel has no fentry and fexit of futex_q_lock(), or refuses them."}}
	}
	t.cut("rows")
	return t
}

func wakeTable(all []*row) table {
	t := table{title: "Wakes", left: 2, head: append(cols("process", "by", "calls"), two("us a call,", "mean"), two("woken or", "requeued"), two("kmalloc per", "wake"), two("kfree per", "wake"))}
	for _, r := range all {
		sum, calls := map[string]result.WakeCalls{}, int64(0)
		var order []string
		for _, g := range r.groups {
			for _, w := range g.Live.Wakes {
				s, ok := sum[w.Call]
				if !ok {
					order = append(order, w.Call)
				}
				s.Calls, s.NS, s.Woken, calls = s.Calls+w.Calls, s.NS+w.NS, s.Woken+w.Woken, calls+w.Calls
				sum[w.Call] = s
			}
		}
		per := func(of func(l *result.Live) int64) string {
			return metric.Ratio.Format(float64(total(r, of)) / float64(calls))
		}
		for i, call := range order {
			s, mean := sum[call], none
			if s.NS > 0 {
				mean = metric.Nanoseconds.Format(float64(s.NS) / float64(s.Calls))
			}
			allocations := []string{"", ""}
			if i == 0 {
				allocations = []string{per(func(l *result.Live) int64 { return l.KmallocWaking }), per(func(l *result.Live) int64 { return l.KfreeWaking })}
			}
			if s.Calls > 0 {
				t.add(append([]string{r.group, call, metric.Comma(s.Calls), mean, metric.Comma(s.Woken)}, allocations...)...)
			}
		}
	}
	t.cut("rows")
	return t
}

func threadTable(all []*row) table {
	t := table{title: "Threads", left: 5, long: true, head: cols("process", "thread", "name", "policy", "CPUs", "arms", "failed", "waits", "mismatches", "wakes")}
	type threadRow struct {
		cells  []string
		events int64
	}
	var rows []threadRow
	for _, r := range all {
		var sum []result.LiveThread
		for _, g := range r.groups {
			for _, th := range g.Live.Threads {
				i := slices.IndexFunc(sum, func(s result.LiveThread) bool { return s.ThreadID == th.ThreadID && s.Comm == th.Comm })
				if i < 0 {
					sum = append(sum, th)
					continue
				}
				s := &sum[i]
				s.Arms, s.EAGAIN, s.Waits, s.Mismatch, s.Wakes = s.Arms+th.Arms, s.EAGAIN+th.EAGAIN, s.Waits+th.Waits, s.Mismatch+th.Mismatch, s.Wakes+th.Wakes
			}
		}
		for _, s := range sum {
			policy := s.Policy
			if s.Priority != 0 {
				policy = fmt.Sprintf("%s %d", s.Policy, s.Priority)
			}
			cells := []string{r.group, fmt.Sprint(s.ThreadID), s.Comm, policy, s.CPUs}
			for _, n := range []int64{s.Arms, s.EAGAIN, s.Waits, s.Mismatch, s.Wakes} {
				cells = append(cells, metric.Comma(n))
			}
			rows = append(rows, threadRow{cells, s.Arms + s.Waits + s.Wakes})
		}
	}
	slices.SortStableFunc(rows, func(a, b threadRow) int { return cmp.Compare(b.events, a.events) })
	for _, r := range rows {
		t.add(r.cells...)
	}
	t.below = []string{"Policy and CPUs are those when the thread was last asked for them. A thread of a process with no futex call of its own is not here."}
	t.cut("threads")
	return t
}

func wordTable(r *result.Result) table {
	t := table{title: "Words", left: 1, long: true, head: append(cols("word", "arms", "failed", "waits", "mismatches", "wakes", "woken"), column{lines: []string{"waiters"}}, column{lines: []string{"wakers"}})}
	var sum []result.Word
	at := map[string]int{}
	for i := range r.Runs {
		for _, p := range r.Runs[i].Phases {
			for _, w := range p.Words {
				j, ok := at[w.Name]
				if !ok {
					at[w.Name] = len(sum)
					sum = append(sum, w)
					continue
				}
				s := &sum[j]
				s.Arms, s.EAGAIN, s.Waits, s.Mismatch, s.Wakes, s.Woken = s.Arms+w.Arms, s.EAGAIN+w.EAGAIN, s.Waits+w.Waits, s.Mismatch+w.Mismatch, s.Wakes+w.Wakes, s.Woken+w.Woken
			}
		}
	}
	for _, w := range sum {
		cells := []string{w.Name}
		for _, n := range []int64{w.Arms, w.EAGAIN, w.Waits, w.Mismatch, w.Wakes, w.Woken} {
			cells = append(cells, metric.Comma(n))
		}
		t.add(append(cells, someOf(w.Waiters), someOf(w.Wakers))...)
	}
	t.below = []string{"A shared word is named by its file and offset, others by the address and the process. Of a vector of words the first stands for all."}
	t.cut("words")
	return t
}

// someOf lists the first of many names.
func someOf(names []string) string {
	const few = 3
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return cmp.Or(strings.Join(names, ", "), none)
}

// costTable says what observing cost, and what it lost.
func costTable(r *result.Result) table {
	t := table{title: "What observing cost", above: []string{"what observing cost"}, left: 1, head: append(cols("run"), two("events", "a second"), two("ns an", "event"), two("of one CPU, programs", "in the kernel"), two("of one CPU,", "the observer"), two("of all", "CPUs"))}
	skipped := int64(0)
	for i := range r.Runs {
		o := r.Runs[i].Observing
		if o == nil || len(r.Runs[i].Phases) == 0 {
			continue
		}
		length := float64(r.Runs[i].Phases[0].DurationNS)
		each := none
		if o.Events > 0 {
			each = fmt.Sprintf("%.0f", float64(o.ProgramsNS)/float64(o.Events))
		}
		t.add(fmt.Sprint(i+1), metric.PerSecond.Format(float64(o.Events)/length*1e9), each, metric.Fraction.Format(float64(o.ProgramsNS)/length), metric.Fraction.Format(float64(o.ObserverNS)/length),
			metric.Fraction.Format(float64(o.ProgramsNS+o.ObserverNS)/length/float64(max(1, o.CPUs))))
		skipped += o.Skipped
		for _, l := range o.Losses {
			t.below = append(t.below, fmt.Sprintf("LOST in run %d: %s %s. Figures that they belong to are too small.", i+1, metric.Comma(l.Count), l.What))
		}
	}
	if skipped > 0 {
		t.below = append(t.below, fmt.Sprintf("The kernel skipped the observer for up to %s events, of all threads of the machine: a thread had preempted another one inside the observer.", metric.Comma(skipped)),
			"Arms and failed arms are complete; system calls, allocations and latencies may lack so many.")
	}
	return t
}
