// Package report shows a result to people and to other programs, a file a format. It builds
// on every OS and reads nothing but the result. Errors are those of the writer it is given, or
// of the files it makes.
package report

import (
	"bufio"
	"io"
	"strings"
	"unicode/utf8"

	"aossim/internal/result"
)

// Summary writes the first tables, and what spoils the result.
func Summary(w io.Writer, r *result.Result) error {
	t := newText(w)
	t.head(r)
	first := append(microTables(r), phaseTables(rows(r))...)
	if r.Observer.Mode == result.ObservedLive {
		first = liveTables(r, rows(r))[:1]
	}
	for _, tab := range first {
		if len(tab.rows) > 0 {
			t.table(&tab)
		}
	}
	return t.w.Flush()
}

// Text writes the result as a page of text. Where there are several runs, each
// rate and percentile is the median over the runs, a maximum is the largest,
// a count is the sum, and a share of failed arms is one of those of all runs.
func Text(w io.Writer, r *result.Result) error {
	t := newText(w)
	t.head(r)
	for _, tab := range tables(r) {
		t.table(&tab)
	}
	return t.w.Flush()
}

// text writes for people's terminals.
type text struct{ w *bufio.Writer }

func newText(w io.Writer) *text { return &text{bufio.NewWriter(w)} }

// line writes one; the writer keeps its first error until it is flushed.
func (t *text) line(s string) { _, _ = t.w.WriteString(Plain(s) + "\n") }

func (t *text) lines(list ...string) {
	for _, l := range list {
		t.line(l)
	}
}

func (t *text) head(r *result.Result) {
	e := &r.Environment
	title := r.Scenario.Name
	if e.NotRealTime {
		title += " - not real-time"
	}
	t.lines(title, "Linux "+e.KernelRelease+", "+e.Preempt+", CPUs "+e.CPUs+": "+e.CPU)
	if n := len(r.Runs); n > 1 {
		t.line(several(n))
	}
	t.lines(notes(r)...)
	t.line("")
}

// table writes one, and a blank line behind it and behind its paragraphs.
func (t *text) table(tab *table) {
	t.lines(tab.above...)
	if all := plainCells(append(tab.heads(), tab.rows...)); len(tab.rows) > 0 || len(tab.above) > 0 {
		width := widths(all)
		for _, cells := range all {
			_, _ = t.w.WriteString(strings.TrimRight(strings.Join(aligned(cells, width, tab.left), "  "), " ") + "\n")
		}
		t.line("")
	}
	if len(tab.below) > 0 {
		t.lines(tab.below...)
		t.line("")
	}
}

// plainCells are rows of cells in Plain.
func plainCells(rows [][]string) (out [][]string) {
	for _, cells := range rows {
		plain := make([]string, len(cells))
		for i, c := range cells {
			plain[i] = Plain(c)
		}
		out = append(out, plain)
	}
	return out
}

// widths are those of the widest cell of each column, in characters.
func widths(rows [][]string) (list []int) {
	for _, cells := range rows {
		for i, c := range cells {
			if i == len(list) {
				list = append(list, 0)
			}
			list[i] = max(list[i], utf8.RuneCountInString(c))
		}
	}
	return list
}

// aligned pads cells: the first left ones to the left, the others to the right.
func aligned(cells []string, width []int, left int) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
		if i < left {
			out[i] = c + pad
		} else {
			out[i] = pad + c
		}
	}
	return out
}
