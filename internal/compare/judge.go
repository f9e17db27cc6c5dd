package compare

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// alpha is the chance at which a change is taken for one that is none, over all metrics
// that are judged together.
const alpha = 0.05

// DefaultGate is the change that matters, as a fraction, and InstructionGate that of instructions:
// boots of one kernel differ by less than half of it. VectorGate is that of the workload waitv, of which
// they differ by 0.6 %.
const (
	DefaultGate     = 0.05
	InstructionGate = 0.005
	VectorGate      = 0.01
)

// countedLeast is how many events a count must be over to be judged as one.
const countedLeast = 100

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
	type plain Judged
	return json.Marshal(struct {
		plain
		Change             result.Number `json:"change"`
		Lo                 result.Number `json:"change_lo"`
		Hi                 result.Number `json:"change_hi"`
		Drift              result.Number `json:"drift"`
		ChangeWithoutFirst result.Number `json:"change_without_first"`
		Best               result.Number `json:"change_best"`
	}{plain(j), result.Number(j.Change), result.Number(j.Lo), result.Number(j.Hi), result.Number(j.Drift), result.Number(j.ChangeWithoutFirst), result.Number(j.Best)})
}

// MarshalJSON writes what is infinite or no number as null.
func (s Side) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		N      int           `json:"n"`
		Median result.Number `json:"median"`
		Lo     result.Number `json:"lo"`
		Hi     result.Number `json:"hi"`
		CV     result.Number `json:"cv"`
	}{s.N, result.Number(s.Median), result.Number(s.Lo), result.Number(s.Hi), result.Number(s.CV)})
}

// judge computes what a verdict rests on.
func judge(m Metric, a, b, a2 *sample, gate float64) Judged {
	j := Judged{Metric: m, Before: sideOf(a.values), After: sideOf(b.values), Gate: gate, P: 1, Holm: 1}
	pooled, dropped := a.values, median(a.without())
	if a2 != nil {
		s := sideOf(a2.values)
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
	if m.Kind == metric.Count && min(events, b.events) >= countedLeast && math.Abs(j.Drift) <= gate {
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

// decide finds the verdict, as docs/design.md defines it (exit codes and comparison).
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
	case m.Kind == metric.Count && m.Counted && math.Abs(m.After.Median-m.mid()) < leastAllocation:
		m.Verdict, m.Why = Same, "they differ by less than one allocation in a thousand"
	case m.Holm <= alpha && (m.Lo > 0 || m.Hi < 0) && size > m.Gate && size > math.Abs(m.Drift) && (!m.Kind.Timed() || m.bestAgrees()):
		m.Verdict, m.Why = m.word(), "the interval excludes 0, and the change is above the gate and the drift"
	case m.Lo >= -m.Gate && m.Hi <= m.Gate:
		m.Verdict, m.Why = Same, "the interval lies within the gate"
	case m.rounds && m.Kind != metric.Instructions && math.Abs(m.Best) <= m.Gate/2:
		// A round is thousands of the same operations: what changes those changes the best round.
		m.Verdict, m.Why = Same, fmt.Sprintf("the best rounds differ by %+.1f %%: what else differs is disturbance", 100*m.Best)
	case size <= m.Gate:
		m.Verdict, m.Why = Inconclusive, "the interval reaches beyond the gate"
	case size <= math.Abs(m.Drift):
		m.Verdict, m.Why = Inconclusive, "the befores drift by as much"
	case m.Kind.Timed() && !m.bestAgrees():
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
	case m.Kind == metric.Share && more:
		return MoreFailures
	case m.Kind == metric.Share:
		return FewerFailures
	case m.Kind == metric.Count && more:
		return MoreAllocation
	case m.Kind == metric.Count:
		return FewerAllocation
	case more == m.Higher:
		return Faster
	}
	return Slower
}
