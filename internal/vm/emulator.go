package vm

import (
	"cmp"
	"context"
	"crypto/rand"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"aossim/internal/machine"
	"aossim/internal/refusal"
	"aossim/internal/result"
)

// Clock is what time is in a guest.
type Clock string

// Instructions: the guest's clock counts them (result.ClockInstructions), and all that makes two
// boots differ is fixed. Host: it is the host's.
const (
	Instructions Clock = result.ClockInstructions
	Host         Clock = "host"
)

// epoch is when the clock of a guest in virtual time begins: the fraction of a second in which the
// kernel reads it decides where ticks fall.
var epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// emulator is QEMU for one architecture, and this program as a build for it.
type emulator struct {
	arch    string // as GOARCH has it
	path    string
	version string
	kvm     bool
	virtual bool
	program string // "" is the one that runs
	warning string
}

// board is what QEMU has for an architecture. model is named, as "max" is another CPU with another
// version of QEMU; fast is the quickest one where only time is at stake.
type board struct {
	qemu, pkg, machine, fast, model, console string
	exact                                    []string // arguments of the kernel with which its clock is exact
}

var boards = map[string]board{
	// QEMU's time stamp counter counts instructions: its frequency is known, and not to be measured.
	"amd64": {"qemu-system-x86_64", "qemu-system-x86", "q35", "max", "EPYC-v3", "ttyS0", []string{"tsc_early_khz=1000000", "tsc=reliable", "clocksource=tsc"}},
	// A model without pointer authentication, which takes most of an emulator's time.
	"arm64": {"qemu-system-aarch64", "qemu-system-arm", "virt", "max,pauth-impdef=on", "cortex-a76", "ttyAMA0", []string{"clocksource=arch_sys_counter"}},
}

// newEmulator finds what it takes to boot kernels of k's architecture.
func newEmulator(ctx context.Context, o Options, k *kernel) (*emulator, error) {
	b := boards[k.arch]
	e := &emulator{arch: k.arch}
	var err error
	if e.path, err = exec.LookPath(cmp.Or(o.QEMU, b.qemu)); err != nil {
		return nil, fmt.Errorf("%w: %w; apt-get install %s, or name it with --qemu", refusal.ErrCannot, err, b.pkg)
	}
	if err := e.findProgram(o.Program, k.name); err != nil {
		return nil, err
	}
	e.version = "QEMU of an unknown version"
	if out, err := exec.Command(e.path, "--version").Output(); err == nil {
		if line, _, _ := strings.Cut(string(out), "\n"); line != "" {
			e.version = line
		}
	}
	// A /dev/kvm that can be opened may still not run a guest, as within another one.
	if o.Clock != Instructions && k.arch == runtime.GOARCH {
		if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
			f.Close()
			e.kvm = true
			e.kvm = e.try(ctx, o) == nil
		}
	}
	if e.kvm {
		return e, nil
	}
	if e.virtual = o.Clock != Host; e.virtual {
		if err := e.try(ctx, o); err != nil {
			// What it does not take at all is told from what it cannot do in virtual time.
			if e.virtual = false; o.Memory != "" && e.try(ctx, o) != nil {
				return nil, refusal.Usage("%s (%s) does not take --memory %s or --cpus %d, or cannot emulate at all: %w", e.path, e.version, o.Memory, o.CPUs, err)
			}
			return nil, refusal.Cannot("%s (%s) cannot count instructions: %w; use a QEMU with TCG, -icount and the CPU model %s, such as Debian's, or --clock host, which judges no times", e.path, e.version, err, b.model)
		}
	}
	return e, nil
}

// try starts a guest that is stopped at once.
func (e *emulator) try(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	args, _ := e.arguments(o, o.CPUs)
	cmd := exec.CommandContext(ctx, e.path, append(args, "-nodefaults", "-nographic", "-S", "-monitor", "stdio")...)
	// In a pipe beforehand: a write to who has ended would raise SIGPIPE.
	quit, say, err := os.Pipe()
	if err != nil {
		return err
	}
	defer quit.Close()
	_, err = say.WriteString("quit\n")
	if err := errors.Join(err, say.Close()); err != nil {
		return err
	}
	cmd.Stdin = quit
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%w: %s", err, cmp.Or(lines[len(lines)-1], "it said nothing"))
	}
	return nil
}

// arguments are QEMU's for the machine itself, and the kernel's command line.
func (e *emulator) arguments(o Options, cpus int) (args []string, cmdline string) {
	b := boards[e.arch]
	args = []string{"-M", b.machine, "-smp", fmt.Sprint(cpus), "-m", cmp.Or(o.Memory, "1G")}
	words := []string{"panic=-1", "quiet", "console=" + b.console}
	switch {
	case e.kvm:
		args = append(args, "-accel", "kvm", "-cpu", "host")
	case e.virtual:
		args = append(args, "-accel", "tcg,thread=single", "-cpu", b.model, "-icount", "shift=0,sleep=off,align=off", "-rtc", "base="+epoch.Format(time.DateOnly)+",clock=vm", "-seed", "1")
		// What is laid out at random, and what depends on how busy other CPUs are.
		words = append(words, machine.EmulatedArgument, machine.VirtualArgument, "nokaslr", "norandmaps", "randomize_kstack_offset=off", "mitigations=auto", "nohz=off")
		words = append(words, b.exact...)
	default:
		// One thread for all CPUs: with one each, a CPU may run code that another one has just
		// patched, as attaching to a tracepoint does, and the kernel panics on the breakpoint.
		args, words = append(args, "-accel", "tcg,thread=single", "-cpu", b.fast), append(words, machine.EmulatedArgument)
	}
	if o.Cmdline != "" {
		words = append(words, o.Cmdline) // the last one of a name holds
	}
	return args, strings.Join(words, " ")
}

// findProgram finds this program for a kernel of another architecture.
func (e *emulator) findProgram(named, kernel string) error {
	if e.arch == runtime.GOARCH {
		return nil
	}
	name := "aossim-" + e.arch
	build := fmt.Sprintf("CGO_ENABLED=0 GOARCH=%s go build -o %s ./cmd/aossim", e.arch, name)
	e.program = named
	if named == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		e.program = filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(e.program); errors.Is(err, os.ErrNotExist) {
			return refusal.Usage("%s is for %s, and no build of this program for that is beside it (%s); %s, and name it with --program", kernel, e.arch, e.program, build)
		}
	}
	f, err := elf.Open(e.program)
	if err != nil {
		return refusal.Usage("--program %s: %w; %s", e.program, err, build)
	}
	defer f.Close()
	switch is := machines[f.Machine]; {
	case is != e.arch:
		return refusal.Usage("--program %s is for %s, and %s for %s; %s", e.program, cmp.Or(is, f.Machine.String()), kernel, e.arch, build)
	case slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }):
		return refusal.Usage("--program %s needs libraries, which the guest has not; %s", e.program, build)
	}
	theirs, err := buildinfo.ReadFile(e.program)
	if err != nil {
		return refusal.Usage("--program %s: %w; %s", e.program, err, build)
	}
	if ours, ok := debug.ReadBuildInfo(); ok && revision(theirs) != revision(ours) {
		e.warning = fmt.Sprintf("%s was built from another state (%s) than this program (%s); %s", e.program, revision(theirs), revision(ours), build)
	}
	return nil
}

// machines are the architectures that have boards, by what ELF calls them.
var machines = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// revision is what a program was built from.
func revision(b *debug.BuildInfo) string {
	var parts []string
	for _, s := range b.Settings {
		if s.Key == "vcs.revision" || s.Key == "vcs.modified" && s.Value == "true" {
			parts = append(parts, s.Value)
		}
	}
	return cmp.Or(strings.Join(parts, ", modified: "), "unknown revision")
}

// newID returns a random UUID: with a fixed seed a guest's own boot id is fixed, too.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
