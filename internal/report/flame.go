package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"

	"aossim/internal/result"
)

// flames are the flame graphs of a result's points; beside another one, which is to the left of it or
// to the right, they have in colour what differs.
func flames(r, other *result.Result, left bool) (list []pagePlot) {
	for _, of := range points(r) {
		p := of[0].Profile
		if p == nil || len(p.Nodes) == 0 {
			continue
		}
		plot := pagePlot{Title: of[0].Name + ": where the instructions went"}
		text := fmt.Sprintf("%s instructions for one %s. Wide is much; what stands on a function it called. Click to look closer, on the lowest line for the whole.", instructions(p.PerOperation(p.Instructions)), operation(of[0].Unit))
		var than *result.Profile
		if other != nil {
			for _, o := range points(other) {
				if o[0].Name == of[0].Name {
					than = o[0].Profile
				}
			}
		}
		if than != nil {
			text += " Red executes more of its own in the right result than in the left one, blue less."
		} else {
			text += " Orange is the kernel's, blue the program's."
		}
		plot.Text, plot.SVG = text, flame(p, than, left, of[0].Name)
		list = append(list, plot)
	}
	return list
}

// flame draws a profile, from below: each function as wide as it has instructions with its callees.
func flame(p, than *result.Profile, left bool, root string) template.HTML {
	const width, line, shownFrom = 1000.0, 17, 0.3 // of the view; narrower ones cannot be seen
	whole := p.Wholes()
	stack := make([]string, len(p.Nodes))
	depth, x, next := make([]int, len(p.Nodes)), make([]float64, len(p.Nodes)), make([]float64, len(p.Nodes))
	otherSelf := map[string]float64{}
	if than != nil {
		names := make([]string, len(than.Nodes))
		for i, n := range than.Nodes {
			names[i] = n.Function
			if n.Parent >= 0 {
				names[i] = names[n.Parent] + ";" + n.Function
			}
			otherSelf[names[i]] += than.PerOperation(n.Self)
		}
	}
	scale := width / math.Max(1, float64(p.Instructions))
	deepest, free, most := 0, 0.0, 0.0
	for i, n := range p.Nodes {
		stack[i] = n.Function
		if n.Parent >= 0 {
			stack[i] = stack[n.Parent] + ";" + n.Function
			depth[i], x[i] = depth[n.Parent]+1, next[n.Parent]
			next[n.Parent] += float64(whole[i]) * scale
		} else {
			x[i] = free
			free += float64(whole[i]) * scale
		}
		next[i] = x[i]
		if float64(whole[i])*scale >= shownFrom {
			deepest = max(deepest, depth[i])
		}
		most = max(most, math.Abs(p.PerOperation(n.Self)-otherSelf[stack[i]]))
	}
	height := (deepest+2)*line + 2
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="flame" viewBox="0 0 %g %d" xmlns="http://www.w3.org/2000/svg" font-family="monospace" font-size="11">`, width, height)
	box := func(x, w float64, depth int, colour, name, title string) {
		y := height - (depth+1)*line - 1
		fmt.Fprintf(&b, `<g data-x="%.3f" data-w="%.3f" data-n="%s"><title>%s</title><rect x="%.3f" y="%d" width="%.3f" height="%d" fill="%s" stroke="#fff" stroke-width=".4"/><text x="%.3f" y="%d">%s</text></g>`,
			x, w, html.EscapeString(name), html.EscapeString(title), x, y, w, line-1, colour, x+3, y+12, html.EscapeString(fits(name, w)))
	}
	box(0, width, 0, "#ddd", root, root+": all")
	for i, n := range p.Nodes {
		w := float64(whole[i]) * scale
		if w < shownFrom {
			continue
		}
		name := Plain(n.Function)
		title := fmt.Sprintf("%s (%s): %s instructions (%.1f %%), own %s, calls %s", name, whose(n.Kernel), instructions(p.PerOperation(whole[i])), 100*float64(whole[i])/float64(p.Instructions), instructions(p.PerOperation(n.Self)), instructions(p.PerOperation(n.Calls)))
		colour := "#f4a261"
		if !n.Kernel {
			colour = "#8fbfe8"
		}
		if than != nil {
			change := p.PerOperation(n.Self) - otherSelf[stack[i]]
			title += fmt.Sprintf(", own in the other result %s", instructions(otherSelf[stack[i]]))
			if colour = difference(change, most); left {
				colour = difference(-change, most)
			}
		}
		box(x[i], w, depth[i]+1, colour, name, title)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// fits is as much of a name as goes into a width.
func fits(name string, width float64) string {
	const letter = 6.8
	n := int((width - 4) / letter)
	switch r := []rune(name); {
	case n < 3:
		return ""
	case len(r) > n:
		return string(r[:n-1]) + "…"
	}
	return name
}

// difference is red for more and blue for less, the paler the less of the largest it is.
func difference(change, most float64) string {
	const whole = 255
	if math.Abs(change) < 0.005 || most == 0 {
		return "#eee"
	}
	pale := int(200 * (1 - math.Sqrt(math.Min(1, math.Abs(change)/most))))
	if change > 0 {
		return fmt.Sprintf("#%02x%02x%02x", whole, pale+30, pale+30)
	}
	return fmt.Sprintf("#%02x%02x%02x", pale+30, pale+30, whole)
}
