// Package uring drives one io_uring from one thread: set-up, submission,
// completion and the futex operations, and nothing that aossim does not use.
//
// Set-up returns errors that name what is missing. Push, Enter and Next never
// allocate and never block in Go: Enter is a RawSyscall and returns an Errno. A
// Ring belongs to the thread that made it; nothing here is safe to call from two.
package uring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a ring's user may find after Enter: requests that the kernel did not take, or
// completions that it lost (Overflow). Values, since nothing is formatted where rings run.
var (
	ErrPartial  = errors.New("io_uring_enter took only some of the requests")
	ErrOverflow = errors.New("the completion queue overflowed")
)

// Ring is a submission and a completion queue shared with the kernel.
//
//	ring (IORING_OFF_SQ_RING; IORING_FEAT_SINGLE_MMAP, Linux 5.4)
//	  sq head      kernel writes      cq head     this program writes
//	  sq tail      program writes     cq tail     kernel writes
//	                                  cq overflow kernel writes
//	                                  cqes        kernel writes
//	sqes (IORING_OFF_SQES)            program writes
type Ring struct {
	fd    int
	index uintptr // what Enter names the ring by: its place among the thread's registered ones, or fd
	named EnterFlags
	sqes  []SQE
	cqes  []CQE
	// The kernel reads these two on the thread that calls Enter only: in that call, and
	// where it posts CQEs by task work. Plain stores do, which do not wait, as Go's atomic
	// ones do on amd64, until every store before them has its cache line.
	sqTail    *uint32
	cqHead    *uint32
	cqTail    *uint32 // atomic; the kernel writes it, also from interrupts
	overflow  *uint32 // atomic; the kernel counts lost completions here
	sqMask    uint32
	cqMask    uint32
	tail      uint32 // own copy of *sqTail, ahead of it until Enter
	submitted uint32 // tail up to which the kernel took requests
	pending   int    // requests that the kernel took and that will still complete
	head      uint32 // own copy of *cqHead
	mem       []byte
	sqeMem    []byte
}

// Setup makes a ring for the calling thread with room for entries submissions
// and at least completions CQEs (io_uring_setup(2)). The kernel takes the SQEs in their
// order (IORING_SETUP_NO_SQARRAY, Linux 6.6: liburing's default), and the ring is registered
// with the thread, of which 16 can be (io_uring_register_ring_fd(3), Linux 5.18), so that
// Enter need not look its file descriptor up.
func Setup(entries, completions int, flags SetupFlags) (*Ring, error) {
	p := params{cqEntries: uint32(completions), flags: flags | CQSize | Clamp | NoSQArray}
	fd, _, e := syscall.RawSyscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if e != 0 {
		return nil, fmt.Errorf("io_uring_setup with %d entries, flags %#x: %w", entries, uint32(flags), e)
	}
	r := &Ring{fd: int(fd), index: fd}
	err := r.register()
	if err == nil {
		r.mem, err = r.mmap(offSQRing, int(p.cqOff.cqes)+int(unsafe.Sizeof(CQE{}))*int(p.cqEntries))
	}
	if err == nil {
		r.sqeMem, err = r.mmap(offSQEs, int(unsafe.Sizeof(SQE{}))*int(p.sqEntries))
	}
	if err != nil {
		r.release()
		return nil, err
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[off])) }
	r.sqTail, r.cqHead, r.cqTail, r.overflow = at(p.sqOff.tail), at(p.cqOff.head), at(p.cqOff.tail), at(p.cqOff.overflow)
	r.sqMask, r.cqMask = *at(p.sqOff.ringMask), *at(p.cqOff.ringMask)
	r.sqes = unsafe.Slice((*SQE)(unsafe.Pointer(&r.sqeMem[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*CQE)(unsafe.Pointer(&r.mem[p.cqOff.cqes])), p.cqEntries)
	return r, nil
}

func (r *Ring) register() error {
	update := ringUpdate{offset: ^uint32(0), data: uint64(r.fd)} // any place
	if n, e := r.control(registerRingFDs, &update); n != 1 {
		return fmt.Errorf("registering an io_uring with its thread (io_uring_register): %w", e)
	}
	r.index, r.named = uintptr(update.offset), registeredRing
	return nil
}

// Unregister has Enter look the file descriptor up, so that a forked process can call it,
// too. As all else it is for the thread that made the ring: it is registered there.
func (r *Ring) Unregister() {
	if r.named == 0 {
		return
	}
	_, _ = r.control(unregisterRingFDs, &ringUpdate{offset: uint32(r.index)})
	r.index, r.named = uintptr(r.fd), 0
}

func (r *Ring) control(op uintptr, update *ringUpdate) (uintptr, syscall.Errno) {
	n, _, e := syscall.RawSyscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), op, uintptr(unsafe.Pointer(update)), 1, 0, 0)
	return n, e
}

// Offsets of the mappings (include/uapi/linux/io_uring.h).
const offSQRing, offSQEs = 0, 0x10000000

func (r *Ring) mmap(offset int64, size int) ([]byte, error) {
	mem, err := unix.Mmap(r.fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of an io_uring: %w", size, err)
	}
	return mem, nil
}

// Push queues a request for the next Enter; it returns false where the
// submission queue is full.
func (r *Ring) Push(e SQE) bool {
	if r.tail-r.submitted > r.sqMask {
		return false
	}
	r.sqes[r.tail&r.sqMask] = e
	r.tail++
	return true
}

// PushFutexWait is Push of FutexWait, written where the kernel reads it: an event loop
// arms on the way from a wake to the next wait.
func (r *Ring) PushFutexWait(addr uint64, value, mask uint32, flags FutexFlags, id uint64) bool {
	if r.tail-r.submitted > r.sqMask {
		return false
	}
	r.sqes[r.tail&r.sqMask].futexWait(addr, value, mask, flags, id)
	r.tail++
	return true
}

// PushAll queues requests as Push does, all of them or none.
func (r *Ring) PushAll(list []SQE) bool {
	if r.tail-r.submitted+uint32(len(list)) > r.sqMask+1 {
		return false
	}
	n := copy(r.sqes[r.tail&r.sqMask:], list)
	copy(r.sqes, list[n:])
	r.tail += uint32(len(list))
	return true
}

// Queued returns how many requests were pushed and not yet taken by the kernel.
func (r *Ring) Queued() uint32 { return r.tail - r.submitted }

// Outstanding returns how many requests the kernel took that have not completed.
func (r *Ring) Outstanding() int { return r.pending }

// Enter submits what was pushed and, with GetEvents, waits for wait completions
// (io_uring_enter(2)). It returns EINTR where a signal came before either.
func (r *Ring) Enter(wait uint32, flags EnterFlags) syscall.Errno {
	*r.sqTail, *r.cqHead = r.tail, r.head
	n, _, e := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, r.index, uintptr(r.tail-r.submitted), uintptr(wait), uintptr(flags|r.named), 0, 0)
	if e == 0 {
		r.submitted += uint32(n)
		r.pending += int(n)
	}
	return e
}

// Next takes the oldest completion, if there is one.
func (r *Ring) Next() (CQE, bool) {
	if r.head == atomic.LoadUint32(r.cqTail) { // acquire: the CQE is whole
		return CQE{}, false
	}
	c := r.cqes[r.head&r.cqMask]
	r.head++
	if c.Flags&CQEMore == 0 {
		r.pending--
	}
	return c, true
}

// Overflow returns how many completions are lost for good, as the kernel had no
// memory to keep them until there was room (IORING_FEAT_NODROP, Linux 5.5).
func (r *Ring) Overflow() uint32 { return atomic.LoadUint32(r.overflow) }

// Close cancels what is pending, waits until the kernel let go of every word, and
// releases the ring. It returns how many requests were cancelled and how many
// completed otherwise without having been taken by Next.
func (r *Ring) Close() (cancelled, completed int, err error) {
	defer r.release()
	const cancelID = ^uint64(0)
	if r.pending > 0 && !r.Push(CancelAll(cancelID)) {
		return 0, 0, fmt.Errorf("closing an io_uring: its submission queue is full")
	}
	for r.pending > 0 || r.Queued() > 0 {
		if e := r.Enter(1, GetEvents); e != 0 && e != unix.EINTR {
			return cancelled, completed, fmt.Errorf("closing an io_uring with %d requests pending: io_uring_enter: %w", r.pending, e)
		}
		for c, ok := r.Next(); ok; c, ok = r.Next() {
			switch {
			case c.UserData == cancelID || c.Flags&CQEMore != 0:
			case c.Errno() == unix.ECANCELED:
				cancelled++
			default:
				completed++
			}
		}
	}
	return cancelled, completed, nil
}

// Abandon closes the ring with requests pending, as a process does that dies: the
// kernel cancels them in its own time.
func (r *Ring) Abandon() { r.release() }

func (r *Ring) release() {
	r.Unregister()
	if r.sqeMem != nil {
		unix.Munmap(r.sqeMem)
	}
	if r.mem != nil {
		unix.Munmap(r.mem)
	}
	unix.Close(r.fd)
}
