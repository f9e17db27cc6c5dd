package linux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

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

// SetSched sets the calling thread's policy by sched_setattr(2), with
// SCHED_FLAG_RESET_ON_FORK, and returns what was granted, which is an error where
// policy or priority differ. A nice value of 0 leaves the thread's own, which only root could
// put back. The error wraps refusal.ErrForbidden where the caller may not
// have the policy it asked for, ErrInvalid where the kernel does not take the values, and
// ErrBusy where it has no more bandwidth for SCHED_DEADLINE.
// For deadline EPERM may also mean that the thread's CPUs are restricted (sched(7)).
func SetSched(s Sched) (Sched, error) {
	if s.Nice == 0 && !s.Policy.RealTime() {
		was, err := GetSched()
		if err != nil {
			return Sched{}, err
		}
		s.Nice = was.Nice
	}
	attr := unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: uint32(s.Policy), Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		Nice: int32(s.Nice), Priority: uint32(s.Priority),
		Runtime: uint64(s.Runtime), Deadline: uint64(s.Deadline), Period: uint64(s.Period),
	}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		if errors.Is(err, unix.EPERM) {
			return Sched{}, fmt.Errorf("scheduling policy %s: %w", s, refusal.ErrForbidden)
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
func GetSched() (Sched, error) { return SchedOf(0) }

// SchedOf is GetSched for a thread by its number.
func SchedOf(thread int) (Sched, error) {
	a, err := unix.SchedGetAttr(thread, 0)
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
func Affinity() ([]int, error) { return AffinityOf(0) }

// AffinityOf is Affinity for a thread by its number.
func AffinityOf(thread int) ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(thread, &set); err != nil {
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

// CPUOf returns the CPU that a thread of any process ran on last (proc_pid_stat(5)).
func CPUOf(thread int) (cpu int, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", thread))
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const processor = 36 // of the fields behind the name
	if err != nil || len(fields) <= processor {
		return 0, false
	}
	cpu, err = strconv.Atoi(fields[processor])
	return cpu, err == nil
}

// Online returns the CPUs that are online.
func Online() ([]int, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	return ParseCPUs(strings.TrimSpace(string(text)))
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

// FormatCPUs writes CPUs as a list that taskset takes: 0-2,5.
func FormatCPUs(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if part := strconv.Itoa(cpus[i]); j > i {
			parts = append(parts, part+"-"+strconv.Itoa(cpus[j]))
		} else {
			parts = append(parts, part)
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// ParseCPUs reads what FormatCPUs writes.
func ParseCPUs(text string) ([]int, error) {
	var cpus []int
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(high)
		}
		if err != nil || first < 0 || last < first || last >= 1024 {
			return nil, fmt.Errorf("%q is no list of CPUs; write one such as 0-2,5", text)
		}
		for c := first; c <= last; c++ {
			cpus = append(cpus, c)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}
