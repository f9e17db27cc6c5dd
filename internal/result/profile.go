package result

import (
	"cmp"
	"slices"
	"strings"
)

// Profile is what the thread of a point executed in some of its operations, function by function. Code
// that is inlined is that of the function which it is inlined in.
type Profile struct {
	Operations   int64 `json:"operations"`
	Instructions int64 `json:"instructions"` // of the thread, in all of them
	// What interrupts executed meanwhile, and threads to which they or the thread switched, is no part of it.
	Interrupts            int64 `json:"interrupts"`
	InterruptInstructions int64 `json:"interrupt_instructions"`
	OtherInstructions     int64 `json:"other_instructions"`
	// Nodes are functions by whom they were called, those before what they call.
	Nodes []ProfileNode `json:"nodes"`
}

// Traced is what the clock has of the round that a profile is of.
type Traced struct {
	Figure     float64 `json:"figure"`     // as those of Rounds
	Interrupts float64 `json:"interrupts"` // share of virtual time that interrupts take, seen by a loop that reads the clock
}

// ProfileNode is a function with all that it was called through.
type ProfileNode struct {
	Function string `json:"function"`
	Kernel   bool   `json:"kernel"`
	Parent   int    `json:"parent"` // place of who called it, or jumped to it; -1 for none
	Self     int64  `json:"self"`   // instructions, without those of what it called
	Calls    int64  `json:"calls"`
}

// ProfileFunction is a function, by whomever it was called. All figures are for one operation.
type ProfileFunction struct {
	Function string  `json:"function"`
	Kernel   bool    `json:"kernel"`
	Self     float64 `json:"self"`  // instructions of its own
	Whole    float64 `json:"whole"` // and of what it called
	Calls    float64 `json:"calls"`
}

// PerOperation is so many of all operations for one.
func (p *Profile) PerOperation(n int64) float64 { return float64(n) / float64(max(1, p.Operations)) }

// Wholes are the instructions of each node and of those below it.
func (p *Profile) Wholes() []int64 {
	whole := make([]int64, len(p.Nodes))
	for i := len(p.Nodes) - 1; i >= 0; i-- {
		n := &p.Nodes[i]
		if whole[i] += n.Self; n.Parent >= 0 && n.Parent < i { // as decoded ones are
			whole[n.Parent] += whole[i]
		}
	}
	return whole
}

// Functions are those of the profile, those with the most instructions of their own first.
func (p *Profile) Functions() (list []ProfileFunction) {
	at := map[ProfileFunction]int{}
	for i, whole := range p.Wholes() {
		n := &p.Nodes[i]
		key := ProfileFunction{Function: n.Function, Kernel: n.Kernel}
		place, ok := at[key]
		if !ok {
			place = len(list)
			at[key], list = place, append(list, key)
		}
		f := &list[place]
		f.Self += p.PerOperation(n.Self)
		f.Calls += p.PerOperation(n.Calls)
		if !p.within(i) {
			f.Whole += p.PerOperation(whole)
		}
	}
	slices.SortStableFunc(list, func(a, b ProfileFunction) int {
		return cmp.Or(cmp.Compare(b.Self, a.Self), cmp.Compare(b.Whole, a.Whole), cmp.Compare(a.Function, b.Function))
	})
	return list
}

// within says whether a node is one of a function that called itself: what it executed is counted
// with the outer one.
func (p *Profile) within(i int) bool {
	n := &p.Nodes[i]
	for at := n.Parent; at >= 0; at = p.Nodes[at].Parent {
		if o := &p.Nodes[at]; o.Function == n.Function && o.Kernel == n.Kernel {
			return true
		}
	}
	return false
}

// KernelSuffix marks functions of the kernel in stacks, as perf script has it.
const KernelSuffix = "_[k]"

// Stacks are the functions through which each node was called, itself last, joined by ";", and the
// node's own instructions, for all operations.
func (p *Profile) Stacks() (stacks []string, self []int64) {
	all := make([]string, len(p.Nodes))
	for i := range p.Nodes {
		n := &p.Nodes[i]
		name := strings.ReplaceAll(n.Function, ";", ":")
		if n.Kernel {
			name += KernelSuffix
		}
		if all[i] = name; n.Parent >= 0 {
			all[i] = all[n.Parent] + ";" + name
		}
		if n.Self > 0 {
			stacks, self = append(stacks, all[i]), append(self, n.Self)
		}
	}
	return stacks, self
}

// fault says what is wrong with a profile that was read; "" for nothing.
func (p *Profile) fault() string {
	if p == nil {
		return ""
	}
	var sum int64
	for i, n := range p.Nodes {
		if n.Parent < -1 || n.Parent >= i {
			return "a function that was called by one behind it"
		}
		if n.Self < 0 || n.Calls < 0 {
			return "negative instructions"
		}
		sum += n.Self
	}
	if sum != p.Instructions || p.Operations < 1 {
		return "a profile whose functions are not its sum"
	}
	return ""
}

// profileFault is the first one of all profiles of a result that was read.
func (r *Result) profileFault() string {
	for i := range r.Runs {
		for j := range r.Runs[i].Micro {
			if fault := r.Runs[i].Micro[j].Profile.fault(); fault != "" {
				return fault
			}
		}
	}
	return ""
}
