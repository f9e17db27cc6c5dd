package eventloop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aossim/channel"
	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
	"aossim/internal/uring"
	"aossim/internal/wait"
)

// TestMain keeps the garbage collector off: it would wait for a loop that waits for a
// test that waits for the collector.
func TestMain(m *testing.M) {
	debug.SetGCPercent(-1)
	os.Exit(linuxtest.Main(m))
}

// bench is a channel with one subscriber on a thread of its own, and a publisher that
// the test itself is.
type bench struct {
	t          testing.TB
	mem        []byte
	ch         *channel.Channel
	pub        *channel.Publisher
	windows    Windows
	sub        *Subscriber
	minder     *Minder
	stats      *Stats
	count      atomic.Uint64
	done       atomic.Uint64
	publishing atomic.Uint64
	ended      chan error
	leave      func() // ends the minder's thread
}

// start starts a subscriber in window 1, and its minder where mind is set.
func start(t testing.TB, c SubscriberConfig, mind bool) *bench {
	t.Helper()
	config := channel.Config{MaxSize: 64, QueueSize: 16, Publishers: 1}
	mem := linuxtest.Map(t, 64+config.Size())
	b := &bench{t: t, mem: mem, ended: make(chan error, 1), stats: NewStats()}
	var err error
	if b.ch, err = channel.Create(mem[64:], config); err != nil {
		t.Fatal(err)
	}
	if b.pub, _, err = b.ch.Claim(0, 1, nil); err != nil {
		t.Fatal(err)
	}
	var times [2]atomic.Uint64
	b.windows = Windows{Current: linux.Uint32At(mem, 0), Start: &times[0], End: &times[1]}
	if c.Wait.Name == "" {
		c.Wait = kind("io_uring")
	}
	c.Ins, c.Active, c.Mask = []In{{Channel: b.ch, Publishing: []*atomic.Uint64{&b.publishing}}}, []bool{true}, 1
	if c.Wait.Eventfd {
		if c.Ins[0].Eventfd, err = linux.NewEventfd(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Ins[0].Eventfd.Close() })
	}
	if c.Late == 0 {
		c.Late = 5_000_000
	}
	b.sub = NewSubscriber(c, &b.windows, Progress{Count: &b.count, Done: &b.done, Broke: new(atomic.Uint64)}, []*Stats{b.stats})
	b.minder = NewMinder(b.sub)
	b.windows.Current.Store(1)
	go func() {
		runtime.LockOSThread()
		b.ended <- b.sub.Run()
	}()
	var minding sync.WaitGroup
	stopped := make(chan struct{})
	minding.Go(func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(5 * time.Millisecond):
				if mind || b.windows.Current.Load() == Stop {
					b.minder.Look()
				}
			}
		}
	})
	b.leave = sync.OnceFunc(func() { close(stopped); minding.Wait() })
	t.Cleanup(b.leave)
	b.await("armed", func() bool { return b.done.Load() == 1 && linux.Asleep(int(b.sub.thread.Load())) })
	return b
}

func (b *bench) await(what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("%s: not within 10 s", what)
		}
	}
}

// publish publishes, and wakes after a delay; a negative one is never.
func (b *bench) publish(delay time.Duration) {
	b.publishing.Add(1)
	b.pub.Publish(channel.Message{Published: linux.Now(), Scheduled: linux.Now()})
	if delay >= 0 {
		time.Sleep(delay)
		b.wake()
	}
	b.publishing.Add(1)
}

func (b *bench) wake() { linux.FutexWake(b.ch.Word(), linux.WakeAll, linux.MatchAny, linux.Shared) }

// stop ends the loop and returns its stats.
func (b *bench) stop() *Stats {
	b.t.Helper()
	b.windows.Current.Store(Stop)
	select {
	case err := <-b.ended:
		if err != nil {
			b.t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		b.t.Fatal("the loop does not end")
	}
	b.leave()
	b.minder.Account()
	if n, _ := linux.FutexWake(b.ch.Word(), linux.WakeAll, linux.MatchAny, linux.Shared); n != 0 {
		b.t.Errorf("%d waiters are left in the kernel", n)
	}
	if t := b.sub.Total(); t.Arms != t.Wakes+t.EAGAIN+b.sub.Cancelled {
		b.t.Errorf("%d arms = %d wakes + %d failed + %d cancelled?", t.Arms, t.Wakes, t.EAGAIN, b.sub.Cancelled)
	}
	return b.stats
}

// kind returns a kind of wait.
func kind(name string) wait.Kind {
	k, ok := wait.Named(name)
	if !ok {
		panic(name)
	}
	return k
}

var ways = map[string]SubscriberConfig{
	"io_uring": {}, "combined": {Combined: true}, "waitv": {Wait: kind("io_uring_waitv")}, "futex": {Wait: kind("futex")},
}

// TestKinds: each kind of wait that can be asked for has its code, and no other.
func TestKinds(t *testing.T) {
	for _, name := range wait.Names() {
		if kinds[name] == nil {
			t.Errorf("wait = %q has no code", name)
		}
	}
	for name, op := range map[string]uring.Opcode{"io_uring": uring.OpFutexWait, "io_uring_waitv": uring.OpFutexWaitv, "eventfd": uring.OpPollAdd} {
		if k := kind(name); uring.Opcode(k.Opcode) != op {
			t.Errorf("%s needs operation %d, and issues %d", name, k.Opcode, op)
		}
	}
	if kind("io_uring_waitv").MaxChannels != uring.MaxWaitv {
		t.Errorf("a vector has %d words", uring.MaxWaitv)
	}
	if len(kinds) != len(wait.Kinds) {
		t.Errorf("%d kinds have code, %d can be asked for", len(kinds), len(wait.Kinds))
	}
}

// TestPreemptedPublisher: a publisher that is stopped for longer than the bound between its
// message and its wake is late, and the kernel has lost nothing.
func TestPreemptedPublisher(t *testing.T) {
	for name, c := range ways {
		t.Run(name, func(t *testing.T) {
			b := start(t, c, true)
			b.publish(3 * LostBound)
			b.await("the message", func() bool { return b.count.Load() == 1 && linux.Asleep(int(b.sub.thread.Load())) })
			if s := b.stop(); s.LostWakes != 0 || s.LateWakes != 1 || s.Handled != 1 || s.SpuriousWakes != 0 {
				t.Errorf("lost %d, late %d, handled %d, spurious %d; the publisher woke late", s.LostWakes, s.LateWakes, s.Handled, s.SpuriousWakes)
			}
		})
	}
}

// TestLostWake: a publisher withholds its wakes. Each is found and counted as lost, and
// the loop goes on.
func TestLostWake(t *testing.T) {
	for name, c := range ways {
		t.Run(name, func(t *testing.T) {
			b := start(t, c, true)
			for i := range uint64(2) {
				b.publish(-1)
				b.await("recovery", func() bool { return b.count.Load() == i+1 && linux.Asleep(int(b.sub.thread.Load())) })
			}
			if s := b.stop(); s.LostWakes != 2 || s.SpuriousWakes != 0 || s.Handled != 2 || s.LateWakes != 2 {
				t.Errorf("lost %d, late %d, spurious %d, handled %d; two wakes were withheld", s.LostWakes, s.LateWakes, s.SpuriousWakes, s.Handled)
			}
		})
	}
}

// TestBusyIsNotLost: a loop that works longer than the bound has lost nothing.
func TestBusyIsNotLost(t *testing.T) {
	b := start(t, SubscriberConfig{Work: 2 * LostBound}, true)
	b.publish(0)
	time.Sleep(LostBound / 10)
	b.publish(0)
	b.await("both messages", func() bool { return b.count.Load() == 2 })
	if s := b.stop(); s.LostWakes != 0 || s.Handled != 2 {
		t.Errorf("lost %d, handled %d", s.LostWakes, s.Handled)
	}
}

// TestLateWake: wakes are delayed, below and above the bound.
func TestLateWake(t *testing.T) {
	for name, c := range ways {
		t.Run(name, func(t *testing.T) {
			c.Late = 20_000_000
			b := start(t, c, true)
			for i, delay := range []time.Duration{0, 30 * time.Millisecond, 0, 40 * time.Millisecond} {
				b.publish(delay)
				b.await("the message", func() bool { return b.count.Load() == uint64(i+1) })
				b.await("the next wait", func() bool { return linux.Asleep(int(b.sub.thread.Load())) })
			}
			if s := b.stop(); s.LateWakes != 2 || s.LostWakes != 0 || s.SpuriousWakes != 0 {
				t.Errorf("late %d, lost %d, spurious %d; two of four wakes were late", s.LateWakes, s.LostWakes, s.SpuriousWakes)
			}
		})
	}
}

// TestSpuriousWake: somebody wakes without publishing.
func TestSpuriousWake(t *testing.T) {
	for name, c := range ways {
		t.Run(name, func(t *testing.T) {
			b := start(t, c, true)
			for i := range int64(3) {
				arms := b.sub.inputs[0].entry.Load() >> 32
				b.wake()
				b.await(fmt.Sprintf("arm %d", i+2), func() bool {
					return b.sub.inputs[0].entry.Load()>>32 > arms && linux.Asleep(int(b.sub.thread.Load()))
				})
			}
			b.publish(0)
			b.await("the message", func() bool { return b.count.Load() == 1 })
			if s := b.stop(); s.SpuriousWakes != 3 || s.Wakes != 4 || s.LostWakes != 0 || s.LateWakes != 0 {
				t.Errorf("spurious %d, wakes %d, lost %d, late %d; want 3, 4, 0, 0", s.SpuriousWakes, s.Wakes, s.LostWakes, s.LateWakes)
			}
		})
	}
}

// TestCorrupt damages one of two messages before their wake: both are handled, and the
// damaged one is found, be it the last of the pass or not.
func TestCorrupt(t *testing.T) {
	for name, c := range ways {
		for damaged := range uint64(2) {
			t.Run(fmt.Sprintf("%s, message %d", name, damaged), func(t *testing.T) {
				b := start(t, c, true)
				marks := [2]uint64{0x0123456789abcdef, 0xfedcba9876543210}
				for _, mark := range marks {
					binary.NativeEndian.PutUint64(b.pub.Payload(), mark)
					b.publish(-1)
				}
				mark := binary.NativeEndian.AppendUint64(nil, marks[damaged])
				at := bytes.Index(b.mem, mark)
				if at < 0 || bytes.Count(b.mem, mark) != 1 {
					t.Fatal("the payload is not in the channel's memory once")
				}
				b.mem[at] ^= 1
				b.wake()
				b.await("both messages", func() bool { return b.count.Load() == 2 })
				if s := b.stop(); s.Corrupt != 1 || s.Handled != 2 {
					t.Errorf("%d corrupt of %d handled; want 1 of 2", s.Corrupt, s.Handled)
				}
			})
		}
	}
}

// TestTeardown starts and stops loops a thousand times: nothing is left over, and the
// last cycles take no longer than the first.
func TestTeardown(t *testing.T) {
	cycle := func(i int) time.Duration {
		from := time.Now()
		for _, c := range []SubscriberConfig{{}, {Wait: kind("io_uring_waitv")}, {Wait: kind("eventfd")}, {Wait: kind("futex")}}[i%4 : i%4+1] {
			t.Run("", func(t *testing.T) {
				b := start(t, c, false)
				b.publish(0)
				if c.Wait.Eventfd {
					linux.SignalEventfd(int(b.sub.inputs[0].Eventfd.Fd()))
				}
				b.await("the message", func() bool { return b.count.Load() == 1 })
				b.stop()
			})
		}
		return time.Since(from)
	}
	for i := range 20 {
		cycle(i) // threads and heap reach their size
	}
	files, maps := entries(t, "/proc/self/fd"), mappings(t)
	const cycles = 1000
	var took []time.Duration
	for i := range cycles {
		took = append(took, cycle(i))
		if i%50 == 0 {
			runtime.GC() // no loop runs now
		}
	}
	runtime.GC()
	if n := entries(t, "/proc/self/fd"); n > files {
		t.Errorf("%d files are open, before it were %d", n, files)
	}
	if n := mappings(t); n > maps {
		t.Errorf("%d mappings of rings or shared words, before it were %d", n, maps)
	}
	first, last := took[:cycles/5], took[cycles*4/5:]
	slices.Sort(first)
	slices.Sort(last)
	if a, b := first[len(first)/2], last[len(last)/2]; b > 2*a {
		t.Errorf("a cycle took %s at first and %s at last", a, b)
	}
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// mappings counts what rings map.
func mappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "io_uring")
}
