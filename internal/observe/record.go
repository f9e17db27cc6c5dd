package observe

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
	"time"

	"aossim/internal/linux"
)

// Recording is what a scenario is made of that does what was observed.
type Recording struct {
	Length  time.Duration
	Words   []RecordedWord
	Threads []RecordedThread
	// Lost says that moments are missing.
	Lost bool
}

// RecordedWord is a word that threads waited on or woke.
type RecordedWord struct {
	Name    string
	Private bool
}

// RecordedThread is a thread that waited or woke.
type RecordedThread struct {
	Process string // its group in the result
	Comm    string
	ID      int
	Sched   linux.Sched
	CPUs    []int // nil where it may run on all that this process may
	Known   bool  // Sched and CPUs were asked for, and are not those of its end or of nothing
	Work    int64 // median ns from a return from a wake to the next wait; 0 where it was never seen
	// Combined: most of its arms on a ring were made by the call that then waited.
	Combined bool
	Waits    []RecordedWait
	Wakes    []RecordedWakes
}

// RecordedWait is how a thread waited on a word, by its number in Recording.Words.
type RecordedWait struct {
	Word        int
	Arms, Calls int64 // on a ring, and by system calls
	Vectors     bool  // it is the first word of vectors
}

// RecordedWakes are the moments at which a thread began to wake a word.
type RecordedWakes struct {
	Word  int
	Ring  bool // by IORING_OP_FUTEX_WAKE, the most of them
	Times *Times
}

// Times are moments in ns from the start, in order, some 3 bytes each.
type Times struct {
	gaps []byte
	last int64
	n    int
}

func (t *Times) add(at int64) {
	at = max(at, t.last)
	t.gaps = binary.AppendUvarint(t.gaps, uint64(at-t.last))
	t.last = at
	t.n++
}

// Count returns how many there are.
func (t *Times) Count() int { return t.n }

// All goes through them.
func (t *Times) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		at := int64(0)
		for rest := t.gaps; len(rest) > 0; {
			gap, n := binary.Uvarint(rest)
			rest = rest[n:]
			if at += int64(gap); !yield(at) {
				return
			}
		}
	}
}

// Recording returns what was recorded between two states, the first of which was the first of all.
func (l *Live) Recording(from, to *State) Recording {
	l.names.refresh()
	r := Recording{Length: to.at.Sub(from.at), Lost: to.tally.LostMoments+to.tally.LostWords+to.tally.LostCalls > 0}
	groups := l.groups(from, to)
	all, _ := linux.Affinity()
	words, threads := map[string]int{}, map[uint32]int{}
	number := func(key programWordKey, w *programWord) int {
		identity, name := l.names.word(to.doings[key.Slot].Process, key.Address, w)
		i, ok := words[identity]
		if !ok {
			i = len(r.Words)
			words[identity], r.Words = i, append(r.Words, RecordedWord{name, true})
		}
		r.Words[i].Private = r.Words[i].Private && key.Shared == 0
		return i
	}
	thread := func(slot uint32) *RecordedThread {
		i, ok := threads[slot]
		if !ok {
			i = len(r.Threads)
			threads[slot], r.Threads = i, append(r.Threads, l.recorded(slot, from, to, groups, all))
		}
		return &r.Threads[i]
	}
	keys := make([]programWordKey, 0, len(to.words))
	for key := range to.words {
		if groups[to.doings[key.Slot].Process] != "" {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b programWordKey) int {
		return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Shared, b.Shared))
	})
	for _, key := range keys {
		w, o := to.words[key], from.words[key]
		t := thread(key.Slot)
		wait := RecordedWait{Arms: int64(w.Arms - o.Arms), Vectors: w.Vectors > o.Vectors}
		for i := range w.Waits {
			wait.Calls += int64(w.Waits[i] - o.Waits[i])
		}
		if wait.Arms+wait.Calls > 0 {
			wait.Word = number(key, &w)
			t.Waits = append(t.Waits, wait)
		}
		if times := l.streams[stream{key.Slot, key.Shared, key.Address}]; times != nil && times.n > 0 {
			t.Wakes = append(t.Wakes, RecordedWakes{Word: number(key, &w), Ring: 2*(w.RingWakes-o.RingWakes) > w.Wakes-o.Wakes, Times: times})
		}
	}
	return r
}

func (l *Live) recorded(slot uint32, from, to *State, groups map[uint32]string, all []int) RecordedThread {
	d, n := &to.doings[slot], l.names.threads[slot]
	t := RecordedThread{Process: groups[d.Process], Comm: printable(n.comm), ID: n.tid, Known: n.sched != nil, Combined: d.ArmedWaiting > d.Armed}
	t.Sched = n.scheduled(d)
	if !slices.Equal(n.cpus, all) {
		t.CPUs = n.cpus
	}
	count := uint64(0)
	var bars []programBar
	for key, c := range to.bars {
		if key.Owner == slot && key.Distribution == handling {
			bars, count = append(bars, key), count+c-from.bars[key]
		}
	}
	slices.SortFunc(bars, func(a, b programBar) int { return cmp.Compare(a.Bucket, b.Bucket) })
	below := uint64(0)
	for _, key := range bars {
		if below += to.bars[key] - from.bars[key]; 2*below >= count && count > 0 {
			t.Work = Middle(int(key.Bucket))
			break
		}
	}
	return t
}
