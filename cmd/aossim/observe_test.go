package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"aossim/internal/result"
	"aossim/scenarios"
)

// programs is how many eBPF programs of the observer the kernel has, by their names.
func programs(t *testing.T) (n int) {
	t.Helper()
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		if info, err := p.Info(); err == nil && (info.Name == "on_sys_enter" || info.Name == "live_waking") {
			n++
		}
		p.Close()
	}
	return n
}

// TestObserve: a scenario that runs is observed, limits are judged, and what is recorded runs again.
func TestObserve(t *testing.T) {
	observable(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	runs := command(t, "-q", "-D", "2s", "--warmup", "0s", "--observe=no", "-o", at("run.json"), "pair")
	watches := command(t, "observe", "-q", "-D", "4s", "--words", "-o", at("seen.json"), "--record", at("again.toml"), "--expect", "no such.eagain_rate <= 5%")
	if err := watches.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // it watches by then
	if code := runs.run(t); code != 0 {
		t.Fatalf("exit %d: %s", code, &runs.stderr)
	}
	if code := watches.exit(t, time.Minute); code != exitFailed || !strings.Contains(watches.stderr.String(), "the group was in no phase") {
		t.Fatalf("exit %d: %s", code, &watches.stderr)
	}
	ran, seen := load(t, at("run.json")), load(t, at("seen.json"))
	published, arms := int64(0), int64(0)
	for _, g := range ran.Runs[0].Phases[0].Groups {
		published, arms = published+g.Published, arms+g.Arms
	}
	// Its channel is the word that was woken most, by more wakes than messages: two ends of the run wake as well.
	var busiest result.Word
	for _, w := range seen.Runs[0].Phases[0].Words {
		if w.Arms > busiest.Arms {
			busiest = w
		}
	}
	if busiest.Wakes < published || busiest.Wakes > published+published/100+10 || busiest.Arms < arms || busiest.Arms > arms+arms/100+10 {
		t.Errorf("%+v of %d messages and %d arms", busiest, published, arms)
	}
	s, err := scenarios.Open(at("again.toml"))
	if err != nil {
		t.Fatal(err)
	}
	fifo := 0
	for _, m := range s.Members() {
		if m.Policy == "fifo" {
			fifo++
		}
	}
	if fifo < 2 {
		t.Errorf("%d of 2 real-time actors", fifo)
	}
	again := command(t, "-q", "--warmup", "0s", "--observe=no", "-o", at("again.json"), at("again.toml"))
	if code := again.run(t); code != 0 {
		t.Fatalf("exit %d: %s", code, &again.stderr)
	}
}

// observable skips the test where this kernel or user cannot observe.
func observable(t *testing.T) {
	t.Helper()
	p := command(t, "observe", "-q", "-D", "10ms", "-o", filepath.Join(t.TempDir(), "r.json"))
	switch code := p.run(t); code {
	case exitPass:
	case exitSkipped:
		t.Skip(&p.stderr)
	default:
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
}

// TestObserveKilled: however the observer ends, nothing of it stays in the kernel.
func TestObserveKilled(t *testing.T) {
	observable(t)
	before := programs(t)
	for _, signal := range []os.Signal{os.Kill, os.Interrupt} {
		p := command(t, "observe", "-q", "-o", filepath.Join(t.TempDir(), "r.json"))
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); programs(t) <= before; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("it does not observe")
			}
		}
		time.Sleep(200 * time.Millisecond)
		if err := p.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if signal == os.Kill {
			_ = p.Wait() // it says that it was killed
		} else if code := p.exit(t, 20*time.Second); code != 0 {
			t.Errorf("exit %d after %s, which is how one without -D ends: %s", code, signal, &p.stderr)
		}
		for end := time.Now().Add(20 * time.Second); programs(t) > before; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("after %s the kernel still has %d programs, and had %d", signal, programs(t), before)
			}
		}
	}
}

// TestObserveUsage: what cannot be meant is refused before anything is watched.
func TestObserveUsage(t *testing.T) {
	for _, args := range [][]string{
		{"--pid", "999999999"}, {"--pid", "-1"}, {"--comm", ""}, {"--comm", "longer than a comm"}, {"--expect", "x"}, {"--expect", "a.eagain_rate <= 5"}, {"--expect", "a.delivery.p50 <= 5us"},
		{"-D", "0s"}, {"-r", "2"}, {"-r", "0", "-D", "1s"}, {"--record", "x.json"}, {"-D", "1s", "-r", "2", "--record", "x.toml"}, {"x"},
	} {
		p := command(t, append([]string{"observe"}, args...)...)
		if code := p.run(t); code != exitUsage || strings.Count(p.stderr.String(), "\n") != 1 {
			t.Errorf("%q: exit %d: %s", args, code, &p.stderr)
		}
	}
}
