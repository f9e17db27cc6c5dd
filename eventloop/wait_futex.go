package eventloop

import (
	"os"

	"aossim/internal/linux"
)

// futex(2), which arms and waits in one call, on one channel: its unit is always ready.
func init() {
	kinds["futex"] = func(s *Subscriber) (waits, error) { return futexWaits{s}, nil }
}

type futexWaits struct{ *Subscriber }

func (w futexWaits) arm() (failed bool, after int64, err error) {
	s := w.Subscriber
	u := &s.units[0]
	in := u.inputs[0]
	s.load(u, 0)
	s.arms(u)
	s.progress.Count.Store(s.consumed) // load may have handled more
	e := linux.FutexWait(in.word, in.armed, s.Mask, in.Scope)
	after = linux.Now()
	switch e {
	case 0:
		s.unobserved(u)
		u.fired, s.reaped, s.start = true, after, after
	case linux.EAGAIN:
		s.refused(u, after)
		return true, after, nil
	case linux.EINTR:
		// The same wait is issued again: it is no arm of its own.
		s.now.EINTR++
		s.now.Arms--
		s.intervalArms--
	default:
		return false, after, os.NewSyscallError("futex(FUTEX_WAIT)", e)
	}
	return false, after, nil
}

func (futexWaits) await() error                           { return nil }
func (futexWaits) end() (cancelled, woken int, err error) { return 0, 0, nil }
