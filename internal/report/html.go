package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

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
	Flames          bool        // some of the plots are flame graphs
	More            []pageTable // below the plots
}

// pageTable is a table as the page has it: Groups stand above Head, over Span columns each.
type pageTable struct {
	Title  string
	Notes  []string
	Wide   bool
	Left   int
	Groups []pageGroup
	Head   []string
	Rows   [][]string
}

type pageGroup struct {
	Text string
	Span int
}

type pagePlot struct {
	Title, Text string
	SVG         template.HTML
}

// HTML writes one page that needs nothing else: each result a column, side by side where
// there is room.
func HTML(w io.Writer, results ...*result.Result) error {
	var pages []pageResult
	for i, r := range results {
		p, err := newPage(r)
		if err != nil {
			return err
		}
		var other *result.Result
		if len(results) == 2 {
			other = results[1-i]
		}
		graphs := flames(r, other, i == 0)
		p.Plots, p.Flames = append(graphs, p.Plots...), len(graphs) > 0
		pages = append(pages, p)
	}
	return page.Execute(w, pages)
}

func newPage(r *result.Result) (p pageResult, err error) {
	e := &r.Environment
	p.Title = r.Scenario.Name + " on Linux " + e.KernelRelease
	p.Subtitle = fmt.Sprintf("%s, %s, CPUs %s: %s; %s", e.KernelVersion, e.Preempt, e.CPUs, e.CPU, r.Started)
	if n := len(r.Runs); n > 1 {
		p.Subtitle += "; " + several(n)
	}
	p.Notes = notes(r)
	for _, c := range r.Failed() {
		p.Notes = append(p.Notes, fmt.Sprintf("check %q failed: %s", c.Name, c.Detail))
	}
	for _, t := range tables(r) {
		switch shown := newPageTable(t); {
		case len(t.rows) == 0:
			p.Notes = append(p.Notes, t.below...)
		case t.wide, t.long, len(p.More) > 0:
			p.More = append(p.More, shown)
		default:
			p.Tables = append(p.Tables, shown)
		}
	}
	p.Plots, err = plots(r)
	return p, err
}

func newPageTable(t table) pageTable {
	p := pageTable{Title: t.title, Wide: t.wide, Left: t.left, Rows: t.rows}
	// A paragraph may have several lines of text; and what only says the title again is left out.
	for _, lines := range [][]string{t.above, t.below} {
		if text := join(lines); text != "" && len(text) > len(t.title)+1 {
			p.Notes = append(p.Notes, text)
		}
	}
	grouped := false
	for i, c := range t.head {
		grouped = grouped || c.group != ""
		if i > 0 && c.group == t.head[i-1].group {
			p.Groups[len(p.Groups)-1].Span++
		} else {
			p.Groups = append(p.Groups, pageGroup{c.group, 1})
		}
		p.Head = append(p.Head, join(c.lines))
	}
	if !grouped {
		p.Groups = nil
	}
	return p
}
