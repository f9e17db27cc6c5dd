package compare

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"aossim/internal/result"
)

// Profile is where the instructions of a point went before and after, function by function. All
// figures are instructions for one operation.
type Profile struct {
	Point     string           `json:"point"`
	Unit      string           `json:"unit"`
	Before    float64          `json:"before"`
	After     float64          `json:"after"`
	Functions []FunctionChange `json:"functions"` // the largest change of its own first
	// Again is how far, in all functions, the profile of before again is off the first: 0 where they are the same;
	// nil without one.
	Again *float64 `json:"before_again_differs_by,omitempty"`
}

// FunctionChange is a function before and after, zero where it executed nothing.
type FunctionChange struct {
	Function string                 `json:"function"`
	Kernel   bool                   `json:"kernel"`
	Before   result.ProfileFunction `json:"before"`
	After    result.ProfileFunction `json:"after"`
	Change   float64                `json:"change"` // of its own instructions
}

// profiles compares those of the points that have one on both sides: the first of each.
func profiles(before, after, again []*result.Result) (list []Profile) {
	a, b, a2 := profiled(before), profiled(after), profiled(again)
	for _, m := range a {
		n := named(b, m.Name)
		if n == nil {
			continue
		}
		p := Profile{Point: m.Name, Unit: m.Unit, Before: m.Profile.PerOperation(m.Profile.Instructions), After: n.Profile.PerOperation(n.Profile.Instructions)}
		p.Functions = functionChanges(m.Profile, n.Profile)
		if o := named(a2, m.Name); o != nil {
			off := 0.0
			for _, f := range functionChanges(m.Profile, o.Profile) {
				off += math.Abs(f.Change)
			}
			p.Again = &off
		}
		list = append(list, p)
	}
	return list
}

// profiled are the points with a profile, the first of each name.
func profiled(results []*result.Result) (list []*result.Micro) {
	for _, r := range results {
		for i := range r.Runs {
			for j := range r.Runs[i].Micro {
				if m := &r.Runs[i].Micro[j]; m.Profile != nil && named(list, m.Name) == nil {
					list = append(list, m)
				}
			}
		}
	}
	return list
}

func named(list []*result.Micro, name string) *result.Micro {
	if at := slices.IndexFunc(list, func(m *result.Micro) bool { return m.Name == name }); at >= 0 {
		return list[at]
	}
	return nil
}

func functionChanges(before, after *result.Profile) (list []FunctionChange) {
	at := map[result.ProfileFunction]int{}
	place := func(f result.ProfileFunction) *FunctionChange {
		key := result.ProfileFunction{Function: f.Function, Kernel: f.Kernel}
		if _, ok := at[key]; !ok {
			at[key] = len(list)
			list = append(list, FunctionChange{Function: f.Function, Kernel: f.Kernel, Before: key, After: key})
		}
		return &list[at[key]]
	}
	for _, f := range before.Functions() {
		place(f).Before = f
	}
	for _, f := range after.Functions() {
		place(f).After = f
	}
	for i := range list {
		list[i].Change = list[i].After.Self - list[i].Before.Self
	}
	slices.SortStableFunc(list, func(a, b FunctionChange) int {
		return cmp.Or(cmp.Compare(math.Abs(b.Change), math.Abs(a.Change)), cmp.Compare(b.Before.Self, a.Before.Self), strings.Compare(a.Function, b.Function))
	})
	return list
}
