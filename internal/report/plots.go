package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// plots are those of a page.
func plots(r *result.Result) (list []pagePlot, err error) {
	all := slices.DeleteFunc(rows(r), func(r *row) bool { return !r.subscribes() })
	add := func(more []pagePlot, e error) {
		list = append(list, more...)
		if err == nil {
			err = e
		}
	}
	for _, d := range metric.Distributions {
		if d.Judged {
			add(percentilePlot(all, d))
		}
	}
	add(ratePlot(all))
	add(behindPlot(all))
	add(roundsPlot(points(r)))
	return list, err
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

// percentileOver is a percentile's median over the row's runs.
func percentileOver(r *row, d metric.Distribution, percent float64) (float64, bool) {
	var values []float64
	for _, g := range r.groups {
		v, ok := d.Of(g.Group).Percentile(percent)
		if !ok {
			return 0, false
		}
		values = append(values, float64(v))
	}
	return result.SpreadOf(values).Median, len(values) > 0
}

// percentilePlot draws a latency of all rows against log(1/(1-p)), as far as each has
// values; of several runs the median at each percentile.
func percentilePlot(all []*row, d metric.Distribution) ([]pagePlot, error) {
	p := plot.New()
	name := d.Name
	if !strings.Contains(name, " ") {
		name += " latency"
	}
	_, unit := d.Unit.Shown(0)
	p.X.Label.Text, p.Y.Label.Text = "percentile", name+", "+unit
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	var said []string
	for _, r := range all {
		var points plotter.XYs
		for x := 0.0; ; x += 0.05 {
			v, ok := percentileOver(r, d, 100*(1-math.Pow(10, -x)))
			if !ok {
				break
			}
			shown, _ := d.Unit.Shown(math.Max(v, 1))
			points = append(points, plotter.XY{X: x, Y: shown})
		}
		if len(points) < 2 {
			continue
		}
		if err := addLine(p, len(said), r.phase+", "+r.group, points); err != nil {
			return nil, err
		}
		f := r.figures(d.Key+".p50", d.Key+".p99", d.Key+".max", d.Key+".count")
		said = append(said, fmt.Sprintf("%s, %s: p50 %s %s, p99 %s %s, max %s %s of %s", r.phase, r.group, f[0], unit, f[1], unit, f[2], unit, f[3]))
	}
	if len(said) == 0 {
		return nil, nil
	}
	if p.Y.Min == p.Y.Max { // else the axis would begin below 0, which has no logarithm
		p.Y.Min, p.Y.Max = p.Y.Min/2, p.Y.Max*2
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

// ratePlot draws the share of failed arms over the phases' time; of several runs the median
// in each stretch of those that armed in it.
func ratePlot(all []*row) ([]pagePlot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "time in the phase, s", "-EAGAIN, % of arms"
	p.Legend.Top = true
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	var said []string
	for _, r := range all {
		var points plotter.XYs
		lowest, highest := math.Inf(1), 0.0
		stretches := len(result.Series{})
		for i := range stretches {
			var rates []float64
			for _, g := range r.groups {
				if s := g.OverTime[i]; s.Arms > 0 {
					rates = append(rates, 100*float64(s.EAGAIN)/float64(s.Arms))
				}
			}
			if len(rates) > 0 {
				v := result.SpreadOf(rates).Median
				lowest, highest = min(lowest, v), max(highest, v)
				points = append(points, plotter.XY{X: (float64(i) + 0.5) / float64(stretches) * float64(r.groups[0].Phase.DurationNS) / 1e9, Y: v})
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
func behindPlot(all []*row) ([]pagePlot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "messages behind at a failed arm", "% of failed arms"
	p.Legend.Top = true
	var said []string
	type series struct {
		name   string
		values plotter.Values
	}
	var list []series
	for _, r := range all {
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
		list = append(list, s)
		said = append(said, fmt.Sprintf("%s: %.1f %% of %s were one behind", s.name, s.values[1], metric.Comma(total)))
	}
	if len(list) == 0 {
		return nil, nil
	}
	width := vg.Points(24 / float64(len(list)))
	for i, s := range list {
		bars, err := plotter.NewBarChart(s.values, width)
		if err != nil {
			return nil, err
		}
		bars.Color, bars.LineStyle.Width = colors[i%len(colors)], 0
		bars.Offset = width * vg.Length(float64(i)-float64(len(list)-1)/2)
		p.Add(bars)
		p.Legend.Add(s.name, bars)
	}
	p.NominalX("0", "1", "2", "3", "4", "5", "6", "7", "8")
	drawn, err := svg(p)
	return []pagePlot{{Title: "How far behind", Text: strings.Join(said, ". ") + ".", SVG: drawn}}, err
}

// roundsPlot draws a micro-benchmark round by round.
// mostDrawn is the largest value that axes can be made for: of larger ones the next number is
// not one further.
const mostDrawn = 1e12

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
				if math.Abs(v) < mostDrawn {
					xy = append(xy, plotter.XY{X: float64(n + 1), Y: v})
				}
			}
			if len(xy) < 2 {
				continue
			}
			if err := addLine(p, i, fmt.Sprintf("run %d", i+1), xy); err != nil {
				return nil, err
			}
			said = append(said, fmt.Sprintf("run %d: median %s %s, from %s to %s", i+1, value(m.Median), m.Unit, value(slices.Min(m.Rounds)), value(slices.Max(m.Rounds))))
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
