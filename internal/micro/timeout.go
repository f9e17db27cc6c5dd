package micro

import (
	"os"
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/result"
)

// timeouts are waits by futex(2) that nobody wakes.
type timeouts struct {
	place
	mem  []byte
	word *atomic.Uint32
}

func init() {
	workloads["timeout"] = func(m place) (workload, error) {
		mem, err := m.mapWords(os.Getpagesize())
		if err != nil {
			return nil, err
		}
		return &timeouts{m, mem, linux.Uint32At(mem, 0)}, nil
	}
}

func (w *timeouts) arms() (on, fail bool) { return false, false }
func (w *timeouts) figures() []string {
	rate := "waits/s"
	if w.virtual {
		rate = "waits/virtual s"
	}
	return []string{rate, "voluntary switches/wait", "involuntary switches/wait"}
}
func (w *timeouts) latencies() []result.Latency { return nil }

func (w *timeouts) round(p problems, calls int) (measured, error) {
	waits := atMost(w.Waits, calls)
	before, executed, start := linux.ThreadUsage(), linux.ThreadTime(), linux.Now()
	for range waits {
		if e := linux.FutexWaitFor(w.word, 0, int64(w.Timeout), scope(w.Point)); e != linux.ETIMEDOUT {
			p.add(checkResults, "a wait that must time out returned %d", e)
		}
	}
	took, used := float64(linux.Now()-start), linux.ThreadUsage().Sub(before)
	executed = linux.ThreadTime() - executed
	n, value := float64(waits), took
	if w.virtual { // while the thread sleeps time goes on without an instruction
		value = float64(executed)
	}
	return measured{Value: value / n, Operations: int64(waits), Figures: []float64{
		n / took * 1e9, float64(used.VoluntarySwitches) / n, float64(used.InvoluntarySwitches) / n,
	}}, nil
}

func (w *timeouts) release() error { return linux.Unmap(w.mem) }
