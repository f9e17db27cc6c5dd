//go:build amd64 && !race

// The race detector adds instructions of its own.

package eventloop

import (
	"debug/elf"
	"debug/gosym"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
)

// stepped is set in the environment of the process whose subscriber is stepped.
const stepped = "AOSSIM_TEST_STEPPED"

const vdso = "[vdso]"

// yielding is what the runtime executes where it asked for the thread, which is pinned: each 10 ms, so that
// a thread that is stepped sees it all the time.
var yielding = []string{"runtime.newstack", "runtime.morestack", "runtime.morestack_noctxt", "runtime.gogo", "gogo"}

// TestInstructionsPerWake: what the program executes from a wake to the next arm, instruction by
// instruction as the kernel steps them (ptrace(2)): from the return of the io_uring_enter that brought
// the CQE to the next one, with a message of 64 bytes copied between them. The vDSO's are not counted: stepping is
// so slow that it finds its page changed, and begins again.
func TestInstructionsPerWake(t *testing.T) {
	if os.Getenv(stepped) != "" {
		beStepped(t)
		return
	}
	const most = 720
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestInstructionsPerWake$", "-test.timeout", "60s")
	cmd.Env = append(os.Environ(), stepped+"=1", linuxtest.HasMachine+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var thread int
	if _, err := fmt.Fscanf(out, "%d\n", &thread); err != nil {
		t.Fatal(err)
	}
	ways, err := wakes(thread, 20)
	if err != nil {
		t.Fatal(err)
	}
	functions := programFunctions(t)
	least, list := 0, []string(nil)
	for _, way := range ways {
		own, of := 0, map[string]int{}
		for _, pc := range way {
			f := functions(pc)
			if of[f]++; f != vdso && !slices.Contains(yielding, f) {
				own++
			}
		}
		if least != 0 && own >= least {
			continue
		}
		least = own
		list = list[:0]
		for f, n := range of {
			list = append(list, fmt.Sprintf("%4d %s", n, f))
		}
	}
	slices.Sort(list)
	slices.Reverse(list)
	t.Logf("%d instructions from a wake to the next arm, without the vDSO:\n%s", least, strings.Join(list, "\n"))
	if least > most || least < 50 {
		t.Errorf("%d instructions from a wake to the next arm, want at most %d", least, most)
	}
}

// beStepped is the process: a message whenever the subscriber sleeps, until it is killed.
func beStepped(t *testing.T) {
	b := start(t, SubscriberConfig{}, false)
	fmt.Printf("%d\n", b.sub.thread.Load())
	for n := uint64(1); ; n++ {
		b.publish(0)
		b.await("asleep again", func() bool { return b.count.Load() == n && linux.Asleep(int(b.sub.thread.Load())) })
	}
}

// wakes steps a thread, and returns the addresses of the instructions on n ways from a wake to
// the next arm.
func wakes(thread, n int) (ways [][]uint64, err error) {
	runtime.LockOSThread() // it is the one that traces
	defer runtime.UnlockOSThread()
	if err := unix.PtraceAttach(thread); err != nil {
		return nil, os.NewSyscallError("ptrace", err)
	}
	// Where it is not let go it stays a zombie when it is killed, and nobody can wait for its process.
	defer func() { _ = unix.PtraceDetach(thread) }()
	isCall := map[uint64]bool{}
	var way []uint64
	within := false
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(thread, &status, unix.WALL, nil); err != nil {
			return nil, os.NewSyscallError("wait4", err)
		}
		if !status.Stopped() {
			return nil, fmt.Errorf("the process ended: %#x", status)
		}
		signal := int(status.StopSignal())
		if signal == int(unix.SIGTRAP) || signal == int(unix.SIGSTOP) {
			signal = 0
		}
		var r unix.PtraceRegs
		if err := unix.PtraceGetRegs(thread, &r); err != nil {
			return nil, os.NewSyscallError("ptrace", err)
		}
		known, seen := isCall[r.Rip]
		if !seen {
			var code [2]byte
			if _, err := unix.PtracePeekText(thread, uintptr(r.Rip), code[:]); err != nil {
				return nil, os.NewSyscallError("ptrace", err)
			}
			known = code == [2]byte{0x0f, 0x05} // syscall
			isCall[r.Rip] = known
		}
		switch {
		case known && r.Rax == unix.SYS_IO_URING_ENTER:
			if within && r.Rdx == 0 { // it arms
				if ways = append(ways, way); len(ways) == n {
					return ways, nil
				}
			}
			way, within = nil, r.Rdx == 1 // it waits
		case within:
			way = append(way, r.Rip)
		}
		if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SINGLESTEP, uintptr(thread), 0, uintptr(signal), 0, 0); e != 0 {
			return nil, os.NewSyscallError("ptrace", e)
		}
	}
}

// programFunctions tells the functions of this program by their addresses.
func programFunctions(t *testing.T) func(pc uint64) string {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := f.Section(".gopclntab").Data()
	if err != nil {
		t.Fatal(err)
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(data, f.Section(".text").Addr))
	if err != nil {
		t.Fatal(err)
	}
	return func(pc uint64) string {
		if f := table.PCToFunc(pc); f != nil {
			return f.Name
		}
		return vdso
	}
}
