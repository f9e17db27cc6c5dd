package main

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"aossim/internal/linux"
)

// descendants are the processes below one, by their parents.
func descendants(pid int) (all []int) {
	for _, child := range linux.Children(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// TestEndings ends the program by any signal at any moment of a run, an observed pass, a boot
// and a check. Where it had begun to measure there is a result, whole; nothing else is left,
// neither processes nor files. AOSSIM_TEST_SIGNALS says how often.
func TestEndings(t *testing.T) {
	times := 16
	if n, err := strconv.Atoi(os.Getenv("AOSSIM_TEST_SIGNALS")); err == nil {
		times = n
	}
	detaches := write(t, "duration = \"1s\"\n[[channel]]\nname = \"/c\"\n[[publisher]]\nchannel = \"/c\"\nrate = \"1kHz\"\n[[subscriber]]\nchannels = [\"/c\"]\n[[load]]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", \"setsid -f sleep 300; sleep 300\"]\n")
	kinds := []struct {
		name    string
		args    []string
		longest time.Duration // after the start
		results bool
	}{
		{"run", []string{"-D", "500ms", "--warmup", "100ms", "--observe=no", "load"}, 3 * time.Second, true},
		{"observed pass", []string{"-D", "1s", "--warmup", "0s", "pair"}, 3 * time.Second, true},
		{"command", []string{"--warmup", "0s", "--observe=no", detaches}, 2 * time.Second, true},
		{"micro-benchmark", []string{"--rounds", "20", "scalar"}, 3 * time.Second, true},
		{"check", []string{"check"}, 4 * time.Second, false},
	}
	_, noQEMU := exec.LookPath("qemu-system-x86_64")
	if kernel := os.Getenv("AOSSIM_TEST_KERNEL"); kernel != "" && noQEMU == nil {
		kinds = append(kinds, struct {
			name    string
			args    []string
			longest time.Duration
			results bool
		}{"vm", []string{"vm", "--kernel", kernel, "eagain"}, 15 * time.Second, false})
	}
	signals := []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE}
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for i := range times {
		k := kinds[i%len(kinds)]
		after, by := time.Duration(r.Int64N(int64(k.longest))), signals[r.IntN(len(signals))]
		p := command(t, k.args...)
		temp := filepath.Join(p.dir, "temp")
		if err := os.Mkdir(temp, 0o777); err != nil {
			t.Fatal(err)
		}
		p.Env = append(p.Env, "TMPDIR="+temp)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		below := descendants(p.Process.Pid)
		if err := p.Process.Signal(by); err != nil && !strings.Contains(err.Error(), "finished") {
			t.Fatal(err)
		}
		start := time.Now()
		timer := time.AfterFunc(30*time.Second, func() { p.Process.Kill() })
		err := p.Wait()
		took := time.Since(start)
		if !timer.Stop() {
			t.Fatalf("%s, %v after %s: not ended within 30 s", k.name, by, after)
		}
		what := k.name + ", " + by.String() + " after " + after.String() + ", ended in " + took.Round(time.Millisecond).String()
		code := p.ProcessState.ExitCode()
		early := (code < 0 || code == 2) && after < 300*time.Millisecond // it was not yet listening
		if code != exitPass && code != exitFailed && !early {
			t.Errorf("%s: %v: %s", what, err, &p.stderr)
		}
		if strings.Contains(p.stderr.String(), "goroutine ") && !early {
			t.Errorf("%s: %s", what, &p.stderr)
		}
		await(t, what+": what it started", 5*time.Second, func() bool { return len(alive(below)) == 0 })
		if left, _ := filepath.Glob(filepath.Join(temp, "*")); len(left) > 0 && !early {
			t.Errorf("%s: left %q", what, left)
		}
		hidden, _ := filepath.Glob(filepath.Join(p.dir, "results", ".*"))
		results, _ := filepath.Glob(filepath.Join(p.dir, "results", "*.json"))
		if len(hidden) > 0 && !early {
			t.Errorf("%s: left %q", what, hidden)
		}
		// It may have ended before it had begun to measure.
		early = early || after < 300*time.Millisecond && code == exitFailed && len(results) == 0
		if k.results && !early {
			if len(results) != 1 {
				t.Errorf("%s: %d results: %s", what, len(results), &p.stderr)
				continue
			}
			r := load(t, results[0])
			if r.Interrupted != (code == exitFailed) {
				t.Errorf("%s: exit %d, interrupted %t: %s", what, code, r.Interrupted, &p.stderr)
			}
			for _, f := range r.Failed() {
				t.Errorf("%s: check %q: %s", what, f.Name, f.Detail)
			}
		}
	}
}

// TestTogether: twenty runs that end in one moment write twenty results.
func TestTogether(t *testing.T) {
	const n = 20
	dir := t.TempDir()
	var programs []*program
	for range n {
		p := command(t, "-D", "1m", "--warmup", "0s", "--observe=no", "--no-rt", "pair")
		p.Dir = dir
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, p)
	}
	for _, p := range programs {
		await(t, "actors", time.Minute, func() bool { return len(p.actors(t)) > 0 })
	}
	time.Sleep(time.Second)
	var all sync.WaitGroup
	for _, p := range programs {
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	for _, p := range programs {
		all.Go(func() {
			timer := time.AfterFunc(time.Minute, func() { p.Process.Kill() })
			_ = p.Wait()
			timer.Stop()
			if p.ProcessState.ExitCode() != exitFailed {
				t.Errorf("exit %d: %s", p.ProcessState.ExitCode(), &p.stderr)
			}
		})
	}
	all.Wait()
	files, err := filepath.Glob(filepath.Join(dir, "results", "*"))
	if err != nil || len(files) != n {
		t.Errorf("%d results of %d runs, %v", len(files), n, err)
	}
	seen := map[int]bool{}
	for _, f := range files {
		for _, p := range load(t, f).Runs[0].Processes {
			seen[p.PID] = true
		}
	}
	if len(seen) != n {
		t.Errorf("the results are of %d runs", len(seen))
	}
	if hidden, _ := filepath.Glob(filepath.Join(dir, "results", ".*")); len(hidden) > 0 {
		t.Errorf("left: %q", hidden)
	}
}
