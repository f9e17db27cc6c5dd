package result

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// recursive is a profile of two operations, in which a function calls itself and a function of the
// program has the name of one of the kernel.
func recursive() *Profile {
	return &Profile{Operations: 2, Instructions: 20, Nodes: []ProfileNode{
		{"main", false, -1, 2, 0}, {"f", true, 0, 4, 2}, {"g", true, 1, 6, 4}, {"f", true, 2, 2, 2}, {"f", false, 0, 6, 1},
	}}
}

// TestFunctions: a function's callees are counted once, whoever called it.
func TestFunctions(t *testing.T) {
	want := []ProfileFunction{
		{"f", true, 3, 6, 2}, {"g", true, 3, 4, 2}, {"f", false, 3, 3, 0.5}, {"main", false, 1, 10, 0},
	}
	if got := recursive().Functions(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	stacks, self := recursive().Stacks()
	if !reflect.DeepEqual(stacks, []string{"main", "main;f_[k]", "main;f_[k];g_[k]", "main;f_[k];g_[k];f_[k]", "main;f"}) || !reflect.DeepEqual(self, []int64{2, 4, 6, 2, 6}) {
		t.Errorf("%q, %d", stacks, self)
	}
}

// TestProfileFaults: what no program wrote is refused, before anybody walks it.
func TestProfileFaults(t *testing.T) {
	for name, change := range map[string]func(p *Profile){
		"itself":     func(p *Profile) { p.Nodes[2].Parent = 2 },
		"behind":     func(p *Profile) { p.Nodes[1].Parent = 4 },
		"nowhere":    func(p *Profile) { p.Nodes[1].Parent = -2 },
		"negative":   func(p *Profile) { p.Nodes[1].Self, p.Nodes[2].Self = -1, 11 },
		"sum":        func(p *Profile) { p.Instructions++ },
		"operations": func(p *Profile) { p.Operations = 0 },
		"":           func(*Profile) {},
	} {
		p := recursive()
		change(p)
		r := &Result{Schema: Schema, Started: "2026-12-03T12:00:00Z", Scenario: Scenario{Name: "x"}, Environment: Environment{KernelRelease: "7"}, Runs: []Run{{Micro: []Micro{{Name: "p", Profile: p}}}}}
		var b bytes.Buffer
		if err := r.Encode(&b); err != nil {
			t.Fatal(err)
		}
		if _, err := Decode("x", b.Bytes()); (err == nil) != (name == "") || err != nil && !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
