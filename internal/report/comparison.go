package report

import (
	"fmt"
	"io"
	"math"

	"aossim/internal/compare"
	"aossim/internal/metric"
)

// Comparison writes a comparison for people.
func Comparison(w io.Writer, c *compare.Comparison) error {
	t := newText(w)
	t.lines(c.Scenario, "before: "+c.Before, "after:  "+c.After)
	t.lines(timeNote(c)...)
	t.lines(prefixed("WARNING: ", c.Warnings)...)
	t.line("")
	for _, tab := range comparisonTables(c) {
		if len(tab.rows) > 0 || tab.silent {
			t.table(&tab)
		}
	}
	return t.w.Flush()
}

// timeNote says what time is on an emulated machine.
func timeNote(c *compare.Comparison) []string {
	switch {
	case c.Virtual:
		return []string{virtualTime}
	case c.Emulated:
		return []string{emulatedTime}
	}
	return nil
}

// comparisonTables are all tables of a comparison.
func comparisonTables(c *compare.Comparison) []table {
	few, counted, instructions := 0, false, false
	why := table{left: 3}
	dropped := table{left: 1, head: cols("first units dropped", "change", "with them")}
	for _, m := range c.Metrics {
		if m.Verdict == compare.Inconclusive || m.Verdict == compare.Same && math.Abs(m.Change) > m.Gate {
			why.add(m.Name, string(m.Verdict)+":", m.Why)
		}
		if m.Verdict == compare.TooFew {
			few = m.Needed
		}
		counted, instructions = counted || m.Counted, instructions || m.Kind == metric.Instructions
		if !math.IsNaN(m.ChangeWithoutFirst) && !m.Counted && m.Before.N > 1 {
			dropped.add(m.Name, fraction(m.ChangeWithoutFirst), fraction(m.Change))
		}
	}
	words := func(said bool, line string) table { return table{silent: said, below: []string{line}} }
	maxima := table{left: 1, head: cols("maximum, us (shown, never judged)", "before", "after", "before's above after's", "after's above before's")}
	for _, m := range c.Maxima {
		maxima.add(m.Name, fmt.Sprintf("%.2f", m.Before), fmt.Sprintf("%.2f", m.After),
			fmt.Sprintf("%s of %s", metric.Comma(m.BeforeAbove), metric.Comma(m.BeforeOf)), fmt.Sprintf("%s of %s", metric.Comma(m.AfterAbove), metric.Comma(m.AfterOf)))
	}
	list := []table{judgedTable(c), why,
		words(few > 0, fmt.Sprintf("Too few units for a verdict on some: %d on each side would do (runs: -r %d; or boots: --before F... --after F...).", few, few)),
		words(counted, "Allocations are judged as counts over very many arms, with the interval of a Poisson count: the kernel does the same for each arm."),
		{silent: instructions, below: instructionsAre},
		dropped, maxima}
	for i := range c.Profiles {
		list = append(list, profileChanges(&c.Profiles[i]))
	}
	return list
}

// judgedTable has a line for each metric.
func judgedTable(c *compare.Comparison) table {
	again := false
	for _, m := range c.Metrics {
		again = again || m.Again != nil
	}
	t := table{left: 2, silent: true, head: cols("metric", "unit", "before", "", "after", "", "change", "95 % interval", "p", "CV", "verdict")}
	if again {
		t.head = cols("metric", "unit", "before", "after", "before again", "drift", "change", "95 % interval", "p", "CV", "verdict")
	}
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
		t.add(append(cells, fraction(m.Change), interval(m.Lo, m.Hi), p, variation(m.After), string(m.Verdict))...)
	}
	t.below = []string{"change: of the medians, against the midpoint of the befores where there are two, whose drift stands beside it. p: Mann-Whitney,",
		"corrected for the number of metrics (Holm). A verdict is faster, slower or the like only where the interval excludes 0 and the change is above",
		"the gate and the drift; same where the interval lies within the gate."}
	return t
}

// mailTable is judgedTable as mails of kernel lists have it.
func mailTable(c *compare.Comparison) table {
	t := table{left: 1, head: cols("metric", "before A", "after", "before B", "change", "drift", "CV", "n", "verdict")}
	for _, m := range c.Metrics {
		again, drift, n := none, none, fmt.Sprintf("%d+%d", m.Before.N, m.After.N)
		if m.Again != nil {
			again, drift, n = value(m.Again.Median), fraction(m.Drift), fmt.Sprintf("%d+%d+%d", m.Before.N, m.After.N, m.Again.N)
		}
		name := m.Name
		if m.Unit != "" {
			name += ", " + m.Unit
		}
		t.add(name, value(m.Before.Median), value(m.After.Median), again, fraction(m.Change), drift, variation(m.After), n, string(m.Verdict))
	}
	return t
}

// Null writes how a result compares with itself.
func Null(w io.Writer, name string, n *compare.Null) error {
	t := newText(w)
	t.lines(fmt.Sprintf("%s: A against A, %d random halves of %d units", name, n.Splits, n.Units), "")
	tab := table{left: 1, head: cols("metric", "noise, median", "95th percentile", "false verdicts"),
		below: []string{"noise: how far the medians of two halves lie apart. A change below it cannot be seen with so few units."}}
	undefined := false
	for _, m := range n.Metrics {
		undefined = undefined || math.IsNaN(m.Median)
		tab.add(m.Name, metric.Fraction.Format(m.Median), metric.Fraction.Format(m.Highest), fmt.Sprintf("%d of %d", m.False, n.Splits))
	}
	if undefined {
		tab.below = append(tab.below, none+": a half's median was 0 each time, of which nothing is a fraction.")
	}
	t.table(&tab)
	return t.w.Flush()
}

// value writes a figure with three decimals, as published ones are.
func value(v float64) string {
	switch {
	case math.IsNaN(v) || math.Abs(v) >= 1<<63: // what a damaged file has
		return none
	case math.Abs(v) >= 1e5:
		return metric.Comma(int64(math.Round(v)))
	}
	return fmt.Sprintf("%.3f", v)
}

// variation is the CV of a side with several units.
func variation(s compare.Side) string {
	if s.N < 2 {
		return none
	}
	return metric.Fraction.Format(s.CV)
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
