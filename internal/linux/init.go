package linux

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mount mounts a file system of a type that needs no device, and makes the directory
// where it can. One that is there already is no error.
func Mount(kind, dir string) error {
	_ = os.MkdirAll(dir, 0o755) // the root may be read-only and have it
	if err := unix.Mount(kind, dir, kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mounting %s on %s: %w", kind, dir, err)
	}
	return nil
}

// RunAsInit runs a program in a session of its own, its standard output in a file, and
// returns its exit code, 128 and the signal where one ended it. All children of this process
// that end meanwhile are reaped, as only the first process of a system may. group is the directory of
// the control group (version 2) that it begins in, nil for this process's.
func RunAsInit(program string, args []string, stdout string, group *os.File) (int, error) {
	out, err := os.Create(stdout)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	in, err := os.Open(os.DevNull)
	if err != nil {
		in = out // there is no devtmpfs; something must stand there
	}
	how := &unix.SysProcAttr{Setsid: true}
	if group != nil {
		how.UseCgroupFD, how.CgroupFD = true, int(group.Fd())
	}
	p, err := os.StartProcess(program, append([]string{program}, args...), &os.ProcAttr{
		Dir: "/tmp", Env: []string{"PATH=/", "HOME=/tmp", "TMPDIR=/tmp"}, Files: []*os.File{in, out, os.Stderr}, Sys: how,
	})
	if err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		switch pid, err := unix.Wait4(-1, &status, 0, nil); {
		case err == unix.EINTR:
		case err != nil:
			return 0, fmt.Errorf("wait4: %w", err)
		case pid == p.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == p.Pid:
			return status.ExitStatus(), nil
		}
	}
}

// LoopbackUp brings the loopback device up, as nobody else does in a system without one
// who would.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

// PowerOff turns the machine off at once (reboot(2)); it needs CAP_SYS_BOOT and does not
// return where it works.
func PowerOff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}
