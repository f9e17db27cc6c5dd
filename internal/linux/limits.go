package linux

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ResourceLimit is one of getrlimit(2), in its unit; math.MaxUint64 is none.
type ResourceLimit struct {
	Name string
	Max  uint64
}

// ResourceLimits returns the resource limits that can be met by what this program does. Those
// of open files, to which the Go runtime raises the other, and of real-time, as it ignores
// the signal of the other, are the hard ones.
func ResourceLimits() (list []ResourceLimit) {
	for _, r := range []struct {
		name string
		n    int
	}{{"RLIMIT_AS", unix.RLIMIT_AS}, {"RLIMIT_FSIZE", unix.RLIMIT_FSIZE}, {"RLIMIT_NOFILE", unix.RLIMIT_NOFILE},
		{"RLIMIT_NPROC", unix.RLIMIT_NPROC}, {"RLIMIT_RTTIME", unix.RLIMIT_RTTIME}} {
		var l unix.Rlimit
		if unix.Getrlimit(r.n, &l) != nil {
			continue
		}
		if r.n == unix.RLIMIT_NOFILE || r.n == unix.RLIMIT_RTTIME {
			l.Cur = l.Max
		}
		if l.Cur == unix.RLIM_INFINITY {
			l.Cur = math.MaxUint64
		}
		list = append(list, ResourceLimit{r.name, l.Cur})
	}
	return list
}

// Capabilities that others ask for (capabilities(7)).
const (
	CapIPCLock uint = unix.CAP_IPC_LOCK
	CapSysNice uint = unix.CAP_SYS_NICE
)

// ownNamespace says whether this process is in a user namespace that is not the machine's,
// where capabilities say nothing of what the scheduler grants (user_namespaces(7)).
func ownNamespace() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295"
}

// Capable says whether the calling thread has a capability in force, on the machine.
func Capable(capability uint) bool {
	if ownNamespace() {
		return false
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[capability/32].Effective&(1<<(capability%32)) != 0
}

// Unlimited says whether RLIMIT_NPROC does not count for this process (setrlimit(2)).
func Unlimited() bool {
	return os.Getuid() == 0 && !ownNamespace() || Capable(unix.CAP_SYS_ADMIN) || Capable(unix.CAP_SYS_RESOURCE)
}

// ThreadsOfUser returns how many threads the real user of this process has, as RLIMIT_NPROC
// counts them.
func ThreadsOfUser() (n int64) {
	statuses, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range statuses {
		data, _ := os.ReadFile(path) // it may have ended
		var uid, threads int64 = -1, 0
		for line := range strings.Lines(string(data)) {
			_, _ = fmt.Sscanf(line, "Uid: %d", &uid)
			_, _ = fmt.Sscanf(line, "Threads: %d", &threads)
		}
		if uid == int64(os.Getuid()) {
			n += threads
		}
	}
	return n
}
