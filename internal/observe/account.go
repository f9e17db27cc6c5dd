package observe

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"aossim/internal/linux"
	"aossim/internal/result"
)

// The lists of live.h, in its order.
var (
	waitCalls = [...]string{"futex", "futex_wait", "futex_waitv", "futex PI"}
	wakeCalls = [...]string{"futex", "futex_wake", "io_uring", "futex requeue", "futex_requeue"}
	outcomes  = [...]string{result.OutcomeWoken, result.OutcomeMismatch, result.OutcomeTimeout, result.OutcomeInterrupted, result.OutcomeOther}
)

const (
	wakeToReturn = iota
	handling
	rearm
	callTime
	lockTime = callTime + len(outcomes)
)

// PhaseName is that of the one phase of a live observation's run.
const PhaseName = "observed"

// Runs returns what was observed between each two states that follow each other, a run each.
func (l *Live) Runs(states []State) (runs []result.Run) {
	l.names.refresh()
	groups := l.groups(&states[0], &states[len(states)-1])
	for i := range states[1:] {
		runs = append(runs, l.run(&states[i], &states[i+1], groups))
	}
	return runs
}

// groups names the processes that did anything: by comm, and where several have one, numbered as they
// started. No two have one name, and none is that of another's comm.
func (l *Live) groups(from, to *State) map[uint32]string {
	order, slots := to.slots()
	byComm := map[string][]uint32{}
	for _, p := range order {
		if slices.ContainsFunc(slots[p], func(i int) bool { return active(from, to, i) }) {
			comm := printable(l.names.processes[p].comm)
			byComm[comm] = append(byComm[comm], p)
		}
	}
	names := map[uint32]string{}
	for comm, list := range byComm {
		slices.SortFunc(list, func(a, b uint32) int {
			x, y := l.names.processes[a], l.names.processes[b]
			return cmp.Or(cmp.Compare(x.start, y.start), cmp.Compare(x.pid, y.pid), cmp.Compare(a, b))
		})
		for i, p := range list {
			names[p] = comm
			for number := i + 1; len(list) > 1; number += len(list) {
				names[p] = fmt.Sprintf("%s-%d", comm, number)
				if byComm[names[p]] == nil {
					break
				}
			}
		}
	}
	return names
}

// active says whether a thread did anything with a futex between two states.
func active(from, to *State, slot int) bool {
	t, d := from.since(to, slot)
	if t.Arms+t.Failed+int64(d.RingWoken) > 0 {
		return true
	}
	waits, wakes := d.calls()
	return waits+wakes > 0
}

func (d *programDoing) calls() (waits, wakes int64) {
	for i := range d.Waits {
		for j := range d.Waits[i] {
			waits += int64(d.Waits[i][j].Calls)
		}
	}
	for i := range d.Wakes {
		wakes += int64(d.Wakes[i].Calls)
	}
	return waits, wakes
}

// since returns a slot's counts after from.
func (s *State) since(to *State, slot int) (t Thread, d programDoing) {
	t, d = decode(&to.threads[slot]), to.doings[slot]
	if slot >= len(s.threads) {
		return t, d
	}
	o := &s.doings[slot]
	for i := range d.Waits {
		for j := range d.Waits[i] {
			d.Waits[i][j].Calls -= o.Waits[i][j].Calls
			d.Waits[i][j].Ns -= o.Waits[i][j].Ns
		}
	}
	for i := range d.Wakes {
		d.Wakes[i].Calls -= o.Wakes[i].Calls
		d.Wakes[i].Ns -= o.Wakes[i].Ns
		d.Woken[i] -= o.Woken[i]
	}
	for i := range d.Locks {
		d.Locks[i].Calls -= o.Locks[i].Calls
		d.Locks[i].Ns -= o.Locks[i].Ns
		d.Locks[i].Over1us -= o.Locks[i].Over1us
	}
	d.RingWoken -= o.RingWoken
	d.RingOther -= o.RingOther
	d.Unlinked -= o.Unlinked
	d.KmallocWaking -= o.KmallocWaking
	d.KfreeWaking -= o.KfreeWaking
	d.CacheAllocWaking -= o.CacheAllocWaking
	return t.sub(decode(&s.threads[slot])), d
}

func (l *Live) run(from, to *State, groups map[uint32]string) result.Run {
	length := to.at.Sub(from.at)
	phase := result.Phase{Name: PhaseName, BeganNS: from.at.UnixNano(), DurationNS: int64(length)}
	run := result.Run{Processes: []result.Process{}, Observing: l.observing(from, to)}
	sites := l.sites(from, to)
	order, slots := to.slots()
	for _, p := range order {
		if groups[p] == "" {
			continue
		}
		g := result.Group{Name: groups[p], Kernel: NewKernel(l.Timing, int64(length), run.Observing.Skipped), Live: l.process(p)}
		process := result.Process{Group: g.Name, PID: g.Live.PID}
		for _, slot := range slots[p] {
			t, d := from.since(to, slot)
			g.Live.Threads = append(g.Live.Threads, l.thread(slot, &t, &d))
			addDoing(g.Live, &d)
			addThread(g.Kernel, slot, int(d.Who.Tid), &t, sites)
			g.Arms, g.EAGAIN, g.Wakes = g.Arms+t.Arms, g.EAGAIN+t.Failed, g.Wakes+int64(d.RingWoken)
			thread := &g.Live.Threads[len(g.Live.Threads)-1]
			for kind, does := range map[string]bool{"publisher": thread.Wakes > 0, "subscriber": thread.Arms+thread.Waits > 0} {
				if does {
					process.Actors = append(process.Actors, result.Actor{Kind: kind, Policy: thread.Policy, Priority: thread.Priority, CPUs: l.names.threads[slot].cpus})
				}
			}
		}
		slices.SortFunc(process.Actors, func(a, b result.Actor) int { return cmp.Compare(a.Kind, b.Kind) })
		for _, a := range process.Actors {
			if g.Subscribers++; a.Kind == "publisher" {
				g.Subscribers, g.Publishers = g.Subscribers-1, g.Publishers+1
			}
		}
		g.Policy, g.Priority = granted(g.Live.Threads)
		g.Behind = g.Kernel.Behind
		addBars(g.Live, p, from, to)
		run.Processes = append(run.Processes, process)
		phase.Groups = append(phase.Groups, g)
	}
	slices.SortFunc(phase.Groups, func(a, b result.Group) int { return cmp.Compare(a.Name, b.Name) })
	phase.Words = l.words(from, to, groups)
	run.Phases = []result.Phase{phase}
	run.Checks = []result.Check{complete(run.Observing)}
	return run
}

// complete is the check that nothing is known to be lost.
func complete(o *result.Observing) result.Check {
	c := result.Check{Name: "observer", Pass: len(o.Losses) == 0, Detail: "every event that the kernel gave out is in the counts"}
	var lost []string
	for _, l := range o.Losses {
		lost = append(lost, fmt.Sprintf("%d %s", l.Count, l.What))
	}
	if !c.Pass {
		c.Detail = "not counted: " + strings.Join(lost, "; ")
	}
	return c
}

func (l *Live) observing(from, to *State) *result.Observing {
	o := &result.Observing{ObserverNS: int64(to.cpu - from.cpu), CPUs: runtime.NumCPU(), LockTimes: l.CountsBucketLocks() && l.collection.Programs["live_locked"] != nil,
		Skipped: skipped(from.costs, to.costs), Losses: []result.Loss{}}
	for name, c := range to.costs {
		o.Events += int64(c.RunCount - from.costs[name].RunCount)
		o.ProgramsNS += int64((c.Runtime - from.costs[name].Runtime) / time.Nanosecond)
	}
	unplaced := int64(0)
	for slot := range to.threads {
		t, _ := from.since(to, slot)
		unplaced += t.Unplaced
	}
	for _, loss := range []result.Loss{
		{What: fmt.Sprintf("calls of threads beyond the first %d that used a futex", mostThreads), Count: int64(to.tally.LostCalls - from.tally.LostCalls)},
		{What: fmt.Sprintf("calls and requests in the table of words, which has room for %d", mostWords), Count: int64(to.tally.LostWords - from.tally.LostWords)},
		{What: "times in the histograms", Count: int64(to.tally.LostValues - from.tally.LostValues)},
		{What: "moments of wakes", Count: int64(to.tally.LostMoments - from.tally.LostMoments)},
		{What: "allocations and frees among the sites", Count: unplaced},
	} {
		if loss.Count > 0 {
			o.Losses = append(o.Losses, loss)
		}
	}
	return o
}

func (l *Live) sites(from, to *State) []Site {
	before, now := Snapshot{sites: map[programSite]int64{}}, Snapshot{sites: map[programSite]int64{}}
	for k, n := range from.sites {
		before.sites[k] = int64(n)
	}
	for k, n := range to.sites {
		now.sites[k] = int64(n)
	}
	_, sites := now.Since(before)
	return sites
}

func (l *Live) process(p uint32) *result.Live {
	n := l.names.processes[p]
	return &result.Live{PID: n.pid, Comm: printable(n.comm), Ended: n.ended, Wake: result.NewHistogram(result.Highest),
		Handling: result.NewHistogram(result.Highest), Rearm: result.NewHistogram(result.Highest), Threads: []result.LiveThread{}}
}

func (l *Live) thread(slot int, t *Thread, d *programDoing) result.LiveThread {
	n := l.names.threads[slot]
	sched := n.scheduled(d)
	r := result.LiveThread{ThreadID: n.tid, Comm: printable(n.comm), Policy: sched.Policy.String(), Priority: sched.Priority, CPUs: "unknown", Arms: t.Arms, EAGAIN: t.Failed}
	if len(n.cpus) > 0 {
		r.CPUs = linux.FormatCPUs(n.cpus)
	}
	r.Waits, r.Wakes = d.calls()
	for i := range d.Waits {
		r.Mismatch += int64(d.Waits[i][slices.Index(outcomes[:], result.OutcomeMismatch)].Calls)
	}
	return r
}

// granted is a group's policy and priority, "several" where its threads differ.
func granted(threads []result.LiveThread) (policy string, priority int) {
	for i, t := range threads {
		if i > 0 && (t.Policy != policy || t.Priority != priority) {
			return "several", 0
		}
		policy, priority = t.Policy, t.Priority
	}
	return policy, priority
}

// addDoing adds a thread's system calls.
func addDoing(to *result.Live, d *programDoing) {
	for i, call := range waitCalls {
		for j, outcome := range outcomes {
			n := &d.Waits[i][j]
			if n.Calls == 0 {
				continue
			}
			at := slices.IndexFunc(to.Waits, func(w result.WaitCalls) bool { return w.Call == call && w.Outcome == outcome })
			if at < 0 {
				at, to.Waits = len(to.Waits), append(to.Waits, result.WaitCalls{Call: call, Outcome: outcome})
			}
			to.Waits[at].Calls += int64(n.Calls)
			to.Waits[at].NS += int64(n.Ns)
			o := outcomeOf(to, outcome)
			o.Calls += int64(n.Calls)
			o.NS += int64(n.Ns)
		}
	}
	for j, outcome := range outcomes {
		if n := &d.Locks[j]; n.Calls > 0 {
			o := outcomeOf(to, outcome)
			o.Locked += int64(n.Calls)
			o.LockNS += int64(n.Ns)
			o.LockOver += int64(n.Over1us)
		}
	}
	for i, call := range wakeCalls {
		n := &d.Wakes[i]
		if n.Calls == 0 {
			continue
		}
		at := slices.IndexFunc(to.Wakes, func(w result.WakeCalls) bool { return w.Call == call })
		if at < 0 {
			at, to.Wakes = len(to.Wakes), append(to.Wakes, result.WakeCalls{Call: call})
		}
		to.Wakes[at].Calls += int64(n.Calls)
		to.Wakes[at].NS += int64(n.Ns)
		to.Wakes[at].Woken += int64(d.Woken[i])
	}
	to.AwakeReturns += int64(d.Unlinked)
	to.RingOther += int64(d.RingOther)
	to.KmallocWaking += int64(d.KmallocWaking)
	to.KfreeWaking += int64(d.KfreeWaking)
	to.CacheAllocWaking += int64(d.CacheAllocWaking)
}

// outcomeOf returns that of a name, made where there is none.
func outcomeOf(l *result.Live, name string) *result.Outcome {
	at := slices.IndexFunc(l.Outcomes, func(o result.Outcome) bool { return o.Outcome == name })
	if at < 0 {
		at, l.Outcomes = len(l.Outcomes), append(l.Outcomes, result.Outcome{Outcome: name, Time: result.NewHistogram(result.Highest)})
	}
	return &l.Outcomes[at]
}

// addBars fills the histograms of a process.
func addBars(to *result.Live, process uint32, from, now *State) {
	for key, n := range now.bars {
		n -= from.bars[key]
		if now.doings[key.Owner].Process != process || n == 0 {
			continue
		}
		var h *result.Histogram
		switch d := int(key.Distribution); {
		case d == wakeToReturn:
			h = to.Wake
		case d == handling:
			h = to.Handling
		case d == rearm:
			h = to.Rearm
		case d < lockTime:
			h = outcomeOf(to, outcomes[d-callTime]).Time
		default:
			o := outcomeOf(to, outcomes[d-lockTime])
			if o.Lock == nil {
				o.Lock = result.NewHistogram(result.Highest)
			}
			h = o.Lock
		}
		h.RecordMany(Middle(int(key.Bucket)), int64(n))
	}
}

// words merges what threads did with the same word.
func (l *Live) words(from, to *State, groups map[uint32]string) (list []result.Word) {
	at := map[string]int{}
	for key, n := range to.words {
		o := from.words[key]
		process := to.doings[key.Slot].Process
		o.Inode, o.Offset, o.Device, o.Tries = n.Inode, n.Offset, n.Device, n.Tries // they are no counts
		if groups[process] == "" || n == o {
			continue
		}
		identity, name := l.names.word(process, key.Address, &n)
		i, ok := at[identity]
		if !ok {
			i, list = len(list), append(list, result.Word{Name: name, Private: key.Shared == 0, Waiters: []string{}, Wakers: []string{}})
			at[identity] = i
		}
		w := &list[i]
		waits := int64(0)
		for j := range n.Waits {
			waits += int64(n.Waits[j] - o.Waits[j])
		}
		w.Arms += int64(n.Arms - o.Arms)
		w.EAGAIN += int64(n.Failed - o.Failed)
		w.Waits += waits
		w.Mismatch += int64(n.Waits[1] - o.Waits[1])
		w.Wakes += int64(n.Wakes - o.Wakes)
		w.Woken += int64(n.Woken - o.Woken)
		if group := groups[process]; n.Arms-o.Arms+uint64(waits) > 0 && !slices.Contains(w.Waiters, group) {
			w.Waiters = append(w.Waiters, group)
		}
		if group := groups[process]; n.Wakes > o.Wakes && !slices.Contains(w.Wakers, group) {
			w.Wakers = append(w.Wakers, group)
		}
	}
	distinct(list, at)
	slices.SortFunc(list, func(a, b result.Word) int {
		return cmp.Or(cmp.Compare(b.Arms+b.Waits+b.Wakes, a.Arms+a.Waits+a.Wakes), cmp.Compare(a.Name, b.Name))
	})
	for i := range list {
		slices.Sort(list[i].Waiters)
		slices.Sort(list[i].Wakers)
	}
	return list
}

// distinct adds the file's number to names that several words have: two files may be called the same.
func distinct(list []result.Word, at map[string]int) {
	count := map[string]int{}
	for _, w := range list {
		count[w.Name]++
	}
	for identity, i := range at {
		if count[list[i].Name] > 1 {
			list[i].Name += " (" + identity + ")"
		}
	}
}

// printable writes a comm so that it can be shown, and different ones stay different.
func printable(comm string) string {
	var out strings.Builder
	for i := 0; i < len(comm); {
		r, n := utf8.DecodeRuneInString(comm[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&out, `\x%02x`, comm[i])
		case r == '\\' || !unicode.IsPrint(r):
			q := strconv.QuoteRune(r)
			out.WriteString(q[1 : len(q)-1])
		default:
			out.WriteString(comm[i : i+n])
		}
		i += n
	}
	return out.String()
}
