package compare

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"

	"aossim/internal/refusal"
	"aossim/internal/result"
)

// Null is what comes of comparing a result with itself.
type Null struct {
	Splits  int          `json:"splits"`
	Units   int          `json:"units"`
	Metrics []NullMetric `json:"metrics"`
}

// NullMetric is the noise of one metric: how far the medians of two random halves lie
// apart, as a fraction, half of the time and 95 % of the time at most; and how many of
// the splits gave a verdict other than same or inconclusive. Splits in which a half's median
// is 0 have no such fraction: where there was none that has, the noise is NaN, in JSON null.
type NullMetric struct {
	Name    string
	Median  float64
	Highest float64
	False   int
}

// MarshalJSON writes what is no number as null.
func (m NullMetric) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name    string        `json:"name"`
		Median  result.Number `json:"noise_median"`
		Highest result.Number `json:"noise_95"`
		False   int           `json:"false_verdicts"`
	}{m.Name, result.Number(m.Median), result.Number(m.Highest), m.False})
}

// nullSplits is how often a result is split.
const nullSplits = 200

// CompareNull compares halves of a result, split at random, again and again. Its error wraps
// refusal.ErrUsage: there are too few units.
func CompareNull(results []*result.Result, o Options) (*Null, error) {
	if err := comparable(results); err != nil {
		return nil, err
	}
	s := extract(results, unitOf(results))
	metrics, samples := s.metrics, s.samples
	n := &Null{Splits: nullSplits}
	for _, m := range metrics {
		n.Units = max(n.Units, len(samples[m.Name].values))
	}
	if n.Units < 4 {
		return nil, refusal.Usage("halves need 4 units at least, and there are %d; run with -r 4 or more", n.Units)
	}
	changes := make([][]float64, len(metrics))
	wrong := make([]int, len(metrics))
	random := rand.New(rand.NewPCG(1, 2))
	for split := range nullSplits {
		if o.Progress != nil {
			o.Progress(split, nullSplits)
		}
		var list []Judged
		for _, m := range metrics {
			s := samples[m.Name]
			order := random.Perm(len(s.values))
			half := func(places []int) *sample {
				h := &sample{}
				for _, i := range places {
					h.values, h.first = append(h.values, s.values[i]), append(h.first, false)
				}
				return h
			}
			list = append(list, judge(m, half(order[:len(order)/2]), half(order[len(order)/2:]), nil, o.gate(m)))
		}
		holm(list)
		for i := range list {
			list[i].decide()
			if v := list[i].Verdict; v.Worse() || v.Better() {
				wrong[i]++
			}
			if c := math.Abs(list[i].Change); !math.IsNaN(c) && !math.IsInf(c, 0) {
				changes[i] = append(changes[i], c)
			}
		}
	}
	for i, m := range metrics {
		slices.Sort(changes[i])
		x := NullMetric{Name: m.Name, Median: math.NaN(), Highest: math.NaN(), False: wrong[i]}
		if k := len(changes[i]); k > 0 {
			x.Median, x.Highest = changes[i][k/2], changes[i][k*95/100]
		}
		n.Metrics = append(n.Metrics, x)
	}
	return n, nil
}
