package vm

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"aossim/internal/linux"
)

// orders is what the guest is to do: one command after the other, each the arguments of
// this program. What is OUTPUT among them is a file that the host wants.
type orders struct {
	Commands [][]string
	Symbols  bool // the kernel's are wanted, too
}

// output stands for a file in a command of orders.
const output = "OUTPUT"

// portName is the name of the virtio-serial port.
const portName = "aossim"

// IsGuest says whether this process is the init of a guest that Boot made.
func IsGuest() bool {
	if os.Getpid() != 1 {
		return false
	}
	_, err := os.Stat("/" + guestOrders)
	return err == nil
}

// GuestMain is the init of a guest: it does what it was ordered, tells the host, and
// powers the guest off, whatever happens. It does not return.
func GuestMain() {
	defer linux.PowerOff()
	defer func() {
		if v := recover(); v != nil {
			fmt.Fprintf(os.Stderr, "aossim: init panicked: %v\n%s\n", v, debug.Stack())
		}
	}()
	if err := guest(); err != nil {
		fmt.Fprintf(os.Stderr, "aossim: init: %s\n", err)
	}
}

func guest() error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"tracefs", "/sys/kernel/tracing"}, {"cgroup2", groups}} {
		// A kernel may lack one, and have another mounted.
		if err := linux.Mount(m[0], m[1]); err != nil {
			fmt.Fprintf(os.Stderr, "aossim: init: %s\n", err)
		}
	}
	data, err := os.ReadFile("/" + guestOrders)
	if err != nil {
		return err
	}
	var o orders
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	if err := linux.LoopbackUp(); err != nil {
		fmt.Fprintf(os.Stderr, "aossim: init: %s; net loads will fail\n", err)
	}
	group, err := memoryGroup()
	if err != nil {
		fmt.Fprintf(os.Stderr, "aossim: init: %s; commands run in the root group, to which no memory is accounted\n", err)
	}
	awaitClock()
	port, times := openPort()
	number := 0
	tell := func(m message) error {
		number++
		return send(port, number-1, times, m)
	}
	for i, command := range o.Commands {
		file := filepath.Join("/tmp", fmt.Sprintf("output-%d", i))
		args := make([]string, len(command))
		for j, a := range command {
			if args[j] = a; a == output {
				args[j] = file
			}
		}
		code, err := linux.RunAsInit("/init", args, file+".out", group)
		if err != nil {
			return err
		}
		out, err := os.ReadFile(file)
		if err != nil { // a command that writes to its standard output
			out, _ = os.ReadFile(file + ".out")
		}
		if len(out) > 0 {
			if err := tell(message{Command: i, Kind: kindOutput, Data: out}); err != nil {
				return err
			}
		}
		if err := tell(message{Command: i, Kind: kindExit, Exit: code}); err != nil {
			return err
		}
	}
	if o.Symbols {
		all, err := os.ReadFile("/proc/kallsyms")
		if err != nil {
			fmt.Fprintf(os.Stderr, "aossim: init: %s\n", err)
		}
		if err := tell(message{Kind: kindSymbols, Data: all}); err != nil {
			return err
		}
	}
	return tell(message{Kind: kindDone})
}

// groups is where control groups are mounted.
const groups = "/sys/fs/cgroup"

// memoryGroup makes a group for the commands, as every process has one under systemd: in the root
// group the kernel accounts no memory, and what does account costs nothing.
func memoryGroup() (*os.File, error) {
	if err := os.WriteFile(groups+"/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
		return nil, err
	}
	if err := os.Mkdir(groups+"/aossim", 0o755); err != nil {
		return nil, err
	}
	return os.Open(groups + "/aossim")
}

// clockFile names the clock source that the kernel uses.
const clockFile = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

// awaitClock waits until the kernel has the clock source that it will keep: on x86 it begins with
// tsc-early, and changes a second later (arch/x86/kernel/tsc.c), maybe in the middle of a round.
func awaitClock() {
	const patience = 3 * time.Second
	for start := time.Now(); time.Since(start) < patience; time.Sleep(10 * time.Millisecond) {
		if name, err := os.ReadFile(clockFile); err != nil || !strings.HasSuffix(strings.TrimSpace(string(name)), "-early") {
			return
		}
	}
}

// openPort opens the virtio-serial port, or the console where there is none, and says
// how often to send everything.
func openPort() (io.Writer, int) {
	if port, err := linux.OpenPort(portName); err == nil {
		return port, 1
	}
	return os.Stdout, 2
}
