package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// KTAP writes a result as KTAP, version 1: a test a run, in it a test a check and
// threshold, and one that is skipped for what could not be observed.
func KTAP(w io.Writer, r *result.Result) error {
	b := bufio.NewWriter(w)
	line := func(s string) string { return strings.ReplaceAll(Plain(s), "#", `\#`) } // as TAP escapes it
	fmt.Fprintf(b, "KTAP version 1\n1..%d\n", max(1, len(r.Runs)))
	for _, n := range notes(r) {
		fmt.Fprintf(b, "# %s\n", Plain(n))
	}
	if len(r.Runs) == 0 {
		fmt.Fprintf(b, "not ok 1 %s # %s\n", line(r.Scenario.Name), line(r.Broken))
	}
	for i, run := range r.Runs {
		checks := run.AllChecks()
		whole := ""
		if last := i == len(r.Runs)-1; last && (r.Broken != "" || r.Interrupted) {
			if whole = r.Broken; r.Interrupted {
				whole = "interrupted"
			}
			checks = append(checks, result.Check{Name: "the run came to its end", Detail: whole})
		}
		tests := len(checks)
		if r.Observer.Missing != "" {
			tests++
		}
		fmt.Fprintf(b, "  KTAP version 1\n  # Subtest: %s run %d\n  1..%d\n", line(r.Scenario.Name), i+1, tests)
		pass := true
		for n, c := range checks {
			pass = pass && c.Pass
			fmt.Fprintf(b, "  %s %d %s # detail=%q\n", ktapVerdict(c.Pass), n+1, line(c.Name), line(c.Detail))
		}
		if r.Observer.Missing != "" {
			fmt.Fprintf(b, "  ok %d observer # SKIP %s\n", tests, line(r.Observer.Missing))
		}
		values := ktapValues(&run)
		fmt.Fprintf(b, "%s %d %s run %d", ktapVerdict(pass), i+1, line(r.Scenario.Name), i+1)
		if len(values) > 0 {
			fmt.Fprintf(b, " # %s", strings.Join(values, " "))
		}
		fmt.Fprintln(b)
	}
	return b.Flush()
}

// ktapValues are the figures of a run, for a test's line.
func ktapValues(run *result.Run) (values []string) {
	for i := range run.Phases {
		p := &run.Phases[i]
		for j := range p.Groups {
			g := metric.Group{Group: &p.Groups[j], Phase: p}
			for k := range metric.All {
				m := &metric.All[k]
				if v, ok := m.Of(g); ok && m.KTAP != "" && g.Arms > 0 {
					values = append(values, fmt.Sprintf("%s.%s.%s=%.0f", dotless(p.Name), dotless(g.Name), m.KTAP, v))
				}
			}
		}
	}
	for _, m := range run.Micro {
		values = append(values, fmt.Sprintf("%s.median=%.3f", dotless(m.Name), m.Median), fmt.Sprintf("%s.cv=%.4f", dotless(m.Name), m.CV))
	}
	return values
}

func ktapVerdict(pass bool) string {
	if pass {
		return "ok"
	}
	return "not ok"
}
