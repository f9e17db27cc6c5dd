package linux

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrOverwritten says that records of the kernel's log were lost before they were read.
var ErrOverwritten = errors.New("records of the kernel's log were overwritten")

// kernelLog is read a record at a time (Documentation/ABI/testing/dev-kmsg).
const kernelLog = "/dev/kmsg"

// KernelLog is the kernel's log from some moment on. One thread at a time.
type KernelLog struct{ fd int }

// OpenKernelLog opens the kernel's log at its end. It needs CAP_SYSLOG where
// kernel.dmesg_restrict is set.
func OpenKernelLog() (*KernelLog, error) {
	fd, err := unix.Open(kernelLog, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kernelLog, err)
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", kernelLog, err)
	}
	return &KernelLog{fd}, nil
}

// Read reads the next record; n is 0 where there is none yet. The error may be ErrOverwritten:
// records before the next one are missing.
func (l *KernelLog) Read(record []byte) (n int, err error) {
	for {
		switch n, err := unix.Read(l.fd, record); err {
		case nil:
			return n, nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, nil
		case unix.EPIPE:
			return 0, ErrOverwritten
		default:
			return 0, fmt.Errorf("%s: %w", kernelLog, err)
		}
	}
}

// Close closes it.
func (l *KernelLog) Close() { unix.Close(l.fd) }
