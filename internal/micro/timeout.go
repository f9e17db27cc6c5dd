package micro

import (
	"os"
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/scenarios"
)

// timeouts are waits by futex(2) that nobody wakes.
type timeouts struct {
	*scenarios.Point
	mem  []byte
	word *atomic.Uint32
}

func init() {
	workloads["timeout"] = func(m place) (workload, error) {
		mem, err := mapWords(m.Point, os.Getpagesize())
		if err != nil {
			return nil, err
		}
		return &timeouts{m.Point, mem, linux.Uint32At(mem, 0)}, nil
	}
}

func (w *timeouts) arms() (on, fail bool) { return false, false }
func (w *timeouts) figures() []string {
	return []string{"waits/s", "voluntary switches/wait", "involuntary switches/wait"}
}
func (w *timeouts) latencies() []result.Latency { return nil }

func (w *timeouts) round(p problems) (measured, error) {
	before, start := linux.ThreadUsage(), linux.Now()
	for range w.Waits {
		if e := linux.FutexWaitFor(w.word, 0, int64(w.Timeout), scope(w.Point)); e != linux.ETIMEDOUT {
			p.add(checkResults, "a wait that must time out returned %d", e)
		}
	}
	took, used := float64(linux.Now()-start), linux.ThreadUsage().Sub(before)
	n := float64(w.Waits)
	return measured{Value: took / n, Operations: int64(w.Waits), Figures: []float64{
		n / took * 1e9, float64(used.VoluntarySwitches) / n, float64(used.InvoluntarySwitches) / n,
	}}, nil
}

func (w *timeouts) release() error { return linux.Unmap(w.mem) }
