package eventloop

import (
	"errors"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// One IORING_OP_FUTEX_WAITV over all channels.
func init() {
	kinds["io_uring_waitv"] = func(s *Subscriber) (waits, error) {
		vector, err := uring.NewVector(len(s.inputs))
		if err != nil {
			return nil, err
		}
		w := &vectorWaits{ringWaits{Subscriber: s}, vector}
		w.push = w.pushVector
		if err := s.openRing(); err != nil {
			return nil, errors.Join(err, vector.Close())
		}
		return w, nil
	}
}

type vectorWaits struct {
	ringWaits
	vector *uring.Vector
}

func (w *vectorWaits) pushVector(u *unit) {
	for i := range u.inputs {
		in := u.inputs[i]
		w.vector.Set(i, linux.WordAddress(in.word), in.armed, in.flags)
	}
	w.ring.Push(uring.FutexWaitv(w.vector.Addr(), len(u.inputs), u.id))
}

func (w *vectorWaits) end() (cancelled, woken int, err error) {
	cancelled, woken, err = w.ringWaits.end()
	return cancelled, woken, errors.Join(err, w.vector.Close())
}
