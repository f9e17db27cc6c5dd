package linux

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errno is the error number of a system call, Signal that of a signal.
type (
	Errno  = syscall.Errno
	Signal = syscall.Signal
)

// The error numbers that others tell apart; ENOTSUPP is the kernel's own, which no header for
// programs has (include/linux/errno.h).
const (
	EAGAIN     = unix.EAGAIN
	ECONNRESET = unix.ECONNRESET // the other side of a socket is gone
	EINTR      = unix.EINTR
	ETIMEDOUT  = unix.ETIMEDOUT
	EACCES     = unix.EACCES
	EFAULT     = unix.EFAULT
	E2BIG      = unix.E2BIG
	ENOTSUPP   = Errno(524)
)

// ErrInvalid is EINVAL, ErrBusy EBUSY.
var (
	ErrInvalid error = unix.EINVAL
	ErrBusy    error = unix.EBUSY
)

// Signals that others send or hear: SIGTERM asks a process to end, SIGKILL ends it.
const (
	Terminate = unix.SIGTERM
	Kill      = unix.SIGKILL
)

// IgnoreSignals makes this process deaf to what a terminal sends, SIGINT, SIGQUIT and SIGHUP,
// and to others.
func IgnoreSignals(others ...os.Signal) {
	signal.Ignore(append(others, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP)...)
}

// TieToParent gives cmd a process group of its own, so that a terminal's signals
// do not reach it, and has the kernel send it a signal, Kill or Terminate, when the thread
// that starts it ends (prctl(2), PR_SET_PDEATHSIG). That thread must be locked and stay until
// the process is gone.
func TieToParent(cmd *exec.Cmd, death syscall.Signal) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
}

// DieWithParent is TieToParent once more, from the child: the kernel forgets it
// when a program with file capabilities is executed (prctl(2)). parent is the process
// that must still be there.
func DieWithParent(parent int, death syscall.Signal) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(death), 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_PDEATHSIG): %w", err)
	}
	if os.Getppid() != parent {
		return fmt.Errorf("the controller, process %d, is gone", parent)
	}
	return nil
}

// AdoptOrphans makes this process the parent of all that its children leave behind
// (prctl(2), PR_SET_CHILD_SUBREAPER), also of what detached itself.
func AdoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", err)
	}
	return nil
}

// Children returns the children of a process, of all its threads, zombies too.
func Children(of int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", of))
	for _, task := range tasks {
		list, _ := os.ReadFile(task) // the thread may have ended
		for _, word := range strings.Fields(string(list)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if len(tasks) > 0 {
		return pids
	}
	// A kernel without CONFIG_PROC_CHILDREN: every process says who its parent is.
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		stat, _ := os.ReadFile(path) // it may have ended
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(of) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Reap takes the children that have ended out of the table of processes, but for some that
// others wait for.
func Reap(but []int) {
	for _, pid := range Children(os.Getpid()) {
		if !slices.Contains(but, pid) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// EndChildren ends all children but some, those that they leave behind when they end, and so
// on, and reaps them; nobody else may wait for them. It returns those that were not gone
// after patience: of another user, or within the kernel.
func EndChildren(but []int, patience time.Duration) (left []int) {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		left = slices.DeleteFunc(Children(os.Getpid()), func(pid int) bool { return slices.Contains(but, pid) })
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// PreferToKill has the kernel end this process before others where memory runs out
// (proc_pid_oom_score_adj(5)).
func PreferToKill() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) }

// TerminateGroup asks the process that cmd started to end, with its group.
func TerminateGroup(cmd *exec.Cmd) {
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGTERM)
}

// SetFutexHash asks for a hash of so many slots, a power of two, for this process's
// private futexes; 0 is the kernel's global one (prctl(2), PR_FUTEX_HASH, Linux 6.16).
func SetFutexHash(slots int) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_FUTEX_HASH, unix.PR_FUTEX_HASH_SET_SLOTS, uintptr(slots), 0, 0, 0); e != 0 {
		return e
	}
	return nil
}

// FutexHashSlots returns how many slots the hash of this process's private futexes has;
// 0 is the kernel's global one. The error is ErrInvalid where there is no such hash.
func FutexHashSlots() (int, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_FUTEX_HASH, unix.PR_FUTEX_HASH_GET_SLOTS, 0, 0, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// Fork runs f in a forked process with a single thread (fork(2)), and returns what it
// returned, 0..127. f may do nothing but raw system calls on what was made before: the
// Go runtime has no threads there. It is an error that it took longer than limit.
func Fork(f func() int, limit time.Duration) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC() // none may be under way in what is copied
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return 0, fmt.Errorf("fork: %w", e)
	}
	if pid == 0 {
		for code := f(); ; {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(code), 0, 0)
		}
	}
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		var status unix.WaitStatus
		switch got, err := unix.Wait4(int(pid), &status, unix.WNOHANG, nil); {
		case err != nil && err != unix.EINTR:
			return 0, fmt.Errorf("wait4: %w", err)
		case got == int(pid) && status.Exited():
			return status.ExitStatus(), nil
		case got == int(pid):
			return 0, fmt.Errorf("a forked process was killed by %s", unix.SignalName(status.Signal()))
		case time.Now().After(end):
			_ = unix.Kill(int(pid), unix.SIGKILL)
			_, _ = unix.Wait4(int(pid), &status, 0, nil)
			return 0, fmt.Errorf("a forked process did not end within %s", limit)
		}
	}
}

// OnThread calls f on a thread of its own, which ends with it and takes along what f
// did to it.
func OnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}

// ThreadID returns the calling thread's number (gettid(2)).
func ThreadID() int { return unix.Gettid() }

// Asleep says whether a thread of this process sleeps in the kernel, rather than
// run or wait for a CPU (proc_pid_stat(5)).
func Asleep(thread int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", thread))
	if err != nil {
		return false
	}
	_, after, ok := bytes.Cut(stat, []byte(") "))
	return ok && len(after) > 0 && after[0] == 'S'
}

// KillGroup ends the process that cmd started and the group that it leads. It makes
// one system call a process and does not allocate.
func KillGroup(cmd *exec.Cmd) {
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
}

// DescribeExit says how a process ended: "exit status 1", "killed by SIGKILL".
func DescribeExit(state *os.ProcessState) string {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return fmt.Sprintf("killed by %s", unix.SignalName(ws.Signal()))
	}
	return state.String()
}

// WasKilled says whether SIGKILL or SIGXCPU ended a process.
func WasKilled(state *os.ProcessState) bool {
	ws, ok := state.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && (ws.Signal() == unix.SIGKILL || ws.Signal() == unix.SIGXCPU)
}

// ProcessIdentity names a process for good: its number in the upper half, and in the
// lower the time of its start (proc_pid_stat(5), clock ticks), as numbers are used again.
// It is 0 where there is no such process, or it is dead and not yet reaped.
func ProcessIdentity(pid int) uint64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const state, starttime = 0, 19 // of the fields behind the name
	if len(fields) <= starttime || fields[state] == "Z" || fields[state] == "X" {
		return 0
	}
	start, err := strconv.ParseUint(fields[starttime], 10, 64)
	if err != nil {
		return 0
	}
	return uint64(pid)<<32 | start&0xffffffff
}

// ProcessAlive says whether the process of an identity is still there.
func ProcessAlive(identity uint64) bool {
	return identity != 0 && ProcessIdentity(int(identity>>32)) == identity
}

// Uname returns the running kernel's release, version and machine (uname(2)).
func Uname() (release, version, machine string) {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "", "", ""
	}
	return unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]), unix.ByteSliceToString(u.Machine[:])
}

// NewEventfd makes an eventfd(2), to be inherited by actor processes. The caller
// closes the file.
func NewEventfd() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}

// MemoryTotal returns the machine's memory in bytes (sysinfo(2)), 0 if unknown.
func MemoryTotal() uint64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return uint64(si.Totalram) * uint64(si.Unit)
}

// NameThread gives the calling thread a name, of which the kernel keeps 15 bytes
// (proc_pid_comm(5)); a kernel that refuses leaves it as it was.
func NameThread(name string) {
	_ = os.WriteFile("/proc/thread-self/comm", []byte(name), 0)
}

// FileIdentity returns the device and inode of a file (stat(2)).
func FileIdentity(path string) (device, inode uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", path, err)
	}
	return uint64(st.Dev), st.Ino, nil
}

// ONonblock is O_NONBLOCK: opening a pipe for writing fails where nobody reads it (fifo(7)).
const ONonblock = unix.O_NONBLOCK

// NameMax is the longest name of a file in bytes (limits.h).
const NameMax = 255

// FileTooLarge is SIGXFSZ, which a write beyond RLIMIT_FSIZE raises; where it is ignored the
// write fails instead.
const FileTooLarge = unix.SIGXFSZ

// EndingSignals are those by which a user or a system ends a program: from a terminal that
// closes or a session that drops, from the keyboard, from a service manager, and where who
// reads the output is gone. What was ignored when the program was started stays so (nohup(1)).
func EndingSignals() (list []os.Signal) {
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE} {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// ProcessTime returns the CPU time that this process has had, of user and system (getrusage(2)).
func ProcessTime() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
