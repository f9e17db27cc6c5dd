package sim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"aossim/eventloop"
	"aossim/internal/linux"
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
}

// on says whether the thread is to make load now.
func (l *loadThread) on() bool {
	w := l.windows.Current.Load()
	return w != 0 && w != eventloop.Stop && l.Active[w-1]
}

// runLoads runs the load threads of this process until Stop.
func (o *order) runLoads(ctl *control, r *report) error {
	type ended struct {
		report actorReport
		err    error
	}
	mine := o.Plan.Processes[o.Process].Actors
	done := make(chan ended, len(mine))
	for _, i := range mine {
		a := &o.Plan.Actors[i]
		entry := &o.Plan.Scenario.Loads[a.Entry]
		go func() {
			granted, err := a.become()
			if err == nil {
				l := &loadThread{a, ctl.windows, int64(entry.Interval), entry.Command}
				progress, _, setReady := ctl.actor(i)
				setReady()
				err = l.run(entry.Kind, progress)
			}
			if err != nil {
				err = fmt.Errorf("load %q: %w", entry.Kind, err)
			}
			done <- ended{actorReport{Actor: i, Granted: granted}, err}
		}()
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

// external runs an external program for as long as the thread is on. The program may
// end by itself before, but not fail.
func (l *loadThread) external(p eventloop.Progress) error {
	cmd := exec.Command(l.command[0], l.command[1:]...)
	linux.TieToParent(cmd, false)
	if err := cmd.Start(); err != nil {
		return err
	}
	// SIGTERM is how the kernel says that the controller died.
	term := make(chan os.Signal, 1)
	signal.Notify(term, linux.Terminate)
	go func() {
		<-term
		linux.KillGroup(cmd)
		os.Exit(1)
	}()
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
		<-ended
	}
	return err
}
