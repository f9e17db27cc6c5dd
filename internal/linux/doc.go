// Package linux is the program's one door to the kernel: scheduling, memory,
// shared mappings, clocks, futex(2) and the calling thread's accounts.
// io_uring has its own door, internal/uring.
//
// Functions that return a syscall.Errno are for measured paths: they use
// RawSyscall, so the Go scheduler neither hears of them nor gives the thread's
// P away, and they never allocate. Functions that return an error are for set-up
// and name what failed. Functions about "the calling thread" need a goroutine
// that is locked to its thread (runtime.LockOSThread).
//
// All times are nanoseconds of CLOCK_MONOTONIC.
package linux
