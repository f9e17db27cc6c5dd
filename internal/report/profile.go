package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"aossim/internal/compare"
	"aossim/internal/metric"
	"aossim/internal/refusal"
	"aossim/internal/result"
)

// The words for where a function is.
const inKernel, inProgram = "kernel", "program"

func whose(kernel bool) string {
	if kernel {
		return inKernel
	}
	return inProgram
}

// instructions writes so many for one operation, where most are whole numbers.
func instructions(v float64) string {
	if math.Abs(v) < 0.005 {
		return "0"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", v), ".00")
}

// changed writes a difference of instructions.
func changed(v float64) string {
	if math.Abs(v) < 0.005 {
		return "0"
	}
	return strings.TrimSuffix(fmt.Sprintf("%+.2f", v), ".00")
}

// operation is the word for what a point's figure is of.
func operation(unit string) string {
	_, word, _ := strings.Cut(unit, "/")
	return word
}

// profileTables have a line for each function of each point that was profiled.
func profileTables(r *result.Result) (list []table) {
	for _, of := range points(r) {
		p := of[0].Profile
		if p == nil {
			continue
		}
		functions := p.Functions()
		sums := map[bool]float64{}
		for _, f := range functions {
			sums[f.Kernel] += f.Self
		}
		t := table{title: "Where the instructions of " + of[0].Name + " went", left: 2, long: true, head: append(cols("function", "in", "calls"), under("instructions", "own", "with callees")...)}
		t.above = []string{fmt.Sprintf("%s: where the instructions went, for one %s, of %s traced", of[0].Name, operation(of[0].Unit), metric.Comma(p.Operations))}
		for _, kernel := range []bool{false, true} {
			t.add("all of the "+whose(kernel), whose(kernel), "", instructions(sums[kernel]), "")
			for _, f := range functions {
				if f.Kernel == kernel {
					t.add(f.Function, whose(kernel), instructions(f.Calls), instructions(f.Self), instructions(f.Whole))
				}
			}
		}
		t.add("all", "", "", instructions(p.PerOperation(p.Instructions)), "")
		t.below = []string{fmt.Sprintf("Left out: %s instructions of %s interrupts, and %s of other threads, meanwhile. Inlined functions are counted with those that they are in;",
			metric.Comma(p.InterruptInstructions), metric.Comma(p.Interrupts), metric.Comma(p.OtherInstructions)),
			"a function that is jumped to, as by a tail call, with its callees as one that was called by who jumped."}
		list = append(list, t)
	}
	return list
}

// profileChanges has a line for each function whose own instructions are others before and after.
func profileChanges(p *compare.Profile) table {
	t := table{title: "Where the instructions of " + p.Point + " went", left: 2, silent: true}
	t.above = []string{fmt.Sprintf("%s: where the instructions of one %s went, and the change", p.Point, operation(p.Unit))}
	t.head = append(cols("function", "in"), slices.Concat(under("calls", "before", "after"), under("own instructions", "before", "after", "change"), under("with callees", "before", "after", "change"))...)
	same, kept := 0, 0.0
	for _, f := range p.Functions {
		if math.Abs(f.Change) < 0.005 {
			same, kept = same+1, kept+f.After.Self
			continue
		}
		t.add(f.Function, whose(f.Kernel), instructions(f.Before.Calls), instructions(f.After.Calls), instructions(f.Before.Self), instructions(f.After.Self), changed(f.Change),
			instructions(f.Before.Whole), instructions(f.After.Whole), changed(f.After.Whole-f.Before.Whole))
	}
	t.add(fmt.Sprintf("%d others, unchanged", same), "", "", "", instructions(kept), instructions(kept), "0", "", "", "")
	t.add("all", "", "", "", instructions(p.Before), instructions(p.After), changed(p.After-p.Before), "", "", "")
	if p.Again != nil {
		word := "before again: each function executed the same"
		if *p.Again >= 0.005 {
			word = fmt.Sprintf("before again: its functions differ from the first by %s in all", instructions(*p.Again))
		}
		t.below = []string{word}
	}
	return t
}

// folding is how many operations a folded stack's number is of: it has to be a whole one.
const folding = 1000

// Folded writes the stacks of the profiles for flame graph tools, a line each, with the instructions
// of 1000 operations; of two results with those of both, as difffolded.pl writes them. Its error wraps
// refusal.ErrUsage where there is no profile.
func Folded(w io.Writer, results ...*result.Result) error {
	var order []string
	counts := map[string][]float64{}
	for i, r := range results {
		for _, of := range points(r) {
			p := of[0].Profile
			if p == nil {
				continue
			}
			stacks, self := p.Stacks()
			for n, s := range stacks {
				s = strings.ReplaceAll(Plain(of[0].Name), ";", ":") + ";" + s
				if counts[s] == nil {
					counts[s] = make([]float64, len(results))
					order = append(order, s)
				}
				counts[s][i] += p.PerOperation(folding * self[n])
			}
		}
	}
	if len(order) == 0 {
		return refusal.Usage("no result has a profile; make one by aossim vm --profile")
	}
	for _, s := range order {
		line := s
		for _, n := range counts[s] {
			line += fmt.Sprintf(" %.0f", n)
		}
		if _, err := io.WriteString(w, line+"\n"); err != nil {
			return err
		}
	}
	return nil
}
