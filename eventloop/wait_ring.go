package eventloop

import (
	"os"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// ringWaits are futex waits on an io_uring, re-armed after each wake. What arms a unit is the
// kind's own.
type ringWaits struct {
	*Subscriber
	push func(u *unit)
}

// openRing makes the subscriber's ring.
func (s *Subscriber) openRing() (err error) {
	s.ring, err = uring.Setup(max(8, len(s.units)), max(16, 2*len(s.units)), s.Flags)
	return err
}

func (w *ringWaits) arm() (failed bool, after int64, err error) {
	s := w.Subscriber
	count, flags := uint32(0), uring.EnterFlags(0)
	if s.Combined {
		count, flags = 1, uring.GetEvents
	}
	start := s.begun()
	for _, id := range s.ready {
		u := &s.units[id]
		s.load(u, start)
		w.push(u)
		start = 0
	}
	if s.Combined {
		s.progress.Count.Store(s.consumed) // load may have handled more
	}
	e := s.ring.Enter(count, flags)
	after = linux.Now()
	if e != 0 {
		if err := s.entered(e); err != nil {
			return false, after, err
		}
	}
	if s.ring.Queued() != 0 {
		return false, after, uring.ErrPartial
	}
	armed := len(s.ready)
	if err := w.reap(after); err != nil {
		return false, after, err
	}
	// Those that failed stay ready, and those that were woken already have become it.
	ready := s.ready[:0]
	for _, id := range s.ready[:armed] {
		u := &s.units[id]
		switch {
		case u.failed:
			u.failed = false
			s.refused(u, after)
			ready = append(ready, id)
		case s.Combined:
			s.unobserved(u)
		default:
			u.note()
			s.later(s.now.ArmWindow, after-u.loaded)
			if u.woke != 0 {
				s.later(s.now.Rearm, after-u.woke)
			}
		}
	}
	failures := len(ready)
	s.ready = s.ready[:failures+copy(s.ready[failures:], s.ready[armed:])]
	return failures > 0, after, s.intact()
}

func (w *ringWaits) await() error {
	s := w.Subscriber
	for len(s.ready) == 0 {
		e := s.ring.Enter(1, uring.GetEvents)
		now := linux.Now()
		if e != 0 {
			if err := s.entered(e); err != nil {
				return err
			}
		}
		if err := w.reap(now); err != nil {
			return err
		}
		s.start = s.reaped
	}
	return nil
}

// reap takes the completions, and adds the units of the wakes among them to those
// that are ready.
func (w *ringWaits) reap(now int64) error {
	s := w.Subscriber
	for {
		c, ok := s.ring.Next()
		if !ok {
			return nil
		}
		u := &s.units[c.UserData]
		switch {
		case c.Res >= 0:
			if len(u.inputs) == 1 {
				u.inputs[0].reader.Prefetch()
			}
			u.fired, s.reaped = true, now
			s.ready = append(s.ready, u.id)
		case c.Errno() == linux.EAGAIN:
			u.failed = true
		default:
			return os.NewSyscallError("a wait's completion", c.Errno())
		}
	}
}

func (w *ringWaits) end() (cancelled, woken int, err error) { return w.ring.Close() }

// intact says whether every completion had its place in the ring.
func (s *Subscriber) intact() error {
	if s.ring.Overflow() != 0 {
		return uring.ErrOverflow
	}
	return nil
}

// entered judges an error of io_uring_enter.
func (s *Subscriber) entered(e linux.Errno) error {
	if e == linux.EINTR {
		s.now.EINTR++
		return nil
	}
	return os.NewSyscallError("io_uring_enter", e)
}
