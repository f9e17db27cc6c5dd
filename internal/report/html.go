package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"aossim/internal/result"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// pageResult is one result as the page has it.
type pageResult struct {
	Title, Subtitle string
	Notes           []string
	Tables          []pageTable
	Plots           []pagePlot
	More            []pageTable // below the plots
}

type pageTable struct {
	Title, Note string
	Text        bool
	Head        []string
	Rows        [][]string
}

type pagePlot struct {
	Title, Text string
	SVG         template.HTML
}

// HTML writes one page that needs nothing else: each result a column, side by side where
// there is room.
func HTML(w io.Writer, results ...*result.Result) error {
	var pages []pageResult
	for _, r := range results {
		p, err := newPage(r)
		if err != nil {
			return err
		}
		pages = append(pages, p)
	}
	return page.Execute(w, pages)
}

func newPage(r *result.Result) (p pageResult, err error) {
	t := &text{r: r}
	e := &r.Environment
	p.Title = r.Scenario.Name + " on Linux " + e.KernelRelease
	p.Subtitle = fmt.Sprintf("%s, %s, CPUs %s: %s; %s", e.KernelVersion, e.Preempt, e.CPUs, e.CPU, r.Started)
	if e.NotRealTime {
		p.Notes = append(p.Notes, "not real-time: --no-rt ran every actor under SCHED_OTHER")
	}
	if e.Emulated {
		p.Notes = append(p.Notes, "emulated: counts hold, times do not")
	}
	if r.Interrupted {
		p.Notes = append(p.Notes, "INTERRUPTED: the last phase may be shorter than it was to be, and later ones are missing")
	}
	if r.Broken != "" {
		p.Notes = append(p.Notes, "BROKEN: "+r.Broken)
	}
	for _, c := range r.Failed() {
		p.Notes = append(p.Notes, fmt.Sprintf("check %q failed: %s", c.Name, c.Detail))
	}
	if r.Observer.Missing != "" {
		p.Notes = append(p.Notes, "what the kernel did was not observed: "+r.Observer.Missing)
	}
	p.Tables, p.More = t.pageTables()
	rows := slices.DeleteFunc(t.rows(), func(r *row) bool { return !r.subscribes() })
	for _, q := range []struct{ key, name string }{{"rearm", "re-arm latency"}, {"arm_window", "arm window"}, {"delivery", "delivery latency"}, {"response", "response latency"}} {
		plotted, err := percentilePlot(rows, q.key, q.name)
		if err != nil {
			return p, err
		}
		p.Plots = append(p.Plots, plotted...)
	}
	for _, f := range []func([]*row) ([]pagePlot, error){ratePlot, behindPlot} {
		plotted, err := f(rows)
		if err != nil {
			return p, err
		}
		p.Plots = append(p.Plots, plotted...)
	}
	plotted, err := roundsPlot(t.points())
	p.Plots = append(p.Plots, plotted...)
	return p, err
}

// pageTables are the tables of the page, above the plots and below.
func (t *text) pageTables() (list, below []pageTable) {
	if rows := t.rows(); len(rows) > 0 {
		phases := pageTable{Title: "Phases", Head: []string{"phase", "group", "messages/s handled", "arms/s", "-EAGAIN/s", "rate", "re-arm p50, us", "p99", "max", "delivery p99, us"}}
		kernel := pageTable{Title: "What the kernel did", Head: []string{"phase", "group", "arms", "failed", "kmalloc per failed arm", "kmalloc per message", "<= 6 us", "> 40 us"},
			Note: "Counted in the kernel, in an observed pass after each run."}
		if t.r.Observer.Mode == result.ObservedAll {
			kernel.Note = "Observed throughout: the figures above are of an observed run too."
		}
		for _, r := range rows {
			if !r.subscribes() {
				continue
			}
			percentile := func(pick func(h *result.Histograms) *result.Histogram, q float64) string {
				return micros(r.median(func(_ *result.Phase, g *result.Group) (float64, bool) {
					v, ok := pick(&g.Histograms).Percentile(q)
					return float64(v), ok
				}))
			}
			rearm := func(h *result.Histograms) *result.Histogram { return h.Rearm }
			largest := int64(0)
			for _, g := range r.groups {
				largest = max(largest, g.Histograms.Rearm.Max())
			}
			phases.Rows = append(phases.Rows, []string{r.phase, r.group, number(r.median(perSecond(func(g *result.Group) int64 { return g.Handled }))),
				number(r.median(perSecond(arms))), number(r.median(perSecond(eagain))), percent(r.median(rate)),
				percentile(rearm, 50), percentile(rearm, 99), micros(float64(largest), largest > 0), percentile(func(h *result.Histograms) *result.Histogram { return h.Delivery }, 99)})
			if r.observed() {
				kernel.Rows = append(kernel.Rows, []string{r.phase, r.group, comma(r.kernelTotal(kernelArms)), comma(r.kernelTotal(kernelEAGAIN)),
					r.kernelPer(kmallocs, kernelEAGAIN), r.kernelPer(kmallocs, kernelMessages), r.kernelShare(within6us), r.kernelShare(over40us)})
			}
		}
		list = append(list, phases)
		if len(kernel.Rows) > 0 {
			list = append(list, kernel)
		}
	}
	if points := t.points(); len(points) > 0 {
		micro := pageTable{Title: "Micro-benchmarks", Head: []string{"point", "unit", "rounds", "mean", "median", "CV", "kmalloc per wait"}}
		for _, p := range points {
			for _, m := range p {
				kmalloc := none
				if k := m.Kernel; k != nil && k.Arms > 0 {
					kmalloc = fmt.Sprintf("%.2f", float64(k.Kmalloc)/float64(k.Arms))
				}
				micro.Rows = append(micro.Rows, []string{m.Name, m.Unit, fmt.Sprint(len(m.Rounds)), figure(m.Mean), figure(m.Median), percent(m.CV, len(m.Rounds) > 1), kmalloc})
			}
		}
		list = append(list, micro)
	}
	checks := pageTable{Title: "Checks", Text: true, Head: []string{"", "check", "detail"}}
	tab := t.checkTable()
	checks.Rows = tab.rows
	environment := pageTable{Title: "Environment", Text: true, Head: []string{"", ""}, Rows: t.environmentTable().rows}
	return list, append(below, checks, environment)
}

// colors are told apart by those who see red and green alike, too.
var colors = []color.RGBA{{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {86, 180, 233, 255}, {160, 130, 0, 255}}

// svg draws a plot. Its size is that of its view box: the page scales it.
func svg(p *plot.Plot) (template.HTML, error) {
	const width, height = 16 * vg.Centimeter, 8 * vg.Centimeter
	p.X.Label.TextStyle.Font.Size, p.Y.Label.TextStyle.Font.Size = 10, 10
	p.Legend.TextStyle.Font.Size = 9
	p.BackgroundColor = color.White
	canvas := vgsvg.New(width, height)
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return "", err
	}
	text := out.String()
	if at := strings.Index(text, "<svg"); at >= 0 {
		text = text[at:] // without the XML declaration and its link to the DTD
	}
	return template.HTML(text), nil //nolint:gosec // drawn here
}

// addLine adds a line to a plot, in a colour and dash of its own.
func addLine(p *plot.Plot, n int, name string, points plotter.XYs) error {
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.Color = colors[n%len(colors)]
	line.Width = vg.Points(1.6)
	if n >= len(colors) {
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
	}
	p.Add(line)
	p.Legend.Add(name, line)
	return nil
}

// percentilePlot draws a latency of all rows against log(1/(1-p)), as far as each has
// values.
func percentilePlot(rows []*row, key, name string) ([]pagePlot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "percentile", name+", us"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	var said []string
	for _, r := range rows {
		all := result.NewHistogram(result.Highest)
		for _, g := range r.groups {
			all.Merge(g.Histograms.Get(key))
		}
		if all.Count() == 0 {
			continue
		}
		var points plotter.XYs
		for x := 0.0; ; x += 0.05 {
			v, ok := all.Percentile(100 * (1 - math.Pow(10, -x)))
			if !ok {
				break
			}
			points = append(points, plotter.XY{X: x, Y: math.Max(float64(v), 1) / 1000})
		}
		if len(points) < 2 {
			continue
		}
		if err := addLine(p, len(said), r.phase+", "+r.group, points); err != nil {
			return nil, err
		}
		p50, ok50 := all.Percentile(50)
		p99, ok99 := all.Percentile(99)
		said = append(said, fmt.Sprintf("%s, %s: p50 %s us, p99 %s us, max %.2f us of %s", r.phase, r.group, micros(float64(p50), ok50), micros(float64(p99), ok99), float64(all.Max())/1000, comma(all.Count())))
	}
	if len(said) == 0 {
		return nil, nil
	}
	var ticks []plot.Tick
	for x, label := range []string{"0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"} {
		if float64(x) <= p.X.Max {
			ticks = append(ticks, plot.Tick{Value: float64(x), Label: label})
		}
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	drawn, err := svg(p)
	return []pagePlot{{Title: strings.ToUpper(name[:1]) + name[1:] + " by percentile", Text: strings.Join(said, ". ") + ".", SVG: drawn}}, err
}

// ratePlot draws the share of failed arms over the phases' time.
func ratePlot(rows []*row) ([]pagePlot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "time in the phase, s", "-EAGAIN, % of arms"
	p.Legend.Top = true
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	var said []string
	for _, r := range rows {
		var sum result.Series
		for _, g := range r.groups {
			sum.Add(&g.OverTime)
		}
		var points plotter.XYs
		lowest, highest := math.Inf(1), 0.0
		for i, s := range sum {
			if s.Arms > 0 {
				v := 100 * float64(s.EAGAIN) / float64(s.Arms)
				lowest, highest = min(lowest, v), max(highest, v)
				points = append(points, plotter.XY{X: (float64(i) + 0.5) / float64(len(sum)) * float64(r.phases[0].DurationNS) / 1e9, Y: v})
			}
		}
		if len(points) < 2 {
			continue
		}
		if err := addLine(p, len(said), r.phase+", "+r.group, points); err != nil {
			return nil, err
		}
		said = append(said, fmt.Sprintf("%s, %s: %.2f to %.2f %%", r.phase, r.group, lowest, highest))
	}
	if len(said) == 0 {
		return nil, nil
	}
	p.Y.Max = max(p.Y.Max, 0.1)
	drawn, err := svg(p)
	return []pagePlot{{Title: "-EAGAIN rate over time", Text: strings.Join(said, ". ") + ".", SVG: drawn}}, err
}

// behindPlot draws how far behind failed arms were.
func behindPlot(rows []*row) ([]pagePlot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "messages behind at a failed arm", "% of failed arms"
	p.Legend.Top = true
	var said []string
	type series struct {
		name   string
		values plotter.Values
	}
	var all []series
	for _, r := range rows {
		var b result.Behind
		total := int64(0)
		for _, g := range r.groups {
			for i, n := range g.Behind {
				b[i] += n
				total += n
			}
		}
		if total == 0 {
			continue
		}
		s := series{name: r.phase + ", " + r.group}
		for _, n := range b[:9] {
			s.values = append(s.values, 100*float64(n)/float64(total))
		}
		all = append(all, s)
		said = append(said, fmt.Sprintf("%s: %.1f %% of %s were one behind", s.name, s.values[1], comma(total)))
	}
	if len(all) == 0 {
		return nil, nil
	}
	width := vg.Points(24 / float64(len(all)))
	for i, s := range all {
		bars, err := plotter.NewBarChart(s.values, width)
		if err != nil {
			return nil, err
		}
		bars.Color, bars.LineStyle.Width = colors[i%len(colors)], 0
		bars.Offset = width * vg.Length(float64(i)-float64(len(all)-1)/2)
		p.Add(bars)
		p.Legend.Add(s.name, bars)
	}
	p.NominalX("0", "1", "2", "3", "4", "5", "6", "7", "8")
	drawn, err := svg(p)
	return []pagePlot{{Title: "How far behind", Text: strings.Join(said, ". ") + ".", SVG: drawn}}, err
}

// roundsPlot draws a micro-benchmark round by round.
func roundsPlot(points [][]*result.Micro) (list []pagePlot, err error) {
	for _, of := range points {
		p := plot.New()
		p.X.Label.Text, p.Y.Label.Text = "round", of[0].Unit
		p.Legend.Top = true
		p.Add(plotter.NewGrid())
		var said []string
		for i, m := range of {
			var xy plotter.XYs
			for n, v := range m.Rounds {
				xy = append(xy, plotter.XY{X: float64(n + 1), Y: v})
			}
			if len(xy) < 2 {
				continue
			}
			if err := addLine(p, i, fmt.Sprintf("run %d", i+1), xy); err != nil {
				return nil, err
			}
			said = append(said, fmt.Sprintf("run %d: median %s %s, from %s to %s", i+1, figure(m.Median), m.Unit, figure(slices.Min(m.Rounds)), figure(slices.Max(m.Rounds))))
		}
		if len(said) == 0 {
			continue
		}
		drawn, err := svg(p)
		if err != nil {
			return nil, err
		}
		list = append(list, pagePlot{Title: of[0].Name + ", round by round", Text: strings.Join(said, ". ") + ".", SVG: drawn})
	}
	return list, nil
}
