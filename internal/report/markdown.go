package report

import (
	"bufio"
	"io"
	"slices"
	"strings"

	"aossim/internal/compare"
	"aossim/internal/metric"
)

// ComparisonMarkdown writes a comparison as a table that is ready for a mail.
func ComparisonMarkdown(w io.Writer, c *compare.Comparison) error {
	b := bufio.NewWriter(w)
	head := append([]string{c.Scenario + ", before: " + c.Before + ", after: " + c.After}, timeNote(c)...)
	for _, line := range append(head, prefixed("Warning: ", c.Warnings)...) {
		_, _ = b.WriteString(Plain(line) + "\n\n") // the writer keeps its first error
	}
	markdown(b, mailTable(c))
	if slices.ContainsFunc(c.Metrics, func(m compare.Judged) bool { return m.Kind == metric.Instructions }) {
		_, _ = b.WriteString(join(instructionsAre) + "\n")
	}
	for i := range c.Profiles {
		t := profileChanges(&c.Profiles[i])
		_, _ = b.WriteString("\n" + Plain(join(t.above)) + "\n\n")
		markdown(b, t)
		_, _ = b.WriteString(join(t.below) + "\n")
	}
	return b.Flush()
}

// markdown writes a table with one line of head.
func markdown(b *bufio.Writer, t table) {
	head := make([]string, len(t.head))
	for i, c := range t.head {
		head[i] = join(append([]string{c.group}, c.lines...))
	}
	all := plainCells(append([][]string{head}, t.rows...))
	for _, cells := range all {
		for i := range cells {
			cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
		}
	}
	width := widths(all)
	for n, cells := range all {
		_, _ = b.WriteString("| " + strings.Join(aligned(cells, width, t.left), " | ") + " |\n")
		if n > 0 {
			continue
		}
		for i, w := range width {
			end := ":"
			if i < t.left {
				end = "-"
			}
			_, _ = b.WriteString("|" + strings.Repeat("-", w+1) + end)
		}
		_, _ = b.WriteString("|\n")
	}
	_, _ = b.WriteString("\n")
}

func prefixed(prefix string, lines []string) (list []string) {
	for _, l := range lines {
		list = append(list, prefix+l)
	}
	return list
}
