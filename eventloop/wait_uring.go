package eventloop

import (
	"aossim/internal/linux"
	"aossim/internal/uring"
)

// One IORING_OP_FUTEX_WAIT a channel.
func init() {
	kinds["io_uring"] = func(s *Subscriber) (waits, error) {
		push := func(u *unit) {
			in := &u.inputs[0]
			s.ring.PushFutexWait(linux.WordAddress(in.word), in.armed, s.Mask, uring.WordFlags(in.Scope), u.id)
		}
		return &ringWaits{s, push}, s.openRing()
	}
}
