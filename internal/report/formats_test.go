package report

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/perf/benchfmt"

	"aossim/internal/compare"
	"aossim/internal/result"
)

// microFixture is a result of micro-benchmarks.
func microFixture(factor float64) *result.Result {
	r := &result.Result{Schema: result.Schema, Started: "2026-11-30T12:00:00Z", Scenario: result.Scenario{Name: "scalar-shared", SHA256: "def"},
		Environment: result.Environment{KernelRelease: "7.0", Machine: "x86_64", CPU: "Zen", CPUs: "0-1"}, Observer: result.Observer{Missing: "no BTF"}}
	m := result.Micro{Name: "one by one", Workload: "eagain", Unit: "ns/wait", Operations: 1000,
		Kernel:  &result.Kernel{Arms: 1000, EAGAIN: 1000, Kmalloc: 1000, Kfree: 999, Sites: []result.KernelSite{{Operation: "kmalloc", Function: "f+0x1", Size: 144, Room: 192, Count: 1000}}},
		Figures: []result.Figure{{Name: "waits/s"}}, Latencies: []result.Latency{{Name: "matched wait", Histogram: result.NewHistogram(result.Highest)}},
		Checks: []result.Check{{Name: "results", Pass: true, Detail: "none"}, {Name: "cpu", Detail: "it moved # away"}}}
	for i := range 10 {
		m.Rounds = append(m.Rounds, factor*(100+float64(i%4)))
		m.Figures[0].Rounds = append(m.Figures[0].Rounds, float64(i))
		m.Latencies[0].Histogram.RecordMany(1000, 50)
	}
	m.Spread, m.WithoutFirst = result.SpreadOf(m.Rounds), result.SpreadOf(m.Rounds[1:])
	r.Runs = []result.Run{{Micro: []result.Micro{m}}}
	return r
}

func TestMicroText(t *testing.T) {
	var b bytes.Buffer
	if err := Text(&b, microFixture(1)); err != nil {
		t.Fatal(err)
	}
	golden(t, "micro.txt", b.Bytes())
}

func TestComparison(t *testing.T) {
	c, err := compare.Compare([]*result.Result{microFixture(1)}, []*result.Result{microFixture(1.3)}, []*result.Result{microFixture(1.01)}, compare.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var text, markdown bytes.Buffer
	if err := Comparison(&text, c); err != nil {
		t.Fatal(err)
	}
	if err := ComparisonMarkdown(&markdown, c); err != nil {
		t.Fatal(err)
	}
	golden(t, "comparison.txt", text.Bytes())
	golden(t, "comparison.md", markdown.Bytes())
}

// TestHGRM: each file has the format's header and footer, and its percentiles are the
// histogram's.
func TestHGRM(t *testing.T) {
	dir := t.TempDir()
	r := fixture(2)
	if err := HGRM(dir, r); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.hgrm"))
	if err != nil || len(files) != 8 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "fixture,run2,alone,real-time,rearm.hgrm"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, want := range []string{" Value\tPercentile\tTotalCount\t1/(1-Percentile)", "#[Mean ", "#[Max ", "#[Buckets "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	half := regexp.MustCompile(`(?m)^\s*([0-9.]+)\s+0\.500000\s`).FindStringSubmatch(text)
	want, _ := r.Runs[1].Phases[0].Groups[0].Histograms.Rearm.Percentile(50)
	if half == nil {
		t.Fatalf("no median in %s", text)
	}
	if got, _ := strconv.ParseFloat(half[1], 64); got < float64(want)/1000*0.998 || got > float64(want)/1000*1.002 {
		t.Errorf("median %g us, want %d ns", got, want)
	}
}

// TestCreate: of several files all are there, or none and nothing else.
func TestCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	good := file{"good", func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err }}
	if err := create(dir, good, file{"bad", func(io.Writer) error { return errors.New("no room") }}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
	if left := distinct(t, dir, ".*"); len(left)+len(distinct(t, dir, "*")) > 0 {
		t.Errorf("left %q", left)
	}
	if err := create(dir, good); err != nil || len(distinct(t, dir, "*")) != 1 {
		t.Errorf("%v", err)
	}
}

// TestHLog: what is written reads back, distribution by distribution.
func TestHLog(t *testing.T) {
	dir := t.TempDir()
	r := fixture(2)
	r.Started = "2026-11-30T12:00:00Z"
	if err := HLog(dir, r); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "fixture.hlog"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 300))
	if err != nil || !strings.HasPrefix(string(head), "#[Histogram log format version 1.3]\n") || !strings.Contains(string(head), "#[StartTime: ") {
		t.Fatalf("header %q, %v", head, err)
	}
	if _, err := f.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	want := map[string]*result.Histogram{}
	for _, d := range distributions(r) {
		want[strings.Join(d.words(), "/")] = d.Histogram
	}
	n := 0
	for log := hdr.NewHistogramLogReader(f); ; n++ {
		h, err := log.NextIntervalHistogram()
		if err != nil {
			t.Fatal(err)
		}
		if h == nil {
			break
		}
		if w := want[h.Tag()]; w == nil || w.Count() != h.TotalCount() || w.Max() != h.Max() {
			t.Errorf("%s: %d values up to %d; want %+v", h.Tag(), h.TotalCount(), h.Max(), w)
		}
	}
	if n != len(want) || n == 0 {
		t.Errorf("%d distributions, want %d", n, len(want))
	}
}

// TestHLogTimes: each line stands where its phase was in time, in every run; a result that
// does not know says so.
func TestHLogTimes(t *testing.T) {
	r := fixture(2)
	r.Started = "2026-11-30T12:00:00Z"
	base, err := time.Parse(time.RFC3339, r.Started)
	if err != nil {
		t.Fatal(err)
	}
	at := base.UnixNano()
	for i := range r.Runs {
		for j := range r.Runs[i].Phases {
			p := &r.Runs[i].Phases[j]
			at += 1_234_000_000 // a warm-up
			p.BeganNS, p.DurationNS = at, 500_000_000
			at += p.DurationNS
		}
	}
	logged := func() (string, [][2]float64) {
		dir := t.TempDir()
		if err := HLog(dir, r); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "fixture.hlog"))
		if err != nil {
			t.Fatal(err)
		}
		var times [][2]float64
		for _, m := range regexp.MustCompile(`(?m)^Tag=[^,]+,([0-9.]+),([0-9.]+),`).FindAllStringSubmatch(string(data), -1) {
			begin, _ := strconv.ParseFloat(m[1], 64)
			length, _ := strconv.ParseFloat(m[2], 64)
			times = append(times, [2]float64{begin, length})
		}
		return string(data), times
	}
	_, times := logged()
	all := distributions(r)
	if len(times) != len(all) || len(all) == 0 {
		t.Fatalf("%d lines of %d distributions", len(times), len(all))
	}
	for i, d := range all {
		if want := float64(d.began-base.UnixNano()) / 1e9; times[i][0] < want-0.001 || times[i][0] > want+0.001 || times[i][1] != 0.5 {
			t.Errorf("%v at %g for %g s, want %g for 0.5", d.words(), times[i][0], times[i][1], want)
		}
	}
	r.Runs[1].Phases[0].BeganNS = 0
	if text, _ := logged(); !strings.Contains(text, "does not say when") {
		t.Errorf("invented times: %s", text)
	}
}

// TestGoBench: benchstat takes the lines for what they are.
func TestGoBench(t *testing.T) {
	dir := t.TempDir()
	after := microFixture(1.3) // of another kernel
	after.Environment.KernelRelease, after.Environment.KernelVersion = "7.1", "#2 SMP"
	for name, r := range map[string]*result.Result{"old.txt": microFixture(1), "new.txt": after} {
		if err := create(dir, file{name, func(w io.Writer) error { return GoBench(w, r) }}); err != nil {
			t.Fatal(err)
		}
	}
	var loops bytes.Buffer
	if err := GoBench(&loops, fixture(2)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(loops.String(), "\nBenchmarkFixture/phase=alone/group=real-time 1 "); n != 2 {
		t.Errorf("%d lines of two runs: %s", n, &loops)
	}
	out, err := exec.Command("go", "tool", "benchstat", filepath.Join(dir, "old.txt"), filepath.Join(dir, "new.txt")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"sec/wait", "point=one_by_one", "+30.00%", "p=0.000 n=10"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in what benchstat says: %s", want, out)
		}
	}
}

// TestGoBenchExact: instructions are in their own unit, and benchstat may take them for exact only
// where no round differs.
func TestGoBenchExact(t *testing.T) {
	dir := t.TempDir()
	for name, scale := range map[string]float64{"old.txt": 1, "new.txt": 2} {
		r := microFixture(1)
		m := &r.Runs[0].Micro[0]
		m.Unit, r.Environment.Clock = "instructions/wait", result.ClockInstructions
		for i := range m.Rounds {
			m.Rounds[i] = 1000 * scale
		}
		if err := create(dir, file{name, func(w io.Writer) error { return GoBench(w, r) }}); err != nil {
			t.Fatal(err)
		}
		m.Rounds[0]++
		var b bytes.Buffer
		if err := GoBench(&b, r); err != nil || strings.Contains(b.String(), "Unit instructions/wait assume=exact") || !strings.Contains(b.String(), "Unit kmalloc/wait assume=exact") {
			t.Errorf("%v: %s", err, &b)
		}
	}
	out, err := exec.Command("go", "tool", "benchstat", filepath.Join(dir, "old.txt"), filepath.Join(dir, "new.txt")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "instructions/wait") || !strings.Contains(string(out), "+100.00%") || strings.Contains(string(out), "need >=") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestGoBenchNames: names that end in a number are names, and none is GOMAXPROCS.
func TestGoBenchNames(t *testing.T) {
	r := fixture(1)
	for i, name := range []string{"imu-1", "imu-2", "imu"} {
		g := r.Runs[0].Phases[0].Groups[0]
		g.Name = name
		g.Handled = int64(1000 * (i + 1))
		r.Runs[0].Phases[0].Groups = append(r.Runs[0].Phases[0].Groups, g)
	}
	m := microFixture(1)
	m.Runs[0].Micro[0].Name = "m-16"
	for _, r := range []*result.Result{r, m} {
		var b bytes.Buffer
		if err := GoBench(&b, r); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for read := benchfmt.NewReader(&b, "x"); read.Scan(); {
			switch rec := read.Result().(type) {
			case *benchfmt.Result:
				base, parts := rec.Name.Parts()
				for _, p := range parts {
					if strings.HasPrefix(string(p), "-") {
						t.Errorf("%s: %s is taken for GOMAXPROCS", base, p)
					}
				}
				seen[string(rec.Name.Full())] = true
			case *benchfmt.SyntaxError:
				t.Error(rec)
			}
		}
		if want := map[bool]int{true: 1, false: 6}[r == m]; len(seen) != want {
			t.Errorf("%d names, want %d: %v", len(seen), want, seen)
		}
	}
}

// TestKTAP holds the output to Documentation/dev-tools/ktap.rst: version lines, plans,
// numbers in order, two spaces a level, and results that agree with those below.
func TestKTAP(t *testing.T) {
	broken := fixture(1)
	broken.Broken, broken.Observer.Missing = "it broke", "no\nBTF"
	for name, r := range map[string]*result.Result{"runs": fixture(3), "micro": microFixture(1), "broken": broken, "nothing": {Broken: "x", Scenario: result.Scenario{Name: "n"}}} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := KTAP(&b, r); err != nil {
				t.Fatal(err)
			}
			plan := map[int]int{}
			count := map[int]int{}
			failed := map[int]bool{}
			version := map[int]bool{}
			test := regexp.MustCompile(`^(not )?ok (\d+) [^#]+( # .*)?$`)
			for _, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
				text := strings.TrimLeft(line, " ")
				level := (len(line) - len(text)) / 2
				switch {
				case text == "KTAP version 1":
					version[level], plan[level], count[level], failed[level] = true, -1, 0, false
				case strings.HasPrefix(text, "1.."):
					plan[level], _ = strconv.Atoi(text[3:])
				case strings.HasPrefix(text, "# "):
				default:
					m := test.FindStringSubmatch(text)
					if m == nil || !version[level] || plan[level] < 0 {
						t.Fatalf("line %q", line)
					}
					count[level]++
					if m[2] != strconv.Itoa(count[level]) {
						t.Errorf("%q is the %d. test", line, count[level])
					}
					failed[level] = failed[level] || m[1] != ""
					if level == 0 && plan[1] > 0 {
						if count[1] != plan[1] || failed[1] != (m[1] != "") {
							t.Errorf("%q after %d of %d tests below, failed: %t", line, count[1], plan[1], failed[1])
						}
						version[1] = false
					}
				}
			}
			if count[0] != plan[0] || plan[0] == 0 {
				t.Errorf("%d tests, planned %d", count[0], plan[0])
			}
			if r.Observer.Missing != "" && !strings.Contains(b.String(), "# SKIP no") {
				t.Errorf("what is missing is not skipped: %s", &b)
			}
		})
	}
}

// TestHTML opens the page in a real browser: it says nothing on its console, loads
// nothing from elsewhere and shows everything, in the light and in the dark.
func TestHTML(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "page.html")
	var b bytes.Buffer
	if err := HTML(&b, fixture(2), microFixture(1)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	outside := regexp.MustCompile(`(?i)(src|href)\s*=\s*["'](?:https?:)?//|url\(|@import|<script|<link[^>]+href="[^d]`)
	if m := outside.FindString(b.String()); m != "" {
		t.Errorf("the page asks for something outside: %s", m)
	}
	for _, want := range []string{"fixture on Linux 7.0-rt", "scalar-shared on Linux 7.0", "prefers-color-scheme: dark", `name="viewport"`, "Re-arm latency by percentile",
		"-EAGAIN rate over time", "How far behind", "one by one, round by round", "aria-label=", "FAILED", "Checks", "Environment", "kmalloc per failed arm"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in the page", want)
		}
	}
	if plots, texts := strings.Count(b.String(), "<svg"), strings.Count(b.String(), "<figcaption>"); plots == 0 || plots != texts {
		t.Errorf("%d plots, %d texts", plots, texts)
	}
	for _, mode := range []string{"light", "dark"} {
		picture := filepath.Join(dir, mode+".png")
		args := []string{"--window-size=420,2400", "--screenshot=" + picture}
		if mode == "dark" {
			args = append(args, "--blink-settings=preferredColorScheme=0")
		}
		browse(t, path, args...)
		if info, err := os.Stat(picture); err != nil || info.Size() < 30_000 {
			t.Errorf("%s: an empty picture: %v", mode, err)
		}
	}
	light, _ := os.ReadFile(filepath.Join(dir, "light.png"))
	dark, _ := os.ReadFile(filepath.Join(dir, "dark.png"))
	if bytes.Equal(light, dark) {
		t.Error("the page looks the same in the dark")
	}
}

// browse opens a page in a real browser, which says nothing on its console, and returns what the
// browser writes.
func browse(t *testing.T, path string, args ...string) string {
	t.Helper()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed (apt-get install chromium)")
	}
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(), "--enable-logging=stderr", "--log-level=0",
		"--proxy-server=127.0.0.1:9"}, args...)
	c := exec.Command(browser, append(args, "file://"+path)...)
	var said bytes.Buffer
	c.Stderr = &said
	timer := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	out, err := c.Output()
	timer.Stop()
	if err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	for _, line := range strings.Split(said.String(), "\n") {
		if strings.Contains(line, "CONSOLE") {
			t.Errorf("%q: the page's console: %s", args, line)
		}
	}
	return string(out)
}

// TestZoom: a click on a function of a flame graph makes it as wide as the graph, and hides what is beside it.
func TestZoom(t *testing.T) {
	var b bytes.Buffer
	if err := HTML(&b, profiled("a", 12)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "page.html")
	b.WriteString(`<script>document.querySelector('g[data-n="io_futex_wait"] rect').dispatchEvent(new MouseEvent("click", {bubbles: true}))</script>`)
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	dom := browse(t, path, "--dump-dom")
	for _, want := range []string{`data-n="io_futex_wait"[^>]*><title>[^<]*</title><rect x="0"[^>]* width="1000"`, `data-n="__kmalloc_noprof"[^>]*><title>[^<]*</title><rect x="0"[^>]* width="230\.7`} {
		if !regexp.MustCompile(want).MatchString(dom) {
			t.Errorf("no %s in %s", want, dom[strings.Index(dom, "<svg class"):])
		}
	}
}
