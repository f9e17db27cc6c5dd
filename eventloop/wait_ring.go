package eventloop

import (
	"os"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// ringWaits are futex waits on an io_uring, re-armed after each wake: one IORING_OP_FUTEX_WAIT a
// unit, or what the kind pushes.
type ringWaits struct {
	*Subscriber
	push func(u *unit)
}

// openRing makes the subscriber's ring.
func (s *Subscriber) openRing() (err error) {
	s.ring, err = uring.Setup(max(8, len(s.units)), max(16, 2*len(s.units)), s.Flags)
	return err
}

//go:nosplit
func (w *ringWaits) arm() (failed bool, after int64, err error) {
	s := w.Subscriber
	count, flags := uint32(0), uring.EnterFlags(0)
	if s.Combined {
		count, flags = 1, uring.GetEvents
	}
	start := s.begun()
	for _, u := range s.ready {
		s.load(u, start)
		s.arms(u)
		if w.push != nil {
			w.push(u)
		} else {
			in := u.inputs[0]
			s.ring.PushFutexWait(linux.WordAddress(in.word), in.armed, s.Mask, in.flags, u.id)
		}
		start = 0
	}
	if s.Combined {
		s.progress.Count.Store(s.consumed) // load may have handled more
	}
	armed := len(s.ready)
	if after, err = w.enter(count, flags); err != nil {
		return false, after, err
	}
	if s.ring.Queued() != 0 {
		return false, after, uring.ErrPartial
	}
	// Those that failed stay ready, and those that were woken already have become it.
	ready := s.ready[:0]
	for _, u := range s.ready[:armed] {
		switch {
		case u.failed:
			u.failed = false
			s.refused(u, after)
			ready = append(ready, u)
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

//go:nosplit
func (w *ringWaits) await() error {
	s := w.Subscriber
	for len(s.ready) == 0 {
		if _, err := w.enter(1, uring.GetEvents); err != nil {
			return err
		}
		s.start = s.reaped
	}
	return nil
}

// enter submits what was pushed, waits for count completions, takes those that there are, and adds
// the units of the wakes among them to those that are ready; after (ns) is when the call returned.
//
//go:nosplit
func (w *ringWaits) enter(count uint32, flags uring.EnterFlags) (after int64, err error) {
	s := w.Subscriber
	e := s.ring.Enter(count, flags)
	after = linux.Now()
	if e != 0 {
		if err := s.entered(e); err != nil {
			return after, err
		}
	}
	for c, ok := s.ring.Next(); ok; c, ok = s.ring.Next() {
		u := &s.units[c.UserData]
		if c.Res < 0 {
			if c.Errno() != linux.EAGAIN {
				return after, os.NewSyscallError("a wait's completion", c.Errno())
			}
			u.failed = true
			continue
		}
		if len(u.inputs) == 1 {
			u.inputs[0].reader.Prefetch()
		}
		u.fired, s.reaped = true, after
		s.ready = append(s.ready, u)
	}
	return after, nil
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
