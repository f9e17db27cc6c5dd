package linux

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmapAligned maps the first size bytes of a file, shared and prefaulted, at a multiple
// of align.
func mmapAligned(fd, size, align int) ([]byte, error) {
	room, err := unix.MmapPtr(-1, 0, nil, uintptr(size+align), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	skip := (align - int(uintptr(room)%uintptr(align))) % align
	start := unsafe.Add(room, skip)
	if _, err := unix.MmapPtr(fd, 0, start, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE|unix.MAP_FIXED); err != nil {
		return nil, err
	}
	if skip > 0 {
		_ = unix.MunmapPtr(room, uintptr(skip))
	}
	if left := align - skip; left > 0 {
		_ = unix.MunmapPtr(unsafe.Add(start, size), uintptr(left))
	}
	return unsafe.Slice((*byte)(start), size), nil
}

// Unmap ends a mapping that a function of this package made. No request in the kernel may refer
// to it any more.
func Unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(cap(mem)))
}

// Uint32At returns the aligned 32-bit word at byte off of a mapping. It panics
// where off does not lie inside mem or is not a multiple of 4.
func Uint32At(mem []byte, off int) *atomic.Uint32 {
	if off%4 != 0 {
		panic("linux: unaligned 32-bit word")
	}
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off : off+4][0]))
}

// Uint64sAt returns the n aligned 64-bit words from byte off of a mapping. It
// panics where they do not lie inside mem or off is not a multiple of 8.
func Uint64sAt(mem []byte, off, n int) []atomic.Uint64 {
	if off%8 != 0 {
		panic("linux: unaligned 64-bit words")
	}
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[off : off+8*n][0])), n)
}

// Address returns where a byte of a mapping lies, for kernel interfaces that
// take addresses as numbers. mem must be a mapping, never Go memory.
func Address(mem []byte, off int) uint64 {
	return uint64(uintptr(unsafe.Pointer(&mem[off])))
}

// WordAddress is Address for a word of a mapping.
func WordAddress(word *atomic.Uint32) uint64 {
	return uint64(uintptr(unsafe.Pointer(word)))
}

// mapAnonymous maps zeroed memory, at address where that is not 0 and free (mmap(2)).
func mapAnonymous(address uintptr, size, kind int) ([]byte, error) {
	at, err := unix.MmapPtr(-1, 0, unsafe.Add(unsafe.Pointer(nil), address), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, kind|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", size, err)
	}
	return unsafe.Slice((*byte)(at), size), nil
}
