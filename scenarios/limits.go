package scenarios

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"aossim/internal/metric"
)

// Threshold is a line of [expect]: a metric of a group, and what it must be in
// every phase of every run. Value is in the metric's unit.
type Threshold struct {
	Name, Group, Metric string // Name is GROUP.METRIC
	Most                bool   // <= rather than >=
	Value               float64
	Want                string // as it was written
}

var limits = regexp.MustCompile(`^(<=|>=)\s*(.+)$`)

// thresholds takes the lines of [expect].
func (s *Scenario) thresholds(lines map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		t := Threshold{Name: name, Want: lines[name]}
		group, m, ok := metric.Find(name)
		if !ok {
			return s.nameErrorf("expect", name, "no such metric; there are %s", metric.Keys())
		}
		t.Group, t.Metric = group, m.Key
		if !slices.Contains(s.groups(), t.Group) {
			return s.nameErrorf("expect", name, "no group %q; there are %s", t.Group, strings.Join(s.groups(), ", "))
		}
		if !m.Publishers && !slices.ContainsFunc(s.Subscribers, func(sub Subscriber) bool { return sub.Group == t.Group }) {
			return s.nameErrorf("expect", name, "group %q has no subscriber, and this is a metric of subscribers", t.Group)
		}
		if m.Publishers && !slices.ContainsFunc(s.Publishers, func(pub Publisher) bool { return pub.Group == t.Group }) {
			return s.nameErrorf("expect", name, "group %q has no publisher, and this is a metric of publishers", t.Group)
		}
		parts := limits.FindStringSubmatch(t.Want)
		if parts == nil {
			return s.Errorf("expect", 0, name, "%q is no limit; write \"<= 200us\", \"<= 5%%\" or \">= 1000\"", t.Want)
		}
		var err error
		t.Most = parts[1] == "<="
		if t.Value, err = m.Unit.Parse(parts[2]); err != nil {
			return s.Errorf("expect", 0, name, "%s", err)
		}
		s.Expect = append(s.Expect, t)
	}
	return nil
}

// gates takes the lines of [compare].
func (s *Scenario) gates(lines map[string]Share) error {
	s.Gates = map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if !s.gated(name) {
			return s.nameErrorf("compare", name, "no such metric; there are %s and GROUP.kmalloc, of a micro-benchmark POINT, POINT.instructions and POINT.kmalloc", metric.Keys())
		}
		if lines[name] == 0 {
			return s.Errorf("compare", 0, name, "a gate of 0 would let chance through; leave it out for the default")
		}
		s.Gates[name] = float64(lines[name])
	}
	return nil
}

// gated says whether results of the scenario can have a metric of this name.
func (s *Scenario) gated(name string) bool {
	owner := strings.TrimSuffix(name, ".kmalloc")
	if s.Micro != nil {
		counted := strings.TrimSuffix(name, ".instructions")
		return slices.ContainsFunc(s.Micro.Points, func(p Point) bool { return p.Name == name || p.Name == owner || p.Name == counted })
	}
	group, _, ok := metric.Find(name)
	return ok && slices.Contains(s.groups(), group) || owner != name && slices.Contains(s.groups(), owner)
}
