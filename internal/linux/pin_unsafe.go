package linux

import (
	"unsafe" // for go:linkname too

	"golang.org/x/sys/unix"
)

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// Pin keeps the Go scheduler away from the calling goroutine, which is locked to
// its thread, until Unpin. Without it the runtime asks every goroutine that has run
// for 10 ms to yield, also one that was blocked in a RawSyscall: at its next function
// call it would hand its P to another thread, an ordinary one, and wait to be woken by
// that. The signal by which the runtime asks (SIGURG) is blocked too, since it
// would interrupt system calls.
//
// A pinned goroutine must not use channels, locks, or system calls other than raw
// ones: where it had to wait for another, the runtime would end the process. Nor may
// it use fmt, which takes a lock for its buffers; an error made here is formatted
// later (os.NewSyscallError). A panic is fatal. No garbage collection can complete.
func Pin() {
	setSIGURG(unix.SIG_BLOCK)
	procPin()
}

// Unpin ends Pin.
func Unpin() {
	procUnpin()
	setSIGURG(unix.SIG_UNBLOCK)
}

func setSIGURG(how int) {
	var set unix.Sigset_t
	bit := uint(unix.SIGURG) - 1
	set.Val[bit/64] = 1 << (bit % 64)
	// Cannot fail: the arguments are right.
	_ = unix.PthreadSigmask(how, &set, nil)
}

// CPU returns the CPU that the calling thread runs on (getcpu(2)).
func CPU() int {
	var cpu uint32
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return int(cpu)
}

// rawWrite is write(2) past the Go scheduler.
func rawWrite(fd int, data []byte) {
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)))
}
