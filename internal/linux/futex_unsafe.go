package linux

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The raw calls are those of package syscall: x/sys adds a jump through another ABI.

// Operations of futex(2) from include/uapi/linux/futex.h; x/sys has no names
// for them.
const (
	futexWait       = 0
	futexWaitBitset = 9
	futexWakeBitset = 10
)

// FutexCalls returns the numbers of futex(2) and restart_syscall(2) on this architecture.
func FutexCalls() (futex, restart uint32) { return unix.SYS_FUTEX, unix.SYS_RESTART_SYSCALL }

// Scope says who uses a word.
type Scope uintptr

// Other processes, too; or this one only (FUTEX_PRIVATE_FLAG, FUTEX2_PRIVATE).
const (
	Shared  Scope = 0
	Private Scope = 128
)

// MatchAny is FUTEX_BITSET_MATCH_ANY: a wake with it wakes every waiter.
const MatchAny uint32 = 0xffffffff

// WakeAll is the number that wakes every waiter on a word.
const WakeAll = 0x7fffffff

// AllocateBitset returns the bitset for the i-th waiter on a word: a bit of its
// own while there are bits, so that FutexWake with it reaches this waiter alone.
func AllocateBitset(i int) uint32 { return 1 << (uint(i) % 32) }

// FutexWake wakes up to n waiters on word whose bitset shares a bit with mask,
// and returns how many it woke (futex(2), FUTEX_WAKE_BITSET). Any thread.
func FutexWake(word *atomic.Uint32, n int, mask uint32, scope Scope) (int, syscall.Errno) {
	r, _, e := syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)),
		futexWakeBitset|uintptr(scope), uintptr(n), 0, 0, uintptr(mask))
	return int(r), e
}

// FutexWait blocks the calling thread while word holds value, until a wake
// whose mask shares a bit with mask (futex(2), FUTEX_WAIT_BITSET). It returns 0 for a
// wake, EAGAIN where the word held something else, or EINTR.
func FutexWait(word *atomic.Uint32, value, mask uint32, scope Scope) syscall.Errno {
	_, _, e := syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)),
		futexWaitBitset|uintptr(scope), uintptr(value), 0, 0, uintptr(mask))
	return e
}

// FutexMismatches calls futex(2) FUTEX_WAIT on each of n words, four bytes apart, for a
// value that it does not hold, and returns how many calls did not return EAGAIN, with the
// last such error. It does not allocate, and adds as little as can be to the calls.
func FutexMismatches(first *atomic.Uint32, n int, value uint32, scope Scope) (wrong int, last syscall.Errno) {
	op := futexWait | uintptr(scope)
	for i := range n {
		at := unsafe.Add(unsafe.Pointer(first), 4*i)
		if _, _, e := syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(at), op, uintptr(value), 0, 0, 0); e != unix.EAGAIN {
			wrong, last = wrong+1, e
		}
	}
	return wrong, last
}

// FutexWaitFor is FutexWait by FUTEX_WAIT, for no longer than d ns: ETIMEDOUT then.
func FutexWaitFor(word *atomic.Uint32, value uint32, d int64, scope Scope) syscall.Errno {
	ts := unix.NsecToTimespec(d)
	_, _, e := syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)),
		futexWait|uintptr(scope), uintptr(value), uintptr(unsafe.Pointer(&ts)), 0, 0)
	return e
}
