package linux_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
	"aossim/internal/refusal"
)

func TestMain(m *testing.M) { os.Exit(linuxtest.Main(m)) }

// A wait on a word that holds something else returns at once.
func ExampleFutexWait() {
	mem, err := linux.MapAnonymous(os.Getpagesize())
	if err != nil {
		panic(err)
	}
	defer linux.Unmap(mem)
	word := linux.Uint32At(mem, 0)
	word.Store(7)
	fmt.Println(linux.FutexWait(word, 6, linux.MatchAny, linux.Private) == linux.EAGAIN)
	// Output: true
}

// asleep starts f on a locked thread and returns when that sleeps in the kernel.
func asleep(t *testing.T, f func()) <-chan struct{} {
	t.Helper()
	thread, done := make(chan int), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- linux.ThreadID()
		linux.Pin()
		defer linux.Unpin()
		f()
	}()
	id := <-thread
	for end := time.Now().Add(10 * time.Second); !linux.Asleep(id); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the thread does not sleep")
		}
	}
	return done
}

// TestFutex: waits end as futex(2) says, by scope and by mask.
func TestFutex(t *testing.T) {
	mem := linuxtest.Map(t, os.Getpagesize())
	for name, scope := range map[string]linux.Scope{"shared": linux.Shared, "private": linux.Private} {
		word := linux.Uint32At(mem, 0)
		var got linux.Errno
		done := asleep(t, func() {
			for got = linux.EINTR; got == linux.EINTR; {
				got = linux.FutexWait(word, 0, 2, scope)
			}
		})
		other := linux.Private - scope
		if n, e := linux.FutexWake(word, linux.WakeAll, linux.MatchAny, other); n != 0 || e != 0 {
			t.Errorf("%s: a wake of the other scope woke %d, %v", name, n, e)
		}
		if n, _ := linux.FutexWake(word, linux.WakeAll, 1, scope); n != 0 {
			t.Errorf("%s: a wake by another mask woke %d", name, n)
		}
		n := 0 // for as long as a signal has it out of its sleep
		for end := time.Now().Add(10 * time.Second); n == 0 && time.Now().Before(end); {
			n, _ = linux.FutexWake(word, linux.WakeAll, 3, scope)
		}
		if n != 1 {
			t.Fatalf("%s: a wake woke %d, want 1", name, n)
		}
		if <-done; got != 0 {
			t.Errorf("%s: the wait returned %v", name, got)
		}
		start, e := int64(0), linux.EINTR // by the signal with which the Go runtime preempts
		for e == linux.EINTR {
			start = linux.Now()
			e = linux.FutexWaitFor(word, 0, 2_000_000, scope)
		}
		if took := linux.Now() - start; e != linux.ETIMEDOUT || took < 2_000_000 {
			t.Errorf("%s: %v after %d ns", name, e, took)
		}
	}
	if wrong, e := linux.FutexMismatches(linux.Uint32At(mem, 0), 8, 5, linux.Private); wrong != 0 || e != 0 {
		t.Errorf("%d mismatches, the last %v", wrong, e)
	}
}

// TestClock: a sleep to a deadline does not end before it, and one in the past at once.
func TestClock(t *testing.T) {
	deadline := linux.Now() + 3_000_000
	for linux.SleepUntil(deadline) == linux.EINTR {
	}
	if now := linux.Now(); now < deadline {
		t.Errorf("back %d ns before the deadline", deadline-now)
	}
	if e := linux.SleepUntil(1); e != 0 {
		t.Errorf("a deadline in the past: %v", e)
	}
}

// TestSched: what a thread asks for is what it reads back; what it may not have is a refusal.
func TestSched(t *testing.T) {
	for _, want := range []linux.Sched{{Policy: linux.FIFO, Priority: 3}, {Policy: linux.RR, Priority: 2}, {Policy: linux.Batch, Nice: 5}, {Policy: linux.Idle}, {Policy: linux.Deadline, Runtime: 100_000, Deadline: 1_000_000, Period: 1_000_000}} {
		err := linux.OnThread(func() error {
			got, err := linux.SetSched(want)
			if err == nil && got.Policy != want.Policy {
				err = fmt.Errorf("granted %s", got)
			}
			return err
		})
		if errors.Is(err, refusal.ErrForbidden) {
			t.Skip(err)
		}
		if err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if p, err := linux.ParsePolicy(want.Policy.String()); err != nil || p != want.Policy {
			t.Errorf("%s: %v, %v", want.Policy, p, err)
		}
	}
	if err := linux.OnThread(func() error { _, err := linux.SetSched(linux.Sched{Policy: linux.FIFO, Priority: 100}); return err }); !errors.Is(err, linux.ErrInvalid) {
		t.Errorf("priority 100: %v", err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		err := linuxtest.DropCapabilities()
		if err == nil {
			_, err = linux.SetSched(linux.Sched{Policy: linux.FIFO, Priority: 3})
		}
		done <- err
	}()
	if err := <-done; !errors.Is(err, refusal.ErrForbidden) {
		t.Errorf("without capabilities: %v", err)
	}
}

// TestAffinity: a thread is where it was told to be.
func TestAffinity(t *testing.T) {
	all, err := linux.Affinity()
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, cpu := range all {
		err := linux.OnThread(func() error {
			got, err := linux.SetAffinity([]int{cpu})
			if err == nil && (!slices.Equal(got, []int{cpu}) || linux.CPU() != cpu) {
				err = fmt.Errorf("affinity %v, on CPU %d", got, linux.CPU())
			}
			return err
		})
		if err != nil {
			t.Errorf("CPU %d: %v", cpu, err)
		}
	}
	if err := linux.OnThread(func() error { _, err := linux.SetAffinity([]int{1023}); return err }); err == nil {
		t.Error("CPU 1023 was taken")
	}
}

// TestFork: a forked process returns its code, and one that does not end is ended.
func TestFork(t *testing.T) {
	if code, err := linux.Fork(func() int { return 42 }, 5*time.Second); code != 42 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	if _, err := linux.Fork(func() int { linux.SleepFor(1e12); return 0 }, 100*time.Millisecond); err == nil {
		t.Error("a process that sleeps for long was waited for")
	}
	if pids := linux.Children(os.Getpid()); len(pids) > 0 {
		t.Errorf("processes %d are left", pids)
	}
}

// TestShared: two mappings of one file are the same words.
func TestShared(t *testing.T) {
	f, err := linux.CreateShared("test", 100)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var words []uint32
	for range 2 {
		mem, page, err := linux.Map(f, 100)
		if err != nil {
			t.Fatal(err)
		}
		defer linux.Unmap(mem)
		if page < os.Getpagesize() || len(mem)%page != 0 || uintptr(linux.Address(mem, 0))%uintptr(page) != 0 {
			t.Errorf("%d bytes at %#x in pages of %d", len(mem), linux.Address(mem, 0), page)
		}
		words = append(words, linux.Uint32At(mem, 8).Add(1))
	}
	if !slices.Equal(words, []uint32{1, 2}) {
		t.Errorf("%v", words)
	}
	for what, f := range map[string]func(){
		"unaligned": func() { linux.Uint32At(make([]byte, 8), 2) }, "beyond": func() { linux.Uint64sAt(make([]byte, 8), 0, 2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			f()
		}()
	}
}

// TestIdentity: a process is known by more than its number, and a dead one is none.
func TestIdentity(t *testing.T) {
	self := linux.ProcessIdentity(os.Getpid())
	if self == 0 || !linux.ProcessAlive(self) || linux.ProcessAlive(self+1) || linux.ProcessAlive(0) {
		t.Errorf("%#x", self)
	}
	if linux.ProcessIdentity(1<<22+1) != 0 {
		t.Error("a process that cannot be has an identity")
	}
}

// TestStartAlike: processes have the same random bytes, run as any other, and end as one.
func TestStartAlike(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// What a shell reads of its own memory at AT_RANDOM.
	const script = `at=$(od -A n -t u8 -w16 /proc/$$/auxv | while read key value; do [ "$key" = 25 ] && echo $value; done); dd if=/proc/$$/mem bs=1 skip=$at count=16 2>/dev/null; exit 3`
	var said []string
	for range 2 {
		var out bytes.Buffer
		cmd := exec.Command("sh", "-c", script)
		cmd.Stdout = &out
		linux.TieToParent(cmd, linux.Kill)
		if err := linux.StartAlike(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
			t.Fatalf("%v", err)
		}
		said = append(said, out.String())
	}
	if said[0] != said[1] || len(said[0]) != 16 {
		t.Errorf("%q", said)
	}
	if err := linux.StartAlike(exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestSocket: a write to one whose other side is gone is an error, and no signal; closing ends a Read.
func TestSocket(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGPIPE) // as the program does
	defer signal.Stop(signals)
	ours, theirs, err := linux.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ours.Write([]byte("ask")); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	got := make([]byte, 8)
	if n, err := theirs.Read(got); string(got[:n]) != "ask" || err != nil {
		t.Errorf("%q, %v", got[:n], err)
	}
	ended := make(chan error, 1)
	go func() { _, err := ours.Read(got); ended <- err }()
	time.Sleep(10 * time.Millisecond)
	if err := ours.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a closed socket was read")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a Read outlives its socket")
	}
	theirs.Close()
	ours, theirs, err = linux.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs.Close()
	if _, err := ours.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("got %v", err)
	}
	select {
	case s := <-signals:
		t.Errorf("it raised %v", s)
	case <-time.After(50 * time.Millisecond):
	}
}
