package profile

import (
	"bufio"
	"cmp"
	"debug/elf"
	"debug/gosym"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// function is a symbol's, of the kernel or of the program.
type function struct {
	start  uint64
	name   string
	kernel bool
	entry  entry
	whole  *function // of which it is the unlikely part, elsewhere; nil where it is no part
}

// entry is what a function of the kernel is entered for, where that is not a call.
type entry uint8

const (
	byCall      entry = iota
	byInterrupt       // of no concern to what was executing
	byException       // such as a page fault, which what was executing caused
	byVector          // of arm64: which one, its offset says
	bySwitch          // to another thread
	bySystem          // call
)

// Symbols are the functions of a kernel and of the program that ran on it.
type Symbols struct {
	kernel  []function // by address
	program *gosym.Table
	known   map[uint64]*function // of the program's, by their start
	outside function             // what is neither
}

// NewSymbols reads /proc/kallsyms as a guest had it, and the functions of a program in Go (ELF,
// not position-independent).
func NewSymbols(kallsyms io.Reader, program string) (*Symbols, error) {
	s := &Symbols{known: map[uint64]*function{}, outside: function{name: "[vdso or library]"}}
	lines := bufio.NewScanner(kallsyms)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 3 || !strings.Contains("tTwW", f[1]) || strings.HasPrefix(f[2], "__pfx_") {
			continue
		}
		start, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil || start>>63 == 0 {
			continue // absolute ones; and all are 0 to who may not see them
		}
		s.kernel = append(s.kernel, function{start: start, name: f[2], kernel: true, entry: entryOf(f[2])})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(s.kernel) == 0 {
		return nil, fmt.Errorf("the guest's /proc/kallsyms has no address of a function: its kernel is without CONFIG_KALLSYMS, or hides them (kernel.kptr_restrict)")
	}
	// Of several names of one address the same is taken each time: one that matters, or the plainest.
	slices.SortFunc(s.kernel, func(a, b function) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.entry, a.entry), cmp.Compare(underscores(a.name), underscores(b.name)), cmp.Compare(a.name, b.name))
	})
	s.kernel = slices.CompactFunc(s.kernel, func(a, b function) bool { return a.start == b.start })
	names := map[string]*function{}
	for i := range s.kernel {
		names[s.kernel[i].name] = &s.kernel[i]
	}
	for i := range s.kernel {
		if whole, is := strings.CutSuffix(s.kernel[i].name, ".cold"); is {
			s.kernel[i].whole = names[whole]
		}
	}
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, table := f.Section(".text"), f.Section(".gopclntab")
	if f.Type != elf.ET_EXEC || text == nil || table == nil {
		return nil, fmt.Errorf("%s: its functions cannot be told; build it by go build, without -buildmode", program)
	}
	data, err := table.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	s.program, err = gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
	return s, err
}

func underscores(name string) int { return len(name) - len(strings.TrimLeft(name, "_")) }

// entryOf is how functions of these names are entered: arch/x86/include/asm/idtentry.h,
// arch/x86/entry/entry_64.S; arch/arm64/kernel/entry.S.
func entryOf(name string) entry {
	switch {
	case strings.HasPrefix(name, "asm_sysvec_"), strings.HasPrefix(name, "asm_common_interrupt"), strings.HasPrefix(name, "asm_spurious_interrupt"), name == "irq_entries_start", name == "spurious_entries_start", name == "asm_exc_nmi":
		return byInterrupt
	case strings.HasPrefix(name, "asm_exc_"):
		return byException
	case name == "vectors", name == "tramp_vectors", name == "__bp_harden_el1_vectors":
		return byVector
	case name == "__switch_to_asm", name == "cpu_switch_to":
		return bySwitch
	case strings.HasPrefix(name, "__x64_sys_"), strings.HasPrefix(name, "__arm64_sys_"):
		return bySystem
	}
	return byCall
}

// at returns the function at an address. It is the same one for all addresses of a function.
func (s *Symbols) at(pc uint64) *function {
	if pc>>63 != 0 {
		i, found := slices.BinarySearchFunc(s.kernel, pc, func(f function, pc uint64) int { return cmp.Compare(f.start, pc) })
		if !found {
			i--
		}
		if i < 0 {
			return &s.outside
		}
		return cmp.Or(s.kernel[i].whole, &s.kernel[i])
	}
	f := s.program.PCToFunc(pc)
	if f == nil {
		return &s.outside
	}
	if s.known[f.Entry] == nil {
		s.known[f.Entry] = &function{start: f.Entry, name: f.Name}
	}
	return s.known[f.Entry]
}
