package micro

import (
	"aossim/internal/linux"
	"aossim/internal/uring"
)

func init() {
	workloads["eagain"] = func(m place) (workload, error) {
		w, err := newRings(m, 1)
		if err != nil {
			return nil, err
		}
		for range m.Batch {
			w.add(uring.FutexWait(linux.WordAddress(w.words[0]), 1, linux.MatchAny, uring.WordFlags(scope(m.Point)), 0), -int32(linux.EAGAIN))
		}
		w.fails = true
		return w.done(max(1, m.Waits/m.Batch), m.Batch), nil
	}
}
