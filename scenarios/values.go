package scenarios

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Duration is a time in ns, written "5us", "10s" or "1m30s".
type Duration int64

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration; write one with its unit, such as \"10s\" or \"5us\"", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is the duration with its unit.
func (d Duration) String() string { return time.Duration(d).String() }

// Rate is in Hz, written "500Hz", "2kHz" or "1MHz".
type Rate float64

// rateUnits are tried in order: the last is an ending of the others.
var rateUnits = []struct {
	unit   string
	factor float64
}{{"MHz", 1e6}, {"kHz", 1e3}, {"Hz", 1}}

// UnmarshalText reads a number and its unit.
func (r *Rate) UnmarshalText(text []byte) error {
	for _, u := range rateUnits {
		if number, ok := strings.CutSuffix(string(text), u.unit); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err != nil {
				break
			}
			*r = Rate(v * u.factor)
			return nil
		}
	}
	return fmt.Errorf("%q is no rate; write one with its unit, such as \"2kHz\"", text)
}

// MarshalText writes what UnmarshalText reads.
func (r Rate) MarshalText() ([]byte, error) {
	return []byte(strconv.FormatFloat(float64(r), 'g', -1, 64) + "Hz"), nil
}

// Threshold is a line of [expect]: a metric of a group, and what it must be in
// every phase of every run. Value is in ns for latencies, a fraction for eagain_rate,
// a number else.
type Threshold struct {
	Name, Group, Metric, Stat string
	Most                      bool // <= rather than >=
	Value                     float64
	Want                      string // as it was written
}

var (
	distributions = regexp.MustCompile(`^(.+)\.(rearm|arm_window|arm_window_eagain|delivery|response)\.(p50|p90|p99|p99\.9|max|count)$`)
	numbers       = regexp.MustCompile(`^(.+)\.(eagain_rate|messages_per_second|overrun|lost_wakes|spurious_wakes|missed_deadlines)$`)
	limits        = regexp.MustCompile(`^(<=|>=)\s*(.+)$`)
)

// Metrics says which metrics a threshold can be set on.
const Metrics = "GROUP.{rearm,arm_window,arm_window_eagain,delivery,response}.{p50,p90,p99,p99.9,max,count} or " +
	"GROUP.{eagain_rate,messages_per_second,overrun,lost_wakes,spurious_wakes,missed_deadlines}"

func (s *Scenario) thresholds(lines map[string]string) ([]Threshold, error) {
	var list []Threshold
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		t := Threshold{Name: name, Want: lines[name]}
		var ok bool
		if t.Group, t.Metric, t.Stat, ok = metricOf(name); !ok {
			return nil, s.Errorf("expect", 0, name, "no such metric; there are %s", Metrics)
		}
		if t.Metric != "missed_deadlines" && !slices.ContainsFunc(s.Subscribers, func(sub Subscriber) bool { return sub.Group == t.Group }) && slices.Contains(s.groups(), t.Group) {
			return nil, s.Errorf("expect", 0, name, "group %q has no subscriber, and this is a metric of subscribers", t.Group)
		}
		if !slices.Contains(s.groups(), t.Group) {
			return nil, s.Errorf("expect", 0, name, "no group %q; there are %s", t.Group, strings.Join(s.groups(), ", "))
		}
		m := limits.FindStringSubmatch(t.Want)
		if m == nil {
			return nil, s.Errorf("expect", 0, name, "%q is no limit; write \"<= 200us\", \"<= 5%%\" or \">= 1000\"", t.Want)
		}
		t.Most = m[1] == "<="
		var err error
		if t.Value, err = t.parse(m[2]); err == nil && !(t.Value >= 0 && t.Value <= math.MaxInt64) {
			err = fmt.Errorf("%q is negative or no number", m[2])
		}
		if err != nil {
			return nil, s.Errorf("expect", 0, name, "%s", err)
		}
		list = append(list, t)
	}
	return list, nil
}

// metricOf takes the name of a metric apart; stat is "" for a number.
func metricOf(name string) (group, metric, stat string, ok bool) {
	if m := distributions.FindStringSubmatch(name); m != nil {
		return m[1], m[2], m[3], true
	}
	if m := numbers.FindStringSubmatch(name); m != nil {
		return m[1], m[2], "", true
	}
	return "", "", "", false
}

// withGates takes the lines of [compare].
func (s *Scenario) withGates(lines map[string]Share) (*Scenario, error) {
	s.Gates = map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		owner, loop := strings.CutSuffix(name, ".kmalloc")
		known := slices.Contains(s.groups(), owner) && loop
		if group, _, _, ok := metricOf(name); ok {
			known = slices.Contains(s.groups(), group)
		}
		if s.Micro != nil {
			known = slices.ContainsFunc(s.Micro.Points, func(p Point) bool { return p.Name == owner })
		}
		if !known {
			return nil, s.Errorf("compare", 0, name, "no such metric; there are %s and GROUP.kmalloc, of a micro-benchmark POINT and POINT.kmalloc", Metrics)
		}
		if lines[name] == 0 {
			return nil, s.Errorf("compare", 0, name, "a gate of 0 would let chance through; leave it out for 5%%")
		}
		s.Gates[name] = float64(lines[name])
	}
	return s, nil
}

// parse reads a limit in the unit that the metric has.
func (t Threshold) parse(text string) (float64, error) {
	switch {
	case t.Stat != "" && t.Stat != "count":
		var d Duration
		err := d.UnmarshalText([]byte(text))
		return float64(d), err
	case t.Metric == "eagain_rate":
		number, ok := strings.CutSuffix(text, "%")
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if !ok || err != nil {
			return 0, fmt.Errorf("%q is no percentage; write one such as \"5%%\"", text)
		}
		return v / 100, nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", text)
	}
	return v, nil
}
