// Package machine says what the machine is and whether it is fit to measure on, found out by
// doing and never by version numbers.
package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/scenarios"
)

// NewResult returns a result of s that begins now, without runs yet; options are those that
// changed it, as typed.
func NewResult(s *scenarios.Scenario, options []string, noRT bool) *result.Result {
	r := &result.Result{
		Schema: result.Schema, Started: time.Now().Format(time.RFC3339),
		Scenario:    result.Scenario{Name: s.Name, SHA256: s.SHA256(), Text: s.Text, Options: options},
		Environment: Environment(),
	}
	r.Environment.NotRealTime = noRT
	return r
}

// Environment reads what the machine says about itself. What it does not say is
// "unknown", never left out.
func Environment() result.Environment {
	release, version, machine := linux.Uname()
	e := result.Environment{
		KernelRelease: release, KernelVersion: version, Machine: machine,
		// Newer kernels have no /sys/kernel/realtime; the version string has always said it.
		Realtime:    strings.Contains(version, "PREEMPT_RT"),
		Preempt:     preemption(version),
		BootID:      read("/proc/sys/kernel/random/boot_id"),
		CommandLine: read("/proc/cmdline"),
		CPU:         cpuModel(),
		CPUs:        read("/sys/devices/system/cpu/online"),
		Governor:    governors(),
		Isolated:    orNone(read("/sys/devices/system/cpu/isolated")),
		NohzFull:    orNone(read("/sys/devices/system/cpu/nohz_full")),
		ClockSource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
		Mitigations: mitigations(), Virtualization: virtualization(),
		RTThrottling: throttling(),
		Emulated:     Emulated(),
		Clock:        clock(), MemoryGroup: limits.MemoryGroup(),
		GoVersion: runtime.Version(), Program: program(),
	}
	return e
}

// read returns a file's first line, or "unknown".
func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	return line
}

func orNone(v string) string {
	if v == "" || v == "(null)" || v == "unknown" {
		return "none"
	}
	return v
}

// preemption returns the model: the one in force on a kernel that can change it
// (debugfs), else what the version string says.
func preemption(version string) string {
	if modes := read("/sys/kernel/debug/sched/preempt"); modes != "unknown" {
		for _, m := range strings.Fields(modes) {
			if strings.HasPrefix(m, "(") {
				return strings.Trim(m, "()") + " (dynamic)"
			}
		}
	}
	for _, m := range []string{"PREEMPT_RT", "PREEMPT_DYNAMIC", "PREEMPT"} {
		if slices.Contains(strings.Fields(version), m) {
			if m == "PREEMPT_DYNAMIC" {
				return m + " (the model in force is in debugfs, which is not mounted)"
			}
			return m
		}
	}
	return "none or voluntary"
}

func cpuModel() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for _, key := range []string{"model name", "Model", "uarch", "CPU part"} {
		for _, line := range strings.Split(string(data), "\n") {
			if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
				return strings.TrimSpace(v)
			}
		}
	}
	return "unknown"
}

func governors() string {
	files, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
	var all []string
	for _, f := range files {
		all = append(all, read(f))
	}
	if slices.Sort(all); len(all) == 0 {
		return "none (no cpufreq)"
	}
	return strings.Join(slices.Compact(all), ", ")
}

func mitigations() (list []string) {
	files, _ := filepath.Glob("/sys/devices/system/cpu/vulnerabilities/*")
	for _, f := range files {
		if v := read(f); v != "Not affected" {
			list = append(list, filepath.Base(f)+": "+v)
		}
	}
	return list
}

func virtualization() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err == nil && strings.Contains(string(info), " hypervisor") {
		for _, f := range []string{"/sys/hypervisor/type", "/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name"} {
			if v := read(f); v != "unknown" && v != "" {
				return "virtual machine (" + v + ")"
			}
		}
		return "virtual machine"
	}
	return "none seen"
}

// EmulatedArgument on the kernel's command line says that the machine is emulated.
const EmulatedArgument = "aossim.emulated"

// Emulated says whether this machine is emulated, without hardware support.
func Emulated() bool {
	return strings.Contains(cpuModel(), "QEMU TCG") || argument(EmulatedArgument)
}

// VirtualArgument on it says that the machine's clock counts instructions.
const VirtualArgument = "aossim.clock=" + result.ClockInstructions

// Virtual says whether this machine's time is virtual.
func Virtual() bool { return argument(VirtualArgument) }

// argument says whether a word is on the kernel's command line.
func argument(word string) bool { return slices.Contains(strings.Fields(read("/proc/cmdline")), word) }

func clock() string {
	if Virtual() {
		return result.ClockInstructions
	}
	return ""
}

// throttling says how much of each period real-time threads may run
// (Documentation/scheduler/sched-rt-group.rst).
func throttling() string {
	runtime, err := strconv.Atoi(read("/proc/sys/kernel/sched_rt_runtime_us"))
	if err != nil {
		return "unknown"
	}
	period := read("/proc/sys/kernel/sched_rt_period_us")
	if runtime < 0 || strconv.Itoa(runtime) == period {
		return "off"
	}
	return fmt.Sprintf("%d of %s us", runtime, period)
}

func program() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	name := info.Main.Path + " " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			name += " " + s.Value
		}
	}
	return name
}
