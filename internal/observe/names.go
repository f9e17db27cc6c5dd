package observe

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"aossim/internal/linux"
)

// names is what /proc says of the threads and processes that a live observation has seen, and of their words.
type names struct {
	threads   []*threadName // by slot
	processes map[uint32]*processName
	paths     map[file]string
}

type threadName struct {
	process  uint32 // slot
	pid, tid int
	comm     string
	sched    *linux.Sched // nil where it could not be asked
	cpus     []int
	looks    int // how often it was asked: at first a thread may not be yet what it will be
}

type processName struct {
	pid      int
	start    uint64 // ns since boot
	comm     string
	mappings []mapping // by address
	next     time.Time // when to look again
	wait     time.Duration
	ended    bool
}

// mapping is a line of /proc/PID/maps (proc_pid_maps(5)).
type mapping struct {
	from, to uint64
	file
	path string
}

// file is what a mapping is of, whatever it is called.
type file struct{ device, inode string }

func newNames() names { return names{processes: map[uint32]*processName{}, paths: map[file]string{}} }

func (n *names) seen() int { return len(n.threads) }

// add takes the next slot.
func (n *names) add(d *programDoing) {
	t := &threadName{process: d.Process, pid: int(d.Who.Pid), tid: int(d.Who.Tid), comm: text(d.Who.Comm)}
	n.threads = append(n.threads, t)
	p := n.processes[d.Process]
	if p == nil {
		p = &processName{pid: t.pid, start: d.Who.Start, comm: text(d.Who.ProcessComm), wait: 50 * time.Millisecond}
		n.processes[d.Process] = p
	}
	p.next = time.Time{}
	if p.lives() {
		t.look()
	}
}

// lives says whether the process is still there, and not another one of its number.
func (p *processName) lives() bool {
	const tick = 10_000_000 // ns: USER_HZ is 100 on every architecture that Go runs on
	started := linux.ProcessIdentity(p.pid) & (1<<32 - 1)
	return !p.ended && started != 0 && started == p.start/tick&(1<<32-1)
}

// look asks for what the kernel may have changed.
func (t *threadName) look() {
	if s, err := linux.SchedOf(t.tid); err == nil {
		t.sched = &s
		t.looks++
	}
	if cpus, err := linux.AffinityOf(t.tid); err == nil {
		t.cpus = cpus
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", t.pid, t.tid)); err == nil {
		t.comm = strings.TrimSuffix(string(comm), "\n")
	}
}

// poll asks again about processes that are due: what one maps, and how its threads are scheduled, later on.
func (n *names) poll() {
	now := time.Now()
	due := map[uint32]bool{}
	for slot, p := range n.processes {
		if !p.ended && !now.Before(p.next) {
			n.look(p)
			due[slot] = !p.ended
			p.next, p.wait = now.Add(p.wait), min(2*p.wait, maxWait)
		}
	}
	for _, t := range n.threads {
		if due[t.process] {
			t.look()
		}
	}
}

// maxWait is the longest time between two looks.
const maxWait = 10 * time.Second

// scheduled is how a thread was scheduled when it was last asked; of one that ended before it could be asked again, as the kernel
// had it at its end.
func (t *threadName) scheduled(d *programDoing) linux.Sched {
	if t.sched == nil || d.Ended != 0 && t.looks < 2 {
		return linux.Sched{Policy: linux.Policy(d.Who.Policy), Priority: int(d.Who.Priority)}
	}
	return *t.sched
}

// look reads its mappings again; those of one that has ended stay as they were.
func (n *names) look(p *processName) {
	if !p.lives() {
		p.ended = true
		return
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.pid)); err == nil {
		p.comm = strings.TrimSuffix(string(comm), "\n")
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil || len(data) == 0 {
		return
	}
	p.mappings = parseMappings(data)
	for _, m := range p.mappings {
		if m.path != "" {
			n.paths[m.file] = m.path
		}
	}
}

// refresh looks at all that live once more.
func (n *names) refresh() {
	for _, p := range n.processes {
		n.look(p)
	}
	for _, t := range n.threads {
		if !n.processes[t.process].ended {
			t.look()
		}
	}
}

func parseMappings(data []byte) (list []mapping) {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		m := mapping{file: file{fields[3], fields[4]}}
		m.from, _ = strconv.ParseUint(from, 16, 64)
		m.to, _ = strconv.ParseUint(to, 16, 64)
		// A path may have blanks, and stands behind the inode and blanks.
		if _, path, ok := strings.Cut(lines.Text(), fields[3]+" "+fields[4]+" "); ok {
			m.path = strings.TrimLeft(path, " ")
		}
		list = append(list, m)
	}
	return list
}

// word names what lies at an address of a process: a shared one by its file and offset, and all
// others by the process and address. Two words are one where their identity is.
func (n *names) word(process uint32, address uint64, w *programWord) (identity, name string) {
	if w.Inode != 0 {
		const minor = 20 // bits (include/linux/kdev_t.h)
		f := file{fmt.Sprintf("%02x:%02x", w.Device>>minor, w.Device&(1<<minor-1)), strconv.FormatUint(w.Inode, 10)}
		path := n.paths[f]
		if path == "" {
			path = fmt.Sprintf("file %s:%s", f.device, f.inode)
		}
		return fmt.Sprintf("%s:%s %#x", f.device, f.inode, w.Offset), fmt.Sprintf("%s+%#x", path, w.Offset)
	}
	p := n.processes[process]
	name = fmt.Sprintf("%#x of %d", address, p.pid)
	at, found := slices.BinarySearchFunc(p.mappings, address, func(m mapping, a uint64) int {
		switch {
		case m.to <= a:
			return -1
		case m.from > a:
			return 1
		}
		return 0
	})
	if found && strings.HasPrefix(p.mappings[at].path, "[") {
		name += " " + p.mappings[at].path // heap or stack
	}
	return fmt.Sprintf("%d:%d %#x", p.pid, p.start, address), name
}
