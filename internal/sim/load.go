package sim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"aossim/channel"
	"aossim/eventloop"
	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/internal/uring"
)

// loadThread is one thread of load. It measures nothing, so collection may go on in
// its process, and it looks at its window between steps of a few microseconds to
// milliseconds.
type loadThread struct {
	*actorPlan
	windows  eventloop.Windows
	interval int64
	command  []string
	words    []*atomic.Uint32 // of its channels
	found    []result.Observation
	programs *programs // of all threads of the process
}

// on says whether the thread is to make load now.
func (l *loadThread) on() bool {
	w := l.windows.Current.Load()
	return w != 0 && w != eventloop.Stop && l.Active[w-1]
}

// runLoads runs the load threads of a process that has nothing else, until Stop.
func (o *order) runLoads(ctl *control, channels []*channel.Channel, r *report) error {
	mine := o.Plan.Processes[o.Process].Actors
	done := make(chan outcome, len(mine))
	all := new(programs)
	for _, i := range mine {
		go func() { done <- o.runLoad(i, ctl, channels, all) }()
	}
	for range mine {
		d := <-done
		if d.err != nil {
			return d.err
		}
		r.Actors = append(r.Actors, d.report)
	}
	return nil
}

// runLoad is one load thread.
func (o *order) runLoad(i int, ctl *control, channels []*channel.Channel, all *programs) (d outcome) {
	a := &o.Plan.Actors[i]
	entry := &o.Plan.Scenario.Loads[a.Entry]
	d.warmups = func() {}
	l := &loadThread{actorPlan: a, windows: ctl.windows, interval: int64(entry.Interval), command: entry.Command, programs: all}
	for _, ch := range a.Channels {
		l.words = append(l.words, channels[ch].Word())
	}
	var granted result.Actor
	if granted, d.err = a.become(); d.err == nil {
		ctl.thread(i).Store(uint64(linux.ThreadID()))
		ctl.ready(i).Store(1)
		d.err = l.run(entry.Kind, ctl.progress(i))
	}
	if d.err != nil {
		d.err = fmt.Errorf("load %q: %w", entry.Kind, d.err)
	}
	d.report = actorReport{Actor: i, Granted: granted, Found: l.found}
	return d
}

// run makes load in the windows in which the thread is active.
func (l *loadThread) run(kind string, p eventloop.Progress) error {
	for {
		w := l.windows.Current.Load()
		if w == eventloop.Stop {
			return nil
		}
		p.Done.Store(uint64(w))
		if l.on() {
			if err := loadKinds[kind](l, p); err != nil {
				return err
			}
			continue
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// loadKinds are what a thread does while it is on.
var loadKinds = map[string]func(*loadThread, eventloop.Progress) error{
	"timer": (*loadThread).timer, "net": (*loadThread).net, "fork": (*loadThread).fork, "memory": (*loadThread).memory,
	"slab": (*loadThread).slab, "cpu": (*loadThread).cpu, "command": (*loadThread).external,
	"hash": (*loadThread).hash, "rings": (*loadThread).rings,
}

// timer sleeps a few microseconds at a time: timer interrupts on its CPU.
func (l *loadThread) timer(p eventloop.Progress) error {
	if err := linux.SetTimerSlack(1); err != nil {
		return err
	}
	return l.repeat(p, func() error { linux.SleepFor(l.interval); return nil })
}

// cpu computes.
func (l *loadThread) cpu(p eventloop.Progress) error {
	return l.repeat(p, func() error {
		for end := linux.Now() + 20_000; linux.Now() < end; {
		}
		return nil
	})
}

// repeat calls step while the thread is on, and keeps Done up to date, so that the
// controller sees that the thread is at work in the current window.
func (l *loadThread) repeat(p eventloop.Progress, step func() error) error {
	for l.on() {
		p.Done.Store(uint64(l.windows.Current.Load()))
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// memory touches fresh pages and gives them back: page faults, and TLB shootdowns
// where several threads of the process do it.
func (l *loadThread) memory(p eventloop.Progress) error {
	mem, err := linux.MapAnonymous(1 << 20)
	if err != nil {
		return err
	}
	defer linux.Unmap(mem)
	return l.repeat(p, func() error {
		for i := 0; i < len(mem); i += os.Getpagesize() {
			mem[i]++
		}
		return linux.Discard(mem)
	})
}

// net sends datagrams to itself over loopback: network softirqs.
func (l *loadThread) net(p eventloop.Progress) error {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, 1024)
	return l.repeat(p, func() error {
		if _, err := conn.WriteTo(buf, conn.LocalAddr()); err != nil {
			return err
		}
		// A datagram may be dropped; a lost one must not end the load.
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			return err
		}
		if _, _, err := conn.ReadFrom(buf); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		return nil
	})
}

// fork starts a process that ends at once, and waits for it.
func (l *loadThread) fork(p eventloop.Progress) error {
	return l.repeat(p, func() error { return exec.Command("/proc/self/exe", NopCommand).Run() })
}

// slab arms waits that fail: on kernels without the cache patch, a kfree and a
// kmalloc each, of the size that arming allocates.
func (l *loadThread) slab(p eventloop.Progress) error {
	ring, err := uring.Setup(8, 8, 0)
	if err != nil {
		return err
	}
	defer ring.Close()
	mem, err := linux.MapAnonymous(os.Getpagesize())
	if err != nil {
		return err
	}
	defer linux.Unmap(mem)
	wait := uring.FutexWait(linux.Address(mem, 0), 1, linux.MatchAny, uring.FutexU32, 0)
	return l.repeat(p, func() error {
		ring.Push(wait)
		if e := ring.Enter(1, uring.GetEvents); e != 0 && e != linux.EINTR {
			return fmt.Errorf("io_uring_enter: %w", e)
		}
		for c, ok := ring.Next(); ok; c, ok = ring.Next() {
			if c.Errno() != linux.EAGAIN {
				return fmt.Errorf("a wait that must fail completed with %d", c.Res)
			}
		}
		return nil
	})
}

// hash resizes the hash of this process's private futexes, while others of its
// threads have waits armed that are queued in it.
func (l *loadThread) hash(p eventloop.Progress) error {
	slots, done, tried := 16, int64(0), int64(0)
	err := l.repeat(p, func() error {
		if slots *= 2; slots > 256 {
			slots = 16
		}
		if linux.SetFutexHash(slots) == nil {
			done++
		}
		tried++
		linux.SleepFor(l.interval)
		return nil
	})
	l.found = append(l.found, result.Observation{Load: "hash", What: "resizes of the process-private futex hash that the kernel did", Count: done, Of: tried})
	return err
}

// rings closes rings that have waits armed, and looks whether the kernel still has
// those: at once, and in every other turn a while later. It counts them by waking them all,
// as nobody else waits on its word.
func (l *loadThread) rings(p eventloop.Progress) error {
	const waits, later = 8, 50 * time.Millisecond
	var left, armed [2]int64
	turn := 0
	err := l.repeat(p, func() error {
		ring, err := uring.Setup(waits, waits, 0)
		if err != nil {
			return err
		}
		word := l.words[0]
		for range waits {
			ring.Push(uring.FutexWait(linux.WordAddress(word), word.Load(), linux.MatchAny, uring.FutexU32, 0))
		}
		e := ring.Enter(0, 0)
		ring.Abandon()
		if e != 0 {
			return fmt.Errorf("io_uring_enter: %w", e)
		}
		if turn%2 == 1 {
			time.Sleep(later)
		}
		n, _ := linux.FutexWake(word, linux.WakeAll, linux.MatchAny, linux.Shared)
		left[turn%2] += int64(n)
		armed[turn%2] += waits
		turn++
		return nil
	})
	l.found = append(l.found,
		result.Observation{Load: "rings", What: "waits still queued when the close of their ring returned", Count: left[0], Of: armed[0]},
		result.Observation{Load: "rings", What: fmt.Sprintf("waits still queued %s later", later), Count: left[1], Of: armed[1]})
	return err
}

// external runs an external program for as long as the thread is on. The program may
// end by itself before, but not fail.
func (l *loadThread) external(p eventloop.Progress) error {
	cmd := exec.Command(l.command[0], l.command[1:]...)
	linux.TieToParent(cmd, linux.Kill)
	if err := l.programs.start(cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	running := true
	err := l.repeat(p, func() error {
		select {
		case err := <-ended:
			running = false
			return err
		case <-time.After(5 * time.Millisecond):
			return nil
		}
	})
	linux.KillGroup(cmd)
	if running {
		select {
		case <-ended:
		case <-time.After(endPatience): // of another user, such as sudo's
			err = errors.Join(err, fmt.Errorf("%s, process %d, cannot be ended; end it by hand", l.command[0], cmd.Process.Pid))
		}
	}
	return errors.Join(err, l.programs.ended(cmd))
}

// endPatience is how long what is killed may take to be gone.
const endPatience = 2 * time.Second

// programs are those that the threads of a process run.
type programs struct {
	mu      sync.Mutex
	running []*exec.Cmd
	once    sync.Once
}

// pids are the numbers of those that run; mu is held.
func (ps *programs) pids() (list []int) {
	for _, cmd := range ps.running {
		list = append(list, cmd.Process.Pid)
	}
	return list
}

func (ps *programs) start(cmd *exec.Cmd) error {
	// What a program leaves behind, in whatever session, becomes a child of this process.
	if err := linux.AdoptOrphans(); err != nil {
		return err
	}
	// SIGTERM is how the kernel says that the controller died.
	ps.once.Do(func() {
		term := make(chan os.Signal, 1)
		signal.Notify(term, linux.Terminate)
		go func() {
			<-term
			ps.mu.Lock() // for good: nothing starts any more
			for _, cmd := range ps.running {
				linux.KillGroup(cmd)
			}
			linux.EndChildren(nil, endPatience)
			os.Exit(1)
		}()
		go func() { // orphans that end by themselves
			for range time.Tick(100 * time.Millisecond) {
				ps.mu.Lock()
				linux.Reap(ps.pids())
				ps.mu.Unlock()
			}
		}()
	})
	ps.mu.Lock()
	defer ps.mu.Unlock()
	err := cmd.Start()
	if err == nil {
		ps.running = append(ps.running, cmd)
	}
	return err
}

// ended ends what a program left behind, once no other is running whose it may be.
func (ps *programs) ended(cmd *exec.Cmd) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.running = slices.DeleteFunc(ps.running, func(c *exec.Cmd) bool { return c == cmd })
	if len(ps.running) > 0 {
		return nil
	}
	if left := linux.EndChildren(nil, endPatience); len(left) > 0 {
		return fmt.Errorf("processes %v, which a command left behind, cannot be ended; end them by hand", left)
	}
	return nil
}
