package eventloop

import (
	"aossim/internal/linux"
)

// LostBound is how long the word must have been past the armed value, in ns,
// before a wait that is still queued counts as a lost wake.
const LostBound = 100_000_000

// Minder looks after one subscriber from an ordinary thread of its process: it
// finds lost wakes and wakes the loop when it is to leave. It must be in the same
// process, as private words cannot be woken from another.
type Minder struct {
	s    *Subscriber
	seen []seen
	lost []int64 // by window
	// induced counts, by window, the minder's wakes that hit a wait which was not lost
	// after all; the loop took them for spurious.
	induced []int64
}

// seen is an arm that was found with its word moved on, and since when.
type seen struct {
	entry uint64
	since int64
}

// NewMinder returns a minder for s, to be used by one thread.
func NewMinder(s *Subscriber) *Minder {
	return &Minder{s: s, seen: make([]seen, len(s.inputs)), lost: make([]int64, len(s.Active)+1), induced: make([]int64, len(s.Active)+1)}
}

// Look is to be called every few milliseconds. It does not block.
func (m *Minder) Look() {
	s := m.s
	if !s.running.Load() {
		return
	}
	w := s.windows.Current.Load()
	if !s.active(w) {
		for i := range s.inputs {
			m.wake(&s.inputs[i])
		}
		return
	}
	if s.Wait == Eventfd {
		return // nothing is armed on the word
	}
	now := linux.Now()
	for i := range s.inputs {
		in := &s.inputs[i]
		entry := in.entry.Load()
		switch last := &m.seen[i]; {
		case entry == 0 || uint32(entry) == in.word.Load():
			*last = seen{}
		case entry != last.entry:
			*last = seen{entry, now}
		case now-last.since >= LostBound:
			// The kernel knows: only a wait that is still queued can be woken. The
			// entry is written before its arm, so if it still stands after the wake,
			// the wait that was woken is the one that had been overlooked.
			if n := m.wake(in); n > 0 && in.entry.Load() == entry {
				m.lost[w]++
			} else if n > 0 {
				m.induced[w]++
			}
			*last = seen{}
		}
	}
}

// wake wakes the subscriber alone, as far as its mask is its own.
func (m *Minder) wake(in *input) int {
	if in.Eventfd != nil {
		linux.SignalEventfd(int(in.Eventfd.Fd()))
		return 0
	}
	n, _ := linux.FutexWake(in.word, linux.WakeAll, m.s.Mask, in.Private)
	return n
}

// Account adds the lost wakes to the stats of their windows, once the loop has
// ended.
func (m *Minder) Account() {
	for i, st := range m.s.stats {
		st.LostWakes += m.lost[i+1]
		st.SpuriousWakes -= min(st.SpuriousWakes, m.induced[i+1])
	}
}
