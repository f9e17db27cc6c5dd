// Package compare judges results against each other: what changed from before to after,
// and how sure that is. It never touches the kernel.
//
// A comparison is A-B-A where there are results from before and after and from before
// again: the change is against the midpoint of the two A's, and their drift stands beside
// it. A unit is a run; of a micro-benchmark a round, or the boot where there are several.
package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"

	"aossim/internal/result"
)

// alpha is the chance at which a change is taken for one that is none, over all metrics
// that are judged together.
const alpha = 0.05

// DefaultGate is the change that matters, as a fraction.
const DefaultGate = 0.05

// countedLeast is how many events a count must be over to be judged as one.
const countedLeast = 100

// ErrDifferent is wrapped where results cannot be compared.
var ErrDifferent = errors.New("these results cannot be compared")

// Options say how to judge. Gates are by metric, as [compare] of a scenario names them.
type Options struct {
	Gate  float64 // as a fraction; 0 is DefaultGate
	Gates map[string]float64
}

// Verdict is the word for what became of a metric.
type Verdict string

// Faster and slower are for times and rates, the next two for failed arms, then for
// allocations. Same: the interval lies within the gate. Inconclusive: neither. TooFew:
// no verdict is possible. Shown: it is not judged, as the times of an emulated machine.
const (
	Faster          Verdict = "faster"
	Slower          Verdict = "slower"
	FewerFailures   Verdict = "fewer failures"
	MoreFailures    Verdict = "more failures"
	FewerAllocation Verdict = "fewer allocations"
	MoreAllocation  Verdict = "more allocations"
	Same            Verdict = "same"
	Inconclusive    Verdict = "inconclusive"
	TooFew          Verdict = "too few"
	Shown           Verdict = "not judged"
)

// Worse says whether a verdict is a regression.
func (v Verdict) Worse() bool { return v == Slower || v == MoreFailures || v == MoreAllocation }

// Better says whether a verdict is an improvement.
func (v Verdict) Better() bool { return v == Faster || v == FewerFailures || v == FewerAllocation }

// Side is what one side of a metric looks like.
type Side struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	// Lo and Hi are the median's 95 % interval; equal to it where there are too few.
	Lo float64 `json:"lo"`
	Hi float64 `json:"hi"`
	CV float64 `json:"cv"`
}

// Judged is one metric, compared. Fractions are of the before's midpoint.
type Judged struct {
	Metric
	Before  Side    `json:"before"`
	After   Side    `json:"after"`
	Again   *Side   `json:"before_again,omitempty"`
	Change  float64 `json:"change"`
	Lo      float64 `json:"change_lo"` // the change's 95 % interval
	Hi      float64 `json:"change_hi"`
	Drift   float64 `json:"drift"` // of the befores, 0 without a second
	P       float64 `json:"p"`     // Mann-Whitney
	Holm    float64 `json:"p_holm"`
	Gate    float64 `json:"gate"`
	Needed  int     `json:"units_needed,omitempty"` // of each side, for a verdict
	Counted bool    `json:"counted"`                // judged as a count, not by units
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why"`
	// ChangeWithoutFirst is the change with the first unit of each file dropped.
	ChangeWithoutFirst float64 `json:"change_without_first"`
	// Best is the change of the best unit of each side. What disturbs a machine makes some
	// units worse; what changes a kernel changes the best one too.
	Best float64 `json:"change_best"`
}

// MarshalJSON writes what is infinite or no number as null.
func (j Judged) MarshalJSON() ([]byte, error) {
	finite := func(v float64) *float64 {
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return nil
		}
		return &v
	}
	type plain Judged
	return json.Marshal(struct {
		plain
		Change             *float64 `json:"change"`
		Lo                 *float64 `json:"change_lo"`
		Hi                 *float64 `json:"change_hi"`
		Drift              *float64 `json:"drift"`
		ChangeWithoutFirst *float64 `json:"change_without_first"`
		Best               *float64 `json:"change_best"`
	}{plain(j), finite(j.Change), finite(j.Lo), finite(j.Hi), finite(j.Drift), finite(j.ChangeWithoutFirst), finite(j.Best)})
}

// Comparison is what Compare finds.
type Comparison struct {
	Scenario string    `json:"scenario"`
	Before   string    `json:"before"` // kernels
	After    string    `json:"after"`
	Warnings []string  `json:"warnings"`
	Emulated bool      `json:"emulated"` // times are shown only
	Metrics  []Judged  `json:"metrics"`
	Maxima   []Maximum `json:"maxima"`
}

// Worse returns the metrics that regressed.
func (c *Comparison) Worse() (list []Judged) {
	for _, m := range c.Metrics {
		if m.Verdict.Worse() {
			list = append(list, m)
		}
	}
	return list
}

// Decided says whether every judged metric has a verdict that is one.
func (c *Comparison) Decided() bool {
	judged := 0
	for _, m := range c.Metrics {
		switch m.Verdict {
		case TooFew, Inconclusive:
			return false
		case Shown:
		default:
			judged++
		}
	}
	return judged > 0
}

// Compare compares results of before with those of after, and of before again, which may
// be none. It returns an error that wraps ErrDifferent where they are not of the same
// scenario.
func Compare(before, after, again []*result.Result, o Options) (*Comparison, error) {
	if o.Gate == 0 {
		o.Gate = DefaultGate
	}
	all := slices.Concat(before, again, after)
	if err := comparable(all); err != nil {
		return nil, err
	}
	c := &Comparison{Scenario: before[0].Scenario.Name, Before: kernels(slices.Concat(before, again)), After: kernels(after), Warnings: warnings(all)}
	for _, r := range all {
		c.Emulated = c.Emulated || r.Environment.Emulated
	}
	// The units are boots on every side or on none.
	boots := min(len(before)+len(again), len(after)) > 1
	metrics, a := extract(before, boots)
	_, b := extract(after, boots)
	var a2 map[string]*sample
	if len(again) > 0 {
		_, a2 = extract(again, boots)
	}
	for _, m := range metrics {
		if b[m.Name] == nil || a2 != nil && a2[m.Name] == nil {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s is not in all results, and not compared", m.Name))
			continue
		}
		gate, ok := o.Gates[m.key]
		if !ok {
			gate = o.Gate
		}
		c.Metrics = append(c.Metrics, judge(m, a[m.Name], b[m.Name], a2[m.Name], gate))
	}
	holm(c.Metrics)
	for i := range c.Metrics {
		m := &c.Metrics[i]
		if c.Emulated && m.Kind == Speed {
			m.Verdict, m.Why = Shown, "the machine is emulated: times say nothing"
			continue
		}
		m.decide()
	}
	c.Maxima = maxima(slices.Concat(before, again), after)
	return c, nil
}

// judge computes what a verdict rests on.
func judge(m Metric, a, b, a2 *sample, gate float64) Judged {
	j := Judged{Metric: m, Before: side(a.values), After: side(b.values), Gate: gate, P: 1, Holm: 1}
	pooled, dropped := a.values, median(a.without())
	if a2 != nil {
		s := side(a2.values)
		j.Again = &s
		j.Drift = ratio(s.Median-j.Before.Median, j.Before.Median)
		dropped = (dropped + median(a2.without())) / 2
		pooled = slices.Concat(pooled, a2.values)
	}
	mid := j.mid()
	j.Change = ratio(j.After.Median-mid, mid)
	j.ChangeWithoutFirst = ratio(median(b.without())-dropped, dropped)
	n, k := len(pooled), len(b.values)
	if n > 0 && k > 0 {
		best := slices.Min[[]float64]
		if m.Higher {
			best = slices.Max[[]float64]
		}
		j.Best = ratio(best(b.values)-best(pooled), best(pooled))
	}
	// What is counted over very many arms in few units is judged as a count: the kernel
	// does the same for each.
	events, count := a.events, a.count
	if a2 != nil {
		events, count = events+a2.events, count+a2.count
	}
	if m.Kind == Allocations && min(events, b.events) >= countedLeast && math.Abs(j.Drift) <= gate {
		j.Counted = true
		j.P = poisson(count, events, b.count, b.events)
		lo, hi := poissonInterval(b.count, b.events)
		la, ha := poissonInterval(count, events)
		j.Lo, j.Hi = ratio(lo-ha, mid), ratio(hi-la, mid)
		return j
	}
	if n > 0 && k > 0 {
		j.P = mannWhitney(pooled, b.values)
		j.Lo, j.Hi = shift(pooled, b.values, mid)
	}
	return j
}

// ratio is v as a fraction of base; where base is 0 any v but 0 is infinitely much.
func ratio(v, base float64) float64 {
	switch {
	case v == 0:
		return 0
	case base == 0:
		return math.Inf(int(math.Copysign(1, v)))
	}
	return v / base
}

func side(values []float64) Side {
	s := result.SpreadOf(values)
	out := Side{N: len(values), Median: s.Median, Lo: s.Median, Hi: s.Median, CV: s.CV}
	if len(values) > 1 {
		summary := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), 1-alpha)
		if !math.IsInf(summary.Lo, 0) && !math.IsInf(summary.Hi, 0) {
			out.Lo, out.Hi = summary.Lo, summary.Hi
		}
	}
	return out
}

// mannWhitney returns the two-sided p of the U test.
func mannWhitney(a, b []float64) float64 {
	sample := func(v []float64) *benchmath.Sample {
		return benchmath.NewSample(slices.Clone(v), &benchmath.DefaultThresholds)
	}
	return benchmath.AssumeNothing.Compare(sample(a), sample(b)).P
}

// shift returns the 95 % interval of the shift from a to b as fractions of mid, by the
// order statistics of all pairwise differences (Hodges and Lehmann); infinite where there
// are too few values for one.
func shift(a, b []float64, mid float64) (lo, hi float64) {
	var d []float64
	for _, x := range a {
		for _, y := range b {
			d = append(d, y-x)
		}
	}
	sort.Float64s(d)
	k := critical(len(a), len(b))
	if k < 0 {
		return math.Inf(-1), math.Inf(1)
	}
	return ratio(d[k], mid), ratio(d[len(d)-1-k], mid)
}

// critical returns the largest k for which the chance that U is at most k is no more than
// alpha/2, or -1 where there is none.
func critical(n, m int) int {
	if n*m > 2500 { // by the normal distribution
		mean, sd := float64(n*m)/2, math.Sqrt(float64(n*m*(n+m+1))/12)
		return int(mean-1.96*sd) - 1
	}
	u := stats.UDist{N1: n, N2: m}
	k := -1
	for float64(k+1) < float64(n*m)/2 && u.CDF(float64(k+1)) <= alpha/2 {
		k++
	}
	return k
}

// holm corrects the p of the metrics for how many there are.
func holm(list []Judged) {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool { return list[order[i]].P < list[order[j]].P })
	highest := 0.0
	for rank, i := range order {
		highest = max(highest, min(1, list[i].P*float64(len(list)-rank)))
		list[i].Holm = highest
	}
	for i := range list {
		list[i].Needed = needed(len(list))
	}
}

// needed is how many units each side must have for a verdict among so many metrics:
// even if all of one side lie above all of the other, fewer cannot be told from chance.
func needed(metrics int) int {
	for n := 1; ; n++ {
		if 2/binomial(2*n, n) <= alpha/float64(max(1, metrics)) {
			return n
		}
	}
}

func binomial(n, k int) float64 {
	v := 1.0
	for i := range k {
		v *= float64(n-i) / float64(i+1)
	}
	return v
}

// decide finds the verdict, as DESIGN section 10 defines it.
func (m *Judged) decide() {
	before := m.Before.N
	if m.Again != nil {
		before += m.Again.N
	}
	enough := 2/binomial(before+m.After.N, min(before, m.After.N)) <= alpha && min(before, m.After.N) >= m.Needed
	size := math.Abs(m.Change)
	switch {
	case !m.Counted && !enough:
		m.Verdict, m.Why = TooFew, fmt.Sprintf("%d and %d units; %d on each side would do", before, m.After.N, m.Needed)
	case m.Kind == Allocations && m.Counted && math.Abs(m.After.Median-m.mid()) < leastAllocation:
		m.Verdict, m.Why = Same, "they differ by less than one allocation in a thousand"
	case m.Holm <= alpha && (m.Lo > 0 || m.Hi < 0) && size > m.Gate && size > math.Abs(m.Drift) && (m.Kind != Speed || m.bestAgrees()):
		m.Verdict, m.Why = m.word(), "the interval excludes 0, and the change is above the gate and the drift"
	case m.Lo >= -m.Gate && m.Hi <= m.Gate:
		m.Verdict, m.Why = Same, "the interval lies within the gate"
	case m.rounds && math.Abs(m.Best) <= m.Gate/2:
		// A round is thousands of the same operations: what changes those changes the best round.
		m.Verdict, m.Why = Same, fmt.Sprintf("the best rounds differ by %+.1f %%: what else differs is disturbance", 100*m.Best)
	case size <= m.Gate:
		m.Verdict, m.Why = Inconclusive, "the interval reaches beyond the gate"
	case size <= math.Abs(m.Drift):
		m.Verdict, m.Why = Inconclusive, "the befores drift by as much"
	case m.Kind == Speed && !m.bestAgrees():
		m.Verdict, m.Why = Inconclusive, fmt.Sprintf("the best units differ by %+.1f %% only: something disturbed the others", 100*m.Best)
	default:
		m.Verdict, m.Why = Inconclusive, "it may be chance"
	}
}

// bestAgrees says whether the best units changed the same way, by half the gate at least.
func (m *Judged) bestAgrees() bool {
	return m.Best*m.Change > 0 && math.Abs(m.Best) > m.Gate/2
}

// leastAllocation is how many allocations an arm or message matter at least.
const leastAllocation = 0.001

// mid is the midpoint of the befores.
func (m *Judged) mid() float64 {
	if m.Again == nil {
		return m.Before.Median
	}
	return (m.Before.Median + m.Again.Median) / 2
}

// word is the verdict of a change.
func (m *Judged) word() Verdict {
	more := m.Change > 0
	switch {
	case m.Kind == Failures && more:
		return MoreFailures
	case m.Kind == Failures:
		return FewerFailures
	case m.Kind == Allocations && more:
		return MoreAllocation
	case m.Kind == Allocations:
		return FewerAllocation
	case more == m.Higher:
		return Faster
	}
	return Slower
}

// comparable refuses results of different scenarios.
func comparable(all []*result.Result) error {
	a := all[0]
	for _, b := range all[1:] {
		if a.Scenario.SHA256 != b.Scenario.SHA256 || a.Scenario.Name != b.Scenario.Name {
			return fmt.Errorf("%w: one is of scenario %s (sha256 %.12s), one of %s (%.12s); run the same file on both kernels", ErrDifferent, a.Scenario.Name, a.Scenario.SHA256, b.Scenario.Name, b.Scenario.SHA256)
		}
	}
	return nil
}

// warnings names what differs between the machines other than the kernel.
func warnings(all []*result.Result) (list []string) {
	differs := func(what string, of func(r *result.Result) string) {
		var values []string
		for _, r := range all {
			if v := of(r); !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		if len(values) > 1 {
			list = append(list, fmt.Sprintf("%s differs: %s", what, strings.Join(values, " | ")))
		}
	}
	environment := func(of func(e *result.Environment) string) func(r *result.Result) string {
		return func(r *result.Result) string { return of(&r.Environment) }
	}
	differs("options", func(r *result.Result) string { return strings.Join(r.Scenario.Options, " ") })
	differs("machine", environment(func(e *result.Environment) string { return e.Machine }))
	differs("CPU", environment(func(e *result.Environment) string { return e.CPU }))
	differs("CPUs online", environment(func(e *result.Environment) string { return e.CPUs }))
	differs("governor", environment(func(e *result.Environment) string { return e.Governor }))
	differs("isolcpus", environment(func(e *result.Environment) string { return e.Isolated }))
	differs("nohz_full", environment(func(e *result.Environment) string { return e.NohzFull }))
	differs("RT throttling", environment(func(e *result.Environment) string { return e.RTThrottling }))
	differs("clock source", environment(func(e *result.Environment) string { return e.ClockSource }))
	differs("cpu_dma_latency", environment(func(e *result.Environment) string { return e.DMALatency }))
	differs("page size of the shared memory", environment(func(e *result.Environment) string { return fmt.Sprint(e.SharedPages) }))
	differs("mitigations", environment(func(e *result.Environment) string { return strings.Join(e.Mitigations, "; ") }))
	differs("virtualization", environment(func(e *result.Environment) string { return e.Virtualization }))
	differs("the kernel's command line", environment(func(e *result.Environment) string { return e.CommandLine }))
	differs("the program", environment(func(e *result.Environment) string { return e.Program + ", " + e.GoVersion }))
	differs("observer", func(r *result.Result) string { return r.Observer.Mode })
	differs("how failures are timed", timing)
	differs("priority granted", granted)
	return list
}

func timing(r *result.Result) string {
	for _, run := range r.Runs {
		for _, p := range run.Phases {
			for _, g := range p.Groups {
				if g.Kernel != nil {
					return g.Kernel.Timing
				}
			}
		}
	}
	return "not observed"
}

// granted is what the kernel gave the actors, a word a group.
func granted(r *result.Result) string {
	var words []string
	if len(r.Runs) > 0 {
		for _, p := range r.Runs[0].Processes {
			for _, a := range p.Actors {
				if w := fmt.Sprintf("%s %s %d", p.Group, a.Policy, a.Priority); !slices.Contains(words, w) {
					words = append(words, w)
				}
			}
		}
	}
	return strings.Join(words, ", ")
}

// kernels names the kernels of results.
func kernels(results []*result.Result) string {
	var names []string
	for _, r := range results {
		if n := strings.TrimSpace(r.Environment.KernelRelease + " " + r.Environment.KernelVersion); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return strings.Join(names, " | ")
}
