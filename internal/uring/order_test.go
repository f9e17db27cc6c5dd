package uring

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"aossim/internal/linux"
)

// waiterThread arms a wait on the word, becomes what it is told, before or after, and
// reports when it was woken.
func waiterThread(t *testing.T, word *atomic.Uint32, name string, priority int, early bool, armed chan<- bool, woken chan<- string) {
	runtime.LockOSThread() // never unlocked: the policy ends with the thread
	become := func() {
		if _, err := linux.SetSched(linux.Sched{Policy: linux.FIFO, Priority: priority}); err != nil {
			t.Error(err)
		}
	}
	if early {
		become()
	}
	r, err := Setup(8, 8, 0)
	if err != nil {
		t.Error(err)
		armed <- false
		return
	}
	r.Push(FutexWait(linux.WordAddress(word), 0, linux.MatchAny, FutexU32, 1))
	if e := r.Enter(0, 0); e != 0 {
		t.Error(e)
	}
	if !early {
		become()
	}
	armed <- true
	for {
		if _, ok := r.Next(); ok {
			break
		}
		r.Enter(1, GetEvents)
	}
	r.Close()
	woken <- name
}

// TestOrderOfWaiters: of two waits on a word the one of the higher priority is woken
// first (kernel/futex: plist by priority), whichever was armed first; and what counts is
// the priority that the thread had when it armed. So a thread has to become real-time
// before it arms, as actors do.
func TestOrderOfWaiters(t *testing.T) {
	if err := tryFIFO(); err != nil {
		t.Skipf("SCHED_FIFO is not permitted here: %v", err)
	}
	for _, c := range []struct {
		name         string
		firstArmed   int  // the first waiter's priority
		early        bool // it has it before it arms
		secondArmed  int
		wantFirstOut string
	}{
		{"the higher one armed first", 20, true, 10, "first"},
		{"the higher one armed second", 10, true, 20, "second"},
		{"the higher one armed before it was real-time", 20, false, 10, "second"},
	} {
		t.Run(c.name, func(t *testing.T) {
			word := words(t, 1)[0]
			armed, woken := make(chan bool), make(chan string, 2)
			go waiterThread(t, word, "first", c.firstArmed, c.early, armed, woken)
			<-armed
			go waiterThread(t, word, "second", c.secondArmed, true, armed, woken)
			<-armed
			for _, want := range []string{c.wantFirstOut, map[string]string{"first": "second", "second": "first"}[c.wantFirstOut]} {
				if n, e := linux.FutexWake(word, 1, linux.MatchAny, linux.Shared); n != 1 || e != 0 {
					t.Fatalf("woke %d, %v", n, e)
				}
				select {
				case got := <-woken:
					if got != want {
						t.Errorf("%s was woken, want %s", got, want)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("nobody was woken")
				}
			}
		})
	}
}

// tryFIFO finds out on a thread of its own whether SCHED_FIFO is to be had.
func tryFIFO() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		_, err := linux.SetSched(linux.Sched{Policy: linux.FIFO, Priority: 1})
		done <- err
	}()
	return <-done
}
