package sim

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"aossim/internal/linux"
)

// A watchdog ends a run whose real-time threads leave ordinary threads no CPU at
// all. It compares two threads of the controller: one above every actor, and one as
// ordinary as the user's shell. Both being of this machine, a machine that stands
// still as a whole (a paused guest) does not look like such a run.
type watchdog struct {
	stop   atomic.Bool
	barks  atomic.Bool
	ended  chan struct{}
	canary atomic.Uint64
}

// The watchdog looks every tick and acts when ordinary threads got nothing for
// patience ticks in a row (half a second).
const (
	tick     = 100 * time.Millisecond
	patience = 5
)

// startWatchdog starts the watchdog above actors of at most the priority given, 0
// where none is real-time. bite must do nothing but system calls, since nothing else
// may get a CPU. The canary runs on cpus, like the controller: what starves it keeps
// the controller from ending the run.
func startWatchdog(priority int, cpus []int, bite func()) (*watchdog, error) {
	w := &watchdog{ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(w.ended)
		// Never unlocked: the thread ends with its goroutine, and its policy with it.
		runtime.LockOSThread()
		var err error
		if priority > 0 {
			err = above(priority)
		}
		if started <- err; err == nil {
			w.watch(bite)
		}
	}()
	go func() {
		runtime.LockOSThread()
		if _, err := linux.SetAffinity(cpus); err != nil {
			return
		}
		for !w.stop.Load() {
			w.canary.Add(1)
			sleepPinned(int64(tick))
		}
	}()
	if err := <-started; err != nil {
		w.stop.Store(true)
		return nil, err
	}
	return w, nil
}

// sleepPinned sleeps for d ns in a raw system call that no signal of the Go scheduler
// interrupts; between two of them a collection can go on. A Go timer would wake two or
// three threads instead of one.
func sleepPinned(d int64) {
	linux.Pin()
	linux.SleepFor(d)
	linux.Unpin()
}

// above gives the calling thread a policy that runs before actors of a priority.
// SCHED_DEADLINE goes before every priority of SCHED_FIFO (sched(7)).
func above(priority int) error {
	if priority < 99 {
		_, err := linux.SetSched(linux.Sched{Policy: linux.FIFO, Priority: priority + 1})
		if err != nil {
			err = fmt.Errorf("the watchdog above priority %d: %w", priority, err)
		}
		return err
	}
	_, err := linux.SetSched(linux.Sched{Policy: linux.Deadline, Runtime: 1_000_000, Deadline: int64(tick), Period: int64(tick)})
	if err != nil {
		err = fmt.Errorf("the watchdog above priority 99: %w; allow it all CPUs, or give no actor more than 98", err)
	}
	return err
}

// highest returns the highest priority of any actor; deadline goes before all.
func (p *Plan) highest() (highest int) {
	for _, a := range p.Actors {
		if a.Sched.Policy == linux.Deadline {
			return 99
		}
		highest = max(highest, a.Sched.Priority)
	}
	return highest
}

// watch sleeps in raw system calls, so that it keeps its P: a starved thread may
// hold every other one.
func (w *watchdog) watch(bite func()) {
	last, still := w.canary.Load(), 0
	for !w.stop.Load() {
		sleepPinned(int64(tick))
		now := w.canary.Load()
		if now != last {
			last, still = now, 0
			continue
		}
		if still++; still >= patience {
			w.barks.Store(true)
			bite()
			return
		}
	}
}

// end stops the watchdog and says whether it had to act.
func (w *watchdog) end() bool {
	w.stop.Store(true)
	<-w.ended
	return w.barks.Load()
}
