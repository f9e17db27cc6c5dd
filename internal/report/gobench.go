package report

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// GoBench writes a result as Go benchmarks, a line a run, of a micro-benchmark a line a
// round, for benchstat. The kernel stands in a comment: benchstat would show two kernels in a
// table each, and compare nothing.
func GoBench(w io.Writer, r *result.Result) error {
	b := bufio.NewWriter(w)
	e := &r.Environment
	fmt.Fprintf(b, "# kernel: %s\n# kernel-version: %s\n", Plain(e.KernelRelease), Plain(e.KernelVersion))
	for _, n := range notes(r) {
		fmt.Fprintf(b, "# %s\n", Plain(n))
	}
	out := benchfmt.NewWriter(b)
	for _, unit := range better(r) {
		if err := out.Write(&benchfmt.UnitMetadata{UnitMetadataKey: benchfmt.UnitMetadataKey{Unit: unit, Key: "better"}, OrigUnit: unit, Value: "higher"}); err != nil {
			return err
		}
	}
	for _, unit := range exact(r) {
		if err := out.Write(&benchfmt.UnitMetadata{UnitMetadataKey: benchfmt.UnitMetadataKey{Unit: unit, Key: "assume"}, OrigUnit: unit, Value: "exact"}); err != nil {
			return err
		}
	}
	line := func(name string, iterations int, values []benchfmt.Value) error {
		res := &benchfmt.Result{Name: benchfmt.Name(benchName(name)), Iters: iterations, Values: values}
		for _, c := range [][2]string{{"goarch", e.Machine}, {"cpu", e.CPU}, {"scenario", r.Scenario.Name}} {
			res.SetConfig(c[0], Plain(c[1]))
		}
		for i := range res.Config {
			res.Config[i].File = true
		}
		return out.Write(res)
	}
	for i := range r.Runs {
		for j := range r.Runs[i].Phases {
			p := &r.Runs[i].Phases[j]
			for k := range p.Groups {
				g := metric.Group{Group: &p.Groups[k], Phase: p}
				if g.Subscribers == 0 {
					continue
				}
				if err := line(fmt.Sprintf("%s/phase=%s/group=%s", title(r.Scenario.Name), Word(p.Name), Word(g.Name)), 1, groupValues(g)); err != nil {
					return err
				}
			}
		}
		for j := range r.Runs[i].Micro {
			m := &r.Runs[i].Micro[j]
			for round := range m.Rounds {
				if err := line(fmt.Sprintf("%s/point=%s", title(r.Scenario.Name), Word(m.Name)), int(m.Operations), roundValues(m, round)); err != nil {
					return err
				}
			}
		}
	}
	return b.Flush()
}

// better are the units of which more is better.
func better(r *result.Result) (units []string) {
	if len(points(r)) == 0 {
		for i := range metric.All {
			if m := &metric.All[i]; m.Bench != "" && m.Higher {
				units = append(units, m.Bench)
			}
		}
	}
	for _, p := range points(r) {
		if m := metric.OfPoint(p[0]); m.Higher {
			return append(units, unitWord(string(m.Unit)))
		}
	}
	return units
}

// exact are the units of counts in which no round of a point differs from another: benchstat needs
// no more than one of those.
func exact(r *result.Result) (units []string) {
	differs := map[string]bool{}
	for _, p := range points(r) {
		first := map[string]float64{}
		for _, m := range p {
			for round := range m.Rounds {
				for _, v := range roundValues(m, round) {
					if !metric.Unit(v.Unit).Counted() && !(v.Unit == kmallocs && r.Environment.Virtual()) {
						continue
					}
					if !slices.Contains(units, v.Unit) {
						units = append(units, v.Unit)
					}
					if was, ok := first[v.Unit]; ok && was != v.Value {
						differs[v.Unit] = true
					}
					first[v.Unit] = v.Value
				}
			}
		}
	}
	return slices.DeleteFunc(units, func(u string) bool { return differs[u] })
}

// kmallocs is the unit of what the kernel allocated.
const kmallocs = "kmalloc/wait"

// unitWord makes a unit one that a Go benchmark may have.
func unitWord(unit string) string { return strings.ReplaceAll(Word(unit), "%2F", "/") }

func groupValues(g metric.Group) (values []benchfmt.Value) {
	for i := range metric.All {
		m := &metric.All[i]
		if m.Bench == "" {
			continue
		}
		if v, ok := m.Of(g); ok {
			if m.Unit == metric.Fraction {
				v *= 100
			}
			values = append(values, benchfmt.Value{Value: v, Unit: m.Bench})
		}
	}
	return values
}

func roundValues(m *result.Micro, round int) []benchfmt.Value {
	values := []benchfmt.Value{{Value: m.Rounds[round], Unit: unitWord(m.Unit)}}
	for _, f := range m.Figures {
		if round < len(f.Rounds) {
			values = append(values, benchfmt.Value{Value: f.Rounds[round], Unit: unitWord(f.Name)})
		}
	}
	if k := m.Kernel; k != nil && k.Arms > 0 {
		values = append(values, benchfmt.Value{Value: float64(k.Kmalloc) / float64(k.Arms), Unit: kmallocs})
	}
	return values
}

// processors is what the format takes for GOMAXPROCS at the end of a name.
var processors = regexp.MustCompile(`-(\d+)$`)

// benchName keeps a name's own number at its end from being taken for GOMAXPROCS.
func benchName(name string) string { return processors.ReplaceAllString(name, "%2D$1") }
