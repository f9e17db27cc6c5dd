package eventloop

import (
	"aossim/internal/linux"
)

// LostBound is how long the word must have been past the armed value, with no CQE
// for the wait, before that counts as a lost wake (ns).
const LostBound = 100_000_000

// Minder looks after one subscriber from an ordinary thread of its process: it
// finds lost wakes and wakes the loop when it is to leave. It must be in the same
// process, as private words cannot be woken from another.
type Minder struct {
	s    *Subscriber
	seen []seen
	lost []int64 // by window
}

// seen is an arm that was found with its word moved on, and since when.
type seen struct {
	entry uint64
	since int64
}

// NewMinder returns a minder for s, to be used by one thread.
func NewMinder(s *Subscriber) *Minder {
	return &Minder{s: s, seen: make([]seen, len(s.inputs)), lost: make([]int64, len(s.Active)+1)}
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
			// A thread that sleeps has no CQE to handle; one that is starved or at work
			// does not sleep. If it sleeps on the arm that was overlooked, the wake is lost.
			if linux.Asleep(int(s.thread.Load())) && in.entry.Load() == entry {
				m.lost[w]++
				m.wake(in)
			}
			*last = seen{}
		}
	}
}

// wake wakes the subscriber, and with it only waiters whose mask shares a bit: those
// that have the same one, and vectors, which have no mask.
func (m *Minder) wake(in *input) {
	if in.Eventfd != nil {
		linux.SignalEventfd(int(in.Eventfd.Fd()))
		return
	}
	linux.FutexWake(in.word, linux.WakeAll, m.s.Mask, in.Private)
}

// Account adds the lost wakes to the stats of their windows, once the loop has
// ended.
func (m *Minder) Account() {
	for i, st := range m.s.stats {
		st.LostWakes += m.lost[i+1]
	}
}
