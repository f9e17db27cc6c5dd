package linux

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nanotime is CLOCK_MONOTONIC read through the vDSO (runtime/time_nofake.go);
// time.Now would read a second clock and hide the absolute value that processes
// have to share.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64

// Now returns CLOCK_MONOTONIC in nanoseconds. Any thread.
func Now() int64 { return nanotime() }

// ThreadTime returns how long the calling thread has run, in nanoseconds (CLOCK_THREAD_CPUTIME_ID,
// clock_gettime(2)), interrupts that came meanwhile included unless the kernel accounts for those. 0 on error.
func ThreadTime() int64 {
	var ts unix.Timespec
	if _, _, e := syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0); e != 0 {
		return 0
	}
	return ts.Nano()
}

// SleepUntil blocks the calling thread until CLOCK_MONOTONIC reaches deadline
// (ns), as clock_nanosleep(2) with TIMER_ABSTIME does. It returns 0, or EINTR
// if a signal came first. A deadline in the past returns at once.
func SleepUntil(deadline int64) syscall.Errno {
	ts := unix.NsecToTimespec(deadline)
	_, _, e := syscall.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME,
		uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	return e
}

// SleepFor blocks the calling thread for d ns of CLOCK_MONOTONIC from now. It
// returns 0 or EINTR.
func SleepFor(d int64) syscall.Errno {
	ts := unix.NsecToTimespec(d)
	_, _, e := syscall.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, 0,
		uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	return e
}
