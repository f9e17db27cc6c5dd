package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// StartAlike starts cmd with the same random bytes as any other process that it starts: those that
// the kernel hands to each (getauxval(3), AT_RANDOM), of which Go's runtime makes the address of its
// heap. So its threads sleep on the same futex words in each. The calling thread must be locked and
// stay until the process is gone, as TieToParent has it.
func StartAlike(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true // it stops before its first instruction
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	err := awaitStop(pid)
	if err == nil {
		err = fixRandom(pid)
		if e := unix.PtraceDetach(pid); e != nil {
			err = errors.Join(err, os.NewSyscallError("ptrace(PTRACE_DETACH)", e))
		}
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it says that it was killed
	}
	return err
}

// awaitStop waits until a process that is traced has stopped.
func awaitStop(pid int) error {
	for {
		var status unix.WaitStatus
		switch _, err := unix.Wait4(pid, &status, 0, nil); {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait4(%d): %w", pid, err)
		case !status.Stopped():
			return errors.New("it ended before it began")
		default:
			return nil
		}
	}
}

// fixRandom overwrites the random bytes of a process that is traced and stopped.
func fixRandom(pid int) error {
	auxv, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return err
	}
	const atRandom, pair, bytes = 25, 16, 16 // AT_RANDOM; two words of 64 bits; how many there are
	for ; len(auxv) >= pair; auxv = auxv[pair:] {
		if binary.NativeEndian.Uint64(auxv) != atRandom {
			continue
		}
		mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer mem.Close()
		_, err = mem.WriteAt([]byte("aossim's own ...")[:bytes], int64(binary.NativeEndian.Uint64(auxv[8:])))
		return err
	}
	return errors.New("the kernel gave it no random bytes")
}
