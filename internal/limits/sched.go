package limits

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// Thread is what a thread asks for; no CPUs are those that it has.
type Thread struct {
	linux.Sched
	CPUs []int
}

// Try finds out whether the kernel grants what threads ask for, all at the same time, as
// SCHED_DEADLINE is admitted by what all have together. It returns the first one that was
// refused, with Explain's error.
func Try(threads ...Thread) (refused int, err error) {
	release, ended := make(chan struct{}), sync.WaitGroup{}
	defer ended.Wait() // or the next one would find its bandwidth taken
	defer close(release)
	for i, t := range threads {
		tried := make(chan error)
		ended.Go(func() {
			_ = linux.OnThread(func() error {
				err := error(nil)
				if len(t.CPUs) > 0 {
					_, err = linux.SetAffinity(t.CPUs)
				}
				if err == nil {
					_, err = linux.SetSched(t.Sched)
				}
				if tried <- err; err == nil {
					<-release
					_, _ = linux.SetSched(linux.Sched{Policy: linux.Other})
				}
				return nil
			})
		})
		if err := <-tried; err != nil {
			return i, Explain(err, t.Sched, t.CPUs)
		}
	}
	return 0, nil
}

// Above is what a watchdog needs to run before actors of a priority. SCHED_DEADLINE goes before
// every priority of SCHED_FIFO (sched(7)).
func Above(priority int) linux.Sched {
	if priority < 99 {
		return linux.Sched{Policy: linux.FIFO, Priority: priority + 1}
	}
	const runtime, period = 1_000_000, 100_000_000 // ns
	return linux.Sched{Policy: linux.Deadline, Runtime: runtime, Deadline: period, Period: period}
}

// Explain adds the way out to an error of linux.SetSched for a thread on cpus, empty for all
// that this process has. It wraps what err does.
func Explain(err error, s linux.Sched, cpus []int) error {
	switch {
	case errors.Is(err, linux.ErrBusy):
		return fmt.Errorf("%w: %w, so the kernel admits no more: all such threads together have no room within the share of the CPUs that real-time threads may use (kernel.sched_rt_runtime_us); lower runtime or count, or raise period", refusal.ErrForbidden, err)
	case !errors.Is(err, refusal.ErrForbidden):
		return err
	case s.Policy == linux.Deadline && linux.Capable(linux.CapSysNice) && confined(cpus):
		return fmt.Errorf("%w: a SCHED_DEADLINE thread must be allowed all CPUs (sched(7)), and this one is not; give it no cpus, and start aossim outside of taskset and of a cpuset", err)
	}
	if l := Read().Of(RTBudget); (s.Policy == linux.FIFO || s.Policy == linux.RR) && l != nil && l.Max == 0 {
		return fmt.Errorf("%w: the control group has a %s; echo 950000 >%s, or move this shell to a group that has one", err, l, l.From)
	}
	return fmt.Errorf("%w; %s", err, wayOut("CAP_SYS_NICE", linux.CapSysNice, "rtprio"))
}

// Lock is linux.LockMemory with the way out.
func Lock() error {
	err := linux.LockMemory()
	if errors.Is(err, refusal.ErrForbidden) {
		return fmt.Errorf("%w; %s", err, wayOut("CAP_IPC_LOCK", linux.CapIPCLock, "memlock"))
	}
	return err
}

// wayOut is how who asks gets a capability or a resource limit.
func wayOut(name string, capability uint, limit string) string {
	if os.Geteuid() != 0 {
		return "run with sudo, or give the program the right once: setcap cap_sys_nice,cap_ipc_lock+ep aossim, or give the user " + limit + " in /etc/security/limits.conf; --no-rt runs without"
	}
	if linux.Capable(capability) {
		return "root has " + name + " here, so something else forbids it: a seccomp filter, or a security module (dmesg); --no-rt runs without"
	}
	return fmt.Sprintf("root has no %s here; a container gets it by docker run --cap-add=%s --ulimit %s=-1, or securityContext.capabilities.add of Kubernetes; --no-rt runs without",
		name, strings.TrimPrefix(name, "CAP_"), limit)
}

// confined says whether cpus, or those of this process, are fewer than are online.
func confined(cpus []int) bool {
	if len(cpus) == 0 {
		cpus, _ = linux.Affinity()
	}
	online, err := linux.Online()
	return err == nil && slices.ContainsFunc(online, func(c int) bool { return !slices.Contains(cpus, c) })
}
