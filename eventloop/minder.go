package eventloop

import (
	"aossim/internal/linux"
)

// LostBound is how long the word must have been past the armed value, with no CQE
// for the wait and no publisher between its message and its wake, before that counts as a
// lost wake (ns).
const LostBound = 100_000_000

// Minder looks after one subscriber from an ordinary thread of its process: it
// finds lost wakes and wakes the loop when it is to leave. It must be in the same
// process, as private words cannot be woken from another.
type Minder struct {
	s    *Subscriber
	seen []seen
	lost []int64 // by window
}

// seen is an arm that was found with its word moved on, and since when. publishing is what
// the words of the channel's publishers held then.
type seen struct {
	entry      uint64
	since      int64
	publishing []uint64
}

// pending says whether a publisher is still at the message, or its wake, that it was at
// then: it may be who moved the word, preempted or stopped before it woke. All others have
// woken since.
func (s *seen) pending(in *input) bool {
	for i, p := range in.Publishing {
		if was := s.publishing[i]; was%2 == 1 && p.Load() == was {
			return true
		}
	}
	return false
}

// NewMinder returns a minder for s, to be used by one thread.
func NewMinder(s *Subscriber) *Minder {
	m := &Minder{s: s, seen: make([]seen, len(s.inputs)), lost: make([]int64, len(s.Active)+1)}
	for i := range m.seen {
		m.seen[i].publishing = make([]uint64, len(s.inputs[i].Publishing))
	}
	return m
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
	if !s.Wait.Rearmed {
		return // nothing is armed on the word
	}
	now := linux.Now()
	for i := range s.inputs {
		in := &s.inputs[i]
		entry := in.entry.Load()
		switch last := &m.seen[i]; {
		case entry == 0 || uint32(entry) == in.word.Load():
			last.entry = 0
		case entry != last.entry:
			last.entry, last.since = entry, now
			for n, p := range in.Publishing {
				last.publishing[n] = p.Load()
			}
		case now-last.since >= LostBound && !last.pending(in):
			// A thread that sleeps has no CQE to handle; one that is starved or at work
			// does not sleep. If it sleeps on the arm that was overlooked, the wake is lost.
			if linux.Asleep(int(s.thread.Load())) && in.entry.Load() == entry {
				m.lost[w]++
				m.wake(in)
			}
			last.entry = 0
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
	linux.FutexWake(in.word, linux.WakeAll, m.s.Mask, in.Scope)
}

// Account adds the lost wakes to the stats of their windows, once the loop has
// ended.
func (m *Minder) Account() {
	for i, st := range m.s.stats {
		st.LostWakes += m.lost[i+1]
	}
}
