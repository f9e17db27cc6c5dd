package micro

import (
	"aossim/internal/linux"
)

// hashWord is how far apart words of the workload hash are, as in perf bench futex hash.
const hashWord = 4

func init() {
	workloads["hash"] = func(m place) (workload, error) {
		w, err := newThreads(m, hashWord*m.Words*m.Threads, 1, func(t *worker) {
			for i := range m.Words {
				t.words = append(t.words, linux.Uint32At(t.mem, hashWord*(t.number*m.Words+i)))
			}
			t.do = t.mismatches
		})
		if err != nil {
			return nil, err
		}
		return w, nil
	}
}

// mismatches waits on each word in turn for a value that none has.
func (t *worker) mismatches(end int64) error {
	for linux.Now() < end {
		if n, e := linux.FutexMismatches(t.words[0], len(t.words), mismatched, scope(t.Point)); n != 0 {
			t.found.add(checkResults, "%d waits that mismatch returned %d", n, e)
		}
		t.ops += int64(len(t.words))
	}
	return nil
}
