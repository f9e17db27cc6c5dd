package linux

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"aossim/internal/refusal"
)

// Policy is a scheduling policy of sched(7).
type Policy uint32

// The policies, by their numbers in include/uapi/linux/sched.h.
const (
	Other    Policy = 0
	FIFO     Policy = 1
	RR       Policy = 2
	Batch    Policy = 3
	Idle     Policy = 5
	Deadline Policy = 6
)

var policyNames = map[string]Policy{
	"other": Other, "fifo": FIFO, "rr": RR, "batch": Batch, "idle": Idle, "deadline": Deadline,
}

// ParsePolicy returns the policy of a name: fifo, rr, deadline, other, batch or idle.
func ParsePolicy(name string) (Policy, error) {
	p, ok := policyNames[name]
	if !ok {
		return 0, fmt.Errorf("no scheduling policy %q", name)
	}
	return p, nil
}

// String returns the policy's name as ParsePolicy takes it.
func (p Policy) String() string {
	for name, q := range policyNames {
		if p == q {
			return name
		}
	}
	return fmt.Sprintf("policy %d", uint32(p))
}

// RealTime says whether threads of this policy run before all ordinary ones.
func (p Policy) RealTime() bool { return p == FIFO || p == RR || p == Deadline }

// Sched is what a thread asks of the scheduler, or what it was granted.
// Priority is 1..99 for fifo and rr and 0 otherwise; Nice is -20..19 and counts for
// other and batch; Runtime, Deadline and Period (ns) are for deadline.
type Sched struct {
	Policy                    Policy
	Priority, Nice            int
	Runtime, Deadline, Period int64
}

// String is "fifo 40", "other" or "deadline 1000000/5000000 ns".
func (s Sched) String() string {
	switch {
	case s.Policy == FIFO || s.Policy == RR:
		return fmt.Sprintf("%s %d", s.Policy, s.Priority)
	case s.Policy == Deadline:
		return fmt.Sprintf("%s %d/%d ns", s.Policy, s.Runtime, s.Period)
	case s.Nice != 0:
		return fmt.Sprintf("%s nice %d", s.Policy, s.Nice)
	}
	return s.Policy.String()
}

// noRealTime is the way out where the caller may not have what it asked for.
const noRealTime = "run with sudo, or give the program the right once: " +
	"setcap cap_sys_nice,cap_ipc_lock+ep aossim, or give the user rtprio and memlock limits in /etc/security/limits.conf; --no-rt runs without"

// SetSched sets the calling thread's policy by sched_setattr(2), with
// SCHED_FLAG_RESET_ON_FORK, and returns what was granted, which is an error where
// policy or priority differ. The error wraps refusal.ErrForbidden where the caller may not
// have the policy it asked for, and ErrInvalid where the kernel does not take the values.
// For deadline EPERM may also mean that the thread's CPUs are restricted (sched(7)).
func SetSched(s Sched) (Sched, error) {
	attr := unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: uint32(s.Policy), Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		Nice: int32(s.Nice), Priority: uint32(s.Priority),
		Runtime: uint64(s.Runtime), Deadline: uint64(s.Deadline), Period: uint64(s.Period),
	}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		if errors.Is(err, unix.EPERM) {
			return Sched{}, fmt.Errorf("scheduling policy %s: %w; %s", s, refusal.ErrForbidden, noRealTime)
		}
		return Sched{}, fmt.Errorf("scheduling policy %s: %w", s, err)
	}
	got, err := GetSched()
	if err != nil {
		return Sched{}, err
	}
	if got.Policy != s.Policy || got.Priority != s.Priority {
		return got, fmt.Errorf("scheduling policy %s: the kernel granted %s", s, got)
	}
	return got, nil
}

// GetSched returns the calling thread's policy as the kernel has it.
func GetSched() (Sched, error) {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return Sched{}, fmt.Errorf("sched_getattr: %w", err)
	}
	return Sched{
		Policy: Policy(a.Policy), Priority: int(a.Priority), Nice: int(a.Nice),
		Runtime: int64(a.Runtime), Deadline: int64(a.Deadline), Period: int64(a.Period),
	}, nil
}

// SetAffinity restricts the calling thread to cpus and reads back what the
// kernel granted; it is an error if that differs.
func SetAffinity(cpus []int) ([]int, error) {
	if err := setAffinity(0, cpus); err != nil {
		return nil, err
	}
	got, err := Affinity()
	if err == nil && !slices.Equal(got, slices.Sorted(slices.Values(cpus))) {
		err = fmt.Errorf("affinity to CPUs %v: the kernel granted %v", cpus, got)
	}
	return got, err
}

func setAffinity(thread int, cpus []int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(thread, &set); err != nil {
		return fmt.Errorf("affinity to CPUs %v: %w; name CPUs that are online and that this cpuset allows", cpus, err)
	}
	return nil
}

// SetProcessAffinity restricts every thread that the process has to cpus, the Go
// runtime's own among them; those to come have it from the thread that makes them.
func SetProcessAffinity(cpus []int) error {
	for done := map[int]bool{}; ; {
		before := len(done)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || done[id] {
				continue
			}
			if err := setAffinity(id, cpus); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			done[id] = true
		}
		if len(done) == before {
			return nil // none was made meanwhile by one that was not restricted yet
		}
	}
}

// Affinity returns the CPUs that the calling thread may run on, in order.
func Affinity() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for c := range 8 * len(set) * 8 {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

// SetTimerSlack sets how far the kernel may delay the calling thread's timers to
// batch them, in ns (prctl(2), PR_SET_TIMERSLACK); real-time threads have none.
func SetTimerSlack(ns int) error {
	return unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(ns), 0, 0, 0)
}

// Usage is what getrusage(2) counts for one thread.
type Usage struct {
	MinorFaults, MajorFaults, VoluntarySwitches, InvoluntarySwitches int64
}

// Sub returns u - v, field by field.
func (u Usage) Sub(v Usage) Usage {
	return Usage{u.MinorFaults - v.MinorFaults, u.MajorFaults - v.MajorFaults,
		u.VoluntarySwitches - v.VoluntarySwitches, u.InvoluntarySwitches - v.InvoluntarySwitches}
}

// ThreadUsage returns the calling thread's accounts (getrusage(2),
// RUSAGE_THREAD); it does not allocate.
func ThreadUsage() Usage {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &r) != nil {
		return Usage{}
	}
	return Usage{r.Minflt, r.Majflt, r.Nvcsw, r.Nivcsw}
}

// Yield lets other threads run on the calling thread's CPU (sched_yield(2)).
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
