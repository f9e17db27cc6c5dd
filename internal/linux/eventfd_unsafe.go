package linux

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SignalEventfd adds 1 to an eventfd's counter and so wakes who polls it. It
// returns 0 or the error of write(2). Any thread.
func SignalEventfd(fd int) syscall.Errno {
	one := uint64(1)
	_, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
	return e
}
