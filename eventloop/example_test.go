package eventloop_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"aossim/channel"
	"aossim/eventloop"
	"aossim/internal/linux"
	"aossim/internal/wait"
)

// A subscriber on a thread of its own handles what is published in a window, and leaves.
func Example() {
	config := channel.Config{MaxSize: 8, QueueSize: 16, Publishers: 1}
	mem, err := linux.MapAnonymousShared(64 + config.Size())
	if err != nil {
		panic(err)
	}
	defer linux.Unmap(mem)
	ch, err := channel.Create(mem[64:], config)
	if err != nil {
		panic(err)
	}
	publisher, _, err := ch.Claim(0, 1, nil)
	if err != nil {
		panic(err)
	}
	windows := eventloop.Windows{Current: linux.Uint32At(mem, 0), Start: new(atomic.Uint64), End: new(atomic.Uint64)}
	progress := eventloop.Progress{Count: new(atomic.Uint64), Done: new(atomic.Uint64), Broke: new(atomic.Uint64), Publishing: new(atomic.Uint64)}
	kind, _ := wait.Named("io_uring")
	stats := eventloop.NewStats()
	sub := eventloop.NewSubscriber(eventloop.SubscriberConfig{Wait: kind, Mask: 1, Ins: []eventloop.In{{Channel: ch}}, Active: []bool{true}}, &windows, progress, []*eventloop.Stats{stats})
	minder, ended := eventloop.NewMinder(sub), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		ended <- sub.Run()
	}()
	windows.Current.Store(1)
	linux.FutexWake(windows.Current, linux.WakeAll, linux.MatchAny, linux.Shared)
	for progress.Done.Load() != 1 { // it is armed
		time.Sleep(time.Millisecond)
	}
	for range 3 {
		publisher.Publish(channel.Message{Published: linux.Now(), Scheduled: linux.Now()})
		linux.FutexWake(ch.Word(), linux.WakeAll, linux.MatchAny, linux.Shared)
	}
	for progress.Count.Load() != 3 {
		time.Sleep(time.Millisecond)
	}
	windows.Current.Store(eventloop.Stop)
	for left := true; left; { // the minder wakes it, so that it sees that
		minder.Look()
		select {
		case err = <-ended:
			left = false
		case <-time.After(time.Millisecond):
		}
	}
	fmt.Println(stats.Handled, stats.LostWakes, err)
	// Output: 3 0 <nil>
}
