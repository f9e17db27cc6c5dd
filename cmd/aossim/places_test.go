package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aossim/internal/linux"
	"aossim/internal/result"
)

// group makes a control group of version 1 with settings, and returns its directory.
func group(t *testing.T, controller string, settings ...string) string {
	t.Helper()
	parent := "/sys/fs/cgroup/" + controller
	if _, err := os.Stat(parent + "/tasks"); err != nil {
		t.Skipf("no control groups of version 1 here: %v", err)
	}
	dir, err := os.MkdirTemp(parent, "aossim-test-")
	if err != nil {
		t.Skipf("no control group can be made here: %v", err)
	}
	t.Cleanup(func() {
		await(t, "the end of "+dir, 10*time.Second, func() bool { return os.Remove(dir) == nil })
	})
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o666); err != nil {
			t.Skipf("%s cannot be set here: %v", s, err)
		}
	}
	return dir
}

// under is the program started by a shell that does something first.
func under(t *testing.T, first string, args ...string) *program {
	t.Helper()
	p := command(t, args...)
	p.Args = append([]string{"sh", "-c", first + "\n" + `exec "$@"`, "sh", "/proc/self/exe"}, args...)
	p.Args[4] = forAll(t)
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	p.Path = sh
	return p
}

// forAll is the program where every user may run it.
func forAll(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "aossim-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "aossim")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

func entering(dir string) string { return "echo $$ >" + dir + "/cgroup.procs || exit 99" }

// TestPlaces: what a place does not allow is refused before anything starts, with the limit
// and its file, and check says it; what happens later is named for what it was.
func TestPlaces(t *testing.T) {
	const quick = "-q -D 300ms --warmup 100ms --observe=no "
	loop := "[[channel]]\nname = \"/c\"\n[[publisher]]\nchannel = \"/c\"\nrate = \"1kHz\"\n[[subscriber]]\nchannels = [\"/c\"]\n"
	deadline := write(t, loop+"policy = \"deadline\"\nruntime = \"6ms\"\ndeadline = \"10ms\"\nperiod = \"10ms\"\ncount = "+strconv.Itoa(2*runtime.NumCPU())+"\n")
	one := write(t, loop+"policy = \"deadline\"\nruntime = \"1ms\"\ndeadline = \"10ms\"\nperiod = \"10ms\"\n")
	spins := write(t, loop+"policy = \"fifo\"\npriority = 10\nwork = \"300ms\"\ncpus = ["+strconv.Itoa(lastCPU(t))+"]\n")
	net := write(t, loop+"[[load]]\nkind = \"net\"\n")
	micro := write(t, "kind = \"micro\"\nrounds = 1\npolicy = \"fifo\"\npriority = 10\n[[point]]\nname = \"p\"\nworkload = \"scalar\"\n")
	large := write(t, strings.Replace(loop, "name = \"/c\"\n", "name = \"/c\"\nqueue_size = 4096\nmax_size = 65536\n", 1))
	for _, c := range []struct {
		name, first, args string
		controller        string
		settings          []string
		code              int
		want              string // of standard error
		check             string // of what check says there
	}{
		{name: "priority 99", args: quick + "-p 99 pair"},
		{name: "no real-time budget", controller: "cpu", settings: []string{"cpu.rt_runtime_us=0"}, args: quick + "pair", code: 4, want: "cpu.rt_runtime_us", check: "real-time budget 0 us"},
		{name: "micro without budget", controller: "cpu", settings: []string{"cpu.rt_runtime_us=0"}, args: "-q --rounds 1 " + micro, code: 4, want: "cpu.rt_runtime_us"},
		{name: "CPU quota", controller: "cpu", settings: []string{"cpu.rt_runtime_us=400000", "cpu.cfs_quota_us=5000"}, args: "-q -D 1s --warmup 0s --observe=no load", code: 1, want: "ordinary threads were stopped", check: "CPU quota 0.05 CPUs"},
		{name: "memory", controller: "memory", settings: []string{"memory.limit_in_bytes=134217728"}, args: quick + large, code: 4, want: "memory.limit_in_bytes", check: "memory 128 MiB"},
		{name: "pids 8", controller: "pids", settings: []string{"pids.max=8"}, args: quick + "load", code: 4, want: "pids.max", check: "threads 8"},
		{name: "pids 20", controller: "pids", settings: []string{"pids.max=20"}, args: quick + "load", code: 4, want: "pids.max", check: "threads 20"},
		{name: "pids 40", controller: "pids", settings: []string{"pids.max=40"}, args: quick + "load", code: 4, want: "pids.max"},
		{name: "pids 20, micro", controller: "pids", settings: []string{"pids.max=20"}, args: "-q --rounds 1 eagain", code: 4, want: "pids.max"},
		{name: "pids 200", controller: "pids", settings: []string{"pids.max=200"}, args: quick + "load"},
		{name: "cpuset and priority 99", controller: "cpuset", settings: []string{"cpuset.cpus=0", "cpuset.mems=0"}, args: quick + "-p 99 pair", code: 4, want: "must be allowed all CPUs", check: "CPUs 0"},
		{name: "cpuset", controller: "cpuset", settings: []string{"cpuset.cpus=0", "cpuset.mems=0"}, args: quick + "pair"},
		{name: "deadline, too much", args: quick + deadline, code: 4, want: "lower runtime or count"},
		{name: "deadline", args: quick + one},
		{name: "deadline, taskset", first: "taskset -p 1 $$ >/dev/null", args: quick + one, code: 4, want: "outside of taskset"},
		{name: "RLIMIT_RTTIME", first: "ulimit -R 20000 2>/dev/null || exec bash -c 'ulimit -R 20000; exec \"$@\"' sh \"$@\"", args: "-q -D 2s --warmup 0s --observe=no " + spins, code: 1, want: "RLIMIT_RTTIME 20000 us", check: "RLIMIT_RTTIME 20000 us"},
		{name: "RLIMIT_AS", first: "ulimit -v 2000000", args: quick + "pair", code: 4, want: "RLIMIT_AS 1953 MiB", check: "RLIMIT_AS 1953 MiB"},
		{name: "RLIMIT_AS that does", first: "ulimit -v 2800000", args: quick + "pair"},
		{name: "RLIMIT_NOFILE", first: "ulimit -n 30", args: quick + "load", code: 4, want: "RLIMIT_NOFILE 30", check: "RLIMIT_NOFILE 30"},
		{name: "RLIMIT_FSIZE", first: "ulimit -f 200", args: quick + "load", code: 4, want: "RLIMIT_FSIZE", check: "RLIMIT_FSIZE"},
		{name: "RLIMIT_FSIZE of a result", first: "ulimit -f 200", args: "-q --rounds 1 scalar", code: 129, want: "file too large"},
		{name: "RLIMIT_NPROC", first: asUser("prlimit --pid $$ --nproc=40"), args: quick + "--no-rt load", code: 4, want: "RLIMIT_NPROC 40"},
		{name: "a user", first: asUser(":"), args: quick + "pair", code: 4, want: "run with sudo", check: "run with sudo"},
		{name: "a nice user", first: asUser("renice -n 5 -p $$ >/dev/null"), args: quick + "--no-rt -o /dev/null load"},
		{name: "root without CAP_SYS_NICE", first: without("sys_nice"), args: quick + "pair", code: 4, want: "--cap-add=SYS_NICE", check: "--cap-add=SYS_NICE"},
		{name: "root without CAP_IPC_LOCK", first: without("ipc_lock"), args: quick + "pair", code: 4, want: "--cap-add=IPC_LOCK", check: "--cap-add=IPC_LOCK"},
		{name: "no loopback", first: unshared("-n", ""), args: quick + net, code: 4, want: "ip link set lo up"},
		{name: "no /proc", first: unshared("-m", "umount -l /proc"), args: quick + "pair", code: 4, want: "there is no /proc"},
		{name: "no /proc, micro", first: unshared("-m", "umount -l /proc"), args: "-q --rounds 1 eagain", code: 4, want: "there is no /proc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := c.first
			if c.controller != "" {
				first = entering(group(t, c.controller, c.settings...))
			}
			run := func(args ...string) (*program, int) {
				p := under(t, first, args...)
				if err := os.Chmod(p.dir, 0o777); err != nil {
					t.Fatal(err)
				}
				return p, p.run(t)
			}
			p, code := run(strings.Fields(c.args)...)
			said := p.stderr.String()
			if code != c.code || !strings.Contains(said, c.want) || c.want == "" && said != "" {
				t.Errorf("exit %d, want %d and %q: %s%s", code, c.code, c.want, &p.stdout, said)
			}
			if c.code >= 4 && (strings.Count(said, "\n") != 1 || p.stdout.Len() > 0) {
				t.Errorf("more than one line, or some of a run: %s%s", &p.stdout, said)
			}
			if strings.Contains(said, "goroutine ") || os.Getuid() == 0 && c.first == "" && strings.Contains(said, "sudo") {
				t.Errorf("said %s", said)
			}
			if c.check != "" {
				if p, _ := run("check"); !strings.Contains(p.stdout.String(), c.check) {
					t.Errorf("check says nothing of %q: %s%s", c.check, &p.stdout, &p.stderr)
				}
			}
		})
	}
}

// asUser, without and unshared are what the shell does first: it becomes another.
func asUser(then string) string {
	return `if [ "$(id -u)" = 0 ]; then exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '` + then + `; exec "$@"' sh "$@"; fi`
}

func without(capability string) string {
	return `exec setpriv --bounding-set -` + capability + ` --inh-caps -` + capability + ` "$@"`
}

func unshared(flag, then string) string {
	if then == "" {
		return "exec unshare " + flag + ` "$@"`
	}
	return "exec unshare " + flag + " sh -c '" + then + `; exec "$@"' sh "$@"`
}

func lastCPU(t *testing.T) int {
	t.Helper()
	cpus, err := linux.Affinity()
	if err != nil {
		t.Fatal(err)
	}
	return cpus[len(cpus)-1]
}

// TestTakenAway: an actor that loses its CPUs or its policy while it runs fails the check
// "granted", of a scenario and of a micro-benchmark.
func TestTakenAway(t *testing.T) {
	cpus, err := linux.Affinity()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("one CPU only: nothing can be taken away")
	}
	move := func(thread int) error {
		has, err := linux.AffinityOf(thread)
		if err != nil {
			return err
		}
		var set unix.CPUSet
		for _, c := range cpus {
			if !slices.Contains(has, c) {
				set.Set(c)
			}
		}
		return unix.SchedSetaffinity(thread, &set)
	}
	demote := func(thread int) error {
		return unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	}
	for _, c := range []struct {
		what, args string
		thread     string // its name's start
		take       func(int) error
		want       string
	}{
		{"CPUs", "-D 1500ms --warmup 0s --observe=no pair", "sub ", move, "and has"},
		{"priority", "-D 1500ms --warmup 0s --observe=no pair", "pub ", demote, "was to have fifo 40 and has fifo 1 now"},
		{"a micro-benchmark's CPU", "--rounds 200 --observe=no scalar", "micro ", move, "CPUs"},
		{"a load's CPU", "-D 1500ms --warmup 0s --observe=no " + write(t, "[[channel]]\nname = \"/c\"\n[[publisher]]\nchannel = \"/c\"\nrate = \"1kHz\"\n[[subscriber]]\nchannels = [\"/c\"]\n[[load]]\nkind = \"timer\"\ncpus = [0]\n"), "loa ", move, "a load of group"},
	} {
		p := command(t, append([]string{"-q", "-o", "r.json"}, strings.Fields(c.args)...)...)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		thread := 0
		await(t, "a thread of "+c.what, 20*time.Second, func() bool {
			for _, pid := range p.actors(t) {
				names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
				for _, name := range names {
					if data, _ := os.ReadFile(name); strings.HasPrefix(string(data), c.thread) {
						thread, _ = strconv.Atoi(filepath.Base(filepath.Dir(name)))
					}
				}
			}
			return thread != 0
		})
		time.Sleep(400 * time.Millisecond) // it is under way
		if err := c.take(thread); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		code := p.exit(t, time.Minute)
		said := p.stderr.String()
		if code != exitFailed || !strings.Contains(said, `granted" failed`) || !strings.Contains(said, c.want) {
			t.Errorf("%s: exit %d: %s", c.what, code, said)
		}
		r := load(t, filepath.Join(p.dir, "r.json"))
		if !slices.ContainsFunc(r.Failed(), func(k result.Check) bool { return strings.HasSuffix(k.Name, "granted") }) {
			t.Errorf("%s: the result passes", c.what)
		}
	}
}

// TestDetached: what a load's command leaves behind is ended with the run, however it detached
// itself, and also where the controller is killed.
func TestDetached(t *testing.T) {
	for name, killed := range map[string]bool{"ended": false, "killed": true} {
		pids := filepath.Join(t.TempDir(), "pids")
		script := `for i in 1 2; do setsid -f sh -c "echo \$\$ >>` + pids + `; trap '' TERM HUP; while :; do sleep 1; done"; (sh -c "echo \$\$ >>` + pids + `; sleep 300" &); done; sleep 300`
		p := command(t, "-q", "-D", "1m", "--warmup", "0s", "--observe=no", write(t, "[[channel]]\nname = \"/c\"\n[[publisher]]\nchannel = \"/c\"\nrate = \"1kHz\"\n[[subscriber]]\nchannels = [\"/c\"]\n[[load]]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", '''"+script+"''']\n"))
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		var left []int
		await(t, "what detaches itself", 20*time.Second, func() bool {
			data, _ := os.ReadFile(pids)
			left = nil
			for _, f := range strings.Fields(string(data)) {
				pid, _ := strconv.Atoi(f)
				left = append(left, pid)
			}
			return len(left) == 4
		})
		defer func() {
			for _, pid := range alive(left) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}()
		if killed {
			if err := p.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			p.Wait()
		} else if err := p.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		} else if code := p.exit(t, time.Minute); code != exitFailed {
			t.Errorf("exit %d: %s", code, &p.stderr)
		}
		limit := time.Now().Add(2 * time.Second)
		for len(alive(left)) > 0 && time.Now().Before(limit) && killed {
			time.Sleep(10 * time.Millisecond)
		}
		if l := alive(left); len(l) > 0 {
			t.Errorf("%s: %d of %d are left", name, len(l), len(left))
		}
	}
}

// TestMemoryRunsOut: where another program takes the control group's memory, actors are killed
// before the controller, which keeps what it has and says what happened.
func TestMemoryRunsOut(t *testing.T) {
	dir := group(t, "memory", "memory.limit_in_bytes=600M")
	p := under(t, entering(dir), "-q", "-D", "4s", "--warmup", "0s", "--observe=no", "-o", "r.json", "load")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "actors", 20*time.Second, func() bool { return len(p.actors(t)) == 8 })
	time.Sleep(4500 * time.Millisecond)                                                                          // the first phase is over
	eater := exec.Command("sh", "-c", entering(dir)+"; tail /dev/zero & tail /dev/zero & tail /dev/zero & wait") // take all there is, and none most
	if err := eater.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(time.Minute, func() { eater.Process.Kill() })
	_ = eater.Wait()
	watchdog.Stop()
	code := p.exit(t, time.Minute)
	r := load(t, filepath.Join(p.dir, "r.json"))
	if code != exitFailed || !strings.Contains(p.stderr.String(), "killed for the control group's memory: memory 600 MiB") || len(r.Runs) != 1 || len(r.Runs[0].Phases) == 0 {
		t.Errorf("exit %d, %d runs: %s", code, len(r.Runs), &p.stderr)
	}
}
