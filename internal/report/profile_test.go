package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"aossim/internal/compare"
	"aossim/internal/refusal"
	"aossim/internal/result"
)

// profiled is a result with a profile, in which alloc executed so many instructions of its own.
func profiled(image string, alloc int64) *result.Result {
	r := microFixture(1)
	r.Environment.Image, r.Environment.BootID, r.Environment.Clock = image, image, result.ClockInstructions
	m := &r.Runs[0].Micro[0]
	m.Unit, m.Checks = "instructions/wait", nil
	m.Profile = &result.Profile{Operations: 4, Instructions: 48 + alloc, Interrupts: 1, InterruptInstructions: 5000, Nodes: []result.ProfileNode{
		{Function: "main.<loop>", Parent: -1, Self: 8}, {Function: "io_futex_wait", Kernel: true, Parent: 0, Self: 40, Calls: 4},
	}}
	if alloc > 0 {
		m.Profile.Nodes = append(m.Profile.Nodes, result.ProfileNode{Function: "__kmalloc_noprof", Kernel: true, Parent: 1, Self: alloc, Calls: 4})
	}
	return r
}

// TestProfile: the tables, the difference and the stacks of a profile.
func TestProfile(t *testing.T) {
	var text, folded, both, difference, markdown bytes.Buffer
	before, after := profiled("a", 12), profiled("b", 0)
	c, err := compare.Compare([]*result.Result{before}, []*result.Result{after}, []*result.Result{profiled("c", 16)}, compare.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{Text(&text, before), Folded(&folded, before), Folded(&both, before, after), Comparison(&difference, c), ComparisonMarkdown(&markdown, c)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "profile.txt", text.Bytes()[bytes.Index(text.Bytes(), []byte("one by one: where")):bytes.Index(text.Bytes(), []byte("checks"))])
	golden(t, "profile-difference.txt", difference.Bytes()[bytes.Index(difference.Bytes(), []byte("one by one: where")):])
	golden(t, "profile-difference.md", markdown.Bytes()[bytes.Index(markdown.Bytes(), []byte("one by one: where")):])
	if want := "one by one;main.<loop> 2000\none by one;main.<loop>;io_futex_wait_[k] 10000\none by one;main.<loop>;io_futex_wait_[k];__kmalloc_noprof_[k] 3000\n"; folded.String() != want {
		t.Errorf("%q, want %q", &folded, want)
	}
	if want := "one by one;main.<loop>;io_futex_wait_[k];__kmalloc_noprof_[k] 3000 0\n"; !strings.HasSuffix(both.String(), want) {
		t.Errorf("%q, want %q", &both, want)
	}
	if err := Folded(&folded, microFixture(1)); !errors.Is(err, refusal.ErrUsage) {
		t.Errorf("no profile: %v", err)
	}
}

// TestFlame: what went is blue in the graph of before, and each function is as wide as it executed.
func TestFlame(t *testing.T) {
	before := profiled("a", 12)
	alone, beside := string(flames(before, nil, true)[0].SVG), string(flames(before, profiled("b", 0), true)[0].SVG)
	for _, want := range []string{`data-n="__kmalloc_noprof"`, "main.&lt;loop&gt;", "3 instructions (20.0 %), own 3, calls 1", `data-w="200.000"`} {
		if !strings.Contains(alone, want) {
			t.Errorf("no %q in %s", want, alone)
		}
	}
	if blue := difference(-3, 3); !strings.Contains(beside, blue) || strings.Contains(alone, blue) || !strings.Contains(beside, "own in the other result 0") {
		t.Errorf("%s: %s", blue, beside)
	}
	if red := difference(3, 3); !strings.Contains(string(flames(before, profiled("b", 0), false)[0].SVG), red) {
		t.Errorf("what came is not %s", red)
	}
	if difference(3, 3) == difference(-3, 3) || difference(0, 3) != difference(0, 0) || difference(1, 3) == difference(3, 3) {
		t.Error("differences have one colour")
	}
}
