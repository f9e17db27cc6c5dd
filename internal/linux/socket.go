package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Socket is one that is connected with a process. A write to one that is gone is an error and raises no
// SIGPIPE, which would end this program as if who reads its output were gone.
type Socket struct{ *os.File }

// SocketPair returns a socket, and that which it is connected with, to be passed on (socketpair(2)). Any
// thread.
func SocketPair() (ours *Socket, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return &Socket{os.NewFile(uintptr(fds[0]), "socket")}, os.NewFile(uintptr(fds[1]), "socket"), nil
}

// Write writes all of b.
func (s *Socket) Write(b []byte) (n int, err error) {
	c, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	var e error
	err = c.Control(func(fd uintptr) {
		for n < len(b) && e == nil {
			var did int
			if did, e = unix.SendmsgN(int(fd), b[n:], nil, nil, unix.MSG_NOSIGNAL); e == unix.EINTR {
				e = nil
				continue
			}
			n += max(0, did)
		}
	})
	if err == nil && e != nil {
		err = os.NewSyscallError("sendmsg", e)
	}
	return n, err
}

// Close ends it for both sides, and who waits in a Read gets io.EOF.
func (s *Socket) Close() error {
	if c, err := s.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	return s.File.Close()
}
