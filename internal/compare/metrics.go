package compare

import (
	"math"
	"slices"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// Metric names one figure that results have.
type Metric struct {
	Name   string        `json:"name"` // PHASE / GROUP / QUANTITY, or POINT
	Unit   string        `json:"unit"` // as tables show it
	Kind   metric.Judged `json:"kind"`
	Higher bool          `json:"higher_is_better"`
	usual  float64       // gate, 0 for DefaultGate
	gates  [2]string     // as [compare] names it: by its key, and by that of its gate
	rounds bool          // its units are rounds of a micro-benchmark
}

// unit is what one value of a sample is of.
type unit int

// A round of a micro-benchmark, a run, or a boot.
const (
	perRound unit = iota
	perRun
	perBoot
)

// unitOf is the largest unit of which every side has several. It is one for all sides: a
// median of rounds is no round. In virtual time it is the round: all that makes two boots differ is
// fixed, and what they differ in all the same is their drift.
func unitOf(sides ...[]*result.Result) unit {
	boots, runs := math.MaxInt, math.MaxInt
	for _, side := range sides {
		if slices.ContainsFunc(side, func(r *result.Result) bool { return r.Environment.Virtual() }) {
			return perRound
		}
		n := 0
		for _, r := range side {
			n += len(r.Runs)
		}
		boots, runs = min(boots, len(byBoot(side))), min(runs, n)
	}
	switch {
	case boots > 1:
		return perBoot
	case runs > 1:
		return perRun
	}
	return perRound
}

// byBoot puts results of one boot together: several of them say no more about boots than one.
func byBoot(results []*result.Result) (boots [][]*result.Result) {
	at := map[string]int{}
	for _, r := range results {
		id := r.Environment.BootID
		n, ok := at[id]
		if !ok || id == "" {
			n = len(boots)
			at[id], boots = n, append(boots, nil)
		}
		boots[n] = append(boots[n], r)
	}
	return boots
}

// sample is one side's values of a metric, one a unit.
type sample struct {
	values []float64
	first  []bool // the unit is the first one of its boot
	units  []string
	// Of what is judged as a count: how many there were, over how many events.
	events, count int64
}

// side is what one side's results have: metrics in the order in which they occur, and each
// one's sample.
type side struct {
	metrics []Metric
	samples map[string]*sample
}

// extract takes the metrics out of results. The unit counts for micro-benchmarks; that of
// phases is always the run.
func extract(results []*result.Result, u unit) *side {
	s := &side{samples: map[string]*sample{}}
	for _, boot := range byBoot(results) {
		points := map[string][]*result.Micro{}
		var names []string
		first := true
		for _, r := range boot {
			for i := range r.Runs {
				for j := range r.Runs[i].Phases {
					p := &r.Runs[i].Phases[j]
					for k := range p.Groups {
						s.group(metric.Group{Group: &p.Groups[k], Phase: p}, first)
					}
				}
				for j := range r.Runs[i].Micro {
					m := &r.Runs[i].Micro[j]
					if len(m.Rounds) == 0 {
						continue
					}
					if points[m.Name] == nil {
						names = append(names, m.Name)
					}
					points[m.Name] = append(points[m.Name], m)
				}
				first = false
			}
		}
		for _, name := range names {
			s.point(points[name], u)
		}
	}
	return s
}

func (s *side) add(m Metric, v float64, first bool) *sample {
	of := s.samples[m.Name]
	if of == nil {
		of = &sample{}
		s.samples[m.Name] = of
		s.metrics = append(s.metrics, m)
	}
	of.values, of.first = append(of.values, v), append(of.first, first)
	if !slices.Contains(of.units, m.Unit) {
		of.units = append(of.units, m.Unit)
	}
	return of
}

// group adds the metrics of one group in one phase of one run.
func (s *side) group(g metric.Group, first bool) {
	if g.Subscribers == 0 {
		return
	}
	for i := range metric.All {
		m := &metric.All[i]
		if m.Judged == metric.Never {
			continue
		}
		if v, ok := m.Of(g); ok {
			v, shown := m.Unit.Shown(v)
			of := s.add(Metric{Name: metric.Path(g.Phase.Name, g.Name, m.Name), Unit: shown, Kind: m.Judged, Higher: m.Higher, gates: [2]string{g.Name + "." + m.Key, g.Name + "." + m.GateKey()}}, v, first)
			count, events := m.Counts(g)
			of.count, of.events = of.count+count, of.events+events
		}
	}
}

// point adds the metrics of a point of one boot's runs: a value a round, a run, or one for all.
func (s *side) point(runs []*result.Micro, u unit) {
	of := metric.OfPoint(runs[0])
	m := Metric{Name: of.Name, Unit: string(of.Unit), Kind: of.Judged, Higher: of.Higher, gates: [2]string{of.GateKey()}, rounds: u == perRound}
	if m.Kind == metric.Instructions {
		if m.usual = InstructionGate; runs[0].Workload == "waitv" {
			m.usual = VectorGate
		}
	}
	var medians []float64
	for n, p := range runs {
		medians = append(medians, p.Median)
		for i, v := range p.Rounds {
			if u == perRound {
				s.add(m, v, i == 0)
			}
		}
		if u == perRun {
			s.add(m, p.Median, n == 0)
		}
		metric.OfPointKernel(p, func(k metric.Metric, count, events int64) {
			of := s.add(Metric{Name: k.Name, Kind: k.Judged, gates: [2]string{k.Gate}}, float64(count)/float64(events), n == 0)
			of.count, of.events = of.count+count, of.events+events
		})
	}
	if u == perBoot {
		const first = true // a boot has one
		s.add(m, median(medians), first)
	}
}

// Maximum is the largest value of a distribution on each side, in Unit, and how many
// values lay above the other side's. It is shown and never judged: one value of a long run
// says little.
type Maximum struct {
	Name        string  `json:"name"`
	Unit        string  `json:"unit"`
	Before      float64 `json:"before"`
	After       float64 `json:"after"`
	BeforeAbove int64   `json:"before_above_after"`
	AfterAbove  int64   `json:"after_above_before"`
	BeforeOf    int64   `json:"before_count"`
	AfterOf     int64   `json:"after_count"`
}

// merged are all values of each distribution that is compared, over all runs of a side, as
// a maximum is of all of them.
type merged struct {
	names      []string
	histograms map[string]*result.Histogram
}

func merge(results []*result.Result) *merged {
	m := &merged{histograms: map[string]*result.Histogram{}}
	for _, r := range results {
		for i := range r.Runs {
			for _, p := range r.Runs[i].Phases {
				for j := range p.Groups {
					m.add(p.Name, &p.Groups[j])
				}
			}
		}
	}
	return m
}

func (m *merged) add(phase string, g *result.Group) {
	for _, d := range metric.Distributions {
		h := d.Of(g)
		if !d.Judged || h.Count() == 0 {
			continue
		}
		name := metric.Path(phase, g.Name, d.Name)
		if m.histograms[name] == nil {
			m.histograms[name] = result.NewHistogram(result.Highest)
			m.names = append(m.names, name)
		}
		m.histograms[name].Merge(h)
	}
}

// maxima pairs the distributions of both sides.
func maxima(before, after []*result.Result) []Maximum {
	list := []Maximum{}
	a, b := merge(before), merge(after)
	for _, name := range a.names {
		if x, y := a.histograms[name], b.histograms[name]; y != nil {
			before, unit := metric.Nanoseconds.Shown(largest(x))
			after, _ := metric.Nanoseconds.Shown(largest(y))
			list = append(list, Maximum{Name: name, Unit: unit, Before: before, After: after,
				BeforeAbove: x.CountAbove(y.Max()), AfterAbove: y.CountAbove(x.Max()), BeforeOf: x.Count(), AfterOf: y.Count()})
		}
	}
	return list
}

// largest is a distribution's largest value (ns), or the end of its range where some lie beyond.
func largest(h *result.Histogram) float64 {
	if h.Overflow > 0 {
		return result.Highest
	}
	return float64(h.Max())
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
