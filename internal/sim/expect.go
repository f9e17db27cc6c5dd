package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"aossim/internal/result"
	"aossim/scenarios"
)

// expect judges a threshold: it must hold in every phase that has the group, and
// a figure that the sample cannot support does not hold.
func expect(t scenarios.Threshold, phases []result.Phase) result.Check {
	check := result.Check{Name: fmt.Sprintf("expect %s %s", t.Name, t.Want), Pass: true}
	var details []string
	for _, p := range phases {
		for i := range p.Groups {
			if p.Groups[i].Name != t.Group {
				continue
			}
			v, text := metric(t, &p.Groups[i], p.DurationNS)
			if text == "" || t.Most && v > t.Value || !t.Most && v < t.Value {
				check.Pass = false
			}
			if text == "" {
				text = "not enough values"
			}
			details = append(details, fmt.Sprintf("%s: %s", p.Name, text))
		}
	}
	if len(details) == 0 {
		check.Pass, details = false, []string{"the group was in no phase"}
	}
	check.Detail = strings.Join(details, ", ")
	return check
}

// metric returns a threshold's figure for one group in one phase, and as a text,
// which is empty where there is none.
func metric(t scenarios.Threshold, g *result.Group, duration int64) (float64, string) {
	if t.Stat != "" {
		if h := g.Histograms.Get(t.Metric); h != nil {
			return distribution(h, t.Stat)
		}
		return 0, ""
	}
	count := func(n int64) (float64, string) { return float64(n), strconv.FormatInt(n, 10) }
	switch t.Metric {
	case "overrun":
		return count(g.Overrun)
	case "lost_wakes":
		return count(g.LostWakes)
	case "spurious_wakes":
		return count(g.SpuriousWakes)
	case "missed_deadlines":
		return count(g.MissedDeadlines)
	case "messages_per_second":
		v := float64(g.Offered) / float64(max(1, g.Subscribers)) / (float64(duration) / 1e9)
		return v, fmt.Sprintf("%.0f/s", v)
	case "eagain_rate":
		if g.Arms > 0 {
			v := float64(g.EAGAIN) / float64(g.Arms)
			return v, fmt.Sprintf("%.2f %%", 100*v)
		}
	}
	return 0, ""
}

func distribution(h *result.Histogram, stat string) (float64, string) {
	switch stat {
	case "count":
		return float64(h.Count()), strconv.FormatInt(h.Count(), 10)
	case "max":
		if h.Overflow > 0 {
			return float64(result.Highest), "above " + time.Duration(result.Highest).String()
		}
		return float64(h.Max()), time.Duration(h.Max()).String()
	}
	percent, err := strconv.ParseFloat(strings.TrimPrefix(stat, "p"), 64)
	if v, ok := h.Percentile(percent); err == nil && ok {
		return float64(v), time.Duration(v).String()
	}
	return 0, ""
}
