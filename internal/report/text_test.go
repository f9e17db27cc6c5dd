package report

import (
	"bytes"
	"flag"
	"html"
	"os"
	"strings"
	"testing"

	"aossim/internal/compare"
	"aossim/internal/result"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fixture is a result with everything that a report has to cope with: a phase
// without failures, a group that joins later, what cannot be observed, what is
// missing, an overflow, failed checks.
func fixture(runs int) *result.Result {
	r := &result.Result{
		Schema: result.Schema, Started: "2026-11-30T12:00:00Z",
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

// TestResultsOfBefore: results that commit 8240770 wrote are read, and text, page and comparison
// say of them what that commit's said, but for what was wrong with it.
func TestResultsOfBefore(t *testing.T) {
	const dir = "testdata/8240770/"
	// Columns may be wider or narrower.
	words := func(text string) string {
		var lines []string
		for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n")
	}
	// What was wrong: this one name stood for three formulas, here for what was published.
	mended := strings.NewReplacer("phase messages/s", "phase published/s")
	check := func(name string, got []byte) {
		t.Helper()
		want, err := os.ReadFile(dir + name)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := words(string(got)), mended.Replace(words(string(want))); got != want {
			a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
			for i := range min(len(a), len(b)) {
				if a[i] != b[i] {
					t.Errorf("%s, line %d:\n%s\nwas\n%s", name, i+1, a[i], b[i])
				}
			}
			if len(a) != len(b) {
				t.Errorf("%s: %d lines, were %d", name, len(a), len(b))
			}
		}
	}
	for _, name := range []string{"load", "waits", "scalar", "eagain"} {
		r, err := result.Load(dir + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := Text(&b, r); err != nil {
			t.Fatal(err)
		}
		check(name+".txt", b.Bytes())
		of := func(boot string) []*result.Result {
			other := *r
			other.Environment.BootID = boot
			return []*result.Result{&other}
		}
		c, err := compare.Compare(of("1"), of("2"), of("3"), compare.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b.Reset()
		if err := Comparison(&b, c); err != nil {
			t.Fatal(err)
		}
		check(name+"-compared.txt", b.Bytes())
		b.Reset()
		if err := ComparisonMarkdown(&b, c); err != nil {
			t.Fatal(err)
		}
		check(name+"-compared.md", b.Bytes())
		p, err := newPage(r)
		if err != nil {
			t.Fatal(err)
		}
		var captions strings.Builder
		for _, plot := range p.Plots {
			captions.WriteString(html.EscapeString(plot.Text) + "\n")
		}
		if name != "load" { // several runs, which the page pooled
			check(name+"-captions.txt", []byte(captions.String()))
		}
		if want := 5; name == "load" && len(p.Plots) < want {
			t.Errorf("%d plots, want %d", len(p.Plots), want)
		}
	}
}

// TestSameTables: a page and the text show the same tables, cell by cell.
func TestSameTables(t *testing.T) {
	for name, r := range map[string]*result.Result{"loops": fixture(2), "micro": microFixture(1)} {
		var b bytes.Buffer
		if err := Text(&b, r); err != nil {
			t.Fatal(err)
		}
		p, err := newPage(r)
		if err != nil {
			t.Fatal(err)
		}
		cells := 0
		for _, tab := range append(p.Tables, p.More...) {
			for _, cellsOf := range tab.Rows {
				for _, cell := range cellsOf {
					cells++
					if !strings.Contains(b.String(), strings.TrimSpace(cell)) {
						t.Errorf("%s: %q of %q is not in the text", name, cell, tab.Title)
					}
				}
			}
		}
		if cells < 50 {
			t.Errorf("%s: %d cells in %d tables of %d", name, cells, len(p.Tables)+len(p.More), len(tables(r)))
		}
	}
}

// TestNeverPooled: of several runs a page's percentile is the median of the runs', not that
// of all their values.
func TestNeverPooled(t *testing.T) {
	r := &result.Result{}
	for _, v := range []int64{1000, 2000, 90_000} { // the last run has most values
		g := result.Group{Name: "g", Subscribers: 1, Counts: result.Counts{Arms: 1}, Histograms: result.NewHistograms()}
		g.Histograms.Rearm.RecordMany(v, v)
		for i := range g.OverTime {
			g.OverTime[i].Arms, g.OverTime[i].EAGAIN = v, v/1000*10
		}
		r.Runs = append(r.Runs, result.Run{Phases: []result.Phase{{Name: "p", DurationNS: 1e9, Groups: []result.Group{g}}}})
	}
	p, err := newPage(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Plots[0].Text; !strings.Contains(got, "p50 2.00 us") {
		t.Errorf("of medians 1, 2 and 90 us: %s", got)
	}
	for _, c := range p.Plots {
		if strings.HasPrefix(c.Title, "-EAGAIN") && !strings.Contains(c.Text, "1.00 to 1.00 %") {
			t.Errorf("of rates of 1 %%: %s", c.Text)
		}
	}
}
