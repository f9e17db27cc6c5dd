//go:build steps

package channel

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// What a child process of these tests does, and at which of its steps it stops.
const (
	childRole = "AOSSIM_TEST_CHILD"
	childStop = "AOSSIM_TEST_STOP"
)

var deathConfig = Config{MaxSize: 8, QueueSize: 4, Publishers: 2}

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		child(role)
		return
	}
	os.Exit(m.Run())
}

// child works on the channel in the memory that it inherits, and stops itself at the
// step it was told, to be killed there.
func child(role string) {
	runtime.LockOSThread()
	mem, _, err := linux.Map(os.NewFile(3, "memory"), deathConfig.Size())
	if err != nil {
		panic(err)
	}
	ch, err := Open(mem, deathConfig)
	if err != nil {
		panic(err)
	}
	left, err := strconv.Atoi(os.Getenv(childStop))
	if err != nil {
		panic(err)
	}
	step := func() {
		if left == 0 {
			// To this thread: of one to the process another thread may take notice, while this
			// one goes on for a while.
			if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
				panic(err)
			}
		}
		left--
	}
	hook := func(Step) { step() }
	switch role {
	case "publish":
		line := ch.line(0)
		step()
		line[lineOwner].Store(linux.ProcessIdentity(os.Getpid()))
		step()
		p := &Publisher{stepper: stepper{hook: hook}, ch: ch, number: 0, line: line, buf: make([]byte, stampSize+8)}
		p.takeOver()
		for i := range uint64(6) { // more than a lap
			if p.Publish(Message{Sequence: i}) {
				step()
				linux.FutexWake(ch.word, linux.WakeAll, linux.MatchAny, linux.Shared)
				step()
			}
		}
	case "read":
		r, m := ch.Reader(), NewIncoming(ch)
		r.stepper.hook = hook
		r.next = 0
		for word := ch.word.Load(); r.Pending(word) > 0; {
			r.Read(r.Pending(word), m)
		}
	case "arm":
		step()
		ring, err := uring.Setup(8, 8, 0)
		if err != nil {
			panic(err)
		}
		step()
		ring.Push(uring.FutexWait(linux.WordAddress(ch.word), ch.word.Load(), 1, uring.FutexU32, 1))
		step()
		ring.Enter(0, 0)
		step()
		ring.Push(uring.FutexWait(linux.WordAddress(ch.word), ch.word.Load()+1, 1, uring.FutexU32, 2)) // fails
		ring.Enter(0, 0)
		step()
		ring.Next()
		step()
		if _, _, err := ring.Close(); err != nil {
			panic(err)
		}
		step()
		linux.Unmap(mem)
		step()
	}
}

// TestDeath kills a real process at every access to shared memory and every system call
// of publishing, reading, arming and cleaning up. The others go on as if nothing had
// been, and a new publisher takes the dead one's place.
func TestDeath(t *testing.T) {
	// A collection would wait for the threads that wait for the word, outside of the Go
	// scheduler's knowledge; between the steps there are none.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for role, least := range map[string]int{"publish": 80, "read": 20, "arm": 8} {
		t.Run(role, func(t *testing.T) {
			n := 0
			for ; killAt(t, role, n); n++ {
				runtime.GC()
			}
			if n < least {
				t.Errorf("the child was killed at %d places only", n)
			}
			t.Logf("killed at %d places", n)
		})
	}
}

// killAt returns false where the child has no such step.
func killAt(t *testing.T, role string, n int) bool {
	file, err := linux.CreateShared("death", deathConfig.Size())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mem, _, err := linux.Map(file, deathConfig.Size())
	if err != nil {
		t.Fatal(err)
	}
	defer linux.Unmap(mem)
	ch := created(t, mem, deathConfig)
	self := linux.ProcessIdentity(os.Getpid())
	other, _, err := ch.Claim(1, self, linux.ProcessAlive)
	if err != nil {
		t.Fatal(err)
	}
	if role != "publish" {
		for i := range uint64(3) {
			other.Publish(Message{Sequence: i})
		}
	}
	before := nextOf(ch.word.Load())
	// Somebody waits for every move of the word; its bit is not the child's.
	const last = 2 * 10_000
	waiter := make(chan struct{})
	var quit atomic.Bool
	go func() {
		defer close(waiter)
		runtime.LockOSThread()
		linux.Pin() // or signals would make it leave its wait
		defer linux.Unpin()
		for word := ch.word.Load(); ch.Distance(before, word) < last && !quit.Load(); word = ch.word.Load() {
			linux.FutexWait(ch.word, word, 2, linux.Shared)
		}
	}()
	defer func() {
		for quit.Store(true); ; time.Sleep(time.Millisecond) {
			linux.FutexWake(ch.word, linux.WakeAll, 2, linux.Shared)
			select {
			case <-waiter:
				return
			default:
			}
		}
	}()
	waiterAlone := func() {
		for deadline := time.Now().Add(10 * time.Second); waiting(ch.word) != 1; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("step %d: %d wait for the word, to be one", n, waiting(ch.word))
			}
		}
	}
	waiterAlone()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childRole+"="+role, fmt.Sprintf("%s=%d", childStop, n))
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer watchdog.Stop()
	var status unix.WaitStatus
	for err = unix.EINTR; err == unix.EINTR; {
		_, err = unix.Wait4(cmd.Process.Pid, &status, unix.WUNTRACED, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !status.Stopped() {
		if status.ExitStatus() != 0 {
			t.Fatalf("the child ended with status %d, signal %v", status.ExitStatus(), status.Signal())
		}
		return false
	}
	if role == "publish" && n > 1 {
		if _, _, err := ch.Claim(0, self, linux.ProcessAlive); err == nil {
			t.Fatalf("step %d: the place of a publisher that is only stopped was taken", n)
		}
	}
	if role == "arm" && n >= 3 && n <= 5 { // after the enter that arms, and before Close
		if got := waiting(ch.word); got != 2 {
			t.Fatalf("step %d: %d wait for the word, to be the child, too", n, got)
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	// The kernel takes a dead process's ring apart in a kworker (io_ring_ctx_wait_and_kill,
	// io_uring/io_uring.c), which may be later than its end.
	waiterAlone()

	// A reader in this process waits for what the others publish.
	r, m := ch.Reader(), NewIncoming(ch)
	r.next = before
	heir, wake, err := ch.Claim(0, self, linux.ProcessAlive)
	if err != nil {
		t.Fatalf("step %d: %v", n, err)
	}
	if role == "publish" && n > 1 && !wake {
		t.Errorf("step %d: the heir is not told to wake", n)
	}
	if wake {
		linux.FutexWake(ch.word, linux.WakeAll, 2, linux.Shared)
	}
	const each = last / 2
	for i := range uint64(each) {
		for _, p := range []*Publisher{other, heir} {
			if p.Publish(Message{Sequence: i}) {
				linux.FutexWake(ch.word, linux.WakeAll, 2, linux.Shared)
			}
		}
	}
	select {
	case <-waiter:
	case <-time.After(5 * time.Second):
		t.Fatalf("step %d: a wake was lost", n)
	}
	var handled, overrun uint32
	for word := ch.word.Load(); r.Pending(word) > 0; {
		switch outcome, by := r.Read(r.Pending(word), m); {
		case outcome == Overrun:
			overrun += by
		case !m.Whole():
			t.Fatalf("step %d: a torn message", n)
		default:
			handled += by
		}
	}
	published := ch.Distance(before, ch.word.Load())
	if handled+overrun != published || published < 2*each || published > 2*each+6 || handled != uint32(deathConfig.QueueSize) {
		t.Fatalf("step %d: published %d, handled %d, overrun %d", n, published, handled, overrun)
	}
	seen := map[uint32]bool{} // every message is in one place
	for s := range ch.slots {
		seen[messageOf(ch.slots[s].Load())] = true
	}
	seen[messageOf(other.scratch)], seen[messageOf(heir.scratch)] = true, true
	if len(seen) != deathConfig.QueueSize+deathConfig.Publishers {
		t.Fatalf("step %d: only %d of %d messages are in use", n, len(seen), deathConfig.QueueSize+deathConfig.Publishers)
	}
	return true
}

// waiting returns how many wait for a word: as many as FUTEX_REQUEUE moves from it to
// itself, which wakes nobody (futex_requeue, kernel/futex/requeue.c).
func waiting(word *atomic.Uint32) int {
	const requeue = 3
	at := uintptr(linux.WordAddress(word))
	n, _, e := unix.RawSyscall6(unix.SYS_FUTEX, at, requeue, 0, linux.WakeAll, at, 0)
	if e != 0 {
		panic(e)
	}
	return int(n)
}

// TestIdentityDeath: a process number that is used again is not the process.
func TestIdentityDeath(t *testing.T) {
	self := linux.ProcessIdentity(os.Getpid())
	if !linux.ProcessAlive(self) || linux.ProcessAlive(self+1) || linux.ProcessAlive(0) {
		t.Error("this process is alive, and one of its number that started later is not")
	}
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id := linux.ProcessIdentity(cmd.Process.Pid)
	time.Sleep(50 * time.Millisecond)
	if id != 0 && linux.ProcessAlive(id) {
		t.Error("a process that has ended and was not reaped counts as alive")
	}
	cmd.Wait()
}
