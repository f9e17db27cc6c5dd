// Package eventloop is what an actor thread does: a subscriber keeps one wait
// armed per channel and handles messages, a publisher sleeps to deadlines and
// publishes.
//
// A loop is made and run by one goroutine that is locked to its thread, after the
// thread got its policy and affinity: the kernel queues waiters by the priority
// that the thread had when it armed. From its first window on a loop does not
// allocate, and it blocks only in raw system calls, which the Go scheduler does not
// see.
//
// Run returns an error only where the kernel answered what it must not; loops end
// when Windows says so.
package eventloop

import (
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/result"
)

// Stop is the number of the window in which all actors end.
const Stop uint32 = 0xffffffff

// Windows is the shared clock of a run. The controller writes it, and only while
// no message is under way; actors read it.
type Windows struct {
	// Current is the number of the window: 0 is set-up, then 1, 2, ... and Stop.
	// It is a futex word, shared between processes.
	Current *atomic.Uint32
	// Start and End (ns) bound the publishing in the current window. End may come
	// nearer while the window runs.
	Start, End *atomic.Uint64
}

// Next blocks until the current window is another one than w and returns it.
func (ws *Windows) Next(w uint32) uint32 {
	for {
		now := ws.Current.Load()
		if now != w {
			return now
		}
		linux.FutexWait(ws.Current, w, linux.MatchAny, linux.Shared)
	}
}

// Progress is what an actor tells the controller while it runs.
type Progress struct {
	// Count is how many messages the actor published, or handled or lost, so far.
	Count *atomic.Uint64
	// Done is the last window for which a publisher has nothing left to do.
	Done *atomic.Uint64
	// Broke is the latency (ns) at which a subscriber stopped the trace, 0 until then.
	Broke *atomic.Uint64
	// Publishing is odd while a publisher is between the begin of a message and the end of
	// its wake, and another number for each message.
	Publishing *atomic.Uint64
}

// longestSleep bounds how long a publisher does not look at its window (ns).
const longestSleep = 50_000_000

// sleepUntil sleeps to an absolute deadline while the window w lasts and its end is
// not before now. It returns false where the window ended first.
func (ws *Windows) sleepUntil(deadline int64, w uint32, c *result.Counts) bool {
	for {
		now := linux.Now()
		if ws.Current.Load() != w || now >= int64(ws.End.Load()) {
			return false
		}
		if now >= deadline {
			return true
		}
		if linux.SleepUntil(min(deadline, now+longestSleep)) == linux.EINTR {
			c.EINTR++
		}
	}
}
