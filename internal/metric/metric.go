// Package metric defines each figure that a result has, once: its name, what it is in
// words, its unit, its formula, which way is better, and how it is judged. The thresholds of
// a scenario, comparisons and their gates, every report and the documentation's table take
// it from here.
//
// A metric is of one group in one phase of one run. It builds on every OS, reads nothing but
// results, and may be used from any thread.
package metric

import (
	"strings"

	"aossim/internal/result"
)

// Judged is how aossim compare judges a metric; it decides what a change of it is called,
// and whether it holds on an emulated machine.
type Judged int

// Not at all; as a time or a number a second, which hold on a real machine only; as a share
// of arms that failed; as a count of what the kernel does for each arm, over very many arms; as a
// number of instructions, which holds on an emulated machine only.
const (
	Never Judged = iota
	Time
	Rate
	Share
	Count
	Instructions
)

// String is the kind's name in the JSON of a comparison.
func (j Judged) String() string {
	return [...]string{"not judged", "speed", "speed", "failures", "allocations", "instructions"}[j]
}

// MarshalText writes String.
func (j Judged) MarshalText() ([]byte, error) { return []byte(j.String()), nil }

// Timed says whether it takes a real machine to judge it.
func (j Judged) Timed() bool { return j == Time || j == Rate }

// Over is how several runs make one figure.
type Over int

// The median over the runs; the sum; the largest; or the whole of all runs' parts by the
// whole of their wholes, as a share of failed arms is of those of all runs.
const (
	Median Over = iota
	Sum
	Largest
	Pooled
)

// Group is one group in one phase of one run, as formulas have it.
type Group struct {
	*result.Group
	Phase *result.Phase
}

// Metric is one figure. Its values are in Unit.
type Metric struct {
	Key    string // as [expect], [compare] and other programs name it
	Name   string // in tables
	Means  string // what it is, in a sentence
	Unit   Unit
	Higher bool // is better
	Judged Judged
	Gate   string // as [compare] names its gate; Key unless given
	Bench  string // its unit in the Go benchmark format, "" where it is not there
	KTAP   string // its name in KTAP, "" where it is not there
	Over   Over
	// Of publishers rather than of subscribers.
	Publishers bool

	of owners

	whole, part func(g Group) float64           // the value is part / whole
	value       func(g Group) (float64, bool)   // instead of both
	counts      func(g Group) (count, of int64) // of metrics that are judged as a count
}

// owners are whose metric one is: of a scenario's groups, of processes that were observed, or of both.
type owners int

const (
	loops owners = iota
	live
	both
)

// String is how the documentation has it.
func (o owners) String() string { return [...]string{"scenario", "observed", "both"}[o] }

// OfLoops says whether groups of a scenario have the metric.
func (m *Metric) OfLoops() bool { return m.of != live }

// OfLive says whether processes have it that were observed (result.Live).
func (m *Metric) OfLive() bool { return m.of != loops }

func (m *Metric) has(g Group) bool {
	if g.Live != nil {
		return m.OfLive()
	}
	return m.OfLoops()
}

// Of returns the metric's value for a group; ok is false where it has none, as a percentile
// that too few values support.
func (m *Metric) Of(g Group) (v float64, ok bool) {
	if !m.has(g) {
		return 0, false
	}
	if m.value != nil {
		return m.value(g)
	}
	whole := m.whole(g)
	return m.part(g) / whole, whole > 0
}

// OverRuns returns one value of several runs' groups; ok is false where a run has none, or of
// a largest where none has.
func (m *Metric) OverRuns(groups []Group) (v float64, ok bool) {
	if m.Over == Pooled {
		var part, whole float64
		for _, g := range groups {
			if !m.has(g) {
				return 0, false
			}
			part, whole = part+m.part(g), whole+m.whole(g)
		}
		return part / whole, whole > 0
	}
	var values []float64
	for _, g := range groups {
		v, ok := m.Of(g)
		switch {
		case ok:
			values = append(values, v)
		case m.Over != Largest:
			return 0, false
		}
	}
	for i, x := range values {
		switch {
		case m.Over == Sum:
			v += x
		case m.Over == Largest && (i == 0 || x > v):
			v = x
		}
	}
	if m.Over == Median {
		v = result.SpreadOf(values).Median
	}
	return v, len(values) > 0
}

// Counts returns, of a metric that is judged as a count, how many there were of how many
// events.
func (m *Metric) Counts(g Group) (count, of int64) {
	if m.counts == nil {
		return 0, 0
	}
	return m.counts(g)
}

// GateKey is the metric's name in [compare].
func (m *Metric) GateKey() string {
	if m.Gate != "" {
		return m.Gate
	}
	return m.Key
}

// Named returns the metric of a key.
func Named(key string) (*Metric, bool) {
	m, ok := byKey[key]
	return m, ok
}

// Find takes GROUP.KEY apart. A group's name may have dots.
func Find(name string) (group string, m *Metric, ok bool) {
	for at := 0; ; at++ {
		next := strings.IndexByte(name[at:], '.')
		if next < 0 {
			return "", nil, false
		}
		at += next
		if m, ok := byKey[name[at+1:]]; ok && at > 0 {
			return name[:at], m, true
		}
	}
}

// Keys lists the keys that GROUP.KEY can have, in one line.
func Keys() string {
	var names, statistics, others []string
	for _, d := range Distributions {
		names = append(names, d.Key)
	}
	for _, s := range stats {
		statistics = append(statistics, s.name)
	}
	for i := range All {
		if !strings.Contains(All[i].Key, ".") {
			others = append(others, All[i].Key)
		}
	}
	return "GROUP.{" + strings.Join(names, ",") + "}.{" + strings.Join(statistics, ",") + "} and GROUP.{" + strings.Join(others, ",") + "}"
}

var byKey = map[string]*Metric{}

func init() {
	for i := range All {
		byKey[All[i].Key] = &All[i]
	}
}
