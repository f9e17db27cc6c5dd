package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aossim/scenarios"
)

// traced is a scenario whose publisher plays the trace in file.
func traced(file, more string) string {
	return strings.Replace(pair(fmt.Sprintf("arrival = \"trace\"\ntrace = %q\n%s", file, more), ""), "rate = \"2kHz\"\n", "", 1)
}

// TestTrace: exactly the messages of the trace are published, in each phase anew, and its checksum stands in the result.
func TestTrace(t *testing.T) {
	const n = 100
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "%d # message\n", int64(i/2)*2_000_000) // two at once each 2 ms
	}
	file := filepath.Join(t.TempDir(), "t.csv")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text.String()))
	two := "phases = [\"a\", \"b\"]\n" + traced(file, "") + "[[subscriber]]\ngroup = \"later\"\njoins = \"b\"\nchannels = [\"/c\"]\n"
	r := simulate(t, two, Options{Warmup: 20 * time.Millisecond})
	pass(t, r)
	for phase := range 2 {
		if g := group(t, r, phase, "rt"); g.Published != n || g.Handled != n {
			t.Errorf("phase %d: published %d, handled %d of %d", phase, g.Published, g.Handled, n)
		}
	}
	if want := "trace:" + file + ":" + hex.EncodeToString(sum[:]); !slices.Contains(r.Scenario.Options, want) {
		t.Errorf("options %q have no %q", r.Scenario.Options, want)
	}
	// The trace lasts 98 ms, and begins anew 1 ms later: 0, 99, 198, 297 ms; within 300 ms begin three whole ones and two messages twice.
	r = simulate(t, traced(file, "repeat = true"), Options{})
	pass(t, r)
	if g := group(t, r, 0, "rt"); g.Published+g.MissedDeadlines < 300 || g.Published > 304 {
		t.Errorf("published %d, missed %d, of 304 at most", g.Published, g.MissedDeadlines)
	}
}

// TestTraceTooLate: a trace that begins after the phase has ended is refused before anything runs.
func TestTraceTooLate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.csv")
	if err := os.WriteFile(file, []byte("20.5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := scenarios.Parse("t.toml", []byte(traced(file, "")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(s, Options{Duration: time.Second}); err == nil || !strings.Contains(err.Error(), "nothing would be published") {
		t.Error(err)
	}
}

// TestTraceNoRoom: a trace too long for the machine is its publisher's error.
func TestTraceNoRoom(t *testing.T) {
	s, err := scenarios.Parse("t.toml", []byte(traced("f", "")))
	if err != nil {
		t.Fatal(err)
	}
	s.Publishers[0].Times = &scenarios.Trace{Gaps: make([]byte, 16<<20), Count: 16 << 20}
	p, err := newPlan(s, Options{}, []int{0}, func(int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if err := p.fits(128 << 20); err != nil {
		t.Error(err)
	}
	if err := p.fits(60 << 20); err == nil || !strings.Contains(err.Error(), "trace: the times of all traces would take 16 MiB") {
		t.Error(err)
	}
}
