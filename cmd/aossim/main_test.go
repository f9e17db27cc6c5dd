package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"aossim/internal/compare"
	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
	"aossim/internal/micro"
	"aossim/internal/output"
	"aossim/internal/report"
	"aossim/internal/result"
	"aossim/internal/sim"
)

// asProgram makes the test binary the program itself; withSeccomp, with the
// numbers of a system call and an errno, makes it forbid itself that call first.
const (
	asProgram   = "AOSSIM_TEST_MAIN"
	withSeccomp = "AOSSIM_TEST_SECCOMP"
)

func TestMain(m *testing.M) {
	_, err := os.Stat("/aossim/orders.json") // this is a guest, and its init is this program
	hidden := []string{sim.ActorCommand, sim.NopCommand, micro.ActorCommand}
	if err == nil || len(os.Args) == 2 && slices.Contains(hidden, os.Args[1]) || os.Getenv(asProgram) != "" {
		var call, errno uint32
		if n, _ := fmt.Sscan(os.Getenv(withSeccomp), &call, &errno); n == 2 {
			forbid(call, errno)
		}
		main()
		return
	}
	os.Exit(linuxtest.Main(m))
}

// forbid installs a seccomp filter that answers a system call with errno, as container
// runtimes do.
func forbid(call, errno uint32) {
	const load, jumpEqual, ret, allow, fail = 0x20, 0x15, 0x06, 0x7fff0000, 0x00050000
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: jumpEqual, Jf: 1, K: call},
		{Code: ret, K: fail | errno},
		{Code: ret, K: allow},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const setModeFilter, tsync = 1, 1
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, tsync, uintptr(unsafe.Pointer(&prog))); e != 0 {
		panic(e)
	}
}

// program is the whole program in a process of its own, in an empty directory.
type program struct {
	*exec.Cmd
	dir            string
	stdout, stderr bytes.Buffer
}

func command(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command("/proc/self/exe", args...), dir: t.TempDir()}
	p.Dir, p.Stdout, p.Stderr = p.dir, &p.stdout, &p.stderr
	p.Env = append(os.Environ(), asProgram+"=1")
	return p
}

// exit waits for the program, no longer than limit, and returns its exit code.
func (p *program) exit(t *testing.T, limit time.Duration) int {
	t.Helper()
	timer := time.AfterFunc(limit, func() { p.Process.Kill() })
	err := p.Wait()
	if !timer.Stop() {
		t.Fatalf("not ended within %s; stderr: %s", limit, &p.stderr)
	}
	if p.ProcessState.ExitCode() < 0 {
		t.Fatalf("%v; stderr: %s", err, &p.stderr)
	}
	return p.ProcessState.ExitCode()
}

func (p *program) run(t *testing.T) int {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p.exit(t, time.Minute)
}

// actors returns the actor processes of the program.
func (p *program) actors(t *testing.T) []int {
	t.Helper()
	return linux.Children(p.Process.Pid)
}

// await polls until ok is true.
func await(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

func alive(pids []int) (left []int) {
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !bytes.Contains(stat, []byte(") Z ")) {
			left = append(left, pid)
		}
	}
	return left
}

func load(t *testing.T, path string) *result.Result {
	t.Helper()
	r, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// only returns the one result in the results directory.
func (p *program) only(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.dir, "results", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("results: %q, %v; stderr: %s", files, err, &p.stderr)
	}
	return files[0]
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.toml")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLoad is the main job: three phases, all actors, a result file and a report.
func TestLoad(t *testing.T) {
	p := command(t, "-D", "1s", "--warmup", "200ms", "load")
	if code := p.run(t); code != 0 {
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
	path := p.only(t)
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^load-` + regexp.QuoteMeta(strings.TrimSpace(string(release))) + `-\d{8}T\d{6}\.json$`)
	if !name.MatchString(filepath.Base(path)) {
		t.Errorf("the result's name %s does not say scenario, kernel and time", filepath.Base(path))
	}
	r := load(t, path)
	if f := r.Failed(); len(f) != 0 || len(r.Runs[0].Phases) != 3 {
		t.Errorf("failed checks %v, %d phases", f, len(r.Runs[0].Phases))
	}
	processes := map[string]int{}
	for _, proc := range r.Runs[0].Processes {
		processes[proc.Group]++
	}
	if processes["real-time"] != 1 || processes["low-priority"] != 6 {
		t.Errorf("processes: %v; want the real-time pair in one and 6 of low-priority", processes)
	}
	for _, want := range []string{"pair only", "+ low-priority", "+ load", "published/s", "re-arm", "published = handled + overrun", "PREEMPT_RT", "boot id", "granted by the kernel"} {
		if !strings.Contains(p.stdout.String(), want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	if s := p.stderr.String(); strings.ContainsAny(s, "\r\x1b") || strings.Count(s, "\n") != 1 {
		t.Errorf("standard error is no terminal and got %q", s)
	}
	// The report comes again from the file.
	again := command(t, "report", path)
	if code := again.run(t); code != 0 || again.stdout.String() != p.stdout.String() {
		t.Errorf("exit %d, and a report that differs from the first", code)
	}
}

// TestKernelAgrees counts the failed arms of the actor processes in the kernel, by
// the completions that it traces, while the program counts them itself.
func TestKernelAgrees(t *testing.T) {
	kernel := map[string]int64{}
	p := traced(t, `tracepoint:io_uring:io_uring_complete /args->res == -11/ { @[pid] = count(); }`, kernel, "-D", "3s", "-o", "r.json", "--observe=no", "load")
	r := load(t, filepath.Join(p.dir, "r.json"))
	var ours, theirs int64
	for _, phase := range r.Runs[0].Phases {
		for _, g := range phase.Groups {
			ours += g.EAGAIN + g.Warmup.EAGAIN
		}
	}
	for _, proc := range r.Runs[0].Processes {
		theirs += kernel[strconv.Itoa(proc.PID)]
	}
	if ours == 0 {
		t.Error("no arm failed: nothing was compared")
	}
	if ours != theirs {
		t.Errorf("the program counted %d failed arms and the kernel %d", ours, theirs)
	}
	t.Logf("failed arms, warm-ups included: %d by the program, %d by the kernel", ours, theirs)
}

// TestObserverAgrees holds the observer's allocations against those that bpftrace
// counts by itself, by process, call site and size.
func TestObserverAgrees(t *testing.T) {
	kernel := map[string]int64{}
	p := traced(t, `tracepoint:kmem:kmalloc { @[pid, ksym(args->call_site), args->bytes_req] = count(); }`, kernel,
		"-D", "2s", "--warmup", "0s", "-o", "r.json", "--observe=all", "load")
	r := load(t, filepath.Join(p.dir, "r.json"))
	ours := map[string]int64{}
	for _, phase := range r.Runs[0].Phases {
		for _, g := range phase.Groups {
			for _, s := range g.Kernel.Sites {
				function, _, _ := strings.Cut(s.Function, "+")
				if s.Operation == "kmalloc" {
					ours[fmt.Sprintf("%s, %s, %d", g.Name, function, s.Size)] += s.Count
				}
			}
		}
	}
	theirs := map[string]int64{}
	for key, n := range kernel {
		parts := strings.Split(key, ", ")
		function, _, _ := strings.Cut(parts[1], "+")
		for _, proc := range r.Runs[0].Processes {
			if strconv.Itoa(proc.PID) == parts[0] {
				theirs[fmt.Sprintf("%s, %s, %s", proc.Group, function, parts[2])] += n
			}
		}
	}
	// Arms while groups join are in no phase, and the first one of each thread allocates.
	const joining = 12
	for key, n := range theirs {
		// Where arming allocates, by Linux 6.18's and 7.3's names; nothing else does in these processes.
		if function := strings.Split(key, ", ")[1]; (strings.HasPrefix(function, "io_futex") || strings.HasPrefix(function, "io_cache_alloc")) && ours[key] < n-joining {
			t.Errorf("%s: bpftrace counted %d, the observer %d", key, n, ours[key])
		}
	}
	if len(kernel) == 0 {
		t.Error("bpftrace counted nothing: nothing was compared")
	}
	for key, n := range ours {
		if theirs[key] < n || theirs[key] > n+joining {
			t.Errorf("%s: the observer counted %d, bpftrace %d", key, n, theirs[key])
		}
		t.Logf("kmalloc of %s bytes: %d by the observer, %d by bpftrace", key, n, theirs[key])
	}
}

// TestMicro: a micro-benchmark from the command line to the report.
func TestMicro(t *testing.T) {
	p := command(t, "--rounds", "3", "--cycles", "20", "--ring-flags", "single_issuer,coop_taskrun", "-o", "r.json", "control")
	if code := p.run(t); code != 0 {
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
	for _, part := range []string{"scalar", "waitv", "ns/pair", "first round dropped", "in every round: results", "--ring-flags=single_issuer,coop_taskrun"} {
		if !strings.Contains(p.stdout.String(), part) {
			t.Errorf("no %q in %s", part, &p.stdout)
		}
	}
	r := load(t, filepath.Join(p.dir, "r.json"))
	if m := r.Runs[0].Micro; len(m) != 2 || len(m[0].Rounds) != 3 || m[0].Operations != 20*32 || m[1].Operations != 20*8 {
		t.Errorf("%+v", m)
	}
}

// TestCompare: from two runs to a verdict, and what cannot be compared.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, args := range map[string][]string{"a": {"scalar"}, "other": {"waitv"}} {
		p := command(t, append([]string{"-q", "--rounds", "8", "--cycles", "50", "--observe=no", "-o", at(name)}, args...)...)
		if code := p.run(t); code != 0 {
			t.Fatalf("exit %d: %s", code, &p.stderr)
		}
	}
	// The same rounds, twice as slow: certainly slower.
	slow := load(t, at("a"))
	for i := range slow.Runs[0].Micro[0].Rounds {
		slow.Runs[0].Micro[0].Rounds[i] *= 2
	}
	interrupted := *slow
	interrupted.Interrupted = true
	// The same rounds in another order, and another boot: no difference, on a noisy machine too.
	same := load(t, at("a"))
	slices.Reverse(same.Runs[0].Micro[0].Rounds)
	same.Environment.BootID, same.Started = "another", "2026-01-01T00:00:00Z"
	slow2, a2 := *slow, *load(t, at("a"))
	slow2.Environment.BootID, a2.Environment.BootID = "another", "another"
	for name, r := range map[string]*result.Result{"slow": slow, "slow2": &slow2, "a2": &a2, "interrupted": &interrupted, "same": same} {
		if err := output.Write(at(name), r.Encode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("damaged"), []byte(`{"schema": "aossim.result/1", "runs": [`), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"a same", 0, "scalar"}, {"a slow", 1, "slower"}, {"slow a slow2", 0, "faster"}, {"--markdown a slow a2", 1, "drift |"}, {"--json a slow", 1, `"verdict": "slower"`},
		{"--bisect a slow2", 1, "slower"}, {"--bisect a slow", 125, "both sides"}, {"--bisect a damaged", 125, ""}, {"--bisect --force a a", 125, "both sides"}, {"--bisect --force a a slow", 125, "both sides"}, {"--null a", 0, "A against A"}, {"--before a --before same --after slow", 1, "slower"},
		{"a other", 129, "another"}, {"a damaged", 129, "damaged"}, {"a interrupted", 1, "--force"}, {"--force a interrupted", 1, "slower"}, {"a a", 129, "one result"}, {"--before a --before a --after slow", 129, "one result"}, {"--force a a", 0, "both sides"}, {"a", 129, "AFTER.json"}, {"", 129, ""}, {"--gate 0% a same", 129, "--gate"}, {"a /no/such", 129, "no such"},
	} {
		var args []string
		for _, a := range strings.Fields(c.args) {
			if _, err := os.Stat(at(a)); err == nil {
				a = at(a)
			}
			args = append(args, a)
		}
		var stdout, stderr bytes.Buffer
		code := run(append([]string{"compare"}, args...), &stdout, &stderr)
		said := stdout.String() + stderr.String()
		if c.want == "another" {
			c.want = "run the same file"
		}
		if code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("compare %s: exit %d, want %d and %q: %s", c.args, code, c.code, c.want, said)
		}
	}
}

// TestCompareRuns: rounds are compared with rounds, however many runs there were, and what
// differs in how it was run is said.
func TestCompareRuns(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, args := range map[string][]string{"once": nil, "twice": {"-r", "2"}, "elsewhere": {"-a", "0"}} {
		p := command(t, append([]string{"-q", "--rounds", "6", "--cycles", "50", "--observe=no", "-o", at(name), "scalar"}, args...)...)
		if code := p.run(t); code != 0 {
			t.Fatalf("exit %d: %s", code, &p.stderr)
		}
	}
	for other, want := range map[string]string{"twice": "--runs=2", "elsewhere": "--affinity=0"} {
		var stdout, stderr bytes.Buffer
		run([]string{"compare", "--json", at("once"), at(other)}, &stdout, &stderr)
		var c struct {
			Warnings []string
			Metrics  []struct{ Before, After compare.Side }
		}
		if err := json.Unmarshal(stdout.Bytes(), &c); err != nil {
			t.Fatalf("%v: %s%s", err, &stdout, &stderr)
		}
		after := map[string]int{"twice": 12, "elsewhere": 6}[other]
		if m := c.Metrics[0]; m.Before.N != 6 || m.After.N != after {
			t.Errorf("%s: %d rounds against %d of %d", other, m.Before.N, m.After.N, after)
		}
		if warnings := strings.Join(c.Warnings, "\n"); !strings.Contains(warnings, "options differs") || !strings.Contains(warnings, want) {
			t.Errorf("%s: no warning of %s: %q", other, want, warnings)
		}
	}
}

// TestNotObserved: without the right to observe, a run says what is missing and goes on,
// and one that is told to observe does not begin.
func TestNotObserved(t *testing.T) {
	unprivileged := func(args ...string) (p *program, code int) {
		linuxtest.Unprivileged(t, func() {
			p = command(t, args...)
			code = p.run(t)
		})
		return p, code
	}
	p, code := unprivileged("--no-rt", "-D", "200ms", "--json", "pair")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
	r, err := result.Decode("stdout", p.stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if r.Observer.Mode != result.ObservedNot || !strings.Contains(r.Observer.Missing, "CAP_BPF") {
		t.Errorf("observer: %+v", r.Observer)
	}
	var text bytes.Buffer
	if err := report.Text(&text, r); err != nil || !strings.Contains(text.String(), "not observed: ") {
		t.Errorf("the report does not say it: %v", err)
	}
	p, code = unprivileged("--no-rt", "-D", "200ms", "--observe", "pair")
	if code != exitSkipped || !strings.Contains(p.stderr.String(), "CAP_BPF") || p.stdout.Len() > 0 {
		t.Errorf("--observe: exit %d: %s", code, &p.stderr)
	}
	p, code = unprivileged("check")
	if code != exitSkipped || !strings.Contains(p.stdout.String(), "NO    real-time policy") {
		t.Errorf("check: exit %d: %s", code, &p.stdout)
	}
}

// traced runs aossim under bpftrace, which counts in one map, and puts the map into found.
func traced(t *testing.T, script string, found map[string]int64, args ...string) *program {
	t.Helper()
	tracer, err := exec.LookPath("bpftrace")
	if err != nil {
		t.Skip("bpftrace is not installed (apt-get install bpftrace)")
	}
	if _, err := os.Stat("/sys/kernel/tracing/events/io_uring/io_uring_complete"); err != nil {
		t.Skipf("no tracing here (mount -t tracefs nodev /sys/kernel/tracing): %v", err)
	}
	trace := exec.Command(tracer, "-e", script+` BEGIN { printf("ready\n"); }`)
	out, err := trace.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	trace.Stderr = &stderr
	if err := trace.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*time.Minute, func() { trace.Process.Kill() })
	defer watchdog.Stop()
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
	}
	p := command(t, args...)
	code := p.run(t)
	if err := trace.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	// bpftrace 0.17 heeds a signal only while it waits for events: it is sent again until heard.
	again := time.NewTicker(5 * time.Second)
	defer again.Stop()
	go func() {
		for range again.C {
			_ = trace.Process.Signal(os.Interrupt)
		}
	}()
	for count := regexp.MustCompile(`^@\[(.+)\]: (\d+)$`); lines.Scan(); {
		if m := count.FindStringSubmatch(lines.Text()); m != nil {
			found[m[1]], _ = strconv.ParseInt(m[2], 10, 64)
		}
	}
	if err := trace.Wait(); err != nil {
		if strings.Contains(stderr.String(), "permitted") {
			t.Skipf("tracing is not allowed here: %s", &stderr)
		}
		t.Fatalf("%v: %s", err, &stderr)
	}
	if code != 0 {
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
	return p
}

// TestLogTimes: the times in a histogram log are those at which the kernel's trace has the
// phases begin, in every run.
func TestLogTimes(t *testing.T) {
	const trace = "/sys/kernel/tracing/trace"
	if err := os.WriteFile(trace, nil, 0); err != nil {
		t.Skipf("no tracing here (mount -t tracefs nodev /sys/kernel/tracing): %v", err)
	}
	p := command(t, "-q", "-D", "300ms", "--warmup", "200ms", "-r", "2", "--tracemark", "--observe=no", "-o", "r.json", "load")
	if code := p.run(t); code != 0 {
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	var marked []float64
	for _, m := range regexp.MustCompile(`([0-9]+\.[0-9]+): tracing_mark_write: aossim: run \d, [^,\n]+ begins`).FindAllStringSubmatch(string(data), -1) {
		at, _ := strconv.ParseFloat(m[1], 64)
		marked = append(marked, at)
	}
	report := command(t, "report", "--hlog", p.dir, filepath.Join(p.dir, "r.json"))
	if code := report.run(t); code != 0 {
		t.Fatalf("exit %d: %s", code, &report.stderr)
	}
	log, err := os.ReadFile(filepath.Join(p.dir, "load.hlog"))
	if err != nil {
		t.Fatal(err)
	}
	var logged []float64
	for _, m := range regexp.MustCompile(`(?m)^Tag=run\d/[^/]+/real-time/rearm,([0-9.]+),`).FindAllStringSubmatch(string(log), -1) {
		at, _ := strconv.ParseFloat(m[1], 64)
		logged = append(logged, at)
	}
	if len(marked) != 6 || len(logged) != 6 {
		t.Fatalf("marked at %v, logged at %v; want 6 phases", marked, logged)
	}
	for i := range marked {
		if m, l := marked[i]-marked[0], logged[i]-logged[0]; m-l > 0.1 || l-m > 0.1 {
			t.Errorf("phase %d: %.3f s after the first by the trace, %.3f s by the log", i, m, l)
		}
	}
}

// TestUsage: wrong use is exit 129, one line, and nothing runs.
func TestUsage(t *testing.T) {
	bad := write(t, "name = \"x\"\nrates = 3\n[[channel]]\nname = \"/c\"\n")
	for _, args := range [][]string{
		{}, {"--no-such-flag"}, {"no-such-scenario"}, {bad}, {"run"}, {"-r", "0", "pair"}, {"-p", "100", "pair"}, {"-p", "-1", "pair"},
		{"-D", "-1s", "pair"}, {"-D", "1", "pair"}, {"--warmup", "-1s", "pair"}, {"-a", "x", "pair"}, {"-a", "1000", "pair"}, {"-a", "", "pair"}, {"-a", "1000", "scalar"},
		{"-p", "0", "pair"}, {"-p", "0", "scalar"}, {"-D", "0s", "pair"}, {"-b", "0", "pair"}, {"--rounds", "0", "scalar"}, {"--cycles", "0", "scalar"}, {"vm", "--kernel", "x", "--rounds", "0", "scalar"},
		{"--observe=perhaps", "pair"}, {"-D", "1s", "scalar"}, {"--rounds", "3", "pair"}, {"--rounds", "-1", "scalar"}, {"--ring-flags", "x", "scalar"}, {"check", "-p", "0"}, {"check", "x"},
		{"vm"}, {"vm", "pair"}, {"vm", "--kernel", "/dev/null", "pair"}, {"vm", "--kernel", "/no/such", "pair"}, {"vm", "--before", "x", "pair"}, {"vm", "--kernel", "x"},
		{"vm", "--before", "x", "--after", "y", "--order", "ABC", "pair"}, {"vm", "--before", "x", "--after", "y", "--order", "AA", "pair"}, {"vm", "--kernel", "x", "--cpus", "0", "pair"},
		{"vm", "--bisect", "--after", "x", "pair"}, {"vm", "--bisect", "--kernel", "x", "pair"}, {"vm", "--kernel", "x", "--clock", "sundial", "pair"}, {"vm", "--kernel", "x", "--jobs", "-1", "pair"}, {"vm", "--kernel", "x", "--timeout", "0s", "pair"},
		{"vm", "--before", "x", "--before", "y", "--after", "z", "pair"}, {"vm", "--before", "x", "--after", "z", "--check"}, {"vm", "--kernel", "x", "--json", "pair"}, {"vm", "--kernel", "x", "--markdown", "pair"},
		{"vm", "--before", "x", "--after", "z", "--json", "--markdown", "pair"}, {"vm", "--before", bad, "--after", "z", "--gate", "0%", "pair"},
		{"-o", "x.json", "pair", "load"}, {"report"}, {"report", bad}, {"report", "/no/such.json"}, {"pair", bad}, {"/dev/null"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(args, &stdout, &stderr); code != exitUsage {
			t.Errorf("%q: exit %d", args, code)
		}
		if lines := strings.Count(stderr.String(), "\n"); stdout.Len() != 0 || lines != 1 || !strings.HasPrefix(stderr.String(), "aossim: ") {
			t.Errorf("%q: stdout %q, stderr %q", args, &stdout, &stderr)
		}
	}
	// What is wrong with a flag is said of the flag, not of the scenario.
	for flag, args := range map[string][]string{"--affinity: CPU 1000": {"-a", "1000", "scalar"}, "--affinity: \"x\"": {"-a", "x", "scalar"}, "--priority 0": {"-p", "0", "pair"}} {
		var stdout, stderr bytes.Buffer
		if run(args, &stdout, &stderr); !strings.Contains(stderr.String(), flag) || strings.Contains(stderr.String(), ".toml") {
			t.Errorf("%q: %q does not say %s", args, &stderr, flag)
		}
	}
	var stdout, stderr bytes.Buffer
	run([]string{bad}, &stdout, &stderr)
	if want := "aossim: " + bad + `:2:1: unknown key "rates"; the README`; !strings.HasPrefix(stderr.String(), want) {
		t.Errorf("got %q, want %q", &stderr, want)
	}
}

func TestHelpAndList(t *testing.T) {
	for args, want := range map[string]string{"--help": "Usage: aossim", "list": "load           a 2 kHz real-time pair", "run --help": "--duration"} {
		var stdout, stderr bytes.Buffer
		if code := run(strings.Fields(args), &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), want) || stderr.Len() != 0 {
			t.Errorf("%s: exit %d, %q, %q", args, code, &stdout, &stderr)
		}
	}
}

// publicCopy copies the test binary to where every user can run it.
func publicCopy(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "aossim-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "aossim")
	if err := errors.Join(os.WriteFile(path, binary, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// asNobody is the program at path, to be run by the user nobody.
func asNobody(t *testing.T, path string, args ...string) *program {
	p := command(t, args...)
	p.Path, p.Dir = path, "/"
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return p
}

// TestNoPermission: without the right to SCHED_FIFO it is exit 4 and three ways
// out, and --no-rt is one of them.
func TestNoPermission(t *testing.T) {
	unprivileged := func(args ...string) *program { return command(t, args...) }
	if os.Getuid() == 0 {
		path := publicCopy(t)
		unprivileged = func(args ...string) *program { return asNobody(t, path, args...) }
	}
	p := unprivileged("-D", "300ms", "-o", "/dev/null", "pair")
	if code := p.run(t); code != exitSkipped {
		t.Errorf("exit %d: %s", code, &p.stderr)
	}
	for _, want := range []string{`"real-time"`, "sudo", "setcap", "rtprio"} {
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("%q does not say %s", &p.stderr, want)
		}
	}
	p = unprivileged("-D", "300ms", "-o", "/dev/null", "--no-rt", "load")
	if code := p.run(t); code != 0 || !strings.Contains(p.stdout.String(), "not real-time") {
		t.Errorf("--no-rt: exit %d: %s%s", code, &p.stdout, &p.stderr)
	}
}

// TestNoRing: where io_uring is forbidden it is exit 4, saying by whom.
func TestNoRing(t *testing.T) {
	for call, name := range map[int]string{unix.SYS_IO_URING_SETUP: "io_uring_setup", unix.SYS_IO_URING_REGISTER: "io_uring_register", unix.SYS_IO_URING_ENTER: "io_uring_enter"} {
		for _, errno := range []syscall.Errno{syscall.EPERM, syscall.ENOSYS} {
			p := command(t, "-D", "300ms", "pair")
			p.Env = append(p.Env, fmt.Sprintf("%s=%d %d", withSeccomp, call, int(errno)))
			if code := p.run(t); code != exitSkipped || !strings.Contains(p.stderr.String(), "seccomp") || !strings.Contains(p.stderr.String(), name) {
				t.Errorf("%s, %v: exit %d: %s", name, errno, code, &p.stderr)
			}
		}
	}
	const sysctl = "/proc/sys/kernel/io_uring_disabled"
	was, err := os.ReadFile(sysctl)
	if err != nil {
		t.Skip("this kernel has no kernel.io_uring_disabled (Linux 6.6)")
	}
	if err := os.WriteFile(sysctl, []byte("2"), 0); err != nil {
		t.Skipf("kernel.io_uring_disabled cannot be set: %v", err)
	}
	defer os.WriteFile(sysctl, was, 0)
	p := command(t, "-D", "300ms", "pair")
	if code := p.run(t); code != exitSkipped || !strings.Contains(p.stderr.String(), "kernel.io_uring_disabled is 2") {
		t.Errorf("exit %d: %s", code, &p.stderr)
	}
}

// TestSignals: in any phase SIGINT and SIGTERM end everything within a second, and
// what was measured is kept.
func TestSignals(t *testing.T) {
	for i, c := range []struct {
		after  time.Duration // of the start: 300 ms of warm-up before each phase of 1 s
		signal os.Signal
		phases int
	}{
		{150 * time.Millisecond, syscall.SIGTERM, 0},
		{800 * time.Millisecond, os.Interrupt, 1},
		{2100 * time.Millisecond, syscall.SIGTERM, 2},
		{3500 * time.Millisecond, os.Interrupt, 3},
	} {
		p := command(t, "-D", "1s", "--warmup", "300ms", "load")
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, "actors", 10*time.Second, func() bool { return len(p.actors(t)) == 8 })
		time.Sleep(c.after)
		actors := p.actors(t)
		start := time.Now()
		if err := p.Process.Signal(c.signal); err != nil {
			t.Fatal(err)
		}
		code := p.exit(t, 10*time.Second)
		if took := time.Since(start); took > time.Second || code != exitFailed {
			t.Errorf("%d: %v took %s, exit %d: %s", i, c.signal, took, code, &p.stderr)
		}
		if left := alive(actors); len(left) != 0 {
			t.Errorf("%d: processes %v are left", i, left)
		}
		r := load(t, p.only(t))
		if !r.Interrupted || !strings.Contains(p.stdout.String(), "INTERRUPTED") {
			t.Errorf("%d: interrupted %t", i, r.Interrupted)
		}
		// A slow machine may be a phase behind.
		if n := len(r.Runs[0].Phases); n > c.phases || n < c.phases-1 {
			t.Errorf("%d: %d phases, want %d", i, n, c.phases)
		}
		for _, f := range r.Failed() {
			t.Errorf("%d: check %q: %s", i, f.Name, f.Detail)
		}
	}
}

// TestControllerKilled: no actor survives its controller.
func TestControllerKilled(t *testing.T) {
	pidfile := filepath.Join(t.TempDir(), "pid")
	scenario := write(t, `
[[channel]]
name = "/c"
[[publisher]]
channel = "/c"
rate = "1kHz"
policy = "fifo"
priority = 10
[[subscriber]]
channels = ["/c"]
processes = true
count = 2
[[load]]
kind = "command"
command = ["sh", "-c", "sleep 1000 & echo $! > `+pidfile+`; wait"]
`)
	p := command(t, scenario)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var external []byte
	await(t, "the external load", 10*time.Second, func() bool {
		external, _ = os.ReadFile(pidfile)
		return bytes.HasSuffix(external, []byte("\n"))
	})
	actors := p.actors(t)
	if len(actors) != 4 {
		t.Errorf("%d actor processes, want 4", len(actors))
	}
	sleeper, err := strconv.Atoi(strings.TrimSpace(string(external)))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.Wait()
	await(t, "the end of all actors", time.Second, func() bool { return len(alive(append(actors, sleeper))) == 0 })
	left, err := filepath.Glob("/dev/shm/*aossim*")
	if err != nil || len(left) != 0 {
		t.Errorf("left in /dev/shm: %v, %v", left, err)
	}
}

// TestFileCapabilities: setcap is one of the ways out that are offered. The kernel
// forgets a parent's death signal for such a program.
func TestFileCapabilities(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a file capabilities")
	}
	path := publicCopy(t)
	// struct vfs_cap_data, revision 2, effective: what setcap writes.
	data := make([]byte, 20)
	binary.LittleEndian.PutUint32(data, 0x02000001)
	binary.LittleEndian.PutUint32(data[4:], 1<<unix.CAP_SYS_NICE|1<<unix.CAP_IPC_LOCK)
	if err := unix.Setxattr(path, "security.capability", data, 0); err != nil {
		t.Skipf("this file system takes no capabilities: %v", err)
	}
	p := asNobody(t, path, "-D", "300ms", "-o", "/dev/null", "pair")
	if code := p.run(t); code != 0 || !strings.Contains(p.stdout.String(), "fifo") {
		t.Fatalf("exit %d: %s%s", code, &p.stdout, &p.stderr)
	}
	p = asNobody(t, path, "-D", "20s", "-o", "/dev/null", "pair")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "actors", 10*time.Second, func() bool { return len(p.actors(t)) == 1 })
	time.Sleep(500 * time.Millisecond)
	actors := p.actors(t)
	p.Process.Kill()
	p.Wait()
	await(t, "the end of all actors", time.Second, func() bool { return len(alive(actors)) == 0 })
}

// TestActorKilled: the run ends, says whose process it was, and keeps what the
// others measured.
func TestActorKilled(t *testing.T) {
	p := command(t, "-D", "20s", "--warmup", "0s", "-o", "r.json", "low-priority")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "actors", 10*time.Second, func() bool { return len(p.actors(t)) == 7 })
	time.Sleep(500 * time.Millisecond)
	actors := p.actors(t)
	if err := syscall.Kill(actors[len(actors)-1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code := p.exit(t, 15*time.Second)
	if code != exitFailed || !strings.Contains(p.stderr.String(), `"low-priority"`) || !strings.Contains(p.stderr.String(), "SIGKILL") {
		t.Errorf("exit %d: %s", code, &p.stderr)
	}
	if r := load(t, filepath.Join(p.dir, "r.json")); r.Broken == "" {
		t.Error("the result does not say that the run broke")
	}
	if left := alive(actors); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
}

// TestHog: real-time actors that never let go of any CPU are ended.
func TestHog(t *testing.T) {
	scenario := write(t, fmt.Sprintf(`
[[channel]]
name = "/c"
[[publisher]]
group = "pub"
channel = "/c"
rate = "100Hz"
[[subscriber]]
group = "hog"
channels = ["/c"]
count = %d
policy = "fifo"
priority = 99
work = "1s"
`, 2*max(1, numCPU())))
	p := command(t, "-D", "30s", "-o", "r.json", scenario)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	code := p.exit(t, 20*time.Second)
	if code != exitFailed || !strings.Contains(p.stderr.String(), "watchdog") || !strings.Contains(p.stderr.String(), `"hog"`) {
		t.Errorf("exit %d: %s", code, &p.stderr)
	}
	load(t, filepath.Join(p.dir, "r.json"))
}

func numCPU() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 1
	}
	return set.Count()
}

// TestSoak runs load.toml for as long as AOSSIM_SOAK says in all, and watches the
// resident memory of every process:
//
//	AOSSIM_SOAK=10m go test ./cmd/aossim -run Soak -v -timeout 30m
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("AOSSIM_SOAK"))
	if err != nil {
		t.Skip("AOSSIM_SOAK does not say how long, such as 10m")
	}
	p := command(t, "-D", (length / 3).String(), "-o", "r.json", "load")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	defer p.Process.Kill()
	await(t, "actors", 10*time.Second, func() bool { return len(p.actors(t)) == 8 })
	time.Sleep(10 * time.Second) // set-up and warm-up
	first, largest := map[int]int{}, map[int]int{}
	for running := true; running; {
		for _, pid := range append(p.actors(t), p.Process.Pid) {
			kb := resident(pid)
			if _, known := first[pid]; !known {
				first[pid] = kb
			}
			largest[pid] = max(largest[pid], kb)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%v: %s", err, &p.stderr)
			}
			running = false
		case <-time.After(2 * time.Second):
			// The reports at the end take memory, and nobody measures any more.
			running = running && len(p.actors(t)) == 8
		}
	}
	if p.ProcessState == nil {
		if err := <-ended; err != nil {
			t.Errorf("%v: %s", err, &p.stderr)
		}
	}
	for pid, kb := range first {
		t.Logf("process %d: %d KiB after warm-up, %d KiB at most", pid, kb, largest[pid])
		if grown := largest[pid] - kb; grown > kb/10+1024 {
			t.Errorf("process %d grew by %d KiB", pid, grown)
		}
	}
	for _, f := range load(t, filepath.Join(p.dir, "r.json")).Failed() {
		t.Errorf("check %q: %s", f.Name, f.Detail)
	}
}

// resident returns the memory of a process in KiB.
func resident(pid int) (kb int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status); m != nil {
		kb, _ = strconv.Atoi(string(m[1]))
	}
	return kb
}

// TestNowhereToWrite: what was measured is still shown.
func TestNowhereToWrite(t *testing.T) {
	p := command(t, "-D", "1m", "pair")
	if err := os.WriteFile(filepath.Join(p.dir, "results"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	long := command(t, "-D", "1m", "-o", strings.Repeat("x", 256), "scalar")
	vm := command(t, "vm", "--kernel", "/dev/null", "-o", "/dev/null", "pair")
	for _, p := range []*program{p, long, vm} {
		if code := p.run(t); code != exitUsage || p.stdout.Len() != 0 {
			t.Errorf("%q: exit %d: %s%s", p.Args, code, &p.stdout, &p.stderr)
		}
	}
	// This one takes some, and is full when it matters: the result goes elsewhere, and the report is there.
	full := command(t, "-D", "200ms", "--warmup", "0s", "-o", "/dev/full", "pair")
	full.Env = append(full.Env, "TMPDIR="+full.dir)
	code := full.run(t)
	if code != exitFailed || !strings.Contains(full.stderr.String(), "writing the result") || !strings.Contains(full.stderr.String(), "-o FILE") {
		t.Errorf("exit %d: %s", code, &full.stderr)
	}
	if !strings.Contains(full.stdout.String(), "pair only") || !strings.Contains(full.stdout.String(), "delivery") {
		t.Errorf("no report: %s", &full.stdout)
	}
	kept, err := filepath.Glob(filepath.Join(full.dir, "aossim-*.json"))
	if err != nil || len(kept) != 1 || !strings.Contains(full.stderr.String(), kept[0]) {
		t.Fatalf("kept %q, %v; said %s", kept, err, &full.stderr)
	}
	load(t, kept[0])
	// Neither has any room: standard output gets it.
	none := command(t, "-D", "200ms", "--warmup", "0s", "-o", "/dev/full", "pair")
	none.Env = append(none.Env, "TMPDIR="+filepath.Join(none.dir, "none"))
	if code := none.run(t); code != exitFailed {
		t.Errorf("exit %d: %s", code, &none.stderr)
	}
	if _, err := result.Decode("stdout", none.stdout.Bytes()); err != nil {
		t.Errorf("the result is lost: %v", err)
	}
}

// TestStandardOutput: a result that goes to standard output is alone there, whatever that is,
// and is not lost where it has no room.
func TestStandardOutput(t *testing.T) {
	for _, args := range [][]string{{"--json"}, {"-o", "/dev/stdout"}, {"-o", "/proc/self/fd/1"}} {
		p := command(t, append([]string{"-D", "200ms", "--warmup", "0s", "--observe=no", "pair"}, args...)...)
		file, err := os.Create(filepath.Join(p.dir, "out.json"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		p.Stdout = file
		if code := p.run(t); code != 0 {
			t.Errorf("%v to a file: exit %d: %s", args, code, &p.stderr)
		}
		load(t, file.Name())
		p = command(t, append([]string{"-D", "200ms", "--warmup", "0s", "--observe=no", "pair"}, args...)...)
		if code := p.run(t); code != 0 {
			t.Errorf("%v to a pipe: exit %d: %s", args, code, &p.stderr)
		}
		if _, err := result.Decode("stdout", p.stdout.Bytes()); err != nil {
			t.Errorf("%v to a pipe: %v", args, err)
		}
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	p := command(t, "-D", "200ms", "--warmup", "0s", "--observe=no", "--json", "pair")
	p.Stdout, p.Env = full, append(p.Env, "TMPDIR="+p.dir)
	code := p.run(t)
	kept, err := filepath.Glob(filepath.Join(p.dir, "aossim-*.json"))
	if code != exitFailed || err != nil || len(kept) != 1 || !strings.Contains(p.stderr.String(), kept[0]) {
		t.Fatalf("exit %d, kept %q, %v: %s", code, kept, err, &p.stderr)
	}
	load(t, kept[0])
	for _, args := range [][]string{{"list"}, {"report", kept[0]}, {"report", "--gobench", kept[0]}, {"report", "--ktap", kept[0]}, {"check"}} {
		p := command(t, args...)
		p.Stdout = full
		if code := p.run(t); code != exitFailed || !strings.Contains(p.stderr.String(), "no space left") {
			t.Errorf("%v to a full disk: exit %d: %s", args, code, &p.stderr)
		}
	}
}

// TestFault: a fault of the program is one line and exit code 1, or 125 in a bisection, as 2
// would be taken for bad.
func TestFault(t *testing.T) {
	for flag, want := range map[string]int{"": exitFailed, "--bisect": exitSkipBisect} {
		var stdout, stderr bytes.Buffer
		args := []string{"compare", "a", "b"}
		if flag != "" {
			args = append(args, flag)
		}
		code := run(args, &stdout, faulty{&stderr})
		if code != want || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), "a fault of aossim") {
			t.Errorf("%v: exit %d: %s", args, code, &stderr)
		}
	}
}

// faulty panics at the first write.
type faulty struct{ *bytes.Buffer }

func (f faulty) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte("fault of")) {
		panic("broken")
	}
	return f.Buffer.Write(p)
}

// TestOutputs: JSON to standard output, and the summary.
func TestOutputs(t *testing.T) {
	p := command(t, "-D", "200ms", "--warmup", "0s", "--json", "pair")
	if code := p.run(t); code != 0 || p.stderr.Len() != 0 {
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
	if _, err := result.Decode("stdout", p.stdout.Bytes()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "results")); err == nil {
		t.Error("--json wrote a file as well")
	}
	p = command(t, "-D", "200ms", "--warmup", "0s", "-q", "pair", "private")
	if code := p.run(t); code != 0 || p.stderr.Len() != 0 || strings.Contains(p.stdout.String(), "delivery") || strings.Count(p.stdout.String(), "published/s") != 2 {
		t.Errorf("-q: exit %d: %s%s", code, &p.stdout, &p.stderr)
	}
}
