// Package profile finds out where the instructions of an operation went: it follows what a CPU
// executed from function to function. What was executed comes from an emulator's log (Code.Read),
// functions from the guest's kernel and the program (NewSymbols).
package profile

import (
	"errors"
	"fmt"

	"aossim/internal/result"
)

// Follow returns the profile of the operations that a thread does one after the other, perCall by each
// system call of a name. Calls at the ends of t, which may not be whole, are left out; of
// the others as many are taken as the largest power of two, so that profiles are of as many. Its error says
// why there is none.
func Follow(t Trace, c *Code, s *Symbols, call string, perCall int) (*result.Profile, error) {
	if len(t) == 0 {
		return nil, errors.New("nothing was executed")
	}
	calls := systemCalls(t, c, s, call)
	n := 1
	for 2*n <= len(calls)-ends {
		n *= 2
	}
	if len(calls)-ends < n {
		return nil, fmt.Errorf("of %d instructions only %d are system calls %s; there are too few for a profile", len(t), len(calls), call)
	}
	for _, pc := range t[calls[0] : calls[n+1]+1] {
		if _, ok := c.at[pc]; !ok {
			return nil, fmt.Errorf("the instruction at %#x was executed and not logged", pc)
		}
	}
	w := walk{trace: t, code: c, symbols: s}
	w.follow(calls[0], calls[n+1])
	return w.profile(calls[1], calls[n+1], int64(n)*int64(perCall))
}

// ends is how many calls at the ends of a round are no part of a profile.
const ends = 2

// Calls is how many system calls a round has of which a profile is made, where each takes so many
// instructions: some 300,000 in all can be traced in a second.
func Calls(each float64) int {
	const instructions, least = 300_000, 4
	n := least
	for float64(2*n)*each <= instructions {
		n *= 2
	}
	return n + ends
}

// systemCalls are the places in t of the instructions that enter the kernel for a system call.
func systemCalls(t Trace, c *Code, s *Symbols, call string) (places []int) {
	// The kernel's functions: arch/x86/include/asm/syscall_wrapper.h, arch/arm64/include/asm/syscall_wrapper.h.
	names := map[string]bool{"__x64_sys_" + call: true, "__arm64_sys_" + call: true}
	last := -1
	for i, pc := range t {
		if pc>>63 == 0 {
			if c.at[pc].kind == system {
				last = i
			}
			continue
		}
		if f := s.at(pc); f.start == pc && last >= 0 && names[f.name] {
			places = append(places, last)
			last = -1
		}
	}
	return places
}

// frame is a function that was entered and not left.
type frame struct {
	node int
	f    *function
	back uint64 // where it returns to; 0 where it was not called
	how  how
}

// how a function was entered.
type how uint8

const (
	called  how = iota
	jumped      // to which its caller's caller is returned to, as a tail call
	faulted     // by an exception
)

// node is a function with those that it was called by.
type node struct {
	f      *function
	parent int
	child  map[*function]int
}

// walk follows a trace.
type walk struct {
	trace   Trace
	code    *Code
	symbols *Symbols

	nodes []node
	stack []frame
	in    []int32 // by place in the trace: the node, or what is left out
	calls []entered
	from  int // in the trace, where in begins
	irqs  []int
}

// entered is a call.
type entered struct{ place, node int }

// What is left out of a profile, instead of a node.
const (
	interrupt int32 = -1
	another   int32 = -2 // thread
)

// follow follows the thread that executes the instruction at from, up to to.
func (w *walk) follow(from, to int) {
	w.from, w.in = from, make([]int32, to-from)
	w.enter(from, w.symbols.at(w.trace[from]), 0, called)
	w.mark(from)
	for i := from + 1; i < to; {
		i = w.step(i, to)
	}
}

func (w *walk) mark(i int) { w.in[i-w.from] = int32(w.top().node) }

func (w *walk) top() *frame { return &w.stack[len(w.stack)-1] }

// enter puts a function on the stack.
func (w *walk) enter(i int, f *function, back uint64, how how) {
	parent := -1
	if len(w.stack) > 0 {
		parent = w.top().node
	}
	at := -1
	if parent >= 0 {
		if n, ok := w.nodes[parent].child[f]; ok {
			at = n
		}
	}
	if at < 0 {
		at = len(w.nodes)
		w.nodes = append(w.nodes, node{f, parent, map[*function]int{}})
		if parent >= 0 {
			w.nodes[parent].child[f] = at
		}
	}
	w.calls = append(w.calls, entered{i, at})
	w.stack = append(w.stack, frame{at, f, back, how})
}

// step follows what lies between the instruction before i and that at i, and returns the place
// of the next one to look at.
func (w *walk) step(i, to int) int {
	before, pc := w.trace[i-1], w.trace[i]
	was, f := w.code.at[before], w.symbols.at(pc)
	switch {
	case interrupts(f, pc):
		return w.skipInterrupt(i, to)
	case faults(f, pc) && was.kind != system && w.top().f != f:
		w.enter(i, f, 0, faulted)
	default:
		w.proceed(i, was, before+uint64(was.size), pc, f)
	}
	w.mark(i)
	if w.leaves(i) {
		return w.skipThreads(i, to)
	}
	return i + 1
}

// proceed follows an instruction of the thread to the next: next is where it would be without a jump.
func (w *walk) proceed(i int, was instruction, next, pc uint64, f *function) {
	switch was.kind {
	case call, system:
		if pc == next && was.kind == call { // the address is taken so: call to the next instruction
			return
		}
		if f == w.top().f && pc != f.start { // within a retpoline
			w.stack = append(w.stack, frame{w.top().node, f, next, called})
			return
		}
		w.enter(i, f, next, called)
		return
	case ret, back:
		for at := len(w.stack) - 1; at >= 0; at-- {
			if fr := &w.stack[at]; fr.how == called && fr.back == pc || fr.how == faulted && was.kind == back {
				if w.stack = w.stack[:at]; len(w.stack) == 0 {
					w.enter(i, f, 0, called)
				} else if w.top().f != f {
					w.jump(i, f)
				}
				return
			}
		}
		if f.start != pc {
			if was.kind == ret && w.top().f == f { // a thunk's call, whose return address was replaced
				return
			}
			// Below where the trace began.
			w.stack = w.stack[:0]
			w.enter(i, f, 0, called)
			return
		}
		// A return to the start of a function is a jump: so do return trampolines (retpolines).
		if w.top().how == called && len(w.stack) > 1 && w.stack[len(w.stack)-2].f == w.top().f {
			w.stack = w.stack[:len(w.stack)-1]
		}
	}
	if w.top().f != f {
		w.jump(i, f)
	}
}

// jump goes to another function without a call: it returns to who called the one that jumped.
func (w *walk) jump(i int, f *function) {
	for at := len(w.stack) - 1; at >= 0; at-- {
		if w.stack[at].f == f { // back, as between parts of an entry in assembly
			w.stack = w.stack[:at+1]
			return
		}
		if w.stack[at].how != jumped {
			break
		}
	}
	w.enter(i, f, 0, jumped)
}

// Offsets of arm64's vectors (arch/arm64/kernel/entry.S): four kinds for each of four states.
const vectorSize, vectorKinds, vectorsOfState = 0x80, 4, 0x200

// interrupts says whether an interrupt enters the kernel at pc.
func interrupts(f *function, pc uint64) bool {
	switch f.entry {
	case byInterrupt:
		return pc == f.start || f.name == "irq_entries_start" || f.name == "spurious_entries_start"
	case byVector:
		off := pc - f.start
		return off%vectorSize == 0 && off/vectorSize%vectorKinds != 0
	}
	return false
}

// faults says whether an exception enters the kernel at pc.
func faults(f *function, pc uint64) bool {
	switch f.entry {
	case byException:
		return pc == f.start
	case byVector:
		off := pc - f.start
		return off%vectorSize == 0 && off/vectorSize%vectorKinds == 0
	}
	return false
}

// skipInterrupt leaves out what an interrupt executed, that of threads to which it switched too, up to
// where the thread goes on.
func (w *walk) skipInterrupt(i, to int) int {
	w.irqs = append(w.irqs, i)
	last := w.trace[i-1]
	was := w.code.at[last]
	next := last + uint64(was.size)
	depth := 0
	for ; i < to; i++ {
		pc, before := w.trace[i], w.trace[i-1]
		f := w.symbols.at(pc)
		if interrupts(f, pc) || faults(f, pc) {
			depth++
		}
		if w.code.at[before].kind == back {
			// Threads to which it switched may return from interrupts that began before.
			if depth = max(0, depth-1); w.goesOn(last, pc, depth) {
				w.proceed(i, was, next, pc, f)
				w.mark(i)
				return i + 1
			}
		}
		w.in[i-w.from] = interrupt
	}
	return to
}

// sameReturns is how many returns tell a thread: what lies above them on the stack all have.
const sameReturns = 6

// skipThreads leaves out what other threads execute, from behind i up to where the thread goes on: that
// whose returns are those of its stack.
func (w *walk) skipThreads(i, to int) int {
	for begin := i + 1; begin < to; {
		if w.returns(begin, to) {
			before := w.trace[begin-1]
			was := w.code.at[before]
			w.proceed(begin, was, before+uint64(was.size), w.trace[begin], w.symbols.at(w.trace[begin]))
			w.mark(begin)
			return begin + 1
		}
		for left := false; begin < to && !left; begin++ {
			w.in[begin-w.from] = another
			left = w.leaves(begin)
		}
	}
	return to
}

// goesOn says whether a thread that an interrupt stopped behind the instruction at last goes on at pc, after
// a return from it or, at a depth, from one in it.
func (w *walk) goesOn(last, pc uint64, depth int) bool {
	was, f := w.code.at[last], w.symbols.at(pc)
	switch {
	case pc == last+uint64(was.size):
		return true
	case was.kind == plain || depth > 0:
		return false
	case was.kind == jump:
		return f == w.symbols.at(last) || f.start == pc
	}
	return true
}

// leaves says whether the instruction at i is the last one of a thread that switches to another.
func (w *walk) leaves(i int) bool {
	f := w.symbols.at(w.trace[i])
	if f.entry != bySwitch || i+1 >= len(w.trace) || w.symbols.at(w.trace[i+1]) == f {
		return false
	}
	k := w.code.at[w.trace[i]].kind
	return k == ret || k == jump
}

// returns says whether the thread that executes from begin on returns as the stack has it.
func (w *walk) returns(begin, to int) bool {
	var own []uint64 // where calls since begin return to
	matched, at := 0, len(w.stack)-1
	for i := begin; i < to; i++ {
		before, pc := w.trace[i-1], w.trace[i]
		switch was := w.code.at[before]; {
		case interrupts(w.symbols.at(pc), pc):
			return false
		case was.kind == call && i > begin:
			own = append(own, before+uint64(was.size))
		case was.kind != ret && was.kind != back:
		case len(own) > 0:
			if own[len(own)-1] == pc {
				own = own[:len(own)-1]
			}
		default:
			for at >= 0 && w.stack[at].how == jumped {
				at--
			}
			if at < 0 || w.stack[at].back != pc {
				return false
			}
			at--
			if matched++; matched == sameReturns || pc>>63 == 0 {
				return true
			}
		}
	}
	return false
}

// profile is that of the instructions from one place up to another.
func (w *walk) profile(from, to int, operations int64) (*result.Profile, error) {
	p := &result.Profile{Operations: operations}
	self, calls := make([]int64, len(w.nodes)), make([]int64, len(w.nodes))
	for i := from; i < to; i++ {
		switch n := w.in[i-w.from]; n {
		case interrupt:
			p.InterruptInstructions++
		case another:
			p.OtherInstructions++
		default:
			self[n]++
			p.Instructions++
		}
	}
	for _, c := range w.calls {
		if c.place >= from && c.place < to {
			calls[c.node]++
		}
	}
	for _, i := range w.irqs {
		if i >= from && i < to {
			p.Interrupts++
		}
	}
	// Only those that executed something, or call one that did.
	used := make([]bool, len(w.nodes))
	for n := range w.nodes {
		for at := n; self[n] > 0 && at >= 0 && !used[at]; at = w.nodes[at].parent {
			used[at] = true
		}
	}
	place := make([]int, len(w.nodes))
	for n, x := range w.nodes {
		if !used[n] {
			continue
		}
		parent := -1
		if x.parent >= 0 {
			parent = place[x.parent]
		}
		place[n] = len(p.Nodes)
		p.Nodes = append(p.Nodes, result.ProfileNode{Function: x.f.name, Kernel: x.f.kernel, Parent: parent, Self: self[n], Calls: calls[n]})
	}
	return p, nil
}
