package uring

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"aossim/internal/linux"
)

// ErrUnsupported is wrapped by Probe's error where this kernel, or this user on
// it, cannot run futex waits on an io_uring.
var ErrUnsupported = errors.New("no futex waits on an io_uring")

// Probe finds out by doing, on a thread of its own, whether this user can make a ring and
// issue a futex operation on it (Linux 6.7). Its error wraps ErrUnsupported where the
// kernel, or this user on it, cannot, and says what is missing and how to get it.
func Probe(op Opcode) error { return linux.OnThread(func() error { return probe(op) }) }

func probe(op Opcode) error {
	r, err := Setup(8, 8, 0)
	if err != nil {
		return fmt.Errorf("%w: %w; %s", ErrUnsupported, err, whyNoRing(err))
	}
	defer r.Close()
	mem, err := linux.MapAnonymous(os.Getpagesize())
	if err != nil {
		return err
	}
	defer linux.Unmap(mem)
	vector, err := NewVector(1)
	if err != nil {
		return err
	}
	defer vector.Close()
	// The word holds 0, and who waits says 1.
	word := linux.WordAddress(linux.Uint32At(mem, 0))
	vector.Set(0, word, 1, FutexU32)
	name, e, want := "IORING_OP_FUTEX_WAIT", FutexWait(word, 1, linux.MatchAny, FutexU32, 1), syscall.EAGAIN
	switch op {
	case OpFutexWake:
		name, e, want = "IORING_OP_FUTEX_WAKE", FutexWake(word, 1, FutexU32, 1), 0
	case OpFutexWaitv:
		name, e = "IORING_OP_FUTEX_WAITV", FutexWaitv(vector.Addr(), 1, 1)
	}
	e.Opcode = op
	r.Push(e)
	if errno := r.Enter(1, GetEvents); errno != 0 {
		return fmt.Errorf("%w: io_uring_enter: %w; a seccomp filter may forbid it", ErrUnsupported, errno)
	}
	switch c, ok := r.Next(); {
	case !ok:
		return fmt.Errorf("%w: operation %d did not complete", ErrUnsupported, op)
	case c.Errno() == want:
		return nil
	case c.Errno() == syscall.EINVAL:
		return fmt.Errorf("%w: this kernel has no %s (operation %d: %w); it came with Linux 6.7, boot that or a newer one", ErrUnsupported, name, op, c.Errno())
	default:
		return fmt.Errorf("%w: operation %d completed with %d", ErrUnsupported, op, c.Res)
	}
}

func whyNoRing(err error) string {
	disabled, _ := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
	status, _ := os.ReadFile("/proc/self/status")
	filtered := strings.Contains(string(status), "\nSeccomp:\t2")
	switch value := strings.TrimSpace(string(disabled)); {
	case value == "2":
		return "kernel.io_uring_disabled is 2: sysctl kernel.io_uring_disabled=0 allows io_uring"
	case value == "1" && errors.Is(err, unix.EPERM):
		return "kernel.io_uring_disabled is 1: run as root, or sysctl kernel.io_uring_disabled=0"
	case filtered:
		return "a seccomp filter is in force and does not allow it: containers need a profile that allows io_uring_setup, io_uring_enter and io_uring_register"
	case errors.Is(err, unix.ENOSYS):
		return "this kernel was built without CONFIG_IO_URING"
	case errors.Is(err, unix.ENOMEM):
		return "raise RLIMIT_MEMLOCK (ulimit -l unlimited) or run as root"
	case errors.Is(err, unix.EINVAL):
		return "this kernel does not know one of the ring flags (IORING_SETUP_NO_SQARRAY is of Linux 6.6, futex waits are of 6.7): boot a newer one"
	}
	return "run as root, and see kernel.io_uring_disabled"
}
