package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/maruel/natural"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// Kernels is a scenario on several kernels: each metric that is judged, by kernel, in order of
// version.
type Kernels struct {
	Scenario string         `json:"scenario"`
	Kernels  []Kernel       `json:"kernels"`
	Metrics  []KernelMetric `json:"metrics"`
	notes    []string
	heads    [][]string // of the kernels' columns
}

// Kernel is one that a scenario ran on.
type Kernel struct {
	Release string `json:"release"`
	Version string `json:"version"`
	Machine string `json:"machine"`
	Image   string `json:"image_sha256,omitempty"`
	Clock   string `json:"clock,omitempty"` // as of result.Environment
	// Failed are the checks of the result that failed: its values are not to be trusted.
	Failed []string `json:"failed_checks,omitempty"`
}

// KernelMetric is one metric's values, in the order of the kernels: the median over rounds, or what
// stands for several runs.
type KernelMetric struct {
	Name   string          `json:"name"` // PHASE / GROUP / QUANTITY, or POINT
	Unit   string          `json:"unit"` // as tables show it
	Values []result.Number `json:"values"`
}

// CompareKernels orders what ran on kernels: by release, where 6.9 is before 6.12, and 7.3.0-rc2
// before 7.3.0, then by machine and by image.
func CompareKernels(a, b *result.Environment) int {
	versionA, candidateA, isA := strings.Cut(a.KernelRelease, "-rc")
	versionB, candidateB, isB := strings.Cut(b.KernelRelease, "-rc")
	of := map[bool]int{true: 0, false: 1} // candidates first
	return cmp.Or(natural.Compare(versionA, versionB), cmp.Compare(of[isA], of[isB]), natural.Compare(candidateA, candidateB), cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Image, b.Image))
}

// KernelHeads are the heads of columns for kernels, no two the same that are not of one image.
func KernelHeads(list []*result.Environment) (heads [][]string) {
	for _, e := range list {
		head := []string{e.KernelRelease}
		for _, o := range list {
			if o != e && o.KernelRelease == e.KernelRelease {
				head = []string{e.KernelRelease, fmt.Sprintf("%s %.8s", e.Machine, cmp.Or(e.Image, e.BootID))}
			}
		}
		heads = append(heads, head)
	}
	return heads
}

// NewKernels puts results of one scenario together.
func NewKernels(results []*result.Result) *Kernels {
	results = slices.Clone(results)
	slices.SortStableFunc(results, func(a, b *result.Result) int { return CompareKernels(&a.Environment, &b.Environment) })
	k := &Kernels{Scenario: results[0].Scenario.Name}
	var environments []*result.Environment
	for i, r := range results {
		e := &r.Environment
		environments = append(environments, e)
		kernel := Kernel{Release: e.KernelRelease, Version: e.KernelVersion, Machine: e.Machine, Image: e.Image, Clock: e.Clock}
		for _, c := range r.Failed() {
			kernel.Failed = append(kernel.Failed, c.Name)
			k.notes = append(k.notes, fmt.Sprintf("%s %.8s: check %q FAILED, and its values are not to be trusted: %s", e.KernelRelease, e.Image, c.Name, c.Detail))
		}
		k.Kernels = append(k.Kernels, kernel)
		for _, line := range notes(r) {
			if !slices.Contains(k.notes, line) {
				k.notes = append(k.notes, line)
			}
		}
		set := func(name, unit string, v float64) {
			at := slices.IndexFunc(k.Metrics, func(m KernelMetric) bool { return m.Name == name && m.Unit == unit })
			if at < 0 {
				at = len(k.Metrics)
				k.Metrics = append(k.Metrics, KernelMetric{Name: name, Unit: unit})
				for range results {
					k.Metrics[at].Values = append(k.Metrics[at].Values, result.Number(math.NaN()))
				}
			}
			k.Metrics[at].Values[i] = result.Number(v)
		}
		for _, row := range rows(r) {
			if !row.subscribes() {
				continue
			}
			for j := range metric.All {
				if m := &metric.All[j]; m.Judged != metric.Never {
					if v, ok := m.OverRuns(row.groups); ok {
						shown, unit := m.Unit.Shown(v)
						set(metric.Path(row.phase, row.group, m.Name), unit, shown)
					}
				}
			}
		}
		for _, p := range points(r) {
			var medians []float64
			for _, m := range p {
				if len(m.Rounds) > 0 {
					medians = append(medians, m.Median)
				}
			}
			if len(medians) == 0 {
				continue
			}
			of := metric.OfPoint(p[0])
			set(of.Name, string(of.Unit), result.SpreadOf(medians).Median)
			counts, all := map[string]int64{}, map[string]int64{} // over all runs
			for _, run := range p {
				metric.OfPointKernel(run, func(m metric.Metric, count, events int64) {
					counts[m.Name], all[m.Name] = counts[m.Name]+count, all[m.Name]+events
					set(m.Name, "", float64(counts[m.Name])/float64(all[m.Name]))
				})
			}
		}
	}
	k.heads = KernelHeads(environments)
	return k
}

// Text writes the table for people.
func (k *Kernels) Text(w io.Writer) error {
	t := newText(w)
	t.line(k.Scenario)
	t.lines(k.notes...)
	t.line("")
	tab := table{left: 2, head: cols("metric", "unit"), silent: true}
	for _, head := range k.heads {
		tab.head = append(tab.head, column{lines: head})
	}
	for _, m := range k.Metrics {
		cells := []string{m.Name, m.Unit}
		for _, v := range m.Values {
			cells = append(cells, value(float64(v)))
		}
		tab.add(cells...)
	}
	t.table(&tab)
	return t.w.Flush()
}
