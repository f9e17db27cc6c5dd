package micro

import (
	"errors"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

func init() {
	workloads["waitv"] = func(m place) (workload, error) {
		w, err := newRings(m, m.Vectors*m.Width)
		if err != nil {
			return nil, err
		}
		word := uring.WordFlags(scope(m.Point))
		var vectors []*uring.Vector
		w.more = func() (err error) {
			for _, v := range vectors {
				err = errors.Join(err, v.Close())
			}
			return err
		}
		for v := range m.Vectors {
			vector, err := uring.NewVector(m.Width)
			if err != nil {
				return nil, err
			}
			vectors = append(vectors, vector)
			for i := range m.Width {
				vector.Set(i, linux.WordAddress(w.words[v*m.Width+i]), 0, word)
			}
			w.add(uring.FutexWaitv(vector.Addr(), m.Width, 0), int32(m.Element))
		}
		for v := range m.Vectors {
			w.add(uring.FutexWake(linux.WordAddress(w.words[v*m.Width+m.Element]), 1, word, 0), 1)
		}
		return w.done(m.Cycles, m.Vectors), nil
	}
}
