package micro

import (
	"aossim/internal/linux"
	"aossim/internal/uring"
)

func init() {
	workloads["scalar"] = func(m place) (workload, error) {
		w, err := newRings(m, m.Words)
		if err != nil {
			return nil, err
		}
		word := uring.WordFlags(scope(m.Point))
		for _, at := range w.words {
			w.add(uring.FutexWait(linux.WordAddress(at), 0, linux.MatchAny, word, 0), 0)
		}
		for _, at := range w.words {
			w.add(uring.FutexWake(linux.WordAddress(at), 1, word, 0), 1)
		}
		return w.done(m.Cycles, m.Words), nil
	}
}
