package uring

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// Probe finds out by doing, on a thread of its own, whether this user can make a ring and
// issue an operation on it; those on futexes came with Linux 6.7. Its error wraps
// refusal.ErrLacking where the kernel cannot, refusal.ErrForbidden where this user may not,
// and says what is missing and how to get it.
func Probe(op Opcode) error {
	return linux.OnThread(func() error {
		err := probe(op)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, refusal.ErrCannot): // no memory or file for it
			err = fmt.Errorf("%w: %w", refusal.ErrUntried, err)
		}
		return fmt.Errorf("no %s on an io_uring here: %w", op, err)
	})
}

// String is the operation's name in include/uapi/linux/io_uring.h.
func (op Opcode) String() string {
	if name := opcodeNames[op]; name != "" {
		return name
	}
	return fmt.Sprintf("operation %d", uint8(op))
}

var opcodeNames = map[Opcode]string{OpFutexWait: "IORING_OP_FUTEX_WAIT", OpFutexWake: "IORING_OP_FUTEX_WAKE", OpFutexWaitv: "IORING_OP_FUTEX_WAITV", OpPollAdd: "IORING_OP_POLL_ADD"}

func probe(op Opcode) error {
	r, err := Setup(8, 8, 0)
	if err != nil {
		return whyNoRing(err)
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
	eventfd, err := linux.NewEventfd()
	if err != nil {
		return err
	}
	defer eventfd.Close()
	linux.SignalEventfd(int(eventfd.Fd()))
	// The word holds 0, and who waits says 1.
	word := linux.WordAddress(linux.Uint32At(mem, 0))
	vector.Set(0, word, 1, FutexU32)
	e, want := FutexWait(word, 1, linux.MatchAny, FutexU32, 1), syscall.EAGAIN
	switch op {
	case OpFutexWake:
		e, want = FutexWake(word, 1, FutexU32, 1), 0
	case OpFutexWaitv:
		e = FutexWaitv(vector.Addr(), 1, 1)
	case OpPollAdd:
		e, want = PollMultishot(int(eventfd.Fd()), 1), 0
	}
	e.Opcode = op
	r.Push(e)
	if errno := r.Enter(1, GetEvents); errno != 0 {
		return fmt.Errorf("%w: io_uring_enter: %w; a seccomp filter may forbid it", refusal.ErrForbidden, errno)
	}
	switch c, ok := r.Next(); {
	case !ok:
		return fmt.Errorf("%w: %s did not complete", refusal.ErrUntried, op)
	case c.Errno() == want:
		return nil
	case c.Errno() == syscall.EINVAL:
		return fmt.Errorf("%w (%s: %w); futex waits came with Linux 6.7, boot that or a newer one", refusal.ErrLacking, op, c.Errno())
	default:
		return fmt.Errorf("%w: %s completed with %d", refusal.ErrUntried, op, c.Res)
	}
}

// whyNoRing says why a ring could not be made.
func whyNoRing(err error) error {
	disabled, _ := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
	status, _ := os.ReadFile("/proc/self/status")
	reason, way := refusal.ErrForbidden, "run as root, and see kernel.io_uring_disabled"
	switch value := strings.TrimSpace(string(disabled)); {
	case value == "2":
		way = "kernel.io_uring_disabled is 2: sysctl kernel.io_uring_disabled=0 allows io_uring"
	case value == "1" && errors.Is(err, unix.EPERM):
		way = "kernel.io_uring_disabled is 1: run as root, or sysctl kernel.io_uring_disabled=0"
	case strings.Contains(string(status), "\nSeccomp:\t2"):
		way = "a seccomp filter is in force and does not allow it: containers need a profile that allows io_uring_setup, io_uring_enter and io_uring_register"
	case errors.Is(err, unix.ENOSYS):
		reason, way = refusal.ErrLacking, "this kernel was built without CONFIG_IO_URING"
	case errors.Is(err, unix.ENOMEM):
		reason, way = refusal.ErrUntried, "raise RLIMIT_MEMLOCK (ulimit -l unlimited) or run as root"
	case errors.Is(err, unix.EINVAL):
		reason, way = refusal.ErrLacking, "this kernel does not know one of the ring flags (IORING_SETUP_NO_SQARRAY is of Linux 6.6, futex waits are of 6.7): boot a newer one"
	}
	return fmt.Errorf("%w: %w; %s", reason, err, way)
}
