package machine

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/uring"
)

// Verdict is what an item means for measuring: it is as it should be; figures suffer or
// something cannot be had; the tool needs it and it is missing.
type Verdict string

// See Verdict.
const (
	OK   Verdict = "OK"
	Warn Verdict = "WARN"
	No   Verdict = "NO"
)

// Item is one thing about the machine. Fix is the way out where the verdict is not OK.
type Item struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Fix     string  `json:"fix,omitempty"`
}

// list collects items.
type list []Item

func (l *list) ok(name, format string, args ...any) {
	*l = append(*l, Item{name, OK, fmt.Sprintf(format, args...), ""})
}

func (l *list) bad(v Verdict, name, fix, format string, args ...any) {
	*l = append(*l, Item{name, v, fmt.Sprintf(format, args...), fix})
}

// when adds an item that is OK where good, and else a warning.
func (l *list) when(good bool, name, detail, fix string) {
	if good {
		l.ok(name, "%s", detail)
	} else {
		l.bad(Warn, name, fix, "%s", detail)
	}
}

// Room returns items only where limits leave no room to try the rest: the Go runtime ends a
// program that gets no thread or no memory.
func Room() []Item {
	var l list
	const threads = 16 // what trying takes
	if err := limits.Read().Check(limits.Need{Threads: threads}); err != nil {
		l.refused("room", err)
		l.limits()
	}
	return l
}

// Fitness looks at everything that the tool or its figures depend on. wanted is the
// policy that actors are to have.
func Fitness(wanted linux.Sched) []Item {
	var l list
	e := Environment()
	l.rings()
	// The watchdog runs one above.
	if _, err := limits.Try(limits.Thread{Sched: wanted}, limits.Thread{Sched: limits.Above(wanted.Priority)}); err != nil {
		l.refused("real-time policy", err)
	} else {
		l.ok("real-time policy", "%s is granted", wanted)
	}
	if err := limits.Lock(); err != nil {
		l.refused("memory locking", err)
	} else {
		l.ok("memory locking", "mlockall works")
	}
	if f, err := linux.HoldDMALatency(); err != nil {
		l.bad(Warn, "PM QoS", "run as root, on a kernel with CONFIG_CPU_IDLE; or boot with idle=poll", "/dev/cpu_dma_latency cannot be held at 0: %s; wake-ups from idle states count in every latency", err)
	} else {
		f.Close()
		l.ok("PM QoS", "/dev/cpu_dma_latency can be held at 0")
	}
	l.throttling(e.RTThrottling)
	l.when(e.Realtime, "PREEMPT_RT", map[bool]string{true: "yes", false: "no: " + e.Preempt}[e.Realtime], "boot a PREEMPT_RT kernel; on this one the kernel itself may delay real-time threads for long")
	governor := e.Governor == "performance" || strings.HasPrefix(e.Governor, "none")
	l.when(governor, "frequency governor", e.Governor, "cpupower frequency-set -g performance")
	l.turbo()
	switch read("/sys/devices/system/cpu/smt/active") {
	case "1":
		l.bad(Warn, "SMT", "echo off > /sys/devices/system/cpu/smt/control", "on: two CPUs share a core, and slow each other down")
	case "0":
		l.ok("SMT", "off")
	default:
		l.ok("SMT", "not told by this kernel")
	}
	nocbs := regexp.MustCompile(`\brcu_nocbs(=\S+)?`).FindString(e.CommandLine)
	shown := cmp.Or(nocbs, "no rcu_nocbs")
	l.when(e.Isolated != "none" && e.NohzFull != "none" && nocbs != "", "isolated CPUs", fmt.Sprintf("isolcpus %s, nohz_full %s, %s", e.Isolated, e.NohzFull, shown),
		"boot with isolcpus=LIST nohz_full=LIST rcu_nocbs=LIST and give actors those CPUs, for the lowest maxima")
	clocks := map[string]bool{"tsc": true, "arch_sys_counter": true, "riscv_clocksource": true, "kvm-clock": true}
	l.when(clocks[e.ClockSource], "clock source", e.ClockSource, "a clock read takes long; boot with tsc=reliable, or clocksource=tsc, where the CPU has a stable one")
	l.hugePages()
	l.virtual(e.Virtualization)
	l.tracing()
	l.limits()
	return l
}

// refused adds what the tool needs and does not get, and the way out that the error has.
func (l *list) refused(name string, err error) {
	detail, fix, _ := strings.Cut(err.Error(), "; ")
	l.bad(No, name, fix, "%s", detail)
}

// first returns an error's text up to its way out.
func first(err error) string {
	text, _, _ := strings.Cut(err.Error(), ";")
	return text
}

func (l *list) rings() {
	if err := uring.Probe(uring.OpFutexWait); err != nil {
		l.bad(No, "io_uring, FUTEX_WAIT", "see io_uring_setup(2)", "%s", err)
		return
	}
	l.ok("io_uring, FUTEX_WAIT", "works; kernel.io_uring_disabled is %s", read("/proc/sys/kernel/io_uring_disabled"))
	for _, op := range []struct {
		name string
		op   uring.Opcode
	}{{"FUTEX_WAKE", uring.OpFutexWake}, {"FUTEX_WAITV", uring.OpFutexWaitv}} {
		if err := uring.Probe(op.op); err != nil {
			l.bad(Warn, "io_uring, "+op.name, "boot Linux 6.7 or newer", "%s; scenarios that use it do not run", first(err))
		} else {
			l.ok("io_uring, "+op.name, "works")
		}
	}
}

func (l *list) throttling(rt string) {
	server := read("/sys/kernel/debug/sched/fair_server/cpu0/runtime")
	detail := "real-time threads may run " + rt
	if rt == "off" {
		detail = "off"
	}
	if ns, err := strconv.Atoi(server); err == nil && ns > 0 {
		l.bad(Warn, "RT throttling", "echo 0 > /sys/kernel/debug/sched/fair_server/cpu*/runtime, while you measure", "%s; the deadline server gives ordinary threads %d ms of each period", detail, ns/1_000_000)
		return
	}
	l.when(rt == "off", "RT throttling", detail, "sysctl kernel.sched_rt_runtime_us=-1 while you measure; it only matters to loops that spin for long")
}

func (l *list) turbo() {
	switch {
	case read("/sys/devices/system/cpu/intel_pstate/no_turbo") == "1", read("/sys/devices/system/cpu/cpufreq/boost") == "0":
		l.ok("turbo", "off")
	case read("/sys/devices/system/cpu/intel_pstate/no_turbo") == "0":
		l.bad(Warn, "turbo", "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo", "on: the clock rate depends on heat and on the other cores")
	case read("/sys/devices/system/cpu/cpufreq/boost") == "1":
		l.bad(Warn, "turbo", "echo 0 > /sys/devices/system/cpu/cpufreq/boost", "on: the clock rate depends on heat and on the other cores")
	default:
		l.ok("turbo", "not told by this kernel")
	}
}

func (l *list) hugePages() {
	modes := read("/sys/kernel/mm/transparent_hugepage/enabled")
	l.when(!strings.Contains(modes, "[always]"), "transparent huge pages", modes, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: else khugepaged may stop any process to move its pages")
}

// steal returns the ticks that the hypervisor gave to others (proc_stat(5)).
func steal() (int64, bool) {
	fields := strings.Fields(read("/proc/stat"))
	if len(fields) < 9 {
		return 0, false
	}
	n, err := strconv.ParseInt(fields[8], 10, 64)
	return n, err == nil
}

func (l *list) virtual(virtualization string) {
	detail := virtualization
	if n, ok := steal(); ok && n > 0 {
		detail += fmt.Sprintf(", %d ticks stolen since boot", n)
	}
	l.when(virtualization == "none seen", "hypervisor", detail, "measure on the machine itself: a hypervisor stops CPUs when it likes; counts hold, maxima do not")
}

func (l *list) tracing() {
	o, err := observe.Start(nil)
	if err != nil {
		l.bad(Warn, "observing the kernel", "figures of the kernel's own work are missing without", "%s", err)
	} else {
		o.Close()
		l.ok("observing the kernel", "eBPF works; failures are timed by %s", o.Timing)
	}
	_, err = os.Stat("/sys/kernel/tracing/tracing_on")
	l.when(err == nil, "tracefs", map[bool]string{true: "mounted", false: "not mounted"}[err == nil], "mount -t tracefs nodev /sys/kernel/tracing, for --breaktrace and --tracemark")
}

// limits has a line for each limit, and looks for what a container takes away.
func (l *list) limits() {
	all := limits.Read()
	for _, limit := range all.Limits {
		why, ok := map[limits.Kind]string{
			limits.RTBudget: "give the control group a budget: echo 950000 > " + limit.From,
			limits.CPUQuota: "ordinary threads of this program are stopped when they have used it, which load and low-priority groups will; lift it in " + limit.From,
			limits.RTTime:   "the kernel kills a real-time thread that runs for longer without sleeping; ulimit -R unlimited",
		}[limit.Kind]
		if limit.Kind == limits.RTBudget && limit.Max > 0 {
			ok = false
		}
		l.when(!ok, "limit", limit.String(), why)
	}
	if len(all.Limits) == 0 {
		l.ok("limit", "no control group and no resource limit")
	}
	group := read("/proc/self/cgroup")
	var signs []string
	for _, f := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(f); err == nil {
			signs = append(signs, f)
		}
	}
	for _, word := range []string{"docker", "kubepods", "lxc", "libpod", "containerd"} {
		if strings.Contains(group, word) {
			signs = append(signs, "control group "+group)
			break
		}
	}
	if status, err := os.ReadFile("/proc/self/status"); err == nil && strings.Contains(string(status), "\nSeccomp:\t2") {
		signs = append(signs, "a seccomp filter")
	}
	l.when(len(signs) == 0, "container", map[bool]string{true: "none seen", false: strings.Join(signs, ", ")}[len(signs) == 0], "a container may take away policies, CPUs and system calls; run outside of it, or give it cap_sys_nice, cap_ipc_lock and io_uring")
}
