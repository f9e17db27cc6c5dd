package linux

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"aossim/internal/refusal"
)

// CreateShared makes an anonymous shared memory file of at least size bytes
// (memfd_create(2)): it has no name in any file system and is gone with its last
// process. The caller closes the file.
func CreateShared(name string, size int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	// Allocating now, not at the first touch, turns a lack of memory into an
	// error here instead of a SIGBUS in an actor.
	if err := unix.Fallocate(fd, 0, 0, int64(whole(size))); err != nil {
		f.Close()
		return nil, fmt.Errorf("allocating %d bytes of shared memory: %w; free memory, or make queue_size, max_size or count smaller", size, err)
	}
	return f, nil
}

// largestHuge is the largest huge page that is worth rounding up to (bytes): arm64 with
// 64 KiB pages has some of 512 MiB.
const largestHuge = 2 << 20

// hugePage returns the size (bytes) of a transparent huge page, or 0 where the kernel
// has none (PREEMPT_RT has none) or only too large ones.
func hugePage() int {
	data, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
	if err != nil {
		return 0
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && n <= largestHuge {
		return n
	}
	return 0
}

// SharedSize is how many bytes of memory CreateShared takes for size bytes.
func SharedSize(size int) int { return whole(size) }

// whole rounds size up to whole pages, huge ones where there are any.
func whole(size int) int {
	page := max(os.Getpagesize(), hugePage())
	return (size + page - 1) / page * page
}

// Map maps what CreateShared made for size bytes, shared, prefaulted and in huge pages
// where it can: a message in a page not used for a while costs a walk of page tables,
// in a virtual machine of two. Unmap ends it. It also returns the size of the pages (bytes).
func Map(f *os.File, size int) ([]byte, int, error) {
	huge := hugePage()
	mem, err := mmapAligned(int(f.Fd()), whole(size), max(huge, os.Getpagesize()))
	if err != nil {
		return nil, 0, fmt.Errorf("mapping %d bytes of %s: %w", size, f.Name(), err)
	}
	// Linux 6.1; it does not ask whether the administrator has huge pages on.
	if huge > 0 && unix.Madvise(mem, unix.MADV_COLLAPSE) == nil {
		return mem, huge, nil
	}
	return mem, os.Getpagesize(), nil
}

// MapAnonymous maps size bytes of zeroed private memory, prefaulted.
func MapAnonymous(size int) ([]byte, error) {
	return mapAnonymous(0, size, unix.MAP_PRIVATE)
}

// MapAnonymousShared is MapAnonymous for memory that is found by what it is, not by its
// address (MAP_SHARED): futex words in it are used without FUTEX2_PRIVATE.
func MapAnonymousShared(size int) ([]byte, error) {
	return mapAnonymous(0, size, unix.MAP_SHARED)
}

// MapAnonymousAt is one of both, at an address where that is free: in which buckets of a futex
// hash words lie depends on it.
func MapAnonymousAt(address uintptr, size int, shared bool) ([]byte, error) {
	if shared {
		return mapAnonymous(address, size, unix.MAP_SHARED)
	}
	return mapAnonymous(address, size, unix.MAP_PRIVATE)
}

// Discard gives a private mapping's pages back (madvise(2), MADV_DONTNEED):
// the next touch faults, and other CPUs that run this process flush their TLBs.
func Discard(mem []byte) error { return unix.Madvise(mem, unix.MADV_DONTNEED) }

// LockMemory keeps every page that the process has touched, or will touch, in
// memory (mlockall(2) with MCL_ONFAULT, Linux 4.4). It does not fault pages in: a Go
// process maps a hundred times of what it uses, so who measures touches its own pages
// first. It needs CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK; its error wraps
// refusal.ErrForbidden.
func LockMemory() error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("mlockall: %w (%w)", refusal.ErrForbidden, err)
	}
	return nil
}

// HoldDMALatency keeps every CPU out of idle states with an exit latency above
// 0 us for as long as the returned file stays open (PM QoS,
// Documentation/power/pm_qos_interface.rst). The error is os.ErrNotExist where the
// kernel has no such device.
func HoldDMALatency() (*os.File, error) {
	f, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(make([]byte, 4)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
