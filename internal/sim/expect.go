package sim

import (
	"fmt"
	"strings"

	"aossim/internal/metric"
	"aossim/internal/result"
	"aossim/scenarios"
)

// expect judges a threshold: it must hold in every phase that has the group, and
// a figure that the sample cannot support does not hold.
func expect(t scenarios.Threshold, phases []result.Phase) result.Check {
	check := result.Check{Name: fmt.Sprintf("expect %s %s", t.Name, t.Want), Pass: true}
	m, _ := metric.Named(t.Metric)
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
