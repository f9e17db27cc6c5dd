package linux

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Port is a virtio-serial port of a guest. Its calls block the thread, and may be made by a pinned one.
type Port struct{ fd int }

// OpenPort opens the port of a name (drivers/char/virtio_console.c: one process at a time may have it). Its
// error wraps os.ErrNotExist where there is none.
func OpenPort(name string) (*Port, error) {
	ports, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		is, err := os.ReadFile(p)
		if err != nil || strings.TrimSpace(string(is)) != name {
			continue
		}
		path := "/dev/" + filepath.Base(filepath.Dir(p))
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", path, err)
		}
		return &Port{fd}, nil
	}
	return nil, fmt.Errorf("no virtio-serial port %q: %w", name, os.ErrNotExist)
}

// Write writes all of b.
func (p *Port) Write(b []byte) (n int, err error) {
	for n < len(b) {
		did, _, e := syscall.RawSyscall(unix.SYS_WRITE, uintptr(p.fd), uintptr(unsafe.Pointer(&b[n])), uintptr(len(b)-n))
		if e != 0 && e != EINTR {
			return n, os.NewSyscallError("write", e)
		}
		if e == 0 {
			n += int(did)
		}
	}
	return n, nil
}

// Read waits for something, and returns io.EOF where the host has closed its side.
func (p *Port) Read(b []byte) (int, error) {
	for len(b) > 0 {
		n, _, e := syscall.RawSyscall(unix.SYS_READ, uintptr(p.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case e != 0 && e != EINTR:
			return 0, os.NewSyscallError("read", e)
		case e == 0 && n == 0:
			return 0, io.EOF
		case e == 0:
			return int(n), nil
		}
	}
	return 0, nil
}

// Close lets go of it.
func (p *Port) Close() error { return unix.Close(p.fd) }
