package machine

import (
	"runtime"
	"runtime/debug"
	"time"

	"aossim/internal/linux"
	"aossim/internal/result"
)

// Self is the program's own wake-up latency: how late a thread of the wanted policy is
// back from clock_nanosleep(2) to absolute deadlines, in ns.
type Self struct {
	Policy    string            `json:"policy"`
	PeriodNS  int64             `json:"period_ns"`
	Latency   *result.Histogram `json:"latency"`
	Collected int64             `json:"collections"`   // garbage collections meanwhile
	Stolen    int64             `json:"stolen_ticks"`  // by the hypervisor, all CPUs
	DMA       bool              `json:"dma_latency_0"` // idle states were forbidden
	Error     string            `json:"error,omitempty"`
}

// SelfFor is how long the self-check sleeps, to a deadline each selfPeriod.
const (
	SelfFor    = 2 * time.Second
	selfPeriod = int64(time.Millisecond)
)

// SelfCheck measures as actors do: pinned to a locked thread, nothing collected.
func SelfCheck(wanted linux.Sched) *Self {
	s := &Self{Policy: wanted.String(), PeriodNS: selfPeriod, Latency: result.NewHistogram(result.Highest)}
	if dma, err := linux.HoldDMALatency(); err == nil {
		defer dma.Close()
		s.DMA = true
	}
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	stolen, _ := steal()
	late := make([]int64, int64(SelfFor)/selfPeriod)
	err := linux.OnThread(func() error {
		got, err := linux.SetSched(wanted)
		if err != nil {
			return err
		}
		s.Policy = got.String()
		linux.Pin()
		defer linux.Unpin()
		deadline := linux.Now() + 10*selfPeriod
		for i := range late {
			for linux.SleepUntil(deadline) == linux.EINTR {
				continue
			}
			late[i] = linux.Now() - deadline
			deadline += selfPeriod
		}
		return nil
	})
	if err != nil {
		s.Error = first(err)
		return s
	}
	for _, v := range late {
		s.Latency.Record(v)
	}
	runtime.ReadMemStats(&after)
	s.Collected = int64(after.NumGC - before.NumGC)
	if now, ok := steal(); ok {
		s.Stolen = now - stolen
	}
	return s
}
