package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strings"

	"aossim/internal/compare"
)

// Comparison writes a comparison for people.
func Comparison(w io.Writer, c *compare.Comparison) error {
	t := &text{w: bufio.NewWriter(w)}
	t.printf("%s\nbefore: %s\nafter:  %s\n", c.Scenario, c.Before, c.After)
	if c.Emulated {
		t.printf("emulated: counts hold, times do not\n")
	}
	for _, warning := range c.Warnings {
		t.printf("WARNING: %s\n", warning)
	}
	t.printf("\n")
	tab := table{left: 2}
	heads := []string{"metric", "unit", "before", "", "after", "", "change", "95 % interval", "p", "CV", "verdict"}
	again := false
	for _, m := range c.Metrics {
		again = again || m.Again != nil
	}
	if again {
		heads = []string{"metric", "unit", "before", "after", "before again", "drift", "change", "95 % interval", "p", "CV", "verdict"}
	}
	tab.add(heads...)
	for _, m := range c.Metrics {
		cells := []string{m.Name, m.Unit}
		if again {
			cells = append(cells, value(m.Before.Median), value(m.After.Median), value(m.Again.Median), fraction(m.Drift))
		} else {
			cells = append(cells, value(m.Before.Median), spread(m.Before), value(m.After.Median), spread(m.After))
		}
		p := none
		if m.Verdict != compare.TooFew {
			p = fmt.Sprintf("%.2g", m.Holm)
		}
		cells = append(cells, fraction(m.Change), interval(m.Lo, m.Hi), p, percent(m.After.CV, m.After.N > 1), string(m.Verdict))
		tab.add(cells...)
	}
	tab.write(t)
	t.printf("change: of the medians, against the midpoint of the befores where there are two, whose drift stands beside it. p: Mann-Whitney,\n" +
		"corrected for the number of metrics (Holm). A verdict is faster, slower or the like only where the interval excludes 0 and the change is above\n" +
		"the gate and the drift; same where the interval lies within the gate.\n\n")
	why := table{left: 3}
	for _, m := range c.Metrics {
		if m.Verdict == compare.Inconclusive || m.Verdict == compare.Same && math.Abs(m.Change) > m.Gate {
			why.add(m.Name, string(m.Verdict)+":", m.Why)
		}
	}
	if len(why.rows) > 0 {
		why.write(t)
	}
	few := 0
	for _, m := range c.Metrics {
		if m.Verdict == compare.TooFew {
			few = m.Needed
		}
	}
	if few > 0 {
		t.printf("Too few units for a verdict on some: %d on each side would do (runs: -r %d; or boots: --before F... --after F...).\n\n", few, few)
	}
	for _, m := range c.Metrics {
		if m.Counted {
			t.printf("Allocations are judged as counts over very many arms, with the interval of a Poisson count: the kernel does the same for each arm.\n\n")
			break
		}
	}
	tab = table{left: 1}
	tab.add("first units dropped", "change", "with them")
	for _, m := range c.Metrics {
		if !math.IsNaN(m.ChangeWithoutFirst) && !m.Counted && m.Before.N > 1 {
			tab.add(m.Name, fraction(m.ChangeWithoutFirst), fraction(m.Change))
		}
	}
	if len(tab.rows) > 1 {
		tab.write(t)
	}
	if len(c.Maxima) > 0 {
		tab = table{left: 1}
		tab.add("maximum, us (shown, never judged)", "before", "after", "before's above after's", "after's above before's")
		for _, m := range c.Maxima {
			tab.add(m.Name, fmt.Sprintf("%.2f", m.Before), fmt.Sprintf("%.2f", m.After),
				fmt.Sprintf("%s of %s", comma(m.BeforeAbove), comma(m.BeforeOf)), fmt.Sprintf("%s of %s", comma(m.AfterAbove), comma(m.AfterOf)))
		}
		tab.write(t)
	}
	return t.w.Flush()
}

// ComparisonMarkdown writes a comparison as a table that is ready for a mail.
func ComparisonMarkdown(w io.Writer, c *compare.Comparison) error {
	t := &text{w: bufio.NewWriter(w)}
	t.printf("%s, before: %s, after: %s\n\n", c.Scenario, c.Before, c.After)
	for _, warning := range c.Warnings {
		t.printf("Warning: %s\n\n", warning)
	}
	tab := table{left: 1, markdown: true}
	tab.add("metric", "before A", "after", "before B", "change", "drift", "CV", "n", "verdict")
	for _, m := range c.Metrics {
		again, drift, n := none, none, fmt.Sprintf("%d+%d", m.Before.N, m.After.N)
		if m.Again != nil {
			again, drift, n = value(m.Again.Median), fraction(m.Drift), fmt.Sprintf("%d+%d+%d", m.Before.N, m.After.N, m.Again.N)
		}
		name := m.Name
		if m.Unit != "" {
			name += ", " + m.Unit
		}
		tab.add(strings.ReplaceAll(name, "|", "\\|"), value(m.Before.Median), value(m.After.Median), again, fraction(m.Change), drift, percent(m.After.CV, m.After.N > 1), n, string(m.Verdict))
	}
	tab.write(t)
	return t.w.Flush()
}

// Null writes how a result compares with itself.
func Null(w io.Writer, name string, n *compare.Null) error {
	t := &text{w: bufio.NewWriter(w)}
	t.printf("%s: A against A, %d random halves of %d units\n\n", name, n.Splits, n.Units)
	tab := table{left: 1}
	tab.add("metric", "noise, median", "95th percentile", "false verdicts")
	for _, m := range n.Metrics {
		tab.add(m.Name, percent(m.Median, true), percent(m.Highest, true), fmt.Sprintf("%d of %d", m.False, n.Splits))
	}
	tab.write(t)
	t.printf("noise: how far the medians of two halves lie apart. A change below it cannot be seen with so few units.\n\n")
	return t.w.Flush()
}

// value writes a figure with three decimals, as published ones are.
func value(v float64) string {
	switch {
	case math.IsNaN(v):
		return none
	case math.Abs(v) >= 1e5:
		return comma(int64(math.Round(v)))
	}
	return fmt.Sprintf("%.3f", v)
}

// spread is half the width of a median's interval, as a percentage.
func spread(s compare.Side) string {
	if s.N < 2 || s.Median == 0 {
		return none
	}
	return fmt.Sprintf("± %.1f %%", 100*math.Max(s.Hi-s.Median, s.Median-s.Lo)/math.Abs(s.Median))
}

// fraction writes a change as a percentage with its sign.
func fraction(v float64) string {
	switch {
	case math.IsNaN(v):
		return none
	case math.IsInf(v, 0):
		return fmt.Sprintf("%+.0f", v)
	}
	return fmt.Sprintf("%+.3f %%", 100*v)
}

func interval(lo, hi float64) string {
	if math.IsInf(lo, 0) || math.IsInf(hi, 0) {
		return none
	}
	return fmt.Sprintf("%+.1f..%+.1f %%", 100*lo, 100*hi)
}
