package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CreateShared makes an anonymous shared memory file of size bytes
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
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		f.Close()
		return nil, fmt.Errorf("allocating %d bytes of shared memory: %w; free memory, or make queue_size, max_size or count smaller", size, err)
	}
	return f, nil
}

// Map maps size bytes of f, shared and prefaulted. Unmap ends it.
func Map(f *os.File, size int) ([]byte, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of %s: %w", size, f.Name(), err)
	}
	return mem, nil
}

// MapAnonymous maps size bytes of zeroed private memory, prefaulted.
func MapAnonymous(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", size, err)
	}
	return mem, nil
}

// Unmap ends a mapping. No request in the kernel may refer to it any more.
func Unmap(mem []byte) error { return unix.Munmap(mem) }

// Discard gives a private mapping's pages back (madvise(2), MADV_DONTNEED):
// the next touch faults, and other CPUs that run this process flush their TLBs.
func Discard(mem []byte) error { return unix.Madvise(mem, unix.MADV_DONTNEED) }

// LockMemory keeps every page that the process has touched, or will touch, in
// memory (mlockall(2) with MCL_ONFAULT, Linux 4.4). It does not fault pages in: a Go
// process maps a hundred times of what it uses, so who measures touches its own pages
// first. It needs CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK.
func LockMemory() error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("mlockall: %w; run as root, or raise RLIMIT_MEMLOCK (ulimit -l unlimited)", err)
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
