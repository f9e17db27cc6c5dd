package uring

import (
	"structs"
	"syscall"
	"unsafe"

	"aossim/internal/linux"
)

// Opcode is an operation of io_uring_sqe.opcode.
type Opcode uint8

// The operations that this program issues (include/uapi/linux/io_uring.h).
const (
	OpPollAdd     Opcode = 6
	OpAsyncCancel Opcode = 14
	OpFutexWait   Opcode = 51 // Linux 6.7
	OpFutexWake   Opcode = 52 // Linux 6.7
	OpFutexWaitv  Opcode = 53 // Linux 6.7
)

// SetupFlags are the flags of io_uring_setup(2).
type SetupFlags uint32

// The set-up flags that this program knows. IORING_SETUP_SQPOLL is not among them:
// its thread would submit, and a failed arm's -EAGAIN come later than the submission.
const (
	CQSize       SetupFlags = 1 << 3
	Clamp        SetupFlags = 1 << 4
	SubmitAll    SetupFlags = 1 << 7  // Linux 5.18
	CoopTaskrun  SetupFlags = 1 << 8  // Linux 5.19
	TaskrunFlag  SetupFlags = 1 << 9  // Linux 5.19
	SingleIssuer SetupFlags = 1 << 12 // Linux 6.0
	DeferTaskrun SetupFlags = 1 << 13 // Linux 6.1
	NoSQArray    SetupFlags = 1 << 16 // Linux 6.6
)

var setupFlagNames = map[string]SetupFlags{
	"submit_all": SubmitAll, "coop_taskrun": CoopTaskrun, "taskrun_flag": TaskrunFlag,
	"single_issuer": SingleIssuer, "defer_taskrun": DeferTaskrun,
}

// ParseSetupFlag returns the flag that a scenario calls by its name in
// io_uring_setup(2), in lower case and without IORING_SETUP_.
func ParseSetupFlag(name string) (SetupFlags, bool) {
	f, ok := setupFlagNames[name]
	return f, ok
}

// EnterFlags are the flags of io_uring_enter(2).
type EnterFlags uint32

// GetEvents runs the ring's pending task work and waits for completions.
const GetEvents EnterFlags = 1

// registeredRing says that the ring is named by its index (Linux 5.18).
const registeredRing EnterFlags = 1 << 4

// Operations of io_uring_register(2).
const (
	registerRingFDs   = 20 // Linux 5.18
	unregisterRingFDs = 21
)

// FutexFlags are the FUTEX2_* flags of include/uapi/linux/futex.h, in the SQE's
// fd field.
type FutexFlags uint32

// FutexU32 names a 32-bit word and is required; linux.Private promises that only this process
// uses it.
const FutexU32 FutexFlags = 2

// WordFlags returns the flags for a 32-bit word.
func WordFlags(scope linux.Scope) FutexFlags { return FutexU32 | FutexFlags(scope) }

// CQEFlags are the flags of a completion.
type CQEFlags uint32

// CQEMore says that the request stays and will complete again.
const CQEMore CQEFlags = 1 << 1

// SQE is struct io_uring_sqe (include/uapi/linux/io_uring.h). Assign a whole
// literal, so that no field of an earlier request stays behind: the kernel
// answers -EINVAL to those.
type SQE struct {
	_           structs.HostLayout
	Opcode      Opcode
	Flags       uint8
	IOPrio      uint16
	FD          int32
	Off         uint64 // futex: expected value, or number to wake
	Addr        uint64
	Len         uint32
	OpFlags     uint32 // poll: events
	UserData    uint64
	BufIndex    uint16
	Personality uint16
	SpliceFD    int32
	Addr3       uint64 // futex: bitset
	_           uint64
}

// CQE is struct io_uring_cqe.
type CQE struct {
	_        structs.HostLayout
	UserData uint64
	Res      int32
	Flags    CQEFlags
}

// Waitv is struct futex_waitv (include/uapi/linux/futex.h).
type Waitv struct {
	_     structs.HostLayout
	Value uint64
	Addr  uint64
	Flags FutexFlags
	_     uint32
}

// MaxWaitv is FUTEX_WAITV_MAX, the longest vector.
const MaxWaitv = 128

type sqOffsets struct {
	_                                                            structs.HostLayout
	head, tail, ringMask, ringEntries, flags, dropped, array, _1 uint32
	_                                                            uint64
}

type cqOffsets struct {
	_                                                            structs.HostLayout
	head, tail, ringMask, ringEntries, overflow, cqes, flags, _1 uint32
	_                                                            uint64
}

type params struct {
	_                                                              structs.HostLayout
	sqEntries, cqEntries                                           uint32
	flags                                                          SetupFlags
	sqThreadCPU, sqThreadIdle, features, wqFD, resv0, resv1, resv2 uint32
	sqOff                                                          sqOffsets
	cqOff                                                          cqOffsets
}

// ringUpdate is struct io_uring_rsrc_update.
type ringUpdate struct {
	_            structs.HostLayout
	offset, resv uint32
	data         uint64
}

// The kernel's sizes; a difference does not compile.
var (
	_ [64]byte  = [unsafe.Sizeof(SQE{})]byte{}
	_ [16]byte  = [unsafe.Sizeof(CQE{})]byte{}
	_ [24]byte  = [unsafe.Sizeof(Waitv{})]byte{}
	_ [120]byte = [unsafe.Sizeof(params{})]byte{}
	_ [16]byte  = [unsafe.Sizeof(ringUpdate{})]byte{}
)

// FutexWait is an arm: it completes with 0 when a wake whose mask shares a bit
// with mask reaches the word at addr, and inline with -EAGAIN where the word
// does not hold value (io_uring/futex.c, Linux 6.7).
func FutexWait(addr uint64, value, mask uint32, flags FutexFlags, id uint64) (e SQE) {
	e.futexWait(addr, value, mask, flags, id)
	return e
}

func (e *SQE) futexWait(addr uint64, value, mask uint32, flags FutexFlags, id uint64) {
	*e = SQE{}
	e.Opcode, e.FD, e.Addr, e.Off, e.Addr3, e.UserData = OpFutexWait, int32(flags), addr, uint64(value), uint64(mask), id
}

// FutexWake wakes up to n waiters on the word at addr and completes with how
// many it woke.
func FutexWake(addr uint64, n uint64, flags FutexFlags, id uint64) SQE {
	return SQE{Opcode: OpFutexWake, FD: int32(flags), Addr: addr, Off: n, Addr3: 0xffffffff, UserData: id}
}

// FutexWaitv arms all n words of the vector of Waitv at addr with one request; it
// completes with the index of the word that was woken, or inline with -EAGAIN
// where one does not hold its value. n is 1..MaxWaitv.
func FutexWaitv(addr uint64, n int, id uint64) SQE {
	return SQE{Opcode: OpFutexWaitv, Addr: addr, Len: uint32(n), UserData: id}
}

// PollMultishot completes each time fd becomes readable, with CQEMore while it
// stays armed.
func PollMultishot(fd int, id uint64) SQE {
	const pollIn, pollAddMulti = 1, 1
	return SQE{Opcode: OpPollAdd, FD: int32(fd), Len: pollAddMulti, OpFlags: pollIn, UserData: id}
}

// CancelAll cancels every request of the ring and completes with how many those
// were (IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL, Linux 5.19).
func CancelAll(id uint64) SQE {
	const all, anyRequest = 1 << 0, 1 << 2
	return SQE{Opcode: OpAsyncCancel, FD: -1, OpFlags: all | anyRequest, UserData: id}
}

// Errno returns the error of a completion, 0 where Res is not one.
func (c CQE) Errno() syscall.Errno {
	if c.Res < 0 {
		return syscall.Errno(-c.Res)
	}
	return 0
}

// Vector is a vector of words for FutexWaitv, in a mapping of its own.
type Vector struct {
	mem   []byte
	waits []Waitv
}

// NewVector returns a vector of n words, 1..MaxWaitv; Close releases it.
func NewVector(n int) (*Vector, error) {
	mem, err := linux.MapAnonymous(n * int(unsafe.Sizeof(Waitv{})))
	if err != nil {
		return nil, err
	}
	return &Vector{mem, unsafe.Slice((*Waitv)(unsafe.Pointer(&mem[0])), n)}, nil
}

// Set makes word i the one at addr, to be waited on while it holds value.
func (v *Vector) Set(i int, addr uint64, value uint32, flags FutexFlags) {
	v.waits[i] = Waitv{Value: uint64(value), Addr: addr, Flags: flags}
}

// Addr returns the vector's address for FutexWaitv.
func (v *Vector) Addr() uint64 { return linux.Address(v.mem, 0) }

// Close releases the vector; no request may refer to it.
func (v *Vector) Close() error { return linux.Unmap(v.mem) }
