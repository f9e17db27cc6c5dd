package sim

import (
	"fmt"
	"strings"

	"aossim/internal/metric"
	"aossim/internal/result"
	"aossim/scenarios"
)

// expect judges a threshold: it must hold in every phase that has the group, and
// a figure that the sample cannot support does not hold. One of time is not judged on an emulated machine.
func expect(t scenarios.Threshold, phases []result.Phase, emulated bool) result.Check {
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
