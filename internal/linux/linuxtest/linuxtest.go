// Package linuxtest is for tests that run real rings and real-time threads: they
// have the machine to themselves, one package at a time.
package linuxtest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"aossim/internal/linux"
)

// HasMachine in the environment of a test that another one runs says that the machine is
// theirs already.
const HasMachine = "AOSSIM_TEST_HAS_MACHINE"

// Main runs a package's tests while no other package that uses Main does, and
// returns the exit code. `go test ./...` runs packages side by side.
func Main(m *testing.M) int {
	if os.Getenv(HasMachine) != "" {
		return m.Run()
	}
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "aossim-test.lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		panic(err)
	}
	return m.Run()
}

// Map returns zeroed memory that is a mapping and no Go memory, until the test
// ends.
func Map(t testing.TB, size int) []byte {
	t.Helper()
	mem, err := linux.MapAnonymous(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := linux.Unmap(mem); err != nil {
			t.Error(err)
		}
	})
	return mem
}

// DropCapabilities takes all capabilities from the calling thread (capset(2)), which
// cannot get them back. The goroutine must be locked to it and never unlocked.
func DropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}

// Unprivileged calls f on a thread whose children have no capabilities, though they are
// root's (capabilities(7), the bounding set).
func Unprivileged(t testing.TB, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		var err error
		for c := uintptr(0); c <= unix.CAP_LAST_CAP && err == nil; c++ {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("dropping capabilities: %v; run the tests as root", err)
	}
}
