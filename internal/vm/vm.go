// Package vm boots kernels under QEMU with this program as init, and brings back what its
// commands wrote there.
//
// Errors wrap refusal.ErrUsage where a file is no kernel, refusal.ErrCannot where QEMU is missing
// or the guest cannot run the commands, and say the last lines of the guest's console where
// it did not come to its end.
package vm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// Options say what machine is emulated.
type Options struct {
	QEMU    string        // the program; "" is that of the kernel's architecture
	Program string        // a build of this program for kernels of another architecture; "" is the one beside it
	Memory  string        // as QEMU's -m takes it
	CPUs    int           // the most that a boot will have
	Cmdline string        // added to the kernel's
	Timeout time.Duration // of a boot, to its end; 0 is DefaultTimeout, or VirtualTimeout
	Profile bool          // trace the rounds that the guest asks for
	Clock   Clock         // "" is Instructions for emulated guests, and Host for others
}

// The limits of a boot that are not given, on the host's clock: of virtual time one second may
// take a hundred.
const (
	DefaultTimeout = 5 * time.Minute
	VirtualTimeout = time.Hour
)

// Output is what one command did in the guest: its exit code, and what it wrote.
type Output struct {
	Exit int
	Data []byte
}

// notEnded is the exit code of a command that the guest did not come to the end of.
const notEnded = -1

// Boot is what came of one boot.
type Boot struct {
	ID       string // of this boot and no other, as a boot id; what the guest's own is made of may be fixed
	Image    string // SHA-256 of its image, in hexadecimal
	Emulator string // QEMU's version and what it was told about the machine
	Emulated bool   // not by KVM
	Virtual  bool   // its time was
	Console  string
	Outputs  []Output // of the commands, as far as it came
	Traces   *Traces  // nil unless Options.Profile
	Took     time.Duration
	// Ahead is how far the host's clock was ahead of the guest's as that began, where the guest's
	// always begins at one moment.
	Ahead time.Duration
}

// Machine boots kernels. Its methods may be called from several goroutines.
type Machine struct {
	Options
	dir       string
	kernels   map[string]*kernel
	emulators map[string]*emulator // by architecture
}

// New finds out whether the kernels can be booted: nothing has started when it fails.
// Close removes what it unpacked.
func New(ctx context.Context, o Options, kernels []string) (*Machine, error) {
	dir, err := os.MkdirTemp("", "aossim-vm-")
	if err != nil {
		return nil, err
	}
	m := &Machine{Options: o, dir: dir, kernels: map[string]*kernel{}, emulators: map[string]*emulator{}}
	if err := m.prepare(ctx, kernels); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// KernelError is an error that a kernel is the reason of.
type KernelError struct {
	Name string // as it was given
	Err  error
}

// Error is Err's.
func (e *KernelError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *KernelError) Unwrap() error { return e.Err }

func (m *Machine) prepare(ctx context.Context, kernels []string) error {
	for _, name := range kernels {
		if m.kernels[name] != nil {
			continue
		}
		k, err := openKernel(ctx, name, m.dir)
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err != nil {
			return &KernelError{name, err}
		}
		m.kernels[name] = k
		if m.emulators[k.arch] != nil {
			continue
		}
		if m.QEMU != "" && len(m.emulators) > 0 {
			return refusal.Usage("--qemu %s: it is one program, and the kernels are for several architectures; leave it out", m.QEMU)
		}
		if m.emulators[k.arch], err = newEmulator(ctx, m.Options, k); err != nil {
			return err
		}
	}
	return nil
}

// Close removes what was unpacked.
func (m *Machine) Close() { os.RemoveAll(m.dir) }

// Image returns the SHA-256 of the image of a kernel that New was given, in hexadecimal.
func (m *Machine) Image(kernel string) string { return m.kernels[kernel].sha256 }

// Emulated says whether a kernel that New was given runs without KVM.
func (m *Machine) Emulated(kernel string) bool { return !m.emulators[m.kernels[kernel].arch].kvm }

// Virtual says whether the time of such a kernel's guest is virtual.
func (m *Machine) Virtual(kernel string) bool { return m.emulators[m.kernels[kernel].arch].virtual }

// Warnings are about what was found and may not be what was meant.
func (m *Machine) Warnings() (list []string) {
	for _, e := range m.emulators {
		if e.warning != "" {
			list = append(list, e.warning)
		}
	}
	return list
}

// serialBus carries what the guest sends. Without ioeventfd QEMU takes it while the CPU waits: else
// the host decides how long that takes, and no two boots are alike.
const serialBus = "virtio-serial-pci,ioeventfd=off"

// Run boots a kernel that New was given on so many CPUs, has the guest run commands, each the
// arguments of this program, and returns when it is off. In a command OUTPUT stands for a file that is
// brought back; where none was written, its standard output is. files lie in the guest below
// FILES. A Boot is returned with an error, too, as far as it came.
func (m *Machine) Run(ctx context.Context, name string, cpus int, commands [][]string, files map[string][]byte) (*Boot, error) {
	k := m.kernels[name]
	e := m.emulators[k.arch]
	b := &Boot{ID: newID(), Image: k.sha256, Emulated: !e.kvm, Virtual: e.virtual}
	all := map[string][]byte{}
	for n, data := range files {
		all[n] = data
	}
	o := orders{Symbols: m.Profile}
	for _, c := range commands {
		own := make([]string, len(c))
		for i, a := range c {
			own[i] = strings.ReplaceAll(a, Files, "/"+guestFiles)
		}
		o.Commands = append(o.Commands, own)
	}
	encoded, err := json.Marshal(o)
	if err != nil {
		return b, err
	}
	all[filepath.Base(guestOrders)] = encoded
	dir, err := os.MkdirTemp(m.dir, "boot-")
	if err != nil {
		return b, err
	}
	defer os.RemoveAll(dir)
	initrd, port := filepath.Join(dir, "initramfs"), filepath.Join(dir, "port")
	if err := initramfs(initrd, e.program, all); err != nil {
		return b, fmt.Errorf("making the initramfs: %w", err)
	}
	machine, cmdline := e.arguments(m.Options, cpus)
	b.Emulator = e.version + ": " + strings.Join(machine, " ")
	// QEMU is tied to the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	if e.virtual {
		b.Ahead = start.Sub(epoch)
	}
	var console recorder
	cmd := exec.Command(e.path, append(machine, "-nographic", "-nodefaults", "-no-reboot", "-serial", "stdio",
		"-chardev", "file,id=port,path="+port, "-device", serialBus, "-device", "virtserialport,chardev=port,name="+portName,
		"-kernel", k.path, "-initrd", initrd, "-append", cmdline)...)
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.WaitDelay = time.Second
	linux.TieToParent(cmd, linux.Kill)
	var trace *tracer
	if m.Profile {
		if trace, err = newTracer(cmd, dir, e.arch); err != nil {
			return b, err
		}
		defer trace.close()
	}
	err = cmd.Start()
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	if err != nil {
		return b, fmt.Errorf("%w: %w", refusal.ErrCannot, err)
	}
	if trace != nil {
		go trace.listen()
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	limit := DefaultTimeout
	if e.virtual {
		limit = VirtualTimeout
	}
	off, failed := wait(ctx, ended, cmp.Or(m.Timeout, limit), func() bool { return finished(port, &console) })
	if !off {
		linux.KillGroup(cmd)
		<-ended
	}
	b.Took = time.Since(start)
	b.Console = console.text()
	messages, err := received(port, &console)
	done := false
	if err == nil {
		b.Outputs, done, err = outputs(messages, len(commands))
	}
	if trace != nil && done {
		err = errors.Join(<-trace.ended, trace.symbols(symbolsOf(messages), cmp.Or(e.program, "/proc/self/exe")))
		if b.Traces = &trace.traces; err != nil {
			return b, fmt.Errorf("the profile on %s: %w", name, err)
		}
	}
	b.Console = withoutFrames(b.Console)
	switch {
	case ctx.Err() != nil:
		return b, fmt.Errorf("the guest on %s was ended: interrupted", name)
	case done:
		return b, nil // and if it did not manage to power itself off
	case failed == nil && err != nil:
		failed = err
	case failed == nil:
		failed = errors.New("it went off before it was done")
	}
	return b, &KernelError{name, fmt.Errorf("the guest on %s: %w; the last lines of its console: %s", name, failed, b.LastLines())}
}

// outputs are what came of so many commands, one each, and whether the guest did all of them.
// A guest is not trusted: its kernel is one that is being worked on.
func outputs(messages []message, commands int) (list []Output, done bool, err error) {
	for range commands {
		list = append(list, Output{Exit: notEnded})
	}
	for _, m := range messages {
		if m.Command < 0 || m.Command >= commands && m.Kind != kindDone {
			return list, false, fmt.Errorf("the guest sent something of command %d, and there are %d", m.Command, commands)
		}
		switch m.Kind {
		case kindSymbols:
		case kindOutput:
			list[m.Command].Data = m.Data
		case kindExit:
			list[m.Command].Exit = m.Exit
		case kindDone:
			done = true
		default:
			return list, false, fmt.Errorf("the guest sent a message of kind %q", m.Kind)
		}
	}
	if done && slices.ContainsFunc(list, func(o Output) bool { return o.Exit == notEnded }) {
		return list, false, errors.New("the guest says that it is done, and not how each of its commands ended")
	}
	return list, done, nil
}

// symbolsOf are those of the kernel among what the guest sent.
func symbolsOf(messages []message) []byte {
	for _, m := range messages {
		if m.Kind == kindSymbols {
			return m.Data
		}
	}
	return nil
}

// wait returns when QEMU has ended, which off says, or has to be ended: at the timeout, when
// ctx ends, or where the guest was done long ago and does not manage to power itself off.
func wait(ctx context.Context, ended <-chan error, limit time.Duration, finished func() bool) (off bool, err error) {
	timeout, look := time.NewTimer(limit), time.NewTicker(time.Second)
	defer timeout.Stop()
	defer look.Stop()
	for left := 5; ; {
		select {
		case err := <-ended:
			if err != nil {
				err = fmt.Errorf("QEMU: %w", err)
			}
			return true, err
		case <-timeout.C:
			return false, fmt.Errorf("it was not done within %s (--timeout)", limit)
		case <-ctx.Done():
			return false, errors.New("interrupted")
		case <-look.C:
			if left < 5 || finished() {
				if left--; left == 0 {
					return false, nil
				}
			}
		}
	}
}

// received returns what the guest has sent so far: by the port, or by its console where it
// has none.
func received(port string, console *recorder) ([]message, error) {
	var sent []byte
	if f, err := os.Open(port); err == nil {
		sent, _ = io.ReadAll(io.LimitReader(f, 2*maxConsole)) // what cannot be read did not arrive
		f.Close()
	}
	if len(bytes.TrimSpace(sent)) == 0 {
		sent = []byte(console.text())
	}
	messages, _, err := receive(bytes.NewReader(sent))
	return messages, err
}

// finished says whether the guest has said that it is done.
func finished(port string, console *recorder) bool {
	if info, err := os.Stat(port); err == nil && info.Size() > 2*maxConsole {
		return true // it would fill the disk
	}
	messages, err := received(port, console)
	return err == nil && len(messages) > 0 && messages[len(messages)-1].Kind == kindDone
}

// Files stands for the directory in the guest where the host's files are.
const Files = "FILES/"

// LastLines returns the last lines of the console, in one.
func (b *Boot) LastLines() string {
	// Of a named CPU model QEMU says what it lacks of it.
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(b.Console), "\n"), func(l string) bool { return strings.Contains(l, "TCG doesn't support requested feature") })
	const most = 12
	if lines = lines[max(0, len(lines)-most):]; strings.TrimSpace(strings.Join(lines, "")) == "" {
		return "(it said nothing; is there a console on the first serial port, and an initramfs in the kernel's configuration?)"
	}
	return strings.Join(lines, " / ")
}

// control are the escape sequences of terminals, which firmware writes.
var control = regexp.MustCompile("\x1b(\\[[0-9;?]*[a-zA-Z]|c)|[\x00-\x08\x0b-\x1f]")

// recorder keeps what a console said, up to a limit.
type recorder struct {
	mu   sync.Mutex
	data bytes.Buffer
}

const maxConsole = 64 << 20

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.data.Len() < maxConsole {
		r.data.Write(p)
	}
	return len(p), nil
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return control.ReplaceAllString(strings.ReplaceAll(r.data.String(), "\r\n", "\n"), "")
}

func withoutFrames(console string) string {
	_, rest, _ := receive(strings.NewReader(console))
	return strings.Join(rest, "\n") + "\n"
}
