package report

import (
	"fmt"
	"slices"
	"strings"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// none stands where there is no figure.
const none = metric.None

// column is the head of one: its lines, and what it and those next to it of the same group
// stand under.
type column struct {
	group string
	lines []string
}

// table is data, which every format renders: text, Markdown and HTML show the same ones.
type table struct {
	title  string   // what a page calls it
	above  []string // paragraphs in front of it
	head   []column
	left   int // columns of words, to the left; figures are to the right
	rows   [][]string
	below  []string // paragraphs behind it
	wide   bool     // its cells are sentences
	long   bool     // a page has it below its plots
	silent bool     // it is there for its paragraphs
}

// cols are columns with one line each.
func cols(lines ...string) (list []column) {
	for _, l := range lines {
		list = append(list, column{lines: []string{l}})
	}
	return list
}

// two is a column with two lines.
func two(first, second string) column { return column{lines: []string{first, second}} }

// under are columns with one line each under a common head.
func under(group string, lines ...string) []column {
	list := cols(lines...)
	for i := range list {
		list[i].group = group
	}
	return list
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// heads returns the lines of the head, from top to bottom, "" where a cell has none.
func (t *table) heads() [][]string {
	most := 0
	for _, c := range t.head {
		n := len(c.lines)
		if c.group != "" {
			n++
		}
		most = max(most, n)
	}
	lines := make([][]string, most)
	for i, c := range t.head {
		for n := range lines {
			cell := ""
			if at := n - (most - len(c.lines)); at >= 0 {
				cell = c.lines[at]
			}
			if n == 0 && c.group != "" && (i == 0 || t.head[i-1].group != c.group) {
				cell = c.group
			}
			lines[n] = append(lines[n], cell)
		}
	}
	return lines
}

// row is one group in one phase, over all runs that have it.
type row struct {
	phase, group string
	groups       []metric.Group
}

// rows returns a row for each group of each phase, in the order of the first run.
func rows(r *result.Result) (list []*row) {
	for i := range r.Runs {
		for j := range r.Runs[i].Phases {
			p := &r.Runs[i].Phases[j]
			for k := range p.Groups {
				g := metric.Group{Group: &p.Groups[k], Phase: p}
				at := slices.IndexFunc(list, func(r *row) bool { return r.phase == p.Name && r.group == g.Name })
				if at < 0 {
					at = len(list)
					list = append(list, &row{phase: p.Name, group: g.Name})
				}
				list[at].groups = append(list[at].groups, g)
			}
		}
	}
	return list
}

// value is a metric over the row's runs.
func (r *row) value(key string) (float64, bool) {
	m, ok := metric.Named(key)
	if !ok {
		panic("report: no metric " + key)
	}
	return m.OverRuns(r.groups)
}

// figure is a metric's value as a table has it.
func (r *row) figure(key string) string {
	v, ok := r.value(key)
	if !ok {
		return none
	}
	m, _ := metric.Named(key)
	return m.Unit.Format(v)
}

// figures are the values of several metrics.
func (r *row) figures(keys ...string) (cells []string) {
	for _, k := range keys {
		cells = append(cells, r.figure(k))
	}
	return cells
}

// where is the phase and the group, as every table of rows begins.
func (r *row) where(cells ...string) []string { return append([]string{r.phase, r.group}, cells...) }

func (r *row) subscribes() bool { return r.groups[0].Subscribers > 0 }

// any says whether the row has more than 0 of a count.
func (r *row) any(key string) bool {
	v, ok := r.value(key)
	return ok && v > 0
}

// points returns the micro-benchmarks by point, over all runs that have it.
func points(r *result.Result) (list [][]*result.Micro) {
	for i := range r.Runs {
		for j := range r.Runs[i].Micro {
			m := &r.Runs[i].Micro[j]
			at := slices.IndexFunc(list, func(p []*result.Micro) bool { return p[0].Name == m.Name })
			if at < 0 {
				list = append(list, nil)
				at = len(list) - 1
			}
			list[at] = append(list[at], m)
		}
	}
	return list
}

// tables are all tables of a result, in order.
func tables(r *result.Result) (list []table) {
	list = append(list, microTables(r)...)
	switch all := rows(r); {
	case r.Observer.Mode == result.ObservedLive:
		list = append(list, liveTables(r, all)...)
	case len(all) > 0:
		list = append(list, phaseTables(all)...)
		list = append(list, latencyTable(all), failureTable(all), messageTable(all))
		list = append(list, kernelTables(r, all)...)
	case len(points(r)) > 0:
		list = append(list, microKernelTables(r)...)
		list = append(list, profileTables(r)...)
	default:
		list = append(list, table{silent: true, below: []string{"Nothing was measured."}})
	}
	list = append(list, checkTables(r)...)
	list = append(list, environmentTables(r)...)
	return slices.DeleteFunc(list, func(t table) bool { return len(t.rows) == 0 && !t.silent })
}

// notes say what spoils a result, or what it is not.
func notes(r *result.Result) (list []string) {
	e := &r.Environment
	if e.NotRealTime {
		list = append(list, "not real-time: --no-rt ran every actor under SCHED_OTHER; no figure here says anything about real-time latency")
	}
	switch {
	case e.Virtual():
		list = append(list, virtualTime, "No latency here says anything about a real machine.")
	case e.Emulated:
		list = append(list, "emulated: counts hold, times do not; no latency here says anything about a real machine")
	}
	for _, p := range points(r) {
		if metric.Unit(p[0].Unit).Counted() {
			list = append(list, instructionsAre...)
			break
		}
	}
	if r.Interrupted {
		list = append(list, "INTERRUPTED: the last phase may be shorter than it was to be, and later ones are missing")
	}
	if r.Broken != "" {
		list = append(list, "BROKEN: "+r.Broken)
	}
	return list
}

// virtualTime says what is measured where time is.
const virtualTime = "virtual time: the emulated clock advances by 1 ns an instruction. Instructions and other counts hold, times do not: no caches, no contention."

// instructionsAre says what instructions are and are not.
var instructionsAre = []string{
	"Instructions: those of program and kernel, ticks included, each as if it took 1 ns; each step of a rep prefix is one. They say nothing of",
	"caches and contention: a kernel may execute fewer and take longer.",
}

// emulatedTime says the same of an emulated machine by its host's clock.
const emulatedTime = "emulated: counts hold, times do not"

// several says how runs make one figure.
func several(runs int) string {
	return fmt.Sprintf("%d runs: rates and percentiles are medians over runs, maxima the largest, counts sums", runs)
}

// unobserved says that there should be an account of the kernel and is none.
func unobserved(r *result.Result) table {
	return table{silent: r.Observer.Missing != "", below: []string{"What the kernel did was not observed: " + r.Observer.Missing}}
}

// bytesOf writes a number of bytes, where there is one.
func bytesOf(n int64) string {
	if n == 0 {
		return none
	}
	return metric.Comma(n)
}

// join makes one line of several.
func join(lines []string) string { return strings.TrimSpace(strings.Join(lines, " ")) }
