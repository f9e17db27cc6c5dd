package uring

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"aossim/internal/linux"
)

// ErrUnsupported is wrapped by Probe's error where this kernel, or this user on
// it, cannot run futex waits on an io_uring.
var ErrUnsupported = errors.New("no futex waits on an io_uring")

// Probe finds out by doing whether this thread can make a ring and arm a futex
// wait on it (Linux 6.7). Its error wraps ErrUnsupported and says what is missing
// and how to get it.
func Probe() error { return probe(OpFutexWait) }

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
	word := linux.Uint32At(mem, 0)
	got, err := tryWait(r, op, word)
	switch {
	case err != nil:
		return fmt.Errorf("%w: io_uring_enter: %w; a seccomp filter may forbid it", ErrUnsupported, err)
	case got == syscall.EAGAIN:
		return nil
	case got == syscall.EINVAL:
		return fmt.Errorf("%w: this kernel has no IORING_OP_FUTEX_WAIT (operation %d: %w); it came with Linux 6.7, boot that or a newer one", ErrUnsupported, op, got)
	}
	return fmt.Errorf("%w: operation %d completed with %w instead of EAGAIN on a word that differs", ErrUnsupported, op, got)
}

// ProbeOp finds out by doing whether this thread can issue a futex operation; Probe
// must have succeeded.
func ProbeOp(op Opcode) error {
	r, err := Setup(8, 8, 0)
	if err != nil {
		return err
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
	word := linux.WordAddress(linux.Uint32At(mem, 0))
	vector.Set(0, word, 1, FutexU32)
	requests := map[Opcode]struct {
		e    SQE
		want syscall.Errno
	}{
		OpFutexWait:  {FutexWait(word, 1, linux.MatchAny, FutexU32, 1), syscall.EAGAIN},
		OpFutexWake:  {FutexWake(word, 1, FutexU32, 1), 0},
		OpFutexWaitv: {FutexWaitv(vector.Addr(), 1, 1), syscall.EAGAIN},
	}
	r.Push(requests[op].e)
	if e := r.Enter(1, GetEvents); e != 0 {
		return fmt.Errorf("io_uring_enter: %w", e)
	}
	if c, ok := r.Next(); !ok || c.Errno() != requests[op].want {
		return fmt.Errorf("operation %d completed with %d", op, c.Res)
	}
	return nil
}

// tryWait arms a wait that must fail: the word holds 0 and the request says 1.
func tryWait(r *Ring, op Opcode, word *atomic.Uint32) (syscall.Errno, error) {
	e := FutexWait(linux.WordAddress(word), 1, linux.MatchAny, FutexU32, 1)
	e.Opcode = op
	r.Push(e)
	if errno := r.Enter(1, GetEvents); errno != 0 {
		return 0, errno
	}
	c, ok := r.Next()
	if !ok {
		return 0, errors.New("no completion")
	}
	return c.Errno(), nil
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
		return "a seccomp filter is in force and io_uring_setup is not allowed by it: containers need a profile that allows io_uring_setup, io_uring_enter and io_uring_register"
	case errors.Is(err, unix.ENOSYS):
		return "this kernel was built without CONFIG_IO_URING"
	case errors.Is(err, unix.ENOMEM):
		return "raise RLIMIT_MEMLOCK (ulimit -l unlimited) or run as root"
	case errors.Is(err, unix.EINVAL):
		return "this kernel does not know one of the ring flags"
	}
	return "run as root, and see kernel.io_uring_disabled"
}
