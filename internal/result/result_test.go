package result

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPercentile(t *testing.T) {
	h := NewHistogram(Highest)
	for v := range int64(1000) {
		h.Record(v + 1)
	}
	for _, c := range []struct {
		percent float64
		want    int64
		ok      bool
	}{{50, 500, true}, {90, 900, true}, {99, 990, true}, {99.9, 0, false}} {
		got, ok := h.Percentile(c.percent)
		if ok != c.ok || ok && math.Abs(float64(got-c.want)) > float64(c.want)/1000 {
			t.Errorf("p%g = %d, %t; want %d, %t", c.percent, got, ok, c.want, c.ok)
		}
	}
}

// TestOverflow: what is above the range still counts in every percentile.
func TestOverflow(t *testing.T) {
	h := NewHistogram(Highest)
	for range 900 {
		h.Record(1000)
	}
	for range 100 {
		h.Record(Highest * 2)
	}
	h.Record(-1)
	if h.Overflow != 100 || h.Missed != 1 || h.Count() != 900 {
		t.Errorf("overflow %d, missed %d, count %d", h.Overflow, h.Missed, h.Count())
	}
	if v, ok := h.Percentile(50); !ok || v < 999 || v > 1001 {
		t.Errorf("p50 = %d, %t", v, ok)
	}
	if v, ok := h.Percentile(95); ok {
		t.Errorf("p95 = %d, though it lies above the range", v)
	}
}

func TestHistogramJSON(t *testing.T) {
	h := NewHistogram(Highest)
	for v := int64(1); v < Highest; v = v*3 + 1 {
		h.Record(v)
	}
	h.Overflow, h.Missed = 3, 4
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var back Histogram
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if !back.full().Equals(h.hdr) || back.Overflow != 3 || back.Missed != 4 {
		t.Errorf("%s does not come back", text)
	}
	back.Merge(h)
	if back.Count() != 2*h.Count() || back.Overflow != 6 || back.Missed != 8 {
		t.Errorf("merged: %d values, overflow %d, missed %d", back.Count(), back.Overflow, back.Missed)
	}
}

func TestBehind(t *testing.T) {
	var b, back Behind
	for _, d := range []uint32{1, 1, 2, 15, 16, 4000} {
		b.Record(d)
	}
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"1":2,"15":1,"16+":2,"2":1}`; string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if err := json.Unmarshal(text, &back); err != nil || back != b {
		t.Errorf("%v, %v", back, err)
	}
	if b.Total() != 6 {
		t.Errorf("total %d", b.Total())
	}
	if err := json.Unmarshal([]byte(`{"17":1}`), &back); err == nil {
		t.Error("a distance that there is not was taken")
	}
}

func sample() *Result {
	h := NewHistograms()
	h.Rearm.Record(1234)
	return &Result{Schema: Schema, Started: "2026-11-30T12:00:00Z", Scenario: Scenario{Name: "s"}, Environment: Environment{KernelRelease: "7"}, Runs: []Run{{
		Phases: []Phase{{Name: "p", DurationNS: 1e9, Groups: []Group{{Name: "g", Histograms: h, Counts: Counts{Arms: 3, EAGAIN: 1}}}}},
		Checks: []Check{{Name: "a", Pass: true}, {Name: "b"}},
	}}}
}

func TestEncodeAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	var whole bytes.Buffer
	if err := sample().Encode(&whole); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	back, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	g := back.Runs[0].Phases[0].Groups[0]
	if g.Arms != 3 || g.EAGAIN != 1 || g.Histograms.Rearm.Count() != 1 {
		t.Errorf("%+v", g)
	}
	if f := back.Failed(); len(f) != 1 || f[0].Name != "b" {
		t.Errorf("failed: %v", f)
	}
}

func TestDecodeErrors(t *testing.T) {
	var whole bytes.Buffer
	if err := sample().Encode(&whole); err != nil {
		t.Fatal(err)
	}
	damaged := strings.Replace(whole.String(), "HIST", "HOST", 1)
	line := 1 + strings.Count(damaged[:strings.Index(damaged, "HOST")], "\n")
	for _, c := range []struct{ data, want string }{
		{"", "f: line 1, column 1: it ends before"},
		{whole.String()[:whole.Len()/2], "f: line "},
		{`{"schema": "aossim.result/2"}`, `its schema is "aossim.result/2" and this program reads "aossim.result/1"`},
		{`{"schema": "aossim.result/1",` + "\n" + `"runs": 7}`, "f: line 2, "},
		{damaged, "not HDR V2"}, {damaged, fmt.Sprintf("f: line %d, ", line-1)}, // where its object begins
		{strings.Replace(whole.String(), `"overflow": 0`, `"overflow": -1`, 1), "negative count"},
		{`{"schema": "aossim.result/1"}`, "no whole result"},
		{"\x00\x01", "f: line 1"},
	} {
		if _, err := Decode("f", []byte(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %q", c.data, err, c.want)
		}
	}
}

func TestRecordAllocations(t *testing.T) {
	h := NewHistogram(Highest)
	if n := testing.AllocsPerRun(1000, func() { h.Record(1234); h.Record(-1); h.Record(Highest * 3) }); n != 0 {
		t.Errorf("recording allocates %g times", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	h := NewHistogram(Highest)
	b.ReportAllocs()
	for v := int64(0); b.Loop(); v = (v*7 + 1) % 10_000_000 {
		h.Record(v)
	}
}

func FuzzDecode(f *testing.F) {
	var whole bytes.Buffer
	if err := sample().Encode(&whole); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add([]byte(`{"schema": "aossim.result/1", "runs": [{"phases": [{"groups": [{"behind": {"1": 2}, "histograms": {"rearm": null}}]}]}]}`))
	f.Add([]byte(`{"schema": "aossim.result/1", "runs": [{"phases": [{"groups": [{"histograms": {"rearm": {"hdr": "HISTFAAAACR42pJpmSzMwMDAyAABzFAaxBf3KHvBYP8BKgIIAAD//1EfBDg="}}}]}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode("f", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f: ") {
				t.Errorf("an error that does not name the file: %v", err)
			}
			return
		}
		// What was taken can be written and taken again.
		var again bytes.Buffer
		if err := r.Encode(&again); err != nil {
			t.Fatal(err)
		}
		if _, err := Decode("again", again.Bytes()); err != nil {
			t.Error(err)
		}
	})
}
