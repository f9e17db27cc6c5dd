package micro

import (
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

func init() {
	workloads["eagain"] = func(m place) (workload, error) {
		return newRings(m, max(1, m.Waits/m.Batch), m.Batch, 1, func(w *rings, words []*atomic.Uint32) error {
			w.fails = true
			for range m.Batch {
				w.add(uring.FutexWait(linux.WordAddress(words[0]), 1, linux.MatchAny, uring.WordFlags(scope(m.Point)), 0), -int32(linux.EAGAIN))
			}
			return nil
		})
	}
}
