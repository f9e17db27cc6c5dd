package report

import (
	"bytes"
	"flag"
	"math"
	"os"
	"testing"

	"aossim/internal/result"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fixture is a result with everything that a report has to cope with: a phase
// without failures, a group that joins later, what cannot be observed, what is
// missing, an overflow, failed checks.
func fixture(runs int) *result.Result {
	r := &result.Result{
		Schema:   result.Schema,
		Scenario: result.Scenario{Name: "fixture", SHA256: "abc", Options: []string{"--duration=1s"}},
		Environment: result.Environment{KernelRelease: "7.0-rt", KernelVersion: "#1 SMP PREEMPT_RT", Machine: "aarch64", Preempt: "PREEMPT_RT",
			Realtime: true, CPU: "Cortex", CPUs: "0-5", Mitigations: []string{"a: b"}},
	}
	for run := range int64(runs) {
		rt := result.Group{Name: "real-time", Publishers: 1, Subscribers: 1, Channels: 1, Offered: 2000, LonePeriodic: true,
			Counts:     result.Counts{Published: 2000, Handled: 2000, Arms: 2000, Wakes: 2000},
			Histograms: result.NewHistograms(), Wait: "io_uring", Submit: "split"}
		for v := range int64(2000) {
			rt.Histograms.Rearm.Record(1000 + v + 100*run)
			rt.Histograms.ArmWindow.Record(500 + v%10)
			rt.Histograms.Delivery.Record(5000 + v)
		}
		rt2 := rt
		rt2.LonePeriodic, rt2.Offered, rt2.Handled = false, 12200, 12000
		rt2.Arms, rt2.EAGAIN, rt2.Overrun, rt2.SpuriousWakes, rt2.LostWakes = 10000, 1200+100*run, 200, 3, 1
		rt2.Behind.Record(1)
		rt2.Behind.Record(2)
		rt2.Histograms = result.NewHistograms()
		rt2.Histograms.Delivery.Record(2 * result.Highest)
		for range 20 {
			rt2.Histograms.Delivery.Record(7000)
			rt2.Histograms.EAGAINRate.Record(120_000)
		}
		rt2.Kernel = &result.Kernel{Timing: "tracepoints", DurationNS: 1e9, Arms: 2500, EAGAIN: 200, ProgramArms: 2500, ProgramEAGAIN: 200, Messages: 3000,
			Kmalloc: 200, Kfree: 200, Within6us: 150, Over40us: 20, Failure: result.NewHistogram(result.Highest), MissedEvents: 4, Unplaced: 1,
			Sites: []result.KernelSite{{Operation: "kmalloc", Function: "io_futex_wait+0x11", Size: 144, Room: 192, Count: 200}, {Operation: "kfree", Function: "io_futex_wait+0xd3", Count: 200}}}
		rt2.Kernel.Behind[1] = 190
		rt2.Kernel.Failure.RecordMany(5000, 200)
		for i := range rt2.OverTime {
			rt2.OverTime[i].Arms, rt2.OverTime[i].EAGAIN = 170, int64(10+i%5)
		}
		low := result.Group{Name: "low", Publishers: 3, Subscribers: 2, Channels: 1, Offered: 24400,
			Counts:     result.Counts{Published: 10200, Handled: 24400, Arms: 14000, Wakes: 14000, MissedDeadlines: 4},
			Histograms: result.NewHistograms(), Wait: "io_uring", Submit: "combined"}
		low.Histograms.Rearm.Missed, low.Histograms.ArmWindow.Missed = 14000, 14000
		r.Runs = append(r.Runs, result.Run{
			Phases: []result.Phase{{Name: "alone", DurationNS: 1e9, Groups: []result.Group{rt}}, {Name: "+ low", DurationNS: 1e9, Groups: []result.Group{rt2, low}}},
			Processes: []result.Process{{Group: "real-time", Actors: []result.Actor{
				{Kind: "publisher", Policy: "fifo", Priority: 40, CPUs: []int{0}}, {Kind: "subscriber", Policy: "fifo", Priority: 40, CPUs: []int{1, 2}}}}},
			Checks: []result.Check{{Name: "accounts", Pass: true, Detail: "fine"}, {Name: "lost wakes", Detail: "1 lost wakes"}},
		})
	}
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; go test ./internal/report -update writes it anew. Got:\n%s", path, got)
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := Text(&b, fixture(1)); err != nil {
		t.Fatal(err)
	}
	golden(t, "one-run.txt", b.Bytes())
}

func TestTextOfSeveralRuns(t *testing.T) {
	r := fixture(3)
	r.Interrupted, r.Broken, r.Environment.NotRealTime = true, "it broke", true
	r.Runs[2].Phases = r.Runs[2].Phases[:1]
	var b bytes.Buffer
	if err := Text(&b, r); err != nil {
		t.Fatal(err)
	}
	golden(t, "three-runs.txt", b.Bytes())
}

// TestEmpty: a result of nothing is still a report.
func TestEmpty(t *testing.T) {
	var b bytes.Buffer
	if err := Text(&b, &result.Result{Runs: []result.Run{{}}}); err != nil || !bytes.Contains(b.Bytes(), []byte("Nothing was measured.")) {
		t.Errorf("%v: %s", err, &b)
	}
}

// TestRaceWindow holds the inference to the figures published for a 6-core arm64
// board: 12 % and 28 % of the arms failed at 12,200 messages/s.
func TestRaceWindow(t *testing.T) {
	for _, c := range []struct{ rate, window, one float64 }{{0.12, 10, 0.94}, {0.28, 27, 0.85}} {
		if got := raceWindow(c.rate, 12200) / 1000; math.Abs(got-c.window) > 0.5 {
			t.Errorf("rate %g: window %g us, want %g", c.rate, got, c.window)
		}
		if got := oneBehind(c.rate); math.Abs(got-c.one) > 0.006 {
			t.Errorf("rate %g: %g are one behind, want %g", c.rate, got, c.one)
		}
	}
	if got := oneBehind(0); got != 1 {
		t.Errorf("in the limit all are one behind, not %g", got)
	}
}
