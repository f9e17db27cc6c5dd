package metric

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"aossim/internal/result"
)

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

// TestList: each metric has all that its users need, and each name is one metric's.
func TestList(t *testing.T) {
	names := map[string]string{}
	g := Group{Group: &result.Group{Name: "g", Histograms: result.NewHistograms()}, Phase: &result.Phase{}}
	for i := range All {
		m := &All[i]
		if m.Key == "" || m.Name == "" || m.Means == "" || m.Unit == "" {
			t.Errorf("%+v", m)
		}
		for kind, name := range map[string]string{"key": m.Key, "bench": m.Bench, "ktap": m.KTAP} {
			if name != "" && names[kind+name] != "" {
				t.Errorf("%s %q is of %s, too", kind, name, names[kind+name])
			}
			names[kind+name] = m.Key
		}
		if strings.HasPrefix(string(m.Unit), "/s") && m.Judged != Never && !m.Higher {
			t.Errorf("%s: more a second is better", m.Key)
		}
		if group, found, ok := Find("a.group." + m.Key); !ok || group != "a.group" || found != m {
			t.Errorf("%s is not found: %q, %v", m.Key, group, found)
		}
		_, _ = m.Of(g) // of a group that did nothing
		_, _ = m.OverRuns([]Group{g, g})
	}
	for _, name := range []string{"", ".", "g", "g.", ".rearm.p99", "g.rearm", "g.rearm.p98", "rearm.p99"} {
		if group, m, ok := Find(name); ok {
			t.Errorf("%q was taken for %s of %q", name, m.Key, group)
		}
	}
}

// TestOver: how runs make one figure.
func TestOver(t *testing.T) {
	var groups []Group
	for _, n := range []int64{1, 2, 9} {
		g := result.Group{Subscribers: 1, Counts: result.Counts{Arms: 10 * n, EAGAIN: n, Handled: 100 * n}, Histograms: result.NewHistograms()}
		g.Behind[1] = n - 1
		g.Histograms.Rearm.RecordMany(1000*n, 100)
		groups = append(groups, Group{Group: &g, Phase: &result.Phase{DurationNS: 1e9}})
	}
	for key, want := range map[string]float64{"eagain_rate": 0.1, "rearm.p50": 2000, "rearm.max": 9000, "rearm.count": 300, "messages_per_second": 200, "eagain": 12, "one_behind": 9.0 / 12} {
		m, _ := Named(key)
		if got, ok := m.OverRuns(groups); !ok || math.Abs(got-want) > want/1000 {
			t.Errorf("%s: %g, %t, want %g", key, got, ok, want)
		}
	}
}

func ExampleFind() {
	group, m, ok := Find("real-time.rearm.p99.9")
	v, err := m.Unit.Parse("200us")
	fmt.Println(group, m.Key, ok, v, err, m.Unit.Format(v))
	// Output: real-time rearm.p99.9 true 200000 <nil> 200.00
}
