package micro

import (
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

func init() {
	workloads["scalar"] = func(m place) (workload, error) {
		return newRings(m, m.Cycles, m.Words, m.Words, func(w *rings, words []*atomic.Uint32) error {
			word := uring.WordFlags(scope(m.Point))
			for _, at := range words {
				w.add(uring.FutexWait(linux.WordAddress(at), 0, linux.MatchAny, word, 0), 0)
			}
			for _, at := range words {
				w.add(uring.FutexWake(linux.WordAddress(at), 1, word, 0), 1)
			}
			return nil
		})
	}
}
