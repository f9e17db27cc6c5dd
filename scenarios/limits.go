package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"aossim/internal/metric"
	"aossim/internal/result"
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
		if !m.OfLoops() {
			return s.nameErrorf("expect", name, "it is known of programs that are observed (aossim observe), and not of a scenario's")
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
		if err := t.parse(m); err != nil {
			return s.Errorf("expect", 0, name, "%s", err)
		}
		s.Expect = append(s.Expect, t)
	}
	return nil
}

// parse takes Want apart.
func (t *Threshold) parse(m *metric.Metric) (err error) {
	parts := limits.FindStringSubmatch(t.Want)
	if parts == nil {
		return fmt.Errorf("%q is no limit; write \"<= 200us\", \"<= 5%%\" or \">= 1000\"", t.Want)
	}
	t.Most = parts[1] == "<="
	t.Value, err = m.Unit.Parse(strings.TrimSpace(parts[2]))
	return err
}

// ParseThreshold reads a limit of a live observation: GROUP.METRIC <= VALUE, or >=.
func ParseThreshold(line string) (t Threshold, err error) {
	at := max(strings.LastIndex(line, "<="), strings.LastIndex(line, ">="))
	if at < 0 {
		return t, errors.New("no limit; write one such as \"camera.eagain_rate <= 5%\"")
	}
	t.Name, t.Want = strings.TrimSpace(line[:at]), strings.TrimSpace(line[at:])
	group, m, ok := metric.Find(t.Name)
	switch {
	case !ok:
		return t, fmt.Errorf("no such metric as %q; there are %s", t.Name, metric.Keys())
	case !m.OfLive():
		return t, fmt.Errorf("%s is known of the programs of a scenario, and not of those that are observed", m.Key)
	}
	t.Group, t.Metric = group, m.Key
	return t, t.parse(m)
}

// Judge says whether a threshold holds: it must in every phase that has the group, and
// a figure that the sample cannot support does not. One of time is not judged on an emulated machine.
func (t *Threshold) Judge(phases []result.Phase, emulated bool) result.Check {
	check := result.Check{Name: fmt.Sprintf("expect %s %s", t.Name, t.Want), Pass: true}
	m, _ := metric.Named(t.Metric)
	if emulated && (m.Judged.Timed() || m.Unit == metric.Nanoseconds) {
		check.Detail = "not judged: the machine is emulated, and times say nothing"
		return check
	}
	var details []string
	for i := range phases {
		p := &phases[i]
		for j := range p.Groups {
			if p.Groups[j].Name != t.Group {
				continue
			}
			v, ok := m.Of(metric.Group{Group: &p.Groups[j], Phase: p})
			text := m.Unit.Limit(v)
			if !ok {
				text = "not enough values"
			}
			check.Pass = check.Pass && ok && (v <= t.Value || !t.Most) && (v >= t.Value || t.Most)
			details = append(details, fmt.Sprintf("%s: %s", p.Name, text))
		}
	}
	if len(details) == 0 {
		check.Pass, details = false, []string{"the group was in no phase"}
	}
	check.Detail = strings.Join(details, ", ")
	return check
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
