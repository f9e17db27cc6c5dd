package sim

import (
	"bytes"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"aossim/internal/actors"
	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/machine"
)

// A watchdog ends a run whose real-time threads leave ordinary threads no CPU at
// all. It compares two threads of the controller: one above every actor, and one as
// ordinary as the user's shell. Both being of this machine, a machine that stands
// still as a whole (a paused guest) does not look like such a run.
type watchdog struct {
	stop   atomic.Bool
	barks  atomic.Bool
	ended  chan struct{}
	waited time.Duration // when it acted
	canary atomic.Uint64
	limit  int // ticks without it
	// Where these change, it is the control group's CPU quota that keeps the canary.
	quotas []*quotaFile
}

type quotaFile struct {
	*os.File
	fd   int
	said [64]byte // last, of how often
}

// The watchdog looks every tick and acts when ordinary threads got nothing for
// patience ticks in a row (half a second); where a quota stopped them meanwhile, or time is virtual
// and emulated CPUs take turns, widePatience.
const (
	tick         = 100 * time.Millisecond
	patience     = 5
	widePatience = 100
)

// startWatchdog starts the watchdog above actors of at most the priority given, 0
// where none is real-time. bite must do nothing but system calls, since nothing else
// may get a CPU. The canary runs on cpus, like the controller: what starves it keeps
// the controller from ending the run. all are the CPUs of this process: SCHED_DEADLINE needs
// them. throttled are files that change when the control group's CPU quota stops threads.
func startWatchdog(priority int, cpus, all []int, throttled []string, bite func()) (*watchdog, error) {
	w := &watchdog{ended: make(chan struct{}), limit: patience}
	if machine.Virtual() {
		w.limit = widePatience
	}
	for _, path := range throttled {
		f, err := os.Open(path)
		if err != nil {
			continue // a kernel that does not count them
		}
		w.quotas = append(w.quotas, &quotaFile{File: f, fd: int(f.Fd())})
	}
	started := make(chan error, 1)
	go func() {
		defer close(w.ended)
		// Never unlocked: the thread ends with its goroutine, and its policy with it.
		runtime.LockOSThread()
		var err error
		if priority > 0 {
			on, sched := cpus, limits.Above(priority)
			if sched.Policy == linux.Deadline {
				on = all
			}
			_, _, err = actors.Become("aossim watchdog", on, sched)
		}
		if started <- err; err == nil {
			w.watch(bite)
		}
		for _, f := range w.quotas {
			f.Close()
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
	last, still, limit := w.canary.Load(), 0, w.limit
	w.stopped()
	for !w.stop.Load() {
		sleepPinned(int64(tick))
		stopped := w.stopped()
		now := w.canary.Load()
		if now != last {
			last, still, limit = now, 0, w.limit
			continue
		}
		if stopped {
			limit = widePatience
		}
		if still++; still >= limit {
			w.waited = time.Duration(still) * tick
			w.barks.Store(true)
			bite()
			return
		}
	}
}

// stopped says whether the CPU quota stopped threads since the last call. It does nothing but
// system calls, as watch.
func (w *watchdog) stopped() (changed bool) {
	for _, f := range w.quotas {
		var all [1024]byte
		linux.ReadAtStart(f.fd, all[:])
		var now [64]byte // what else the file counts changes whoever runs
		if at := bytes.Index(all[:], []byte("nr_throttled ")); at >= 0 {
			copy(now[:], all[at:at+max(0, bytes.IndexByte(all[at:], '\n'))])
		}
		changed = changed || now != f.said
		f.said = now
	}
	return changed
}

// end stops the watchdog and says whether it had to act.
func (w *watchdog) end() bool {
	w.stop.Store(true)
	<-w.ended
	return w.barks.Load()
}
