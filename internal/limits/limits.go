// Package limits is what control groups, resource limits and capabilities keep from this
// program: read before anything runs, and looked at again where something was killed or stopped.
package limits

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// Kind is what is limited.
type Kind string

// Control groups have the first ones, resource limits (getrlimit(2)) the others.
const (
	Memory    Kind = "memory"
	Tasks     Kind = "threads"
	CPUQuota  Kind = "CPU quota"
	RTBudget  Kind = "real-time budget"
	CPUs      Kind = "CPUs"
	Processes Kind = "RLIMIT_NPROC"
	Files     Kind = "RLIMIT_NOFILE"
	Space     Kind = "RLIMIT_AS"
	FileSize  Kind = "RLIMIT_FSIZE"
	RTTime    Kind = "RLIMIT_RTTIME"
)

// Limit is one that this process is under. Max and Used are bytes, numbers, or us: of each
// second for the CPU quota, of each period for the real-time budget.
type Limit struct {
	Kind Kind
	Max  int64
	Used int64  // of a control group, by all in it; 0 is unknown
	Text string // of CPUs
	From string // the file that says so; "" for a resource limit
}

// String is "memory 128 MiB (FILE)".
func (l Limit) String() string {
	var text string
	switch l.Kind {
	case Memory, Space, FileSize:
		text = size(l.Max)
	case CPUQuota:
		text = fmt.Sprintf("%.2f CPUs", float64(l.Max)/1e6)
	case RTBudget, RTTime:
		text = fmt.Sprintf("%d us", l.Max)
	case CPUs:
		text = l.Text
	default:
		text = strconv.FormatInt(l.Max, 10)
	}
	if l.From == "" {
		return string(l.Kind) + " " + text
	}
	return fmt.Sprintf("%s %s (%s)", l.Kind, text, l.From)
}

func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// Set is all limits that this process is under.
type Set struct {
	Limits []Limit
	groups groups
}

// Read reads all limits. What cannot be read is not among them.
func Read() *Set { return read("") }

// read is Read below another root.
func read(root string) *Set {
	s := &Set{groups: findGroups(root)}
	s.each(Memory, "memory", "memory.max", "memory.limit_in_bytes", "memory.current", "memory.usage_in_bytes")
	s.each(Tasks, "pids", "pids.max", "pids.max", "pids.current", "pids.current")
	s.quotas()
	for _, dir := range s.groups["cpu"] { // it has a budget only where the kernel has RT groups (v1)
		path := filepath.Join(dir, "cpu.rt_runtime_us")
		if us, ok := number(path); ok {
			if us >= 0 {
				s.Limits = append(s.Limits, Limit{Kind: RTBudget, Max: us, From: path})
			}
			break
		}
	}
cpus: // the effective ones are those of the nearest group that has any
	for _, dir := range s.groups["cpuset"] {
		for _, name := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus"} {
			text := content(filepath.Join(dir, name))
			if text != "" && text != content(root+"/sys/devices/system/cpu/online") {
				s.Limits = append(s.Limits, Limit{Kind: CPUs, Text: text, From: filepath.Join(dir, name)})
			}
			if text != "" {
				break cpus
			}
		}
	}
	for _, r := range linux.ResourceLimits() {
		if r.Max < math.MaxInt64 {
			s.Limits = append(s.Limits, Limit{Kind: Kind(r.Name), Max: int64(r.Max)})
		}
	}
	return s
}

// Of returns the limit of a kind, nil where there is none.
func (s *Set) Of(k Kind) *Limit {
	for i := range s.Limits {
		if s.Limits[i].Kind == k {
			return &s.Limits[i]
		}
	}
	return nil
}

// Strings are all limits, a line each.
func (s *Set) Strings() (list []string) {
	for _, l := range s.Limits {
		list = append(list, l.String())
	}
	return list
}

// Need is what is to be started.
type Need struct {
	Shared    int64 // bytes of shared memory
	Memory    int64 // bytes besides, of all processes together
	Processes int
	Threads   int // that do the work; the runtime's own are added
	Files     int // of the process that has the most
}

// What a Go process takes besides: threads of its runtime, memory, and address space, with
// room for what it may come to.
const (
	ownThreads = 8 // and one for each CPU
	ownMemory  = 12 << 20
	ownProgram = 32 << 20 // the program's file, once for all
	ownSpace   = 9 << 28
	ownFiles   = 24
)

// Check refuses what has no room here, with refusal.ErrCannot. It is asked by the process
// that is to start the others, and counts it in.
func (s *Set) Check(n Need) error {
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		return refusal.Cannot("there is no /proc, by which this program starts itself and reads what the kernel grants: %w; mount -t proc proc /proc", err)
	}
	memory := n.Shared + n.Memory + ownProgram + int64(n.Processes+1)*ownMemory
	tasks := int64(n.Threads + (n.Processes+1)*(ownThreads+runtime.NumCPU()))
	for _, l := range s.Limits {
		need, what := int64(0), ""
		switch l.Kind {
		case Memory:
			need, what = memory, fmt.Sprintf("about %s besides the %s in use", size(memory), size(l.Used))
		case Tasks:
			need, what = tasks, fmt.Sprintf("about %d threads besides %d", tasks, l.Used)
		case Files:
			need = int64(n.Files + ownFiles)
			what = fmt.Sprintf("about %d open files in one process", need)
		case Space:
			need = ownSpace + n.Shared
			what = "about " + size(need) + " of addresses a process"
		case FileSize:
			need, what = n.Shared, size(n.Shared)+" of shared memory"
		case Processes:
			if linux.Unlimited() {
				continue // it is no limit then (setrlimit(2))
			}
			l.Used = linux.ThreadsOfUser()
			need, what = tasks, fmt.Sprintf("about %d threads besides %d", tasks, l.Used)
		default:
			continue
		}
		if l.Used+need > l.Max {
			return refusal.Cannot("this takes %s, and the limit is %s; raise it, or make the scenario smaller", what, l)
		}
	}
	return nil
}

// Events are how often limits were met until now.
type Events struct {
	Throttled, Killed, Refused int64 // by the CPU quota; for lack of memory; a thread or process
	ThrottledNS                int64 // of all CPUs together
}

// Events reads how often the limits were met until now: of threads and memory by the own
// group, as a parent's count is of others, too.
func (s *Set) Events() (e Events) {
	for _, path := range s.ThrottleFiles() {
		e.Throttled += field(path, "nr_throttled")
		e.ThrottledNS += field(path, "throttled_time") + 1000*field(path, "throttled_usec")
	}
	own := func(controller, file, name string) int64 {
		for _, dir := range s.groups[controller] { // the root has none
			if n, ok := lookUp(filepath.Join(dir, file), name); ok {
				return n
			}
		}
		return 0
	}
	e.Killed = own("memory", "memory.events", "oom_kill") + own("memory", "memory.oom_control", "oom_kill")
	e.Refused = own("pids", "pids.events", "max")
	return e
}

// Since names the limits of memory and threads that were met since before.
func (s *Set) Since(before Events) (met []string) {
	now := s.Events()
	add := func(n int64, k Kind, what string) {
		if n > 0 {
			limit := ""
			if l := s.Of(k); l != nil {
				limit = ": " + l.String()
			}
			met = append(met, fmt.Sprintf("%d %s%s", n, what, limit))
		}
	}
	add(now.Killed-before.Killed, Memory, "processes were killed for the control group's memory")
	add(now.Refused-before.Refused, Tasks, "threads were refused by the control group")
	return met
}

// ThrottledSince says how the CPU quota stopped threads since before, "" where it did not.
func (s *Set) ThrottledSince(before Events) string {
	now, l := s.Events(), s.Of(CPUQuota)
	if l == nil || now.Throttled == before.Throttled {
		return ""
	}
	return fmt.Sprintf("ordinary threads were stopped %d times, %d ms in all, by the control group's %s", now.Throttled-before.Throttled, (now.ThrottledNS-before.ThrottledNS)/1e6, l)
}

// ThrottleFiles are those that say how often a CPU quota stopped threads: of each group that
// has one.
func (s *Set) ThrottleFiles() (paths []string) {
	for _, l := range s.Limits {
		if l.Kind == CPUQuota {
			paths = append(paths, filepath.Join(filepath.Dir(l.From), "cpu.stat"))
		}
	}
	return paths
}

// groups are the directories of the control groups that this process is in, by controller:
// its own first, then its parents' as far as they can be seen (cgroups(7)).
type groups map[string][]string

func findGroups(root string) groups {
	g := groups{}
	mounts := map[string][2]string{} // by controller, "" for version 2: mount point and what of the tree it shows
	for line := range strings.Lines(content(root + "/proc/self/mountinfo")) {
		mount, kind, ok := strings.Cut(strings.TrimSpace(line), " - ")
		m, k := strings.Fields(mount), strings.Fields(kind)
		if !ok || len(m) < 5 || len(k) < 3 {
			continue
		}
		at := [2]string{root + strings.ReplaceAll(m[4], `\040`, " "), m[3]}
		controllers := []string{}
		switch k[0] {
		case "cgroup2":
			controllers = []string{""}
		case "cgroup":
			controllers = strings.Split(k[2], ",")
		}
		for _, c := range controllers { // of several mounts the one that shows most
			if was, ok := mounts[c]; !ok || len(at[1]) < len(was[1]) {
				mounts[c] = at
			}
		}
	}
	for line := range strings.Lines(content(root + "/proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for c := range strings.SplitSeq(parts[1], ",") {
			at, ok := mounts[c]
			if !ok {
				continue
			}
			var dirs []string
			path := strings.TrimPrefix(parts[2], strings.TrimSuffix(at[1], "/"))
			if strings.HasPrefix(path, "/..") {
				path = "/" // a group outside of what is mounted here
			}
			for dir := filepath.Join(at[0], path); ; dir = filepath.Dir(dir) {
				dirs = append(dirs, dir)
				if dir == filepath.Clean(at[0]) || len(dir) < len(at[0]) {
					break
				}
			}
			if c != "" {
				g[c] = dirs
				continue
			}
			for _, c := range []string{"cpu", "memory", "pids", "cpuset"} {
				if g[c] == nil { // what version 1 has, version 2 does not
					g[c] = dirs
				}
			}
		}
	}
	return g
}

// RootGroup begins what MemoryGroup says where the kernel accounts no memory to a group.
const RootGroup = "the root group"

// MemoryGroup names the control group to which the kernel accounts this process's memory, as a
// sentence: allocations that it accounts cost more there than in the root group, where it
// accounts nothing (mm/memcontrol.c, obj_cgroup_is_root).
func MemoryGroup() string { return memoryGroup("") }

func memoryGroup(root string) string {
	dirs := findGroups(root)["memory"]
	if len(dirs) == 0 {
		return "none to be seen: no control groups are mounted, or none for memory"
	}
	for i, dir := range dirs {
		// Only groups with an account have the file of version 2; the root of version 1 has its file.
		if content(filepath.Join(dir, "memory.current")) != "" || i < len(dirs)-1 && content(filepath.Join(dir, "memory.usage_in_bytes")) != "" {
			return strings.TrimPrefix(dir, root)
		}
	}
	return RootGroup + ", as far as can be seen, to which the kernel accounts nothing"
}

// each adds the limit of a group, and of each parent that has one: it may have less room
// than a smaller one. Files are those of version 2 and of version 1.
func (s *Set) each(k Kind, controller, limit2, limit1, used2, used1 string) {
	for _, dir := range s.groups[controller] {
		for _, names := range [][2]string{{limit2, used2}, {limit1, used1}} {
			path := filepath.Join(dir, names[0])
			const most = 1 << 60 // version 1 has no word for no limit
			n, ok := number(path)
			if !ok || n >= most {
				continue
			}
			used, _ := number(filepath.Join(dir, names[1]))
			if k == Memory { // what the kernel gives back when it is needed is not used
				stat := filepath.Join(dir, "memory.stat")
				for _, name := range []string{"inactive_file", "active_file", "slab_reclaimable"} {
					n, ok := lookUp(stat, "total_"+name) // version 1: of groups below as well
					if !ok {
						n, _ = lookUp(stat, name)
					}
					used -= n
				}
			}
			s.Limits = append(s.Limits, Limit{Kind: k, Max: n, Used: max(0, used), From: path})
			break
		}
	}
}

// quotas adds the CPU quotas of a group and its parents (cpu.max, or cpu.cfs_quota_us of each
// cpu.cfs_period_us).
func (s *Set) quotas() {
	for _, dir := range s.groups["cpu"] {
		path := filepath.Join(dir, "cpu.max")
		words := strings.Fields(content(path))
		if len(words) != 2 {
			path = filepath.Join(dir, "cpu.cfs_quota_us")
			words = []string{content(path), content(filepath.Join(dir, "cpu.cfs_period_us"))}
		}
		quota, err := strconv.ParseInt(words[0], 10, 64)
		period, err2 := strconv.ParseInt(words[1], 10, 64)
		if err == nil && err2 == nil && quota >= 0 && period > 0 {
			s.Limits = append(s.Limits, Limit{Kind: CPUQuota, Max: quota * 1e6 / period, From: path})
		}
	}
}

// content returns a file without the white space around it, "" where it cannot be read.
func content(path string) string {
	data, _ := os.ReadFile(path)
	return string(bytes.TrimSpace(data))
}

func number(path string) (int64, bool) {
	n, err := strconv.ParseInt(content(path), 10, 64)
	return n, err == nil
}

// field returns a number of a file of lines of a name and a number, 0 where it has none.
func field(path, name string) int64 {
	n, _ := lookUp(path, name)
	return n
}

// lookUp is field, and says whether the file has it.
func lookUp(path, name string) (int64, bool) {
	for line := range strings.Lines(content(path)) {
		if word, n, ok := strings.Cut(strings.TrimSpace(line), " "); ok && word == name {
			v, err := strconv.ParseInt(n, 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}
