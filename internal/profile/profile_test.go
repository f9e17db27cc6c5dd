package profile

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"aossim/internal/result"
)

// x86 instructions.
const (
	nop     = "90"
	callRel = "e800000000"
	retNear = "c3"
	jmpRel  = "e900000000"
	syscall = "0f05"
	sysret  = "480f07"
	iret    = "48cf"
	thunk   = "e801000000" // a retpoline's call
)

// Where the functions of the test's kernel are; the program is the test itself.
const (
	entryCall = 0xffffffff81000000 + 0x1000*iota
	enter
	submit
	alloc
	free
	retpoline
	irq
	handler
	fault
	schedule
	switchTo
	switched
	idle
	cold
	timer
)

const symbolsOfTest = `ffffffff81000000 T entry_SYSCALL_64
ffffffff81001000 T __x64_sys_io_uring_enter
ffffffff81001000 t __se_sys_io_uring_enter
ffffffff81002000 t io_submit_sqes
ffffffff81003000 T __kmalloc_noprof
ffffffff81004000 T kfree
ffffffff81005000 T __x86_indirect_thunk_rax
ffffffff81006000 T asm_sysvec_apic_timer_interrupt
ffffffff81007000 t hrtimer_interrupt
ffffffff81008000 T asm_exc_page_fault
ffffffff81009000 T schedule
ffffffff8100a000 T __switch_to_asm
ffffffff8100b000 T __switch_to
ffffffff8100c000 t do_idle
ffffffff8100d000 t io_submit_sqes.cold
ffffffff8100e000 t __pfx_other
ffffffff8100e000 D data
ffffffff8100e000 t ktimers
`

// step is an instruction that is executed.
type step struct {
	pc   uint64
	code string
}

// testSymbols are of a kernel as above and of this program.
func testSymbols(t *testing.T) *Symbols {
	t.Helper()
	s, err := NewSymbols(strings.NewReader(symbolsOfTest), "/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// inProgram is an address in a function of this program.
func inProgram(t *testing.T, s *Symbols) uint64 {
	t.Helper()
	f := s.program.LookupFunc("aossim/internal/profile.NewSymbols")
	if f == nil {
		t.Fatal("the program has no such function")
	}
	return f.Entry
}

// log writes steps as QEMU does.
func log(steps []step) string {
	var b strings.Builder
	seen := map[uint64]bool{}
	for _, s := range steps {
		if !seen[s.pc] {
			var code []string
			for i := 0; i < len(s.code); i += 2 {
				code = append(code, s.code[i:i+2])
			}
			fmt.Fprintf(&b, "----------------\nIN: \n0x%016x:  %-24s what    0x0\n\n", s.pc, strings.Join(code, " "))
			seen[s.pc] = true
		}
		fmt.Fprintf(&b, "Trace 0: 0x7f32d0cf6440 [0000000000000000/%016x/10c0c2b0/ff020201] \n", s.pc)
	}
	return b.String()
}

// operation is one: a system call with what lies within.
func operation(user uint64, within ...step) (steps []step) {
	steps = append(steps, step{user, nop}, step{user + 1, syscall}, step{entryCall, nop}, step{entryCall + 1, callRel}, step{enter, nop}, step{enter + 1, callRel}, step{submit, nop})
	steps = append(steps, within...)
	return append(steps, step{submit + 0x20, retNear}, step{enter + 6, retNear}, step{entryCall + 6, sysret}, step{user + 3, jmpRel})
}

// follow is the profile of so many operations, the same each.
func follow(t *testing.T, n int, within ...step) (*result.Profile, map[string]result.ProfileFunction) {
	t.Helper()
	s := testSymbols(t)
	var steps []step
	for range n {
		steps = append(steps, operation(inProgram(t, s), within...)...)
	}
	c := NewCode("amd64")
	text := log(steps)
	trace, err := c.Read(strings.NewReader(text), int64(len(text)))
	if err != nil || len(trace) != len(steps) {
		t.Fatalf("%d of %d instructions: %v", len(trace), len(steps), err)
	}
	p, err := Follow(trace, c, s, "io_uring_enter", 2)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]result.ProfileFunction{}
	for _, f := range p.Functions() {
		found[f.Function] = f
	}
	return p, found
}

// TestFollow: what each function executed, whatever way it was entered and left.
func TestFollow(t *testing.T) {
	in := func(pc uint64, codes ...string) (list []step) { // one behind the other
		for _, c := range codes {
			list = append(list, step{pc, c})
			pc += uint64(len(c) / 2)
		}
		return list
	}
	join := func(parts ...[]step) (list []step) {
		for _, p := range parts {
			list = append(list, p...)
		}
		return list
	}
	type want map[string][3]float64 // calls, own, with callees
	for name, c := range map[string]struct {
		within     []step
		want       want
		interrupts int64
		other      int64
	}{
		"nothing": {nil, want{"io_submit_sqes": {1, 2, 2}, "__x64_sys_io_uring_enter": {1, 3, 5}, "entry_SYSCALL_64": {1, 3, 8}, "aossim/internal/profile.NewSymbols": {0, 3, 11}}, 0, 0},
		"calls": {join(in(submit+1, callRel), in(alloc, nop, retNear), in(submit+6, callRel), in(free, nop, nop, retNear), in(submit+11, nop)),
			want{"io_submit_sqes": {1, 5, 10}, "__kmalloc_noprof": {1, 2, 2}, "kfree": {1, 3, 3}, "__x64_sys_io_uring_enter": {1, 3, 13}}, 0, 0},
		"tail call": {join(in(submit+1, callRel), in(alloc, nop, jmpRel), in(free, nop, retNear), in(submit+6, nop)),
			want{"io_submit_sqes": {1, 4, 8}, "__kmalloc_noprof": {1, 2, 4}, "kfree": {1, 2, 2}}, 0, 0},
		"unlikely part": {join(in(submit+1, jmpRel), in(cold, nop, jmpRel), in(submit+6, nop)), want{"io_submit_sqes": {1, 6, 6}}, 0, 0},
		"retpoline": {join(in(submit+1, callRel), in(retpoline, thunk), in(retpoline+6, nop, retNear), in(alloc, nop, retNear), in(submit+6, nop)),
			want{"io_submit_sqes": {1, 4, 9}, "__x86_indirect_thunk_rax": {1, 3, 5}, "__kmalloc_noprof": {1, 2, 2}}, 0, 0},
		"recursion": {join(in(submit+1, callRel), in(alloc, nop, callRel), in(alloc, nop, callRel), in(free, retNear), in(alloc+6, retNear), in(alloc+6, retNear), in(submit+6, nop)),
			want{"io_submit_sqes": {1, 4, 11}, "__kmalloc_noprof": {2, 6, 7}, "kfree": {1, 1, 1}}, 0, 0},
		"interrupt":                 {join(in(submit+1, nop), in(irq, nop, callRel), in(handler, nop, retNear), in(irq+6, iret), in(submit+2, nop)), want{"io_submit_sqes": {1, 4, 4}, "__x64_sys_io_uring_enter": {1, 3, 7}}, 5, 0},
		"interrupt in an interrupt": {join(in(submit+1, nop), in(irq, nop, callRel), in(handler, nop), in(irq, nop), in(irq+6, iret), in(handler+1, retNear), in(irq+6, iret), in(submit+2, nop)), want{"io_submit_sqes": {1, 4, 4}}, 7, 0},
		"interrupt that switches": {join(in(submit+1, nop), in(irq, nop, callRel), in(schedule, callRel), in(switchTo, jmpRel), in(switched, retNear), in(idle, nop, iret), in(timer, nop, callRel), in(switchTo, jmpRel), in(switched, retNear), in(schedule+5, retNear), in(irq+6, iret), in(submit+2, nop)),
			want{"io_submit_sqes": {1, 4, 4}}, 13, 0},
		"exception": {join(in(submit+1, nop), in(fault, nop, iret), in(submit+2, nop)), want{"io_submit_sqes": {1, 4, 6}, "asm_exc_page_fault": {1, 2, 2}}, 0, 0},
		// Another thread is that which does not return as this one: do_idle() called, and then this one's schedule().
		"sleep": {join(in(submit+1, callRel), in(schedule, callRel), in(switchTo, jmpRel), in(switched, retNear), in(idle+5, nop, callRel), in(schedule, callRel), in(switchTo, jmpRel), in(switched, retNear), in(schedule+5, retNear), in(submit+6, nop)),
			want{"io_submit_sqes": {1, 4, 8}, "schedule": {1, 2, 4}, "__switch_to_asm": {1, 1, 2}, "__switch_to": {1, 1, 1}}, 0, 5},
	} {
		t.Run(name, func(t *testing.T) {
			p, found := follow(t, 6, c.within...)
			if p.Operations != 8 || p.InterruptInstructions != 4*c.interrupts || p.OtherInstructions != 4*c.other {
				t.Errorf("%d operations, %d instructions of interrupts, %d of others", p.Operations, p.InterruptInstructions, p.OtherInstructions)
			}
			for f, w := range c.want {
				if g := found[f]; 2*g.Calls != w[0] || 2*g.Self != w[1] || 2*g.Whole != w[2] { // two operations a call
					t.Errorf("%s: %+v, want half of %v; all: %+v", f, g, w, found)
				}
			}
			var sum int64
			for _, n := range p.Nodes {
				sum += n.Self
			}
			if sum != p.Instructions || sum+p.InterruptInstructions+p.OtherInstructions != int64(4*(11+len(c.within))) {
				t.Errorf("%d instructions of %d, in functions %d", p.Instructions, 4*(11+len(c.within)), sum)
			}
		})
	}
}

// TestFew: a profile needs a whole call, and the code of all that was executed.
func TestFew(t *testing.T) {
	s := testSymbols(t)
	user := inProgram(t, s)
	for n, want := range map[int]string{0: "nothing was executed", 2: "too few"} {
		var steps []step
		for range n {
			steps = append(steps, operation(user)...)
		}
		c := NewCode("amd64")
		text := log(steps)
		trace, err := c.Read(strings.NewReader(text), int64(len(text)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Follow(trace, c, s, "io_uring_enter", 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d calls: %v", n, err)
		}
		if n > 0 {
			if _, err := Follow(append(trace, trace...), NewCode("amd64"), s, "io_uring_enter", 1); err == nil {
				t.Error("without the code of any instruction there is a profile")
			}
		}
	}
}

// TestRead: QEMU's log, with and without a disassembler, of both architectures, and where it ends.
func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		arch, log string
		trace     int
		at        uint64
		want      instruction
	}{
		"call":        {"amd64", log([]step{{0x10, callRel}, {0x20, nop}}), 2, 0x10, instruction{5, call}},
		"arm64":       {"arm64", "IN: \n0xffff800080010000:  94000010  bl       #0xffff800080010040\n\nTrace 0: 0x7f [00000000/ffff800080010000/1/2] x\n", 1, 0xffff800080010000, instruction{4, call}},
		"arm64 eret":  {"arm64", "0xffff800080010000:  d69f03e0  eret     \nTrace 0: 0x7f [00000000/ffff800080010000/1/2] \n", 1, 0xffff800080010000, instruction{4, back}},
		"bytes":       {"amd64", "IN: \nOBJD-T: e800000000\n\nTrace 0: 0x7f [0/10/1/2] \n", 1, 0x10, instruction{5, call}},
		"interrupted": {"amd64", log([]step{{0x10, nop}, {0x11, nop}}) + "Stopped execution of TB chain before 0x7f32 [0000000000000011] \n", 1, 0x11, instruction{1, plain}},
		"other lines": {"amd64", "cpu_io_recompile: rewound execution of TB to 10\n0xzz: 90\n" + log([]step{{0x10, nop}}), 1, 0x10, instruction{1, plain}},
	} {
		code := NewCode(c.arch)
		trace, err := code.Read(strings.NewReader(c.log), int64(len(c.log)))
		if err != nil || len(trace) != c.trace || code.at[c.at] != c.want {
			t.Errorf("%s: %d instructions, %+v, %v", name, len(trace), code.at[c.at], err)
		}
	}
	first := log([]step{{0x10, nop}})
	both := first + log([]step{{0x20, nop}})
	code := NewCode("amd64")
	if trace, err := code.Read(strings.NewReader(both), int64(len(first))); err != nil || len(trace) != 1 || code.at[0x20].size != 1 {
		t.Errorf("%x, %v: the trace ends, code does not", trace, err)
	}
	if _, err := code.Read(strings.NewReader("Trace 1: 0x7f [0/10/1/2] \n"), 100); err == nil {
		t.Error("another CPU is no error")
	}
}

// TestVectors: of arm64's vectors those of interrupts are told from those of exceptions.
func TestVectors(t *testing.T) {
	f := &function{start: 0xffff800080010800, entry: byVector}
	for offset, want := range map[uint64][2]bool{0x200: {false, true}, 0x280: {true, false}, 0x300: {true, false}, 0x400: {false, true}, 0x480: {true, false}, 0x484: {false, false}} {
		if pc := f.start + offset; interrupts(f, pc) != want[0] || faults(f, pc) != want[1] {
			t.Errorf("%#x: %t, %t", offset, interrupts(f, pc), faults(f, pc))
		}
	}
}

// TestSymbols: of several names for one address the plainest; hidden addresses are an error.
func TestSymbols(t *testing.T) {
	s := testSymbols(t)
	for pc, want := range map[uint64]string{enter + 5: "__x64_sys_io_uring_enter", cold: "io_submit_sqes", timer + 1: "ktimers", 0xffff800000000000: s.outside.name, 0x1: s.outside.name} {
		if f := s.at(pc); f.name != want {
			t.Errorf("%#x is %s, want %s", pc, f.name, want)
		}
	}
	if _, err := NewSymbols(strings.NewReader("0000000000000000 T kfree\n"), "/proc/self/exe"); err == nil || !strings.Contains(err.Error(), "kptr_restrict") {
		t.Errorf("hidden ones: %v", err)
	}
	if _, err := NewSymbols(strings.NewReader(symbolsOfTest), "/bin/true"); err == nil {
		t.Error("a program that is none of Go's has functions")
	}
	if _, err := NewSymbols(strings.NewReader(symbolsOfTest), "/no/such"); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// TestCalls: as many as can be traced, and enough for a profile.
func TestCalls(t *testing.T) {
	for each, want := range map[float64]int{2000: 128 + ends, 60_000: 4 + ends, 1e7: 4 + ends} {
		if got := Calls(each); got != want {
			t.Errorf("%g instructions each: %d calls, want %d", each, got, want)
		}
	}
}
