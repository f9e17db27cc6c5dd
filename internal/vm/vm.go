// Package vm boots kernels under QEMU with this program as init, and brings back what its
// commands wrote there.
//
// Errors wrap refusal.ErrUsage where a file is no kernel, refusal.ErrCannot where QEMU is missing
// or the guest cannot run the commands, and say the last lines of the guest's console where
// it did not come to its end.
package vm

import (
	"bytes"
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
	"aossim/internal/machine"
	"aossim/internal/refusal"
)

// Options say what machine is emulated.
type Options struct {
	QEMU    string        // the program; "" is that of the kernel's architecture
	CPUs    int           // of the guest
	Memory  string        // as QEMU's -m takes it
	Cmdline string        // added to the kernel's
	Timeout time.Duration // of a boot, to its end
}

// Output is what one command did in the guest: its exit code, and what it wrote.
type Output struct {
	Exit int
	Data []byte
}

// notEnded is the exit code of a command that the guest did not come to the end of.
const notEnded = -1

// Boot is what came of one boot.
type Boot struct {
	Kernel   string // as it was named
	Image    string // SHA-256 of its image, in hexadecimal
	Emulated bool   // not by KVM
	Console  string
	Outputs  []Output // of the commands, as far as it came
	Took     time.Duration
}

// Machine boots kernels.
type Machine struct {
	Options
	dir     string
	kernels map[string]*kernel
	kvm     bool
}

// New finds out whether the kernels can be booted: nothing has started when it fails.
// Close removes what it unpacked.
func New(ctx context.Context, o Options, kernels []string) (*Machine, error) {
	dir, err := os.MkdirTemp("", "aossim-vm-")
	if err != nil {
		return nil, err
	}
	m := &Machine{Options: o, dir: dir, kernels: map[string]*kernel{}}
	if err := m.prepare(ctx, kernels); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Machine) prepare(ctx context.Context, kernels []string) (err error) {
	for _, name := range kernels {
		k, err := openKernel(ctx, name, m.dir)
		if err != nil {
			return err
		}
		if k.arch != runtime.GOARCH {
			return refusal.Usage("no kernel to boot: %s is for %s and this program, which is to run on it, for %s; use a build for %s", name, k.arch, runtime.GOARCH, k.arch)
		}
		m.kernels[name] = k
	}
	if m.QEMU == "" {
		m.QEMU = map[string]string{"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}[runtime.GOARCH]
	}
	if m.QEMU, err = exec.LookPath(m.QEMU); err != nil {
		return fmt.Errorf("%w: %w; apt-get install qemu-system-x86 (or qemu-system-arm), or name it with --qemu", refusal.ErrCannot, err)
	}
	m.kvm = m.kvmWorks()
	return nil
}

// kvmWorks finds out by starting a guest that is stopped at once: a /dev/kvm that can be
// opened may still not run one, as within another guest.
func (m *Machine) kvmWorks() bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.QEMU, append(board(runtime.GOARCH), "-accel", "kvm", "-cpu", "host", "-nodefaults", "-nographic", "-S", "-monitor", "stdio")...)
	cmd.Stdin = strings.NewReader("quit\n")
	return cmd.Run() == nil
}

// board is the machine that QEMU has for an architecture.
func board(arch string) []string {
	if arch == "arm64" {
		return []string{"-M", "virt"}
	}
	return []string{"-M", "q35"}
}

// Close removes what was unpacked.
func (m *Machine) Close() { os.RemoveAll(m.dir) }

// Image returns the SHA-256 of the image of a kernel that New was given, in hexadecimal.
func (m *Machine) Image(kernel string) string { return m.kernels[kernel].sha256 }

// Emulated says whether guests run without KVM.
func (m *Machine) Emulated() bool { return !m.kvm }

// arguments are QEMU's for one boot. What the guest sends goes to the file port.
func (m *Machine) arguments(k *kernel, initrd, port string) []string {
	cmdline := []string{"panic=-1", "quiet", m.Cmdline}
	args := append(board(k.arch), "-nographic", "-nodefaults", "-no-reboot", "-smp", fmt.Sprint(m.CPUs), "-m", m.Memory, "-serial", "stdio",
		"-chardev", "file,id=port,path="+port, "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port,name="+portName,
		"-kernel", k.path, "-initrd", initrd)
	if k.arch == "arm64" {
		cmdline = append(cmdline, "console=ttyAMA0")
	} else {
		cmdline = append(cmdline, "console=ttyS0")
	}
	if m.kvm {
		args = append(args, "-accel", "kvm", "-cpu", "host")
	} else {
		// One thread for all CPUs: with one each, a CPU may run code that another one has just
		// patched, as attaching to a tracepoint does, and the kernel panics on the breakpoint.
		args, cmdline = append(args, "-accel", "tcg,thread=single", "-cpu", "max"), append(cmdline, machine.EmulatedArgument)
	}
	return append(args, "-append", strings.Join(cmdline, " "))
}

// Run boots a kernel that New was given, has the guest run commands, each the arguments of
// this program, and returns when it is off. In a command OUTPUT stands for a file that is
// brought back; where none was written, its standard output is. files lie in the guest below
// FILES. A Boot is returned with an error, too, as far as it came.
func (m *Machine) Run(ctx context.Context, name string, commands [][]string, files map[string][]byte) (*Boot, error) {
	k, b := m.kernels[name], &Boot{Kernel: name, Image: m.Image(name), Emulated: !m.kvm}
	all := map[string][]byte{}
	for n, data := range files {
		all[n] = data
	}
	for _, c := range commands {
		for i, a := range c {
			c[i] = strings.ReplaceAll(a, Files, "/"+guestFiles)
		}
	}
	encoded, err := json.Marshal(orders{commands})
	if err != nil {
		return b, err
	}
	all[filepath.Base(guestOrders)] = encoded
	initrd, port := filepath.Join(m.dir, "initramfs"), filepath.Join(m.dir, "port")
	if err := initramfs(initrd, all); err != nil {
		return b, fmt.Errorf("making the initramfs: %w", err)
	}
	os.Remove(port)
	// QEMU is tied to the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	var console recorder
	cmd := exec.Command(m.QEMU, m.arguments(k, initrd, port)...)
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.WaitDelay = time.Second
	linux.TieToParent(cmd, linux.Kill)
	if err := cmd.Start(); err != nil {
		return b, fmt.Errorf("%w: %w", refusal.ErrCannot, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	off, failed := wait(ctx, ended, m.Timeout, func() bool { return finished(port, &console) })
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
	return b, fmt.Errorf("the guest on %s: %w; the last lines of its console: %s", name, failed, b.LastLines())
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
	lines := strings.Split(strings.TrimSpace(b.Console), "\n")
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
