package limits

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// tree makes files below a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	mount2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	online = "sys/devices/system/cpu/online"
)

// TestGroups: the smallest limit of a group and all of its parents counts, of both versions of
// control groups, and what has none is no limit.
func TestGroups(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string // in order
	}{
		"version 2": {map[string]string{
			"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/user.slice/a\n", online: "0-3\n",
			"sys/fs/cgroup/user.slice/memory.max": "134217728\n", "sys/fs/cgroup/user.slice/memory.current": "1048576\n",
			"sys/fs/cgroup/user.slice/a/memory.max": "max\n", "sys/fs/cgroup/user.slice/a/pids.max": "40\n", "sys/fs/cgroup/user.slice/pids.max": "30\n",
			"sys/fs/cgroup/user.slice/a/cpu.max": "50000 100000\n", "sys/fs/cgroup/user.slice/a/cpuset.cpus.effective": "0-1\n",
		}, []string{"memory 128 MiB (/sys/fs/cgroup/user.slice/memory.max)", "threads 40 (/sys/fs/cgroup/user.slice/a/pids.max)", "threads 30 (/sys/fs/cgroup/user.slice/pids.max)", "CPU quota 0.50 CPUs (/sys/fs/cgroup/user.slice/a/cpu.max)", "CPUs 0-1 (/sys/fs/cgroup/user.slice/a/cpuset.cpus.effective)"}},
		"no limits": {map[string]string{
			"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/a\n", online: "0-3\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/pids.max": "max\n",
			"sys/fs/cgroup/a/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpuset.cpus.effective": "0-3\n",
		}, nil},
		"version 1": {map[string]string{
			"proc/self/mountinfo":                        "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n34 31 0:31 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n",
			"proc/self/cgroup":                           "4:memory:/a\n2:cpu,cpuacct:/a\n1:name=systemd:/a\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1048576\n",
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "20000\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "10000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "10000\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.rt_runtime_us": "0\n",
		}, []string{"memory 1 MiB (/sys/fs/cgroup/memory/a/memory.limit_in_bytes)", "CPU quota 2.00 CPUs (/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us)", "real-time budget 0 us (/sys/fs/cgroup/cpu,cpuacct/a/cpu.rt_runtime_us)"}},
		"a container's view": {map[string]string{
			"proc/self/mountinfo": "30 24 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "proc/self/cgroup": "0::/docker/x/sub\n",
			"sys/fs/cgroup/pids.max": "8\n", "sys/fs/cgroup/sub/pids.max": "max\n",
		}, []string{"threads 8 (/sys/fs/cgroup/pids.max)"}},
		"moved out of the view": {map[string]string{
			"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/../other\n", "sys/fs/cgroup/pids.max": "9\n",
		}, []string{"threads 9 (/sys/fs/cgroup/pids.max)"}},
		"both": {map[string]string{
			"proc/self/mountinfo": mount2 + "34 31 0:31 / /m rw - cgroup cgroup rw,memory\n", "proc/self/cgroup": "4:memory:/\n0::/\n",
			"m/memory.limit_in_bytes": "2097152\n", "sys/fs/cgroup/memory.max": "1\n", "sys/fs/cgroup/pids.max": "7\n",
		}, []string{"memory 2 MiB (/m/memory.limit_in_bytes)", "threads 7 (/sys/fs/cgroup/pids.max)"}},
		"a subtree mounted elsewhere, and no budget": {map[string]string{
			"proc/self/mountinfo": mount2 + "31 24 0:26 /b /sub rw - cgroup2 cgroup2 rw\n35 31 0:32 / /cpu rw - cgroup cgroup rw,cpu\n", "proc/self/cgroup": "2:cpu:/\n0::/b\n",
			"sub/pids.max": "1\n", "sys/fs/cgroup/b/pids.max": "12\n", "cpu/cpu.rt_runtime_us": "-1\n",
		}, []string{"threads 12 (/sys/fs/cgroup/b/pids.max)"}},
		"nothing": {nil, nil},
		"damaged": {map[string]string{
			"proc/self/mountinfo": "x\n- -\n1 2 3 4 5 - cgroup2\n" + mount2, "proc/self/cgroup": "0\n:::\n0::/\n", "sys/fs/cgroup/cpu.max": "x y\n", "sys/fs/cgroup/pids.max": "-\n",
		}, nil},
	} {
		root := tree(t, c.files)
		var got []string
		for _, l := range read(root).Limits {
			if l.From != "" {
				got = append(got, strings.Replace(l.String(), root, "", 1))
			}
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestEvents: what happened since is told apart from what had happened before.
func TestEvents(t *testing.T) {
	root := tree(t, map[string]string{
		"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "100000000\n", "sys/fs/cgroup/a/memory.events": "low 0\noom 1\noom_kill 1\n",
		"sys/fs/cgroup/a/pids.max": "100\n", "sys/fs/cgroup/a/pids.events": "max 3\n", "sys/fs/cgroup/a/cpu.max": "1000 100000\n", "sys/fs/cgroup/a/cpu.stat": "nr_periods 9\nnr_throttled 2\nthrottled_usec 10\n",
	})
	s := read(root)
	before := s.Events()
	if met := s.Since(before); len(met) != 0 || s.ThrottledSince(before) != "" {
		t.Errorf("nothing happened: %q", met)
	}
	for name, text := range map[string]string{"memory.events": "oom_kill 3\n", "pids.events": "max 4\n", "cpu.stat": "nr_throttled 7\nthrottled_usec 90010\n"} {
		if err := os.WriteFile(filepath.Join(root, "sys/fs/cgroup/a", name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	met := strings.Join(append(s.Since(before), s.ThrottledSince(before)), "\n")
	for _, want := range []string{"stopped 5 times, 90 ms", "2 processes were killed", "1 threads were refused", "memory.max", "pids.max", "cpu.max"} {
		if !strings.Contains(met, want) {
			t.Errorf("no %q in %s", want, met)
		}
	}
}

// TestUsed: memory that the kernel gives back when it is needed is not used.
func TestUsed(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"version 2": {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/memory.max": "1000000\n", "sys/fs/cgroup/memory.current": "900000\n",
			"sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 500000\nactive_file 200000\nslab_reclaimable 100000\n"},
		"version 1": {"proc/self/cgroup": "1:memory:/\n", "proc/self/mountinfo": "1 1 0:1 / /m rw - cgroup cgroup rw,memory\n", "m/memory.limit_in_bytes": "1000000\n", "m/memory.usage_in_bytes": "900000\n",
			"m/memory.stat": "inactive_file 1\ntotal_inactive_file 600000\ntotal_active_file 200000\n"},
	} {
		if l := read(tree(t, files)).Of(Memory); l == nil || l.Used != 100000 {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// TestCheck: what fits passes, and what does not is a refusal that names the limit and what is
// needed.
func TestCheck(t *testing.T) {
	limit := func(k Kind, most, used int64) *Set {
		return &Set{Limits: []Limit{{Kind: k, Max: most, Used: used}}}
	}
	need := Need{Shared: 10 << 20, Memory: 50 << 20, Processes: 7, Threads: 20, Files: 100}
	for _, c := range []struct {
		s    *Set
		fits bool
	}{
		{&Set{}, true}, {limit(Memory, 1<<30, 0), true}, {limit(Memory, 1<<30, 900<<20), false}, {limit(Memory, 100<<20, 0), false},
		{limit(Tasks, 200, 0), true}, {limit(Tasks, 200, 150), false}, {limit(Files, 1024, 0), true}, {limit(Files, 64, 0), false},
		{limit(Space, 1<<40, 0), true}, {limit(Space, 1<<30, 0), false}, {limit(FileSize, 1<<20, 0), false}, {limit(FileSize, 20<<20, 0), true},
		{limit(CPUQuota, 1, 0), true}, {limit(RTTime, 1, 0), true},
	} {
		err := c.s.Check(need)
		if (err == nil) != c.fits || err != nil && (!errors.Is(err, refusal.ErrCannot) || !strings.Contains(err.Error(), c.s.Limits[0].String())) {
			t.Errorf("%v: %v", c.s.Limits, err)
		}
	}
}

func Example() {
	none := &Set{}
	fmt.Println(none.Check(Need{Processes: 1, Threads: 2}))
	_, err := Try(Thread{Sched: linux.Sched{Policy: linux.Other}})
	fmt.Println(err)
	// Output:
	// <nil>
	// <nil>
}

// TestMemoryGroup: the group with an account is named, and the root one said to have none.
func TestMemoryGroup(t *testing.T) {
	const mount1 = "34 31 0:31 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"version 2": {map[string]string{"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/aossim\n", "sys/fs/cgroup/aossim/memory.current": "4096\n"}, "/sys/fs/cgroup/aossim"},
		"parent":    {map[string]string{"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.current": "4096\n"}, "/sys/fs/cgroup/a"},
		"root":      {map[string]string{"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.procs": "1\n"}, RootGroup},
		"no memory": {map[string]string{"proc/self/mountinfo": mount2, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cgroup.procs": "1\n"}, RootGroup},
		"version 1": {map[string]string{"proc/self/mountinfo": mount1, "proc/self/cgroup": "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n"}, "/sys/fs/cgroup/memory/a"},
		"root of 1": {map[string]string{"proc/self/mountinfo": mount1, "proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n"}, RootGroup},
		"none":      {nil, "none to be seen"},
	} {
		if got := memoryGroup(tree(t, c.files)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
