package compare

import (
	"fmt"
	"math"

	"aossim/internal/result"
)

// Kind is what a metric is about; it decides what its verdict is called and how it is
// judged.
type Kind string

// A time or a number a second; a share of arms that failed; allocations of the kernel,
// which are counted over very many arms.
const (
	Speed       Kind = "speed"
	Failures    Kind = "failures"
	Allocations Kind = "allocations"
)

// Metric names one figure that results have.
type Metric struct {
	Name   string `json:"name"` // PHASE / GROUP / QUANTITY, or POINT
	Unit   string `json:"unit"`
	Kind   Kind   `json:"kind"`
	Higher bool   `json:"higher_is_better"`
	key    string // as [compare] and [expect] name it
	rounds bool   // its units are rounds of a micro-benchmark
}

// sample is one side's values of a metric, one a unit.
type sample struct {
	values []float64
	first  []bool // the unit is the first one of its file
	// Of allocations: how many there were, over how many events.
	events, count int64
}

// extract returns the metrics of results in the order in which they occur, and each
// one's sample. boots has a micro-benchmark's boot be the unit, rather than its round.
func extract(results []*result.Result, boots bool) (metrics []Metric, samples map[string]*sample) {
	samples = map[string]*sample{}
	add := func(m Metric, v float64, first bool) *sample {
		s := samples[m.Name]
		if s == nil {
			s = &sample{}
			samples[m.Name] = s
			metrics = append(metrics, m)
		}
		s.values, s.first = append(s.values, v), append(s.first, first)
		return s
	}
	for _, r := range results {
		for i := range r.Runs {
			for _, p := range r.Runs[i].Phases {
				for j := range p.Groups {
					phase(add, &p, &p.Groups[j], i == 0)
				}
			}
			for j := range r.Runs[i].Micro {
				point(add, &r.Runs[i].Micro[j], boots || len(r.Runs) > 1, i == 0)
			}
		}
	}
	return metrics, samples
}

// phase adds the metrics of one group in one phase of one run.
func phase(add func(Metric, float64, bool) *sample, p *result.Phase, g *result.Group, first bool) {
	if g.Subscribers == 0 {
		return
	}
	metric := func(quantity, unit, key string, kind Kind) Metric {
		return Metric{Name: p.Name + " / " + g.Name + " / " + quantity, Unit: unit, Kind: kind, key: g.Name + "." + key}
	}
	if g.Arms > 0 {
		add(metric("-EAGAIN rate", "%", "eagain_rate", Failures), 100*float64(g.EAGAIN)/float64(g.Arms), first)
	}
	for _, q := range Quantities {
		for _, stat := range []struct {
			name    string
			percent float64
		}{{"p50", 50}, {"p99", 99}, {"p99.9", 99.9}} {
			if v, ok := g.Histograms.Get(q.Key).Percentile(stat.percent); ok {
				add(metric(q.Name+" "+stat.name, "us", q.Key+"."+stat.name, Speed), float64(v)/1000, first)
			}
		}
	}
	if p.DurationNS > 0 {
		m := metric("messages", "/s", "messages_per_second", Speed)
		m.Higher = true
		add(m, float64(g.Handled)/float64(g.Subscribers)/(float64(p.DurationNS)/1e9), first)
	}
	if k := g.Kernel; k != nil {
		allocations(add, k, first, func(quantity string) Metric { return metric(quantity, "", "kmalloc", Allocations) })
	}
}

// allocations adds what the kernel allocated.
func allocations(add func(Metric, float64, bool) *sample, k *result.Kernel, first bool, name func(string) Metric) {
	for _, x := range []struct {
		quantity string
		of       int64
	}{{"kmalloc per arm", k.Arms}, {"kmalloc per failed arm", k.EAGAIN}, {"kmalloc per message", k.Messages}} {
		if x.of > 0 {
			s := add(name(x.quantity), float64(k.Kmalloc)/float64(x.of), first)
			s.events += x.of
			s.count += k.Kmalloc
		}
	}
}

// point adds the metrics of a micro-benchmark: a value a round, or where there are
// several boots or runs, one for each.
func point(add func(Metric, float64, bool) *sample, m *result.Micro, whole, first bool) {
	if len(m.Rounds) == 0 {
		return
	}
	metric := Metric{Name: m.Name, Unit: m.Unit, Kind: Speed, Higher: m.Unit == "ops/s/thread", key: m.Name}
	if whole {
		add(metric, m.Median, first)
	} else {
		metric.rounds = true
		for i, v := range m.Rounds {
			add(metric, v, i == 0)
		}
	}
	if k := m.Kernel; k != nil {
		allocations(add, k, first, func(quantity string) Metric {
			return Metric{Name: m.Name + " / " + quantity, Kind: Allocations, key: m.Name + ".kmalloc"}
		})
	}
}

// Quantity is a distribution that groups have.
type Quantity struct{ Key, Name string }

// Quantities are those that are compared.
var Quantities = []Quantity{{"rearm", "re-arm"}, {"arm_window", "arm window"}, {"delivery", "delivery"}, {"response", "response"}}

// Maximum is the largest value of a distribution on each side, in us, and how many
// values lay above the other side's. It is shown and never judged: one value of a long run
// says little.
type Maximum struct {
	Name              string  `json:"name"`
	Before            float64 `json:"before_us"`
	After             float64 `json:"after_us"`
	BeforeAbove       int64   `json:"before_above_after"`
	AfterAbove        int64   `json:"after_above_before"`
	BeforeOf, AfterOf int64
}

// maxima pairs the distributions of both sides.
func maxima(before, after []*result.Result) (list []Maximum) {
	merge := func(results []*result.Result) (names []string, all map[string]*result.Histogram) {
		all = map[string]*result.Histogram{}
		for _, r := range results {
			for _, run := range r.Runs {
				for _, p := range run.Phases {
					for _, g := range p.Groups {
						for _, q := range Quantities {
							h := g.Histograms.Get(q.Key)
							if h.Count() == 0 {
								continue
							}
							name := fmt.Sprintf("%s / %s / %s", p.Name, g.Name, q.Name)
							if all[name] == nil {
								all[name] = result.NewHistogram(result.Highest)
								names = append(names, name)
							}
							all[name].Merge(h)
						}
					}
				}
			}
		}
		return names, all
	}
	names, a := merge(before)
	_, b := merge(after)
	for _, name := range names {
		if x, y := a[name], b[name]; y != nil {
			list = append(list, Maximum{Name: name, Before: float64(x.Max()) / 1000, After: float64(y.Max()) / 1000,
				BeforeAbove: x.CountAbove(y.Max()), AfterAbove: y.CountAbove(x.Max()), BeforeOf: x.Count(), AfterOf: y.Count()})
		}
	}
	return list
}

// without returns a sample's values but those of first units.
func (s *sample) without() (values []float64) {
	for i, v := range s.values {
		if !s.first[i] {
			values = append(values, v)
		}
	}
	return values
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return result.SpreadOf(values).Median
}
