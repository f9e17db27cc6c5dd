package micro

import (
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

func init() {
	workloads["waitv"] = func(m place) (workload, error) {
		return newRings(m, m.Cycles, m.Vectors, m.Vectors*m.Width, func(w *rings, words []*atomic.Uint32) error {
			word := uring.WordFlags(scope(m.Point))
			for v := range m.Vectors {
				vector, err := uring.NewVector(m.Width)
				if err != nil {
					return err
				}
				w.more = append(w.more, vector.Close)
				for i := range m.Width {
					vector.Set(i, linux.WordAddress(words[v*m.Width+i]), 0, word)
				}
				w.add(uring.FutexWaitv(vector.Addr(), m.Width, 0), int32(m.Element))
			}
			for v := range m.Vectors {
				w.add(uring.FutexWake(linux.WordAddress(words[v*m.Width+m.Element]), 1, word, 0), 1)
			}
			return nil
		})
	}
}
