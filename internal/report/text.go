// Package report shows a result to people and to other programs. It builds on
// every OS and reads nothing but the result.
package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"aossim/internal/result"
)

// Summary writes the table of phases, and what spoils the result.
func Summary(w io.Writer, r *result.Result) error {
	t := &text{w: bufio.NewWriter(w), r: r}
	t.head()
	t.micro()
	t.phases()
	return t.w.Flush()
}

// Text writes the result as a page of text. Where there are several runs, each
// rate and percentile is the median over the runs, a maximum is the largest and
// a count is the sum.
func Text(w io.Writer, r *result.Result) error {
	t := &text{w: bufio.NewWriter(w), r: r}
	t.head()
	t.micro()
	if len(t.rows()) > 0 {
		t.phases()
		t.latencies()
		t.failures()
		t.messages()
		t.kernel()
	} else if len(t.points()) > 0 {
		t.microKernel()
	} else {
		t.printf("Nothing was measured.\n\n")
	}
	t.checks()
	t.environment()
	return t.w.Flush()
}

type text struct {
	w *bufio.Writer
	r *result.Result
}

func (t *text) printf(format string, args ...any) { fmt.Fprintf(t.w, format, args...) }

// none stands where there is no figure.
const none = "-"

// row is one group in one phase, over all runs that have it.
type row struct {
	phase, group string
	phases       []*result.Phase
	groups       []*result.Group
}

// rows returns a row for each group of each phase, in the order of the first run.
func (t *text) rows() (rows []*row) {
	for i := range t.r.Runs {
		for j := range t.r.Runs[i].Phases {
			p := &t.r.Runs[i].Phases[j]
			for k := range p.Groups {
				g := &p.Groups[k]
				at := slices.IndexFunc(rows, func(r *row) bool { return r.phase == p.Name && r.group == g.Name })
				if at < 0 {
					at = len(rows)
					rows = append(rows, &row{phase: p.Name, group: g.Name})
				}
				rows[at].phases = append(rows[at].phases, p)
				rows[at].groups = append(rows[at].groups, g)
			}
		}
	}
	return rows
}

// median returns the median over runs of a figure; ok is false where a run has none.
func (r *row) median(f func(p *result.Phase, g *result.Group) (float64, bool)) (float64, bool) {
	var values []float64
	for i, g := range r.groups {
		v, ok := f(r.phases[i], g)
		if !ok {
			return 0, false
		}
		values = append(values, v)
	}
	if len(values) == 0 {
		return 0, false
	}
	return result.SpreadOf(values).Median, true
}

// total returns the sum over runs of a count.
func (r *row) total(f func(g *result.Group) int64) (n int64) {
	for _, g := range r.groups {
		n += f(g)
	}
	return n
}

func (r *row) subscribes() bool { return r.groups[0].Subscribers > 0 }

// perSecond is a count as a rate.
func perSecond(f func(g *result.Group) int64) func(*result.Phase, *result.Group) (float64, bool) {
	return func(p *result.Phase, g *result.Group) (float64, bool) {
		return float64(f(g)) / (float64(p.DurationNS) / 1e9), p.DurationNS > 0
	}
}

func published(g *result.Group) int64 { return g.Published }
func arms(g *result.Group) int64      { return g.Arms }
func eagain(g *result.Group) int64    { return g.EAGAIN }

func rate(_ *result.Phase, g *result.Group) (float64, bool) {
	return float64(g.EAGAIN) / float64(g.Arms), g.Arms > 0
}

func (t *text) head() {
	r := t.r
	t.printf("%s", r.Scenario.Name)
	if r.Environment.NotRealTime {
		t.printf(" - not real-time")
	}
	t.printf("\nLinux %s, %s, CPUs %s: %s\n", r.Environment.KernelRelease, r.Environment.Preempt, r.Environment.CPUs, r.Environment.CPU)
	if len(r.Runs) > 1 {
		t.printf("%d runs: rates and percentiles are medians over runs, maxima the largest, counts sums\n", len(r.Runs))
	}
	if r.Environment.NotRealTime {
		t.printf("not real-time: --no-rt ran every actor under SCHED_OTHER; no figure here says anything about real-time latency\n")
	}
	if r.Environment.Emulated {
		t.printf("emulated: counts hold, times do not; no latency here says anything about a real machine\n")
	}
	if r.Interrupted {
		t.printf("INTERRUPTED: the last phase may be shorter than it was to be, and later ones are missing\n")
	}
	if r.Broken != "" {
		t.printf("BROKEN: %s\n", r.Broken)
	}
	t.printf("\n")
}

// chunk is how many groups stand side by side in the first table.
const chunk = 3

// phases is the table of DESIGN section 1: a line a phase, three columns a group.
func (t *text) phases() {
	rows := t.rows()
	var groups, phases []string
	for _, r := range rows {
		if !slices.Contains(phases, r.phase) {
			phases = append(phases, r.phase)
		}
		if r.subscribes() && !slices.Contains(groups, r.group) {
			groups = append(groups, r.group)
		}
	}
	for part := range slices.Chunk(groups, chunk) {
		tab := table{left: 1}
		names, heads := []string{"", ""}, []string{"phase", "messages/s"}
		for _, g := range part {
			names = append(names, g, "", "")
			heads = append(heads, "arms/s", "-EAGAIN/s", "rate")
		}
		tab.add(names...)
		tab.add(heads...)
		for _, ph := range phases {
			messages := 0.0
			cells := []string{ph, ""}
			for _, r := range rows {
				if v, ok := r.median(perSecond(published)); ok && r.phase == ph {
					messages += v
				}
			}
			cells[1] = number(messages, true)
			for _, g := range part {
				at := slices.IndexFunc(rows, func(r *row) bool { return r.phase == ph && r.group == g && r.subscribes() })
				if at < 0 || rows[at].total(arms) == 0 {
					cells = append(cells, none, none, none)
					continue
				}
				cells = append(cells, number(rows[at].median(perSecond(arms))), number(rows[at].median(perSecond(eagain))), percent(rows[at].median(rate)))
			}
			tab.add(cells...)
		}
		tab.write(t)
	}
}

// quantiles are the percentiles that are shown.
var quantiles = []float64{50, 90, 99, 99.9}

func (t *text) latencies() {
	tab := table{left: 3}
	tab.add("phase", "group", "latency, us", "p50", "p90", "p99", "p99.9", "max", "count")
	notes := false
	rows := t.rows()
	for _, q := range []struct{ key, name string }{
		{"rearm", "re-arm"}, {"arm_window", "arm window"}, {"arm_window_eagain", "arm window, failed"},
		{"delivery", "delivery"}, {"response", "response"},
	} {
		if n := len(tab.rows); n > 2 && len(tab.rows[n-1]) > 0 {
			tab.add() // a blank line between quantities
		}
		for _, r := range rows {
			if !r.subscribes() {
				continue
			}
			pick := func(g *result.Group) *result.Histogram { return g.Histograms.Get(q.key) }
			count, missed, overflow := int64(0), int64(0), int64(0)
			for _, g := range r.groups {
				if h := pick(g); h != nil {
					count += h.Count()
					missed += h.Missed
					overflow += h.Overflow
				}
			}
			if missed > 0 && count == 0 {
				notes = true
				tab.add(r.phase, r.group, q.name, "*", "*", "*", "*", "*", "0")
				continue
			}
			if count == 0 {
				continue
			}
			cells := []string{r.phase, r.group, q.name}
			for _, p := range quantiles {
				cells = append(cells, micros(r.median(func(_ *result.Phase, g *result.Group) (float64, bool) {
					v, ok := pick(g).Percentile(p)
					return float64(v), ok
				})))
			}
			largest := int64(0)
			for _, g := range r.groups {
				largest = max(largest, pick(g).Max())
			}
			top := micros(float64(largest), true)
			if overflow > 0 {
				top = fmt.Sprintf("%d above %s", overflow, time.Duration(result.Highest))
			}
			tab.add(append(cells, top, comma(count))...)
		}
	}
	if n := len(tab.rows); len(tab.rows[n-1]) == 0 {
		tab.rows = tab.rows[:n-1]
	}
	tab.write(t)
	t.printf("A percentile is left out (%s) where fewer than %d values lie beyond it.\n", none, result.Beyond)
	if notes {
		t.printf("* cannot be observed: submit = \"combined\" and wait = \"futex\" arm and wait in one call, and no call returns when an arm succeeds.\n")
	}
	t.printf("\n")
}

func (t *text) failures() {
	tab := table{left: 2}
	tab.add("", "", "failed", "1 behind", "1 behind,", "race window, us", "arm window,", "rate over 100 ms, %", "", "")
	tab.add("phase", "group", "arms", "", "predicted", "inferred", "us, p50", "p50", "p99", "max")
	lone := false
	for _, r := range t.rows() {
		failed := r.total(eagain)
		if !r.subscribes() || r.total(arms) == 0 {
			continue
		}
		one, predicted, inferred := none, none, none
		if failed > 0 {
			one = percent(float64(r.total(func(g *result.Group) int64 { return g.Behind[1] }))/float64(failed), true)
		}
		if r.groups[0].LonePeriodic {
			lone = true
			predicted, inferred = "**", "**"
		} else if v, ok := r.median(rate); ok && failed > 0 && v < 1 {
			predicted = percent(oneBehind(v), true)
			inferred = micros(r.median(func(p *result.Phase, g *result.Group) (float64, bool) {
				v, ok := rate(p, g)
				return raceWindow(v, armRate(p, g)), ok && v < 1
			}))
		}
		window := micros(r.median(func(_ *result.Phase, g *result.Group) (float64, bool) {
			if g.Histograms.ArmWindow == nil {
				return 0, false
			}
			v, ok := g.Histograms.ArmWindow.Percentile(50)
			return float64(v), ok
		}))
		cells := []string{r.phase, r.group, comma(failed), one, predicted, inferred, window}
		for _, p := range []float64{50, 99} {
			cells = append(cells, ppm(r.median(func(_ *result.Phase, g *result.Group) (float64, bool) {
				if g.Histograms.EAGAINRate == nil {
					return 0, false
				}
				v, ok := g.Histograms.EAGAINRate.Percentile(p)
				return float64(v), ok
			})))
		}
		largest := int64(0)
		for _, g := range r.groups {
			largest = max(largest, g.Histograms.EAGAINRate.Max())
		}
		tab.add(append(cells, ppm(float64(largest), true))...)
	}
	if len(tab.rows) == 2 {
		return
	}
	tab.write(t)
	t.printf("Race window: if publishes that race an arm are Poisson, it is -ln(1 - rate) / (messages per second on the channel).\n")
	if lone {
		t.printf("** does not hold for a lone periodic publisher: nothing but its own next period can race the arm.\n")
	}
	t.printf("\n")
}

// armRate is how many messages per second can race an arm of the group: those of one
// channel, or of all of them where a vector covers them.
func armRate(p *result.Phase, g *result.Group) float64 {
	perSubscriber := float64(g.Offered) / float64(g.Subscribers) / (float64(p.DurationNS) / 1e9)
	if g.Wait == "io_uring_waitv" {
		return perSubscriber
	}
	return perSubscriber / float64(max(1, g.Channels))
}

// raceWindow infers the window (ns) in which a publish makes an arm fail from the
// share of arms that failed, for Poisson publishes at so many a second.
func raceWindow(rate, perSecond float64) float64 { return -math.Log1p(-rate) / perSecond * 1e9 }

// oneBehind is the share of failed arms that then find exactly one publish: those
// of a Poisson distribution whose share of non-zeros is rate.
func oneBehind(rate float64) float64 {
	if rate == 0 {
		return 1
	}
	mean := -math.Log1p(-rate)
	return mean * math.Exp(-mean) / rate
}

func (t *text) messages() {
	tab := table{left: 2}
	tab.add("phase", "group", "published", "missed", "handled", "overrun", "wakes", "lost", "late", "spurious")
	for _, r := range t.rows() {
		count := func(f func(g *result.Group) int64, has bool) string {
			if !has {
				return none
			}
			return comma(r.total(f))
		}
		pub, sub := r.groups[0].Publishers > 0, r.subscribes()
		armed := sub && r.groups[0].Wait != "eventfd" // nothing is armed on a word there
		tab.add(r.phase, r.group, count(published, pub),
			count(func(g *result.Group) int64 { return g.MissedDeadlines }, pub),
			count(func(g *result.Group) int64 { return g.Handled }, sub),
			count(func(g *result.Group) int64 { return g.Overrun }, sub),
			count(func(g *result.Group) int64 { return g.Wakes }, sub),
			count(func(g *result.Group) int64 { return g.LostWakes }, armed),
			count(func(g *result.Group) int64 { return g.LateWakes }, armed),
			count(func(g *result.Group) int64 { return g.SpuriousWakes }, armed))
	}
	tab.write(t)
	t.printf("missed: deadlines, of messages published after the next one was due, or not at all. Wakes are lost where the loop still slept on a word\n" +
		"that had moved on for 100 ms; late where they came later than the scenario's bound (5 ms unless given), for whatever\n" +
		"reason, the thread's own start included. spurious: woken with the word unchanged, as when\n" +
		"the publish that made an arm fail wakes only after its message was handled and the channel armed again.\n\n")
}

// checkTable has a line for each check.
func (t *text) checkTable() *table {
	tab := &table{left: 3}
	for i, run := range t.r.Runs {
		for _, c := range run.Checks {
			name := c.Name
			if len(t.r.Runs) > 1 {
				name = fmt.Sprintf("run %d: %s", i+1, name)
			}
			verdict := "ok"
			if !c.Pass {
				verdict = "FAILED"
			}
			tab.add(verdict, name, c.Detail)
		}
	}
	t.microChecks(tab)
	return tab
}

func (t *text) checks() {
	t.printf("checks\n")
	t.checkTable().write(t)
	tab := table{left: 2}
	for _, run := range t.r.Runs {
		for _, o := range run.Observations {
			tab.add(o.Load, o.What, fmt.Sprintf("%s of %s", comma(o.Count), comma(o.Of)))
		}
	}
	if len(tab.rows) > 0 {
		t.printf("what the loads found out\n")
		tab.write(t)
	}
}

// environmentTable has a line for each thing about the machine.
func (t *text) environmentTable() *table {
	e := &t.r.Environment
	tab := &table{left: 2}
	rt := "no"
	if e.Realtime {
		rt = "yes"
	}
	for _, line := range [][2]string{
		{"kernel", e.KernelRelease + " " + e.KernelVersion + " " + e.Machine},
		{"preemption", e.Preempt}, {"PREEMPT_RT", rt}, {"command line", e.CommandLine},
		{"CPU", e.CPU + ", online " + e.CPUs}, {"governor", e.Governor}, {"isolcpus", e.Isolated}, {"nohz_full", e.NohzFull},
		{"RT throttling", e.RTThrottling}, {"clock source", e.ClockSource}, {"cpu_dma_latency", e.DMALatency},
		{"shared memory", fmt.Sprintf("pages of %d KiB", e.SharedPages>>10)},
		{"mitigations", strings.Join(e.Mitigations, "; ")}, {"virtualization", e.Virtualization},
		{"boot id", e.BootID}, {"program", e.Program + ", " + e.GoVersion},
		{"scenario", t.r.Scenario.Name + ", sha256 " + t.r.Scenario.SHA256 + ", " + strings.Join(t.r.Scenario.Options, " ")},
	} {
		tab.add(line[0], line[1])
	}
	return tab
}

func (t *text) environment() {
	t.printf("environment\n")
	t.environmentTable().write(t)
	tab := table{left: 5}
	tab.add("group", "actors", "policy", "priority", "CPUs")
	if len(t.r.Runs) > 0 {
		for _, p := range t.r.Runs[0].Processes {
			for _, a := range p.Actors {
				tab.add(p.Group, a.Kind, a.Policy, fmt.Sprint(a.Priority), cpus(a.CPUs))
			}
		}
	}
	t.printf("granted by the kernel\n")
	tab.write(t)
}

func cpus(list []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list)), ","), "[]")
}

// table aligns cells: the first left columns to the left, the others to the right.
type table struct {
	left     int
	markdown bool
	rows     [][]string
}

func (tab *table) add(cells ...string) { tab.rows = append(tab.rows, cells) }

func (tab *table) write(t *text) {
	var width []int
	for _, cells := range tab.rows {
		for i, c := range cells {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	between, edge := "  ", ""
	if tab.markdown {
		between, edge = " | ", "|"
	}
	for n, cells := range tab.rows {
		var line strings.Builder
		for i, c := range cells {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i > 0 {
				line.WriteString(between)
			}
			if i < tab.left {
				line.WriteString(c + pad)
			} else {
				line.WriteString(pad + c)
			}
		}
		if !tab.markdown {
			t.printf("%s\n", strings.TrimRight(line.String(), " "))
			continue
		}
		t.printf("%s %s %s\n", edge, line.String(), edge)
		if n == 0 {
			for i, w := range width {
				colon := ":"
				if i < tab.left {
					colon = "-"
				}
				t.printf("|%s%s", strings.Repeat("-", w+1), colon)
			}
			t.printf("|\n")
		}
	}
	t.printf("\n")
}

func comma(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// number writes a rate: with a decimal where it is small.
func number(v float64, ok bool) string {
	switch {
	case !ok:
		return none
	case v < 10 && v > 0:
		return fmt.Sprintf("%.1f", v)
	}
	return comma(int64(math.Round(v)))
}

func micros(ns float64, ok bool) string {
	if !ok {
		return none
	}
	return fmt.Sprintf("%.2f", ns/1000)
}

func percent(v float64, ok bool) string {
	if !ok {
		return none
	}
	return fmt.Sprintf("%.2f %%", 100*v)
}

func ppm(v float64, ok bool) string {
	if !ok {
		return none
	}
	return fmt.Sprintf("%.2f", v/1e4)
}
