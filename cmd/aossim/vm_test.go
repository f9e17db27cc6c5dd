package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"aossim/internal/check"
	"aossim/internal/compare"
	"aossim/internal/klog"
	"aossim/internal/limits"
	"aossim/internal/report"
	"aossim/internal/result"
)

// testKernel is a kernel that tests boot; it should be a PREEMPT_RT one.
const testKernel = "AOSSIM_TEST_KERNEL"

// TestVM boots a real kernel: results come back by virtio-serial and by the console, a
// check does, and guests that fail are said to.
func TestVM(t *testing.T) {
	kernel := os.Getenv(testKernel)
	if kernel == "" {
		t.Skip(testKernel + " names no kernel image to boot")
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("qemu-system-x86_64 is not installed (apt-get install qemu-system-x86)")
	}
	small := write(t, "kind = \"micro\"\nrounds = 1\nspread = \"0s\"\n[[point]]\nworkload = \"eagain\"\nwaits = 2000\n")
	loops := write(t, "[[channel]]\nname = \"/c\"\n[[publisher]]\ngroup = \"rt\"\nchannel = \"/c\"\nrate = \"500Hz\"\npolicy = \"fifo\"\npriority = 40\n"+
		"[[subscriber]]\ngroup = \"rt\"\nchannels = [\"/c\"]\npolicy = \"fifo\"\npriority = 40\n")
	// A QEMU without the port, so that the guest has to use its console.
	noPort := filepath.Join(t.TempDir(), "qemu")
	script := "#!/bin/bash\nargs=()\nwhile (($#)); do case $1 in -chardev|-device) shift;; *) args+=(\"$1\");; esac; shift; done\nexec " + qemu + " \"${args[@]}\"\n"
	if err := os.WriteFile(noPort, []byte(script), 0o777); err != nil {
		t.Fatal(err)
	}
	boot := func(want int, args ...string) *program {
		t.Helper()
		p := command(t, append([]string{"vm", "--kernel", kernel, "-o", "out"}, args...)...)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if code := p.exit(t, 4*time.Minute); code != want {
			t.Fatalf("%q: exit %d, want %d: %s", args, code, want, &p.stderr)
		}
		return p
	}
	p := boot(0, "-D", "1s", "--warmup", "200ms", small, loops)
	boots := 1
	if strings.Contains(p.stderr.String(), "counts instructions") {
		boots = 2 // what one thread does has one CPU
	}
	files, err := filepath.Glob(filepath.Join(p.dir, "out", "*.json"))
	logs, _ := filepath.Glob(filepath.Join(p.dir, "out", "*.log"))
	if err != nil || len(files) != 2 || len(logs) != boots {
		t.Fatalf("results %q, logs %q, %v", files, logs, err)
	}
	ids := map[string]bool{}
	for _, f := range files {
		r := load(t, f)
		e := r.Environment
		ids[e.BootID] = true
		if !strings.Contains(f, e.BootID[:8]) || len(r.Failed()) > 0 || r.Broken != "" {
			t.Errorf("%s: boot id %s, failed %+v, broken %q", f, e.BootID, r.Failed(), r.Broken)
		}
		if !e.Realtime {
			t.Logf("%s %s is no PREEMPT_RT kernel", e.KernelRelease, e.KernelVersion)
		}
		if e.Emulated != strings.Contains(p.stderr.String(), "emulated") {
			t.Errorf("emulated: %t; %s", e.Emulated, &p.stderr)
		}
		if len(r.Runs[0].Micro) > 0 {
			if k := r.Runs[0].Micro[0].Kernel; k == nil || k.Arms != 2000 {
				t.Errorf("kernel part: %+v, observer %+v", k, r.Observer)
			}
		} else if r.Runs[0].Phases[0].Groups[0].Handled == 0 {
			t.Error("no message was handled")
		}
	}
	if len(ids) != boots {
		t.Errorf("boot ids %v of %d boots", ids, boots)
	}
	// By the console, and by the host's clock, which was the only one once.
	if p := boot(0, "--qemu", noPort, "--clock", "host", small); !strings.Contains(p.stdout.String(), " ns/wait") || strings.Contains(p.stdout.String(), "instructions") {
		t.Errorf("by the console: %s", &p.stdout)
	}
	if p := boot(0, "--check"); !strings.Contains(p.stdout.String(), "cache patch") || !strings.Contains(p.stdout.String(), "kmallocs per failed arm") {
		t.Errorf("check: %s", &p.stdout)
	}
	if p := boot(1, "--cmdline", "rdinit=/no/such", small); !strings.Contains(p.stderr.String(), "console") {
		t.Errorf("a guest without init: %s", &p.stderr)
	}
	if p := boot(1, "--timeout", "500ms", small); !strings.Contains(p.stderr.String(), "--timeout") {
		t.Errorf("a guest that is too slow: %s", &p.stderr)
	}
	// Too little for the kernel and the archive: it panics, or loops in what is left of it.
	if p := boot(1, "--memory", "48M", "--timeout", "20s", small); !strings.Contains(p.stderr.String(), "console") {
		t.Errorf("a guest without memory: %s", &p.stderr)
	}
}

// TestQEMUDies: QEMU does not outlive an aossim that is killed.
func TestQEMUDies(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernel is one for amd64")
	}
	dir := t.TempDir()
	image, qemu, pidfile := make([]byte, 0x400), filepath.Join(dir, "qemu"), filepath.Join(dir, "pid")
	copy(image[0x202:], "HdrS")
	script := "#!/bin/sh\ncase \"$*\" in *-kernel*) echo $$ >" + pidfile + "; exec sleep 1000;; *) exit 1;; esac\n"
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "bzImage"), image, 0o666), os.WriteFile(qemu, []byte(script), 0o777)); err != nil {
		t.Fatal(err)
	}
	p := command(t, "vm", "--kernel", filepath.Join(dir, "bzImage"), "--qemu", qemu, "--clock", "host", "pair")
	p.Env = append(p.Env, "TMPDIR="+dir) // what it unpacks stays when it is killed
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.Process.Kill()
	defer func() {
		if t.Failed() {
			t.Logf("%s", &p.stderr)
		}
	}()
	pid := 0
	await(t, "QEMU", 5*time.Second, func() bool {
		data, err := os.ReadFile(pidfile)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil && pid > 0
	})
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	await(t, "the end of QEMU", 2*time.Second, func() bool { return len(alive([]int{pid})) == 0 })
}

// pairOfKernels returns a kernel before and one after the cache patch, of an architecture.
func pairOfKernels(t *testing.T, arch string) (before, after string) {
	t.Helper()
	dir := os.Getenv("AOSSIM_TEST_KERNELS")
	if dir == "" {
		t.Skip("AOSSIM_TEST_KERNELS names no directory with kernels before and after the cache patch")
	}
	names := map[string][2]string{"amd64": {"before.bzImage", "after.bzImage"}, "arm64": {"arm64-before.Image.gz", "arm64-after.Image.gz"}}[arch]
	if _, err := exec.LookPath(map[string]string{"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}[arch]); err != nil {
		t.Skip(err)
	}
	return filepath.Join(dir, names[0]), filepath.Join(dir, names[1])
}

// vmRun runs aossim vm in a directory, with its exit code.
func vmRun(t *testing.T, dir string, args ...string) (p *program, code int) {
	t.Helper()
	p = command(t, append([]string{"vm"}, args...)...)
	if dir != "" {
		p.Dir = dir
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p, p.exit(t, 8*time.Minute)
}

// compared is what tests read of a comparison's JSON.
type compared struct {
	Metrics []judged `json:"metrics"`
}

type judged struct {
	Name    string          `json:"name"`
	Unit    string          `json:"unit"`
	Before  compare.Side    `json:"before"`
	After   compare.Side    `json:"after"`
	Change  float64         `json:"change"`
	Drift   float64         `json:"drift"`
	Gate    float64         `json:"gate"`
	Verdict compare.Verdict `json:"verdict"`
}

// metricOf returns one of a comparison.
func metricOf(t *testing.T, c *compared, name string) judged {
	t.Helper()
	at := slices.IndexFunc(c.Metrics, func(m judged) bool { return m.Name == name })
	if at < 0 {
		t.Fatalf("no metric %q", name)
	}
	return c.Metrics[at]
}

// TestInstructions: two boots of one kernel execute as many instructions, whatever the host does
// meanwhile, and the cache patch saves what it saves.
func TestInstructions(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernels are for amd64")
	}
	before, after := pairOfKernels(t, "amd64")
	var stop atomic.Bool
	defer stop.Store(true)
	for range runtime.NumCPU() { // a busy host
		go func() {
			for !stop.Load() {
			}
		}()
	}
	p, code := vmRun(t, "", "--before", before, "--after", after, "--json", "--jobs", "2", "eagain", "scalar")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
	var found []*compared
	if err := json.Unmarshal(p.stdout.Bytes(), &found); err != nil || len(found) != 2 {
		t.Fatalf("%v: %s", err, &p.stdout)
	}
	for _, name := range []string{"one by one", "in batches"} {
		m := metricOf(t, found[0], name)
		if m.Unit != "instructions/wait" || m.Verdict != compare.Faster || m.Change > -0.1 || m.Gate != compare.InstructionGate || math.Abs(m.Drift) > compare.InstructionGate/5 {
			t.Errorf("%s: %+v", name, m)
		}
		if m := metricOf(t, found[0], name+" / kmalloc per failed arm"); math.Abs(m.Before.Median-1) > 0.01 || m.After.Median > 0.01 || m.Verdict != compare.FewerAllocation {
			t.Errorf("%+v", m)
		}
	}
	if m := metricOf(t, found[1], "scalar"); m.Unit != "instructions/pair" || m.Verdict.Worse() || m.Verdict.Better() || math.Abs(m.Drift) > compare.InstructionGate {
		t.Errorf("%+v", m)
	}
	files, _ := filepath.Glob(filepath.Join(p.dir, "results", "*.json"))
	ids := map[string]bool{}
	for _, f := range files {
		r := load(t, f)
		e := &r.Environment
		ids[e.BootID] = true
		if !e.Virtual() || !e.Emulated || e.CPUs != "0" || !strings.Contains(e.Emulator, "-icount") || !strings.Contains(e.CommandLine, "nokaslr") || strings.HasPrefix(e.MemoryGroup, limits.RootGroup) {
			t.Errorf("%+v", e)
		}
		if began, err := time.Parse(time.RFC3339, r.Started); err != nil || time.Since(began).Abs() > time.Hour {
			t.Errorf("begun %s", r.Started)
		}
		var gobench strings.Builder
		if err := report.GoBench(&gobench, r); err != nil || !strings.Contains(gobench.String(), " instructions/") || strings.Contains(gobench.String(), " ns/") {
			t.Errorf("%v: %s", err, &gobench)
		}
	}
	if len(files) != 6 || len(ids) != 3 {
		t.Errorf("%d results of %d boots: no two boots may pass for one", len(files), len(ids))
	}
	// The same results, by aossim compare.
	var a, b []string
	for _, f := range files {
		switch name := filepath.Base(f); {
		case !strings.Contains(name, "eagain"):
		case strings.Contains(name, "-A-"):
			a = append(a, f)
		default:
			b = append(b, f)
		}
	}
	c := command(t, "compare", a[0], b[0], a[1])
	if code := c.run(t); code != 0 || !strings.Contains(c.stdout.String(), "instructions/wait") || !strings.Contains(c.stdout.String(), "virtual time") || strings.Contains(c.stdout.String(), " ns/wait") {
		t.Errorf("exit %d: %s%s", code, &c.stdout, &c.stderr)
	}
}

// TestProfile: the functions of a profile are what the clock has, on both architectures; what the cache
// patch takes away is named; and two boots of one kernel execute the same.
func TestProfile(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernels are for amd64")
	}
	before, after := pairOfKernels(t, "amd64")
	p, code := vmRun(t, "", "--before", before, "--after", after, "--profile", "--folded", "stacks", "--json", "eagain")
	var found []struct {
		Profiles []compare.Profile `json:"profiles"`
	}
	if err := json.Unmarshal(p.stdout.Bytes(), &found); code != 0 || err != nil || len(found) != 1 || len(found[0].Profiles) != 2 {
		t.Fatalf("exit %d, %v: %s%s", code, err, &p.stdout, &p.stderr)
	}
	for _, f := range found[0].Profiles {
		gone := map[string]bool{}
		for _, c := range f.Functions {
			gone[c.Function] = c.Kernel && c.Before.Calls >= 1 && c.After.Calls == 0
		}
		if f.Again == nil || *f.Again > f.Before/1000 || !gone["kfree"] || !gone["__kmalloc_noprof"] || gone["io_futex_wait"] || f.Before-f.After < 100 {
			t.Errorf("%s: %g to %g, again %v; %+v", f.Point, f.Before, f.After, f.Again, f.Functions)
		}
	}
	stacks, err := os.ReadFile(filepath.Join(p.dir, "stacks"))
	if err != nil || !regexp.MustCompile(`(?m)^one by one;.*;io_futex_wait_\[k\];.*kfree_\[k\] [1-9]\d* 0$`).Match(stacks) {
		t.Errorf("%v: %s", err, stacks)
	}
	files, _ := filepath.Glob(filepath.Join(p.dir, "results", "*.json"))
	for _, f := range files {
		r := load(t, f)
		for _, m := range r.Runs[0].Micro {
			// Held against the clock with another tolerance than the program's own.
			sum := m.Profile.PerOperation(m.Profile.Instructions + m.Profile.InterruptInstructions)
			if off := sum/m.Traced.Figure - 1; math.Abs(off) > 0.003 {
				t.Errorf("%s: %g by function, %g by the clock", m.Name, sum, m.Traced.Figure)
			}
		}
	}
	report := command(t, "report", "--html", "page", "--folded", "folded", files[0])
	if code := report.run(t); code != 0 {
		t.Errorf("report: exit %d: %s", code, &report.stderr)
	}
	for want, args := range map[string][]string{
		"is no micro-benchmark":       {"--kernel", before, "--profile", "pair"},
		"has threads of its own":      {"--kernel", before, "--profile", "hash"},
		"leave out --check":           {"--kernel", before, "--profile", "--check"},
		"and --clock host":            {"--kernel", before, "--profile", "--clock", "host", "eagain"},
		"add --profile":               {"--kernel", before, "--folded", "x", "eagain"},
		"--folded FILE is of one sce": {"--kernel", before, "--profile", "--folded", "x", "eagain", "scalar"},
	} {
		if p, code := vmRun(t, "", args...); code != exitUsage || !strings.Contains(p.stderr.String(), want) {
			t.Errorf("%q: exit %d: %s", args, code, &p.stderr)
		}
	}
	if p := command(t, "--profile", "eagain"); p.run(t) != exitSkipped || !strings.Contains(p.stderr.String(), "aossim vm --profile") {
		t.Errorf("outside of a guest: %s", &p.stderr)
	}
}

// TestGuestComplains: a kernel that complains on the way of a passing micro-benchmark fails the run,
// though its command line has quiet.
func TestGuestComplains(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernels are for amd64")
	}
	kernel, _ := pairOfKernels(t, "amd64")
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip(err)
	}
	// Its path is bound to a hundred bytes, and t.TempDir's may be longer.
	dir, err := os.MkdirTemp("", "nmi")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	wrapper, socket := filepath.Join(dir, "qemu"), filepath.Join(dir, "m")
	script := "#!/bin/bash\ncase \"$*\" in *-kernel*) set -- \"$@\" -monitor unix:" + socket + ",server,nowait;; esac\nexec " + qemu + " \"$@\"\n"
	if err := os.WriteFile(wrapper, []byte(script), 0o777); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	defer stop.Store(true)
	go func() {
		for ; !stop.Load(); time.Sleep(100 * time.Millisecond) {
			c, err := net.Dial("unix", socket)
			if err != nil {
				continue
			}
			// Firmware and a kernel that boots would not survive one: first it has to execute a program.
			said := make([]byte, 1<<16)
			for user := false; err == nil && !user && !stop.Load(); {
				_, err = io.WriteString(c, "info registers\n")
				time.Sleep(20 * time.Millisecond)
				n, _ := c.Read(said)
				user = bytes.Contains(said[:n], []byte("CPL=3"))
			}
			go func() { _, _ = io.Copy(io.Discard, c) }() // what it says is not read
			// The kernel prints ten of them in 5 s of its time, which may be a minute here: they become
			// rarer, so that one comes while it is measured however slow the machine is.
			for pause := 200 * time.Millisecond; err == nil && !stop.Load(); pause += pause / 2 {
				_, err = io.WriteString(c, "nmi\n")
				for end := time.Now().Add(pause); !stop.Load() && time.Now().Before(end); {
					time.Sleep(50 * time.Millisecond)
				}
			}
			c.Close()
		}
	}()
	p, code := vmRun(t, "", "--kernel", kernel, "--qemu", wrapper, "eagain")
	r := load(t, p.only(t))
	failed := r.Failed()
	if code != exitFailed || len(failed) != 1 || failed[0].Name != klog.Name || !strings.Contains(failed[0].Detail, "NMI received") || !strings.Contains(p.stderr.String(), "NMI received") {
		t.Errorf("exit %d, failed %+v: %s", code, failed, &p.stderr)
	}
	for _, m := range r.Runs[0].Micro {
		for _, c := range m.Checks {
			if !c.Pass {
				t.Errorf("%s itself: %+v", m.Name, c)
			}
		}
	}
}

// TestMixed: of a scenario that has points of one thread and others, those of one thread have one
// CPU and are judged; the others are shown.
func TestMixed(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernels are for amd64")
	}
	kernel, _ := pairOfKernels(t, "amd64")
	scenario := write(t, "kind = \"micro\"\n[[point]]\nworkload = \"eagain\"\n[[point]]\nworkload = \"hash\"\nthreads = 2\nruntime = \"10ms\"\n")
	before, code := vmRun(t, "", "--kernel", kernel, scenario)
	files, _ := filepath.Glob(filepath.Join(before.dir, "results", "*.json"))
	if code != 0 || len(files) != 2 {
		t.Fatalf("exit %d, %q: %s", code, files, &before.stderr)
	}
	var paths []string
	for _, f := range files {
		r := load(t, f)
		paths = append(paths, "--before", f)
		want := map[string][2]string{"eagain": {"0", "instructions/wait"}, "hash": {"0-1", "ops/virtual s/thread"}}[r.Runs[0].Micro[0].Name]
		if m := r.Runs[0].Micro; len(m) != 1 || r.Environment.CPUs != want[0] || m[0].Unit != want[1] || r.Environment.ClockSource != "tsc" || !slices.Contains(r.Scenario.Options, "--point="+m[0].Name) {
			t.Errorf("%+v on CPUs %s by %s, %q", m, r.Environment.CPUs, r.Environment.ClockSource, r.Scenario.Options)
		}
	}
	p, code := vmRun(t, "", append(paths, "--after", kernel, "--force", "--json", scenario)...)
	var found []*compared
	if err := json.Unmarshal(p.stdout.Bytes(), &found); code != 0 || err != nil || len(found) != 2 {
		t.Fatalf("exit %d, %v: %s%s", code, err, &p.stdout, &p.stderr)
	}
	if m := metricOf(t, found[0], "eagain"); m.Verdict != compare.Same || m.Unit != "instructions/wait" {
		t.Errorf("%+v", m)
	}
	if p, code := vmRun(t, "", append(paths[:2:2], "--after", kernel, "--force", scenario)...); code != exitUsage || !strings.Contains(p.stderr.String(), "no --before is a result of") {
		t.Errorf("a part of the points: exit %d: %s", code, &p.stderr)
	}
}

// TestArm: a kernel of another architecture boots with a build of this program for it, which
// has to be there.
func TestArm(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("arm64 is no other architecture here")
	}
	before, after := pairOfKernels(t, "arm64")
	program := filepath.Join(t.TempDir(), "aossim")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p, code := vmRun(t, "", "--kernel", after, "--kernel", before, "--program", program, "--profile", "--json", "eagain")
	var tables []report.Kernels
	if err := json.Unmarshal(p.stdout.Bytes(), &tables); code != 0 || err != nil || len(tables) != 1 || len(tables[0].Kernels) != 2 || len(tables[0].Metrics) != 6 {
		t.Fatalf("exit %d, %v: %s%s", code, err, &p.stdout, &p.stderr)
	}
	for _, m := range tables[0].Metrics {
		low, high := min(m.Values[0], m.Values[1]), max(m.Values[0], m.Values[1])
		switch {
		case m.Unit == "instructions/wait" && (low < 500 || high < low*1.2), strings.Contains(m.Name, "kmalloc") && (low > 0.01 || high < 0.99):
			t.Errorf("%+v", m)
		}
	}
	files, _ := filepath.Glob(filepath.Join(p.dir, "results", "*.json"))
	for _, f := range files {
		for _, m := range load(t, f).Runs[0].Micro {
			if sum := m.Profile.PerOperation(m.Profile.Instructions + m.Profile.InterruptInstructions); math.Abs(sum/m.Traced.Figure-1) > 0.003 {
				t.Errorf("%s: %g by function, %g by the clock", m.Name, sum, m.Traced.Figure)
			}
		}
	}
	p, code = vmRun(t, "", "--kernel", before, "--program", program, "--check", "--json")
	found, err := check.Decode(p.stdout.Bytes())
	if code != 0 || err != nil || len(found.Kernel) == 0 || found.KernelError != "" {
		t.Fatalf("exit %d, %v: %s", code, err, &p.stderr)
	}
	for _, f := range found.Kernel {
		if f.Answer == "could not tell" || strings.HasPrefix(f.Question, "a mismatched") && f.Answer != "yes" {
			t.Errorf("%+v", f)
		}
	}
	for want, args := range map[string][]string{
		"GOARCH=arm64 go build -o aossim-arm64": {"--kernel", before, "eagain"},
		"is for amd64":                          {"--kernel", before, "--program", "/proc/self/exe", "eagain"},
		"bad magic number":                      {"--kernel", before, "--program", "/etc/passwd", "eagain"},
		"several architectures":                 {"--kernel", before, "--kernel", filepath.Join(filepath.Dir(before), "before.bzImage"), "--program", program, "--qemu", "qemu-system-aarch64", "eagain"},
	} {
		if p, code := vmRun(t, "", args...); code != exitUsage || !strings.Contains(p.stderr.String(), want) {
			t.Errorf("%q: exit %d: %s", args, code, &p.stderr)
		}
	}
}

// TestBisect: git bisect finds the commit that brought an image with more allocations, and
// skips those without one; what is not the commit's ends the bisection.
func TestBisect(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernels are for amd64")
	}
	without, with := pairOfKernels(t, "amd64")
	scenario := write(t, "kind = \"micro\"\n[[point]]\nworkload = \"eagain\"\nwaits = 10000\n")
	base, code := vmRun(t, "", "--kernel", with, scenario)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, &base.stderr)
	}
	before := base.only(t)
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"}, args...)...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q")
	// Commit 5 is the first bad one; 6, which is tried first of nine, has no image.
	for i, image := range []string{with, with, with, with, without, "/no/image", without, without, without} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "image"), []byte(image+"\n"), 0o666), os.WriteFile(filepath.Join(dir, "number"), []byte(strconv.Itoa(i+1)), 0o666)); err != nil {
			t.Fatal(err)
		}
		git("add", ".")
		git("commit", "-q", "-m", fmt.Sprintf("commit %d", i+1))
	}
	git("bisect", "start", "HEAD", "HEAD~8")
	step := fmt.Sprintf("exec %q vm --bisect --before %q --after \"$(cat image)\" -o %q %q", self, before, t.TempDir(), scenario)
	out := git("bisect", "run", "sh", "-c", step)
	if first := git("log", "-1", "--format=%s", "refs/bisect/bad"); !strings.Contains(out, "is the first bad commit") || strings.TrimSpace(first) != "commit 5" {
		t.Errorf("%s: %s\n%s", first, out, git("bisect", "log"))
	}
	if p, code := vmRun(t, "", "--before", before, "--after", with, "--bisect", scenario); code != 0 || !strings.Contains(p.stderr.String(), "one image") {
		t.Errorf("the image of before: exit %d: %s", code, &p.stderr)
	}
	for want, args := range map[int][]string{
		exitSkipBisect: {"--before", before, "--after", "/no/image"},
		exitUsage:      {"--before", "/no/image", "--after", without},
	} {
		if p, code := vmRun(t, "", append(args, "--bisect", scenario)...); code != want {
			t.Errorf("%q: exit %d: %s", args, code, &p.stderr)
		}
	}
	if p, code := vmRun(t, "", "--before", before, "--after", with, scenario); code != exitUsage || !strings.Contains(p.stderr.String(), "one image") {
		t.Errorf("the image of the result: exit %d: %s", code, &p.stderr)
	}
	// A kernel that does not come to its end is skipped.
	if p, code := vmRun(t, "", "--before", before, "--after", without, "--bisect", "--cmdline", "rdinit=/no/such", scenario); code != exitSkipBisect {
		t.Errorf("a kernel that does not boot: exit %d: %s", code, &p.stderr)
	}
	other := write(t, "kind = \"micro\"\n[[point]]\nworkload = \"eagain\"\nwaits = 20000\n")
	if p, code := vmRun(t, "", "--before", before, "--after", without, "--bisect", other); code != exitUsage || !strings.Contains(p.stderr.String(), "none of those to run") {
		t.Errorf("a result of another scenario: exit %d: %s", code, &p.stderr)
	}
}

// TestLater: what a guest dates from the beginning of its time is moved to the host's.
func TestLater(t *testing.T) {
	r := &result.Result{Started: "2020-01-01T00:00:02Z", Runs: []result.Run{{Phases: []result.Phase{{BeganNS: 5}}, Micro: []result.Micro{{BeganNS: 7}}}}}
	later(r, time.Hour)
	began, err := time.Parse(time.RFC3339, r.Started)
	if err != nil || !began.Equal(time.Date(2020, 1, 1, 1, 0, 2, 0, time.UTC)) || r.Runs[0].Phases[0].BeganNS != int64(time.Hour)+5 || r.Runs[0].Micro[0].BeganNS != int64(time.Hour)+7 {
		t.Errorf("%+v, %v", r, err)
	}
}
