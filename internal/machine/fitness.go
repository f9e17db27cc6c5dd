package machine

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

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

// Fitness looks at everything that the tool or its figures depend on. wanted is the
// policy that actors are to have.
func Fitness(wanted linux.Sched) []Item {
	var l list
	e := Environment()
	l.rings()
	if err := linux.OnThread(func() error { _, err := linux.SetSched(wanted); return err }); err != nil {
		l.bad(No, "real-time policy", "run with sudo, or setcap cap_sys_nice,cap_ipc_lock+ep aossim, or raise rtprio in /etc/security/limits.conf", "%s is refused: %s", wanted, first(err))
	} else {
		l.ok("real-time policy", "%s is granted", wanted)
	}
	if err := linux.LockMemory(); err != nil {
		l.bad(No, "memory locking", "run as root, or raise memlock in /etc/security/limits.conf", "%s", first(err))
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
	l.cgroup()
	return l
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

// cgroup looks for what a container or a control group takes away.
func (l *list) cgroup() {
	group := read("/proc/self/cgroup")
	_, path, _ := strings.Cut(strings.TrimPrefix(group, "0:"), ":")
	budgets, _ := filepath.Glob("/sys/fs/cgroup/cpu*" + path + "/cpu.rt_runtime_us")
	if len(budgets) > 0 {
		us := read(budgets[0])
		l.when(us != "0", "cgroup RT budget", us+" us (CONFIG_RT_GROUP_SCHED)", "give the control group a budget: echo 950000 > "+budgets[0])
	} else {
		l.ok("cgroup RT budget", "no control group limits real-time threads")
	}
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
