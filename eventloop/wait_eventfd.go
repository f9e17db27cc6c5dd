package eventloop

import (
	"os"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// A multishot poll of an eventfd a channel, which is never armed again.
func init() {
	kinds["eventfd"] = func(s *Subscriber) (waits, error) {
		w := &eventfdWaits{s}
		if err := s.openRing(); err != nil {
			return nil, err
		}
		for i := range s.units {
			w.poll(&s.units[i])
		}
		return w, nil
	}
}

type eventfdWaits struct{ *Subscriber }

func (w *eventfdWaits) poll(u *unit) {
	w.ring.Push(uring.PollMultishot(int(u.inputs[0].Eventfd.Fd()), u.id))
}

func (w *eventfdWaits) arm() (failed bool, after int64, err error) {
	w.loadReady()
	w.ready = w.ready[:0]
	return false, linux.Now(), w.intact()
}

func (w *eventfdWaits) await() error {
	s := w.Subscriber
	for len(s.ready) == 0 {
		e := s.ring.Enter(1, uring.GetEvents)
		now := linux.Now()
		if e != 0 {
			if err := s.entered(e); err != nil {
				return err
			}
		}
		for c, ok := s.ring.Next(); ok; c, ok = s.ring.Next() {
			u := &s.units[c.UserData]
			if c.Res < 0 {
				return os.NewSyscallError("a poll's completion", c.Errno())
			}
			if c.Flags&uring.CQEMore == 0 {
				w.poll(u)
			}
			if !u.fired { // else it was written to twice
				u.inputs[0].reader.Prefetch()
				u.fired, s.reaped = true, now
				s.ready = append(s.ready, u)
			}
		}
		s.start = s.reaped
	}
	return nil
}

func (w *eventfdWaits) end() (cancelled, woken int, err error) { return w.ring.Close() }
