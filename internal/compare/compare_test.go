package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"aossim/internal/metric"
	"aossim/internal/refusal"
	"aossim/internal/result"
)

// micro returns a result of one point with these rounds.
func micro(rounds ...float64) *result.Result {
	m := result.Micro{Name: "scalar", Unit: "ns/pair", Rounds: rounds}
	m.Spread = result.SpreadOf(rounds)
	return &result.Result{Schema: result.Schema, Scenario: result.Scenario{Name: "scalar", SHA256: "1"}, Runs: []result.Run{{Micro: []result.Micro{m}}}}
}

func of(r ...*result.Result) []*result.Result { return r }

// TestPublished: figures of published before/after/before reports.
func TestPublished(t *testing.T) {
	for _, c := range []struct {
		a, b, a2      float64
		change, drift string
	}{
		{180.079, 196.647, 179.856, "+9.268 %", "-0.124 %"},
		{180.171, 197.856, 179.502, "+10.020 %", "-0.371 %"},
		{1045.687, 1128.704, 1042.755, "+8.091 %", "-0.280 %"},
		{1040.270, 1110.916, 1046.198, "+6.488 %", "+0.570 %"},
		{191.071, 189.900, 188.824, "-0.025 %", "-1.176 %"}, // the full series against the patch-1 midpoint
	} {
		found, err := Compare(of(micro(c.a)), of(micro(c.b)), of(micro(c.a2)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		m := found.Metrics[0]
		percent := func(v float64) string { return fmt.Sprintf("%+.3f %%", 100*v) }
		if percent(m.Change) != c.change || percent(m.Drift) != c.drift {
			t.Errorf("%v: change %s, drift %s; want %s, %s", c, percent(m.Change), percent(m.Drift), c.change, c.drift)
		}
		if m.Verdict != TooFew || m.Needed != 4 {
			t.Errorf("one unit a side: %s, %d needed", m.Verdict, m.Needed)
		}
	}
}

// normal returns n values around mean with a coefficient of variation cv.
func normal(r *rand.Rand, n int, mean, cv float64) (v []float64) {
	for range n {
		v = append(v, mean*(1+cv*r.NormFloat64()))
	}
	return v
}

// TestErrorRates: how often a verdict is wrong, on simulated results.
func TestErrorRates(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	const trials = 1000
	verdicts := func(change, cv float64, gate float64) map[Verdict]int {
		n := map[Verdict]int{}
		for range trials {
			c, err := Compare(of(micro(normal(r, 10, 100, cv)...)), of(micro(normal(r, 10, 100*(1+change), cv)...)), nil, Options{Gate: gate})
			if err != nil {
				t.Fatal(err)
			}
			n[c.Metrics[0].Verdict]++
		}
		return n
	}
	// With a gate that lets everything through, the test alone holds the rate.
	for _, cv := range []float64{0.01, 0.05, 0.2} {
		for _, gate := range []float64{DefaultGate, 1e-9} {
			if n := verdicts(0, cv, gate); n[Slower]+n[Faster] > trials*5/100 {
				t.Errorf("nulls at %.0f %% CV, gate %g: %v", 100*cv, gate, n)
			}
		}
	}
	for change, want := range map[float64]Verdict{0.10: Slower, -0.10: Faster} {
		if n := verdicts(change, 0.01, 0); n[want] < trials*95/100 {
			t.Errorf("a change of %+.0f %% at 1 %% CV: %v", 100*change, n)
		}
	}
	if n := verdicts(0, 0.01, 0); n[Same] < trials*95/100 {
		t.Errorf("nulls at 1 %% CV: %v", n)
	}
	if n := verdicts(0.05, 0.2, 0); n[Inconclusive] < trials*60/100 {
		t.Errorf("5 %% at 20 %% CV cannot be told: %v", n)
	}
}

// TestHolm: among many metrics without a change hardly any gets a verdict.
func TestHolm(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	wrong := 0
	for range 100 {
		var a, b []result.Micro
		for i := range 40 {
			name := fmt.Sprint(i)
			a = append(a, result.Micro{Name: name, Rounds: normal(r, 12, 100, 0.2)})
			b = append(b, result.Micro{Name: name, Rounds: normal(r, 12, 100, 0.2)})
		}
		c, err := Compare(of(&result.Result{Runs: []result.Run{{Micro: a}}}), of(&result.Result{Runs: []result.Run{{Micro: b}}}), nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Worse()) > 0 {
			wrong++
		}
	}
	if wrong > 5 {
		t.Errorf("%d of 100 comparisons of 40 nulls found something slower", wrong)
	}
}

// TestDrift: a change that is no larger than what the befores differ by is none.
func TestDrift(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	a, b, a2 := micro(normal(r, 10, 100, 0.001)...), micro(normal(r, 10, 120, 0.001)...), micro(normal(r, 10, 130, 0.001)...)
	c, err := Compare(of(a), of(b), of(a2), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if m := c.Metrics[0]; m.Verdict != Inconclusive && m.Verdict != Same {
		t.Errorf("%+v", m)
	}
	if !c.Decided() != (c.Metrics[0].Verdict == Inconclusive) {
		t.Errorf("decided: %t", c.Decided())
	}
}

// counted returns a result whose observed rounds allocated so often.
func counted(kmallocs, arms int64) *result.Result {
	r := micro(100, 101, 99)
	r.Runs[0].Micro[0].Kernel = &result.Kernel{Arms: arms, EAGAIN: arms, Kmalloc: kmallocs}
	return r
}

// TestCounts: what the kernel does for each of very many arms needs no several boots.
func TestCounts(t *testing.T) {
	for _, c := range []struct {
		a, b, a2 int64
		want     Verdict
	}{
		{100_000, 1, 100_000, FewerAllocation}, {1, 100_000, 1, MoreAllocation}, {100_000, 100_001, 100_000, Same}, {0, 0, 0, Same}, {100_000, 1, 1, TooFew},
	} {
		found, err := Compare(of(counted(c.a, 100_000)), of(counted(c.b, 100_000)), of(counted(c.a2, 100_000)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range found.Metrics {
			if m.Kind == metric.Count && m.Verdict != c.want {
				t.Errorf("%+v: %s is %q (%s)", c, m.Name, m.Verdict, m.Why)
			}
		}
		if _, err := json.Marshal(found); err != nil {
			t.Error(err)
		}
	}
	few, err := Compare(of(counted(50, 50)), of(counted(0, 50)), nil, Options{})
	if err != nil || few.Metrics[1].Verdict != TooFew {
		t.Errorf("50 arms: %+v, %v", few.Metrics[1], err)
	}
}

// TestEmulated: counts are judged and times are not.
func TestEmulated(t *testing.T) {
	a, b := counted(100_000, 100_000), counted(1, 100_000)
	a.Environment.Emulated = true
	c, err := Compare(of(a), of(b), nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Metrics[0].Verdict != Shown || c.Metrics[1].Verdict != FewerAllocation || !c.Emulated || !c.Decided() {
		t.Errorf("%+v", c)
	}
}

// TestBoots: where there are several files of each side their medians are the units.
func TestBoots(t *testing.T) {
	boots := func(medians ...float64) (list []*result.Result) {
		for _, m := range medians {
			list = append(list, micro(m-1, m, m+1, m))
		}
		return list
	}
	c, err := Compare(boots(100, 101), boots(120, 121, 122, 123), boots(102, 99), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if m := c.Metrics[0]; m.Before.N != 2 || m.After.N != 4 || m.Again.N != 2 || m.Verdict != Slower {
		t.Errorf("%+v", m)
	}
	if c, err = Compare(boots(100), boots(120), nil, Options{}); err != nil || c.Metrics[0].Before.N != 4 {
		t.Errorf("one boot each: %+v, %v", c, err)
	}
}

// TestSameBoot: several results of one boot are runs of that boot, and no boots.
func TestSameBoot(t *testing.T) {
	booted := func(id string, rounds ...float64) *result.Result {
		r := micro(rounds...)
		r.Environment.BootID = id
		return r
	}
	one := of(booted("1", 1, 2, 3), booted("1", 1, 2, 3), booted("1", 1, 2, 3))
	two := of(booted("2", 4, 5, 6), booted("3", 4, 5, 6), booted("4", 4, 5, 6))
	for _, c := range []struct {
		before, after []*result.Result
		n             int
		warned        bool
	}{
		{one, two, 3, false}, // runs
		{append(of(booted("9", 1, 2, 3), booted("9", 2, 3, 4)), one...), two, 2, false}, // boots
		{one, one, 3, true}, {of(booted("", 1), booted("", 2)), of(booted("", 1), booted("", 3)), 2, false},
	} {
		found, err := Compare(c.before, c.after, nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if n := found.Metrics[0].Before.N; n != c.n {
			t.Errorf("%d units, want %d", n, c.n)
		}
		if warned := strings.Contains(strings.Join(found.Warnings, "\n"), "both sides"); warned != c.warned {
			t.Errorf("warnings: %q", found.Warnings)
		}
	}
}

// TestMissing: a metric that one side lacks is named, whichever side it is; and where there is
// none on both, there is no comparison.
func TestMissing(t *testing.T) {
	both := micro(1, 2)
	m := both.Runs[0].Micro[0]
	m.Name = "another"
	both.Runs[0].Micro = append(both.Runs[0].Micro, m)
	for _, sides := range [][3][]*result.Result{{of(both), of(micro(1)), nil}, {of(micro(1)), of(both), nil}, {of(micro(1)), of(micro(1)), of(both)}} {
		found, err := Compare(sides[0], sides[1], sides[2], Options{})
		if err != nil || len(found.Metrics) != 1 || !strings.Contains(strings.Join(found.Warnings, "\n"), "another is not in all") {
			t.Errorf("%+v, %v", found, err)
		}
	}
	other := micro(1)
	other.Runs[0].Micro[0].Name = "other"
	if _, err := Compare(of(micro(1)), of(other), nil, Options{}); !errors.Is(err, refusal.ErrUsage) {
		t.Errorf("nothing in common: %v", err)
	}
}

// TestPaths: two groups whose names join to one path stay two.
func TestPaths(t *testing.T) {
	r := micro(1)
	r.Runs[0].Micro = nil
	h := result.NewHistograms()
	h.Rearm.Record(1000)
	for _, names := range [][2]string{{"a / b", "c"}, {"a", "b / c"}, {"a", `"b / c"`}, {"a /", "b"}, {"a", "/ b"}} {
		r.Runs[0].Phases = append(r.Runs[0].Phases, result.Phase{Name: names[0], DurationNS: 1e9, Groups: []result.Group{{Name: names[1], Subscribers: 1, Histograms: h, Counts: result.Counts{Handled: 1, Arms: 1}}}})
	}
	found, err := Compare(of(r), of(r), nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, m := range found.Metrics {
		if seen[m.Name]++; seen[m.Name] > 1 || m.Before.N != 1 {
			t.Errorf("%s: %d times, %d values of one run", m.Name, seen[m.Name], m.Before.N)
		}
	}
	if len(found.Metrics)%5 != 0 || len(found.Maxima)%5 != 0 || len(found.Maxima) == 0 {
		t.Errorf("%d metrics and %d maxima of 5 groups", len(found.Metrics), len(found.Maxima))
	}
}

// TestUnits: a unit is the same on every side, whatever the sides have.
func TestUnits(t *testing.T) {
	run := func(runs ...[]float64) *result.Result {
		r := micro()
		r.Runs = nil
		for _, rounds := range runs {
			r.Runs = append(r.Runs, micro(rounds...).Runs[0])
		}
		return r
	}
	one, five := run([]float64{1, 2, 3}), run([]float64{1, 2, 3}, []float64{2, 3, 4}, []float64{3, 4, 5}, []float64{4, 5, 6}, []float64{5, 6, 7})
	for _, c := range []struct {
		name          string
		before, after []*result.Result
		n, k          int
		median        float64 // of after
	}{
		{"a run against five: rounds", of(one), of(five), 3, 15, 4}, {"and the other way", of(five), of(one), 15, 3, 2},
		{"five runs each: runs", of(five), of(five), 5, 5, 4}, {"files of five runs: files", of(five, five), of(five, one), 2, 2, 3}, {"files of one run", of(one, one), of(one, one), 2, 2, 2},
		{"two files against one of a run: rounds", of(one, one), of(one), 6, 3, 2}, {"two files against one of five: runs", of(one, one), of(five), 2, 5, 4},
	} {
		found, err := Compare(c.before, c.after, nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if m := found.Metrics[0]; m.Before.N != c.n || m.After.N != c.k || m.After.Median != c.median {
			t.Errorf("%s: %d and %d units, median %g; want %d, %d, %g", c.name, m.Before.N, m.After.N, m.After.Median, c.n, c.k, c.median)
		}
	}
}

// TestDifference: the order statistics of pairwise differences are those of the differences.
func TestDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 300 {
		a, b := normal(r, 1+r.IntN(12), 3, 2), normal(r, 1+r.IntN(12), 0, 1)
		for i := range b {
			b[i] = math.Round(3*r.NormFloat64()) / 2 // ties, zeros and negative ones
		}
		var all []float64
		for _, x := range a {
			for _, y := range b {
				all = append(all, y-x)
			}
		}
		slices.Sort(a)
		slices.Sort(b)
		slices.Sort(all)
		for k, want := range all {
			if got := difference(a, b, k); got != want {
				t.Fatalf("%v, %v: difference %d is %g, want %g", a, b, k, got, want)
			}
		}
	}
}

// TestNamed: every field of a comparison's JSON has a name of its own, in snake_case.
func TestNamed(t *testing.T) {
	c, err := Compare(of(loops(4, 5000, 100)), of(loops(4, 6000, 50)), of(loops(4, 5000, 100)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	n, err := CompareNull(of(loops(4, 5000, 0)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^[a-z0-9_]+$`)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, of := range v {
				if !name.MatchString(key) {
					t.Errorf("field %q", key)
				}
				walk(of)
			}
		case []any:
			for _, of := range v {
				walk(of)
			}
		}
	}
	for _, v := range []any{c, n} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(data, &tree); err != nil {
			t.Fatal(err)
		}
		walk(tree)
	}
}

// TestNullOfZeros: noise around 0 has no fraction, and is no infinite one.
func TestNullOfZeros(t *testing.T) {
	r := loops(8, 5000, 0)
	for i := range r.Runs {
		r.Runs[i].Phases[0].Groups[0].EAGAIN = int64(i % 2)
	}
	n, err := CompareNull(of(r), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range n.Metrics {
		if math.IsInf(m.Median, 0) || math.IsInf(m.Highest, 0) {
			t.Errorf("%+v", m)
		}
	}
}

// loops returns a result of runs with these re-arm latencies and failures.
func loops(runs int, rearm, failed int64) *result.Result {
	r := &result.Result{Scenario: result.Scenario{Name: "load", SHA256: "2"}}
	for run := range runs {
		g := result.Group{Name: "rt", Subscribers: 1, Counts: result.Counts{Handled: 1000, Arms: 10_000, EAGAIN: failed + int64(run)}, Histograms: result.NewHistograms()}
		for i := range int64(2000) {
			g.Histograms.Rearm.Record(rearm + i%100 + int64(run))
		}
		r.Runs = append(r.Runs, result.Run{Phases: []result.Phase{{Name: "p", DurationNS: 1e9, Groups: []result.Group{g}}}})
	}
	return r
}

// TestLoops: rates and percentiles by run, worse and better known, and gates by metric.
func TestLoops(t *testing.T) {
	c, err := Compare(of(loops(10, 5000, 100)), of(loops(10, 6000, 50)), nil, Options{Gates: map[string]float64{"rt.rearm.p99": 0.5}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Verdict{}
	for _, m := range c.Metrics {
		got[m.Name] = m.Verdict
	}
	for name, want := range map[string]Verdict{"p / rt / -EAGAIN rate": FewerFailures, "p / rt / re-arm p50": Slower, "p / rt / re-arm p99": Same, "p / rt / messages": Same} {
		if got[name] != want && !(name == "p / rt / re-arm p99" && got[name] == Inconclusive) {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if len(c.Maxima) != 1 || c.Maxima[0].AfterAbove != 20_000 || c.Maxima[0].BeforeAbove != 0 {
		t.Errorf("maxima: %+v", c.Maxima)
	}
	few, err := Compare(of(loops(2, 5000, 100)), of(loops(2, 6000, 50)), nil, Options{})
	if err != nil || few.Metrics[0].Verdict != TooFew || few.Metrics[0].Needed < 4 || few.Decided() {
		t.Errorf("two runs: %+v, %v", few, err)
	}
}

// TestRefused: what differs is said, as an error or a warning.
func TestRefused(t *testing.T) {
	a, b := micro(1, 2), micro(1, 2)
	b.Scenario.SHA256 = "other"
	if _, err := Compare(of(a), of(b), nil, Options{}); !errors.Is(err, refusal.ErrUsage) {
		t.Errorf("another scenario: %v", err)
	}
	b = micro(1, 2)
	b.Environment = result.Environment{CPU: "x", Governor: "y", KernelRelease: "7", Preempt: "PREEMPT_RT", BootID: "z"}
	b.Observer.Mode = result.ObservedAll
	b.Scenario.Options = []string{"--cycles=3"}
	b.Runs[0].Processes = []result.Process{{Group: "scalar", Actors: []result.Actor{{Policy: "fifo", Priority: 3}}}}
	c, err := Compare(of(a), of(b), nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(c.Warnings, "\n")
	for _, want := range []string{"CPU differs", "governor differs", "observer differs", "options differs:  | --cycles=3", "priority granted differs"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning %q in %s", want, all)
		}
	}
	if len(c.Warnings) != 5 {
		t.Errorf("the kernel is what is to differ: %s", all)
	}
}

// TestNull: noise is measured, and no verdict comes of it.
func TestNull(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	n, err := CompareNull(of(micro(normal(r, 30, 100, 0.02)...)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := n.Metrics[0]
	if n.Units != 30 || m.False > n.Splits/20 || !(m.Median > 0 && m.Median < m.Highest && m.Highest < 0.05) {
		t.Errorf("%+v", n)
	}
	if _, err := CompareNull(of(micro(1, 2, 3)), Options{}); !errors.Is(err, refusal.ErrUsage) {
		t.Errorf("three units: %v", err)
	}
}

// TestInterval: the interval of a shift holds the true one 95 times of 100.
func TestInterval(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, n := range []int{5, 10, 60} {
		const trials = 500
		held := 0
		for range trials {
			lo, hi := shift(normal(r, n, 100, 0.1), normal(r, n, 105, 0.1), 100)
			if lo <= 0.05 && 0.05 <= hi {
				held++
			}
		}
		if held < trials*93/100 {
			t.Errorf("%d units: held %d of %d times", n, held, trials)
		}
	}
	if lo, hi := shift([]float64{1, 2}, []float64{3}, 1); !math.IsInf(lo, -1) || !math.IsInf(hi, 1) {
		t.Errorf("three values: %g..%g", lo, hi)
	}
}

// TestTies: where one side's values are tied, as of two boots that are alike, p is that of the
// exact distribution, whichever side it is.
func TestTies(t *testing.T) {
	tied, below := []float64{5, 5, 6, 6, 7, 7, 8, 8, 9, 9}, []float64{1, 2, 3, 4, 4.5}
	p, q := mannWhitney(tied, below), mannWhitney(below, tied)
	if p != q || p < 2.0/3003*0.99 || p > 0.01 {
		t.Errorf("p %v and %v, and 2 of 3003 orders are as far apart", p, q)
	}
}

// virtual makes a result of micro one of instructions.
func virtual(rounds ...float64) *result.Result {
	r := micro(rounds...)
	r.Environment.Emulated, r.Environment.Clock = true, result.ClockInstructions
	r.Runs[0].Micro[0].Unit = metric.InstructionsPer + "pair"
	return r
}

// TestInstructions: they are judged on an emulated machine, by rounds whatever boots there are, with
// a gate of their own, which that of times does not widen.
func TestInstructions(t *testing.T) {
	rounds := func(mean float64) []float64 { return []float64{mean, mean + .1, mean + .2, mean + .3, mean + .4} }
	for name, c := range map[string]struct {
		after   float64
		options Options
		want    Verdict
	}{
		"same":               {1801, Options{}, Same},
		"one per cent":       {1818, Options{}, Slower},
		"better":             {1782, Options{}, Faster},
		"gate of times":      {1818, Options{Gates: map[string]float64{"scalar": 0.1}}, Slower},
		"gate":               {1818, Options{Gates: map[string]float64{"scalar.instructions": 0.1}}, Same},
		"gate for all":       {1818, Options{Gate: 0.05}, Same},
		"within the gate":    {1808, Options{}, Same},
		"just outside of it": {1811, Options{}, Slower},
	} {
		a, a2, b := virtual(rounds(1800)...), virtual(rounds(1800)...), virtual(rounds(c.after)...)
		a.Environment.BootID, a2.Environment.BootID, b.Environment.BootID = "1", "2", "3"
		found, err := Compare(of(a), of(b), of(a2), c.options)
		if err != nil {
			t.Fatal(err)
		}
		if m := found.Metrics[0]; m.Verdict != c.want || m.Before.N != 5 || m.Unit != "instructions/pair" || !found.Virtual {
			t.Errorf("%s: %s (%s), %+v", name, m.Verdict, m.Why, m)
		}
	}
	a, b := virtual(rounds(8320)...), virtual(rounds(8270)...)
	a.Runs[0].Micro[0].Workload, b.Runs[0].Micro[0].Workload = "waitv", "waitv"
	if found, err := Compare(of(a), of(b), nil, Options{}); err != nil || found.Metrics[0].Verdict != Same || found.Metrics[0].Gate != VectorGate {
		t.Errorf("vectors: %+v, %v", found, err)
	}
	// Times of virtual time are shown.
	a, b = virtual(rounds(1800)...), virtual(rounds(900)...)
	for _, r := range of(a, b) {
		r.Runs[0].Micro[0].Unit = "virtual ns/pair"
	}
	found, err := Compare(of(a), of(b), nil, Options{})
	if err != nil || found.Metrics[0].Verdict != Shown {
		t.Errorf("%+v, %v", found, err)
	}
	// Two units of one point are no metric.
	a.Runs[0].Micro[0].Unit = "ns/pair"
	if _, err := Compare(of(a), of(b), nil, Options{}); !errors.Is(err, refusal.ErrUsage) {
		t.Errorf("ns against virtual ns: %v", err)
	}
	b.Runs[0].Micro = append(b.Runs[0].Micro, a.Runs[0].Micro[0])
	b.Runs[0].Micro[1].Name = "other"
	a.Runs[0].Micro = append(a.Runs[0].Micro, b.Runs[0].Micro[1])
	if found, err := Compare(of(a), of(b), nil, Options{}); err != nil || !found.Doubtful || found.Decided() || !strings.Contains(strings.Join(found.Warnings, " "), "scalar is in ns/pair on one side and on another in virtual ns/pair") {
		t.Errorf("%+v, %v", found, err)
	}
}
