package uring

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
	"aossim/internal/refusal"
)

func TestMain(m *testing.M) { os.Exit(linuxtest.Main(m)) }

func setup(t testing.TB, flags SetupFlags) *Ring {
	t.Helper()
	r, err := Setup(64, 128, flags)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func words(t testing.TB, n int) []*atomic.Uint32 {
	mem := linuxtest.Map(t, 64*n)
	list := make([]*atomic.Uint32, n)
	for i := range list {
		list[i] = linux.Uint32At(mem, 64*i)
	}
	return list
}

// next waits for a completion.
func next(t testing.TB, r *Ring) CQE {
	t.Helper()
	for {
		if c, ok := r.Next(); ok {
			return c
		}
		if e := r.Enter(1, GetEvents); e != 0 && e != syscall.EINTR {
			t.Fatal(e)
		}
	}
}

var flagSets = map[string]SetupFlags{
	"none": 0, "single_issuer,coop_taskrun": SingleIssuer | CoopTaskrun,
	"single_issuer,defer_taskrun": SingleIssuer | DeferTaskrun, "coop_taskrun,taskrun_flag": CoopTaskrun | TaskrunFlag, "submit_all": SubmitAll,
}

// TestFutex runs each operation with each kind of word and ring (Linux 6.7).
func TestFutex(t *testing.T) {
	for name, flags := range flagSets {
		for _, private := range []linux.Scope{linux.Shared, linux.Private} {
			t.Run(name, func(t *testing.T) {
				lockThread(t)
				r := setup(t, flags)
				w := words(t, 3)
				at := func(i int) uint64 { return linux.WordAddress(w[i]) }

				r.Push(FutexWait(at(0), 1, linux.MatchAny, WordFlags(private), 1))
				if c := next(t, r); c.Errno() != syscall.EAGAIN || c.UserData != 1 {
					t.Errorf("a wait on a word that differs: %+v", c)
				}
				r.Push(FutexWait(at(0), 0, 2, WordFlags(private), 2))
				if e := r.Enter(0, 0); e != 0 {
					t.Fatal(e)
				}
				if n, _ := linux.FutexWake(w[0], linux.WakeAll, 1, private); n != 0 {
					t.Errorf("a wake with another bit woke %d", n)
				}
				if n, _ := linux.FutexWake(w[0], linux.WakeAll, 2, private); n != 1 {
					t.Errorf("a wake woke %d", n)
				}
				if c := next(t, r); c.Res != 0 || c.UserData != 2 {
					t.Errorf("a woken wait: %+v", c)
				}
				r.Push(FutexWait(at(0), 0, linux.MatchAny, WordFlags(private), 3))
				r.Push(FutexWake(at(0), linux.WakeAll, WordFlags(private), 4))
				for range 2 {
					if c := next(t, r); c.UserData == 3 && c.Res != 0 || c.UserData == 4 && c.Res != 1 {
						t.Errorf("wait 3 and wake 4: %+v", c)
					}
				}
				v, err := NewVector(3)
				if err != nil {
					t.Fatal(err)
				}
				for i := range 3 {
					v.Set(i, at(i), 0, WordFlags(private))
				}
				r.Push(FutexWaitv(v.Addr(), 3, 5))
				if e := r.Enter(0, 0); e != 0 {
					t.Fatal(e)
				}
				linux.FutexWake(w[2], 1, linux.MatchAny, private)
				if c := next(t, r); c.Res != 2 || c.UserData != 5 {
					t.Errorf("a woken vector: %+v", c)
				}
				w[1].Store(1)
				r.Push(FutexWaitv(v.Addr(), 3, 6))
				if c := next(t, r); c.Errno() != syscall.EAGAIN {
					t.Errorf("a vector with a word that differs: %+v", c)
				}
				if cancelled, completed, err := r.Close(); cancelled != 0 || completed != 0 || err != nil {
					t.Error(cancelled, completed, err)
				}
				v.Close()
			})
		}
	}
}

// TestClose: the kernel has let go of the word when Close returns.
func TestClose(t *testing.T) {
	lockThread(t)
	for name, flags := range flagSets {
		r := setup(t, flags)
		w := words(t, 1)
		for range 40 {
			r.Push(FutexWait(linux.WordAddress(w[0]), 0, linux.MatchAny, FutexU32, 0))
		}
		if e := r.Enter(0, 0); e != 0 {
			t.Fatal(e)
		}
		linux.FutexWake(w[0], 3, linux.MatchAny, linux.Shared)
		if cancelled, completed, err := r.Close(); cancelled != 37 || completed != 3 || err != nil {
			t.Fatalf("%s: %d cancelled, %d completed of 37 and 3; %v", name, cancelled, completed, err)
		}
		if n, e := linux.FutexWake(w[0], linux.WakeAll, linux.MatchAny, linux.Shared); n != 0 || e != 0 {
			t.Errorf("%s: %d waiters left after Close, %v", name, n, e)
		}
	}
}

// TestRegistered: a ring that was let go of leaves its place, of 16 a thread.
func TestRegistered(t *testing.T) {
	lockThread(t)
	for i := range 40 {
		r := setup(t, 0)
		if i%2 == 0 {
			r.Abandon()
			continue
		}
		if _, _, err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPollMultishot(t *testing.T) {
	lockThread(t)
	r := setup(t, 0)
	f, err := linux.NewEventfd()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.Push(PollMultishot(int(f.Fd()), 9))
	for range 3 {
		if e := r.Enter(0, 0); e != 0 {
			t.Fatal(e)
		}
		linux.SignalEventfd(int(f.Fd()))
		if c := next(t, r); c.Res <= 0 || c.Flags&CQEMore == 0 || c.UserData != 9 {
			t.Fatalf("%+v", c)
		}
	}
	if cancelled, _, err := r.Close(); cancelled != 1 || err != nil {
		t.Errorf("%d cancelled, %v", cancelled, err)
	}
}

func TestPushFull(t *testing.T) {
	lockThread(t)
	r, err := Setup(4, 8, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := words(t, 1)
	for i := range 4 {
		if !r.Push(FutexWait(linux.WordAddress(w[0]), 1, 1, FutexU32, uint64(i))) {
			t.Fatalf("no room for request %d of 4", i)
		}
	}
	if r.Push(SQE{}) || r.PushFutexWait(linux.WordAddress(w[0]), 1, 1, FutexU32, 4) {
		t.Error("a fifth request fits into 4 entries")
	}
	if r.Queued() != 4 {
		t.Errorf("%d queued", r.Queued())
	}
	for i := range 4 {
		if c := next(t, r); c.UserData != uint64(i) || c.Errno() != syscall.EAGAIN {
			t.Errorf("%+v", c)
		}
	}
}

// TestStaleFields: nothing is left in an entry of the request that was there before,
// which the kernel would answer with -EINVAL.
func TestStaleFields(t *testing.T) {
	lockThread(t)
	r, err := Setup(1, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := words(t, 1)
	full := SQE{Opcode: 255, Flags: 4, IOPrio: 5, FD: 6, Off: 7, Addr: 8, Len: 9, OpFlags: 10, UserData: 11, BufIndex: 12, Personality: 13, SpliceFD: 14, Addr3: 15}
	for name, push := range map[string]func() bool{
		"Push":          func() bool { return r.Push(FutexWait(linux.WordAddress(w[0]), 1, 1, FutexU32, 1)) },
		"PushFutexWait": func() bool { return r.PushFutexWait(linux.WordAddress(w[0]), 1, 1, FutexU32, 1) },
	} {
		r.Push(full)
		if c := next(t, r); c.Errno() != syscall.EINVAL {
			t.Fatalf("a request of no kind: %+v", c)
		}
		push()
		if c := next(t, r); c.Errno() != syscall.EAGAIN || c.UserData != 1 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestProbe: the operation is found by doing, and one that no kernel has is missed.
func TestProbe(t *testing.T) {
	for _, op := range []Opcode{OpFutexWait, OpFutexWake, OpFutexWaitv, OpPollAdd} {
		if err := Probe(op); err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
	if err := Probe(OpFutexWait); err != nil {
		t.Fatal(err)
	}
	err := Probe(250)
	if !errors.Is(err, refusal.ErrLacking) || !strings.Contains(err.Error(), "no operation 250") || !strings.Contains(err.Error(), "6.7") {
		t.Errorf("an operation that does not exist: %v", err)
	}
}

func TestSetupFails(t *testing.T) {
	if _, err := Setup(8, 8, DeferTaskrun); !errors.Is(err, syscall.EINVAL) { // it needs SingleIssuer
		t.Errorf("got %v", err)
	}
}

func TestArmAllocations(t *testing.T) {
	lockThread(t)
	r := setup(t, 0)
	defer r.Close()
	w := words(t, 1)
	if n := testing.AllocsPerRun(1000, func() { armAndWake(r, w[0]) }); n != 0 {
		t.Errorf("arm and wake allocate %g times", n)
	}
}

// armAndWake arms a wait, wakes it by futex(2) and takes its completion.
func armAndWake(r *Ring, word *atomic.Uint32) {
	r.PushFutexWait(linux.WordAddress(word), 0, linux.MatchAny, WordFlags(linux.Private), 1)
	r.Enter(0, 0)
	linux.FutexWake(word, linux.WakeAll, linux.MatchAny, linux.Private)
	for {
		if _, ok := r.Next(); ok {
			return
		}
		r.Enter(1, GetEvents)
	}
}

func BenchmarkArmAndWake(b *testing.B) {
	lockThread(b)
	r := setup(b, 0)
	defer r.Close()
	w := words(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		armAndWake(r, w[0])
	}
}

// BenchmarkFailedArm is a wait on a word that differs, one an Enter.
func BenchmarkFailedArm(b *testing.B) {
	lockThread(b)
	r := setup(b, 0)
	defer r.Close()
	w := words(b, 1)
	wait := FutexWait(linux.WordAddress(w[0]), 1, linux.MatchAny, WordFlags(linux.Private), 1)
	b.ReportAllocs()
	for b.Loop() {
		r.Push(wait)
		r.Enter(0, 0)
		r.Next()
	}
}

// lockThread keeps the test on the thread that makes its rings, under a watchdog.
func lockThread(t testing.TB) {
	watchdog := time.AfterFunc(time.Minute, func() { panic("a ring's test hangs") })
	t.Cleanup(func() { watchdog.Stop() })
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}
