package scenarios

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Micro is a scenario of kind "micro": narrow workloads, each one or more [[point]]s
// that are run in turn, round by round, so that each has the others as its control.
type Micro struct {
	Rounds, WarmupRounds int
	Spread               Duration // of rounds that are not measured, before each one that is
	Policy               string
	Priority             int
	CPUs                 []int // where its threads run, in turn; the last one of the machine if none
	Points               []Point
}

// Point is a [[point]]: one workload with its sizes. Fields that its workload has no use
// for are zero.
type Point struct {
	Name      string   `toml:"name"`
	Workload  string   `toml:"workload"` // the name of a Workload
	Futex     Words    `toml:"futex"`
	RingFlags []string `toml:"ring_flags"`
	// Sizes of the workloads on a ring.
	Entries int `toml:"entries"` // of the ring
	Cycles  int `toml:"cycles"`  // a round
	Words   int `toml:"words"`
	Vectors int `toml:"vectors"`
	Width   int `toml:"width"`   // words of a vector
	Element int `toml:"element"` // of each vector that is woken
	Waits   int `toml:"waits"`   // a round
	Batch   int `toml:"batch"`   // waits an io_uring_enter
	// Of those by futex(2).
	Timeout     Duration `toml:"timeout"`
	Threads     int      `toml:"threads"`
	Runtime     Duration `toml:"runtime"`     // of a round
	Mismatching Share    `toml:"mismatching"` // of the waits
	Buckets     Buckets  `toml:"buckets"`     // of the process-private futex hash
}

// Private says whether the point's words belong to this process only.
func (p *Point) Private() bool { return p.Futex == PrivateWord }

// OneThread says whether one thread does all that the point does.
func (p *Point) OneThread() bool { return p.Threads <= 1 && !WorkloadNamed(p.Workload).Partners }

// InVirtualTime gives the points of a scenario that was read the sizes of their workload's Virtual
// where the file has none, and returns what it changed, as KEY=VALUE (POINT).
func (s *Scenario) InVirtualTime() (changed []string) {
	for i := range s.Micro.Points {
		p := &s.Micro.Points[i]
		w := WorkloadNamed(p.Workload)
		instead := func(key string, set func() any, is bool) {
			if _, given := s.document.find("point", i, key); is && !given {
				changed = append(changed, fmt.Sprintf("%s=%v (%s)", key, set(), p.Name))
			}
		}
		instead("waits", func() any { p.Waits = w.Virtual.Waits; return p.Waits }, w.Virtual.Waits != 0)
		instead("runtime", func() any { p.Runtime = w.Virtual.Runtime; return p.Runtime }, w.Virtual.Runtime != 0)
	}
	return changed
}

// Only leaves the points of these names, in the scenario's order. Its error names one that is not there.
func (s *Scenario) Only(points []string) error {
	var names []string
	for _, p := range s.Micro.Points {
		names = append(names, p.Name)
	}
	for _, name := range points {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%s has no point %q; it has %q", s.Name, name, names)
		}
	}
	s.Micro.Points = slices.DeleteFunc(s.Micro.Points, func(p Point) bool { return !slices.Contains(points, p.Name) })
	return nil
}

// Limits of micro-benchmarks.
const (
	maxRounds  = 100_000
	maxEntries = 32768 // IORING_MAX_ENTRIES
	maxThreads = 1024
	maxWaiters = 32 // bits of a futex's bitset
)

// defaultRounds are those of the published figures.
const defaultRounds, defaultWarmupRounds, defaultSpread = 15, 3, Duration(100 * time.Millisecond)

// Workload is what a point can do. What its rounds do is in internal/micro, a file a workload.
type Workload struct {
	Name  string
	Means string // in the documentation: what a round does
	Unit  string // of a round's figure, in real time
	// Operation is the word for what the figure is of, in other units.
	Operation string
	Defaults  Point
	// Virtual has sizes of a round in virtual time, instead of those of Defaults: some thirty million
	// instructions are enough where nothing disturbs.
	Virtual Point
	// Keys are those that it takes, besides name, workload and futex.
	Keys []string
	// Ring: one thread arms on an io_uring, and can be observed.
	Ring bool
	// Threads: it has threads of its own, each on a CPU; Partners: and each of those another one.
	Threads, Partners bool
	// Requests is how many a cycle has on the ring at once.
	Requests func(p *Point) int
	// PerCall is how many operations each system call does; nil is one.
	PerCall func(p *Point) int
}

// SystemCall is the name of the one that does the point's operations.
func (p *Point) SystemCall() string {
	if WorkloadNamed(p.Workload).Ring {
		return "io_uring_enter"
	}
	return "futex"
}

// PerCall is how many operations each system call of the point does.
func (p *Point) PerCall() int {
	if w := WorkloadNamed(p.Workload); w.PerCall != nil {
		return w.PerCall(p)
	}
	return 1
}

// Workloads are all there are.
var Workloads = []Workload{
	{Name: "scalar", Means: "`cycles` of `words` FUTEX_WAIT and the FUTEX_WAKEs that wake them, one `io_uring_enter` a cycle", Unit: "ns/pair", Operation: "pair", Ring: true,
		Defaults: Point{Entries: 64, Cycles: 512, Words: 32}, Keys: []string{"ring_flags", "entries", "cycles", "words"},
		Requests: func(p *Point) int { return 2 * p.Words }, PerCall: func(p *Point) int { return p.Words }},
	{Name: "waitv", Means: "`cycles` of `vectors` FUTEX_WAITV of `width` words, `element` of each woken", Unit: "ns/pair", Operation: "pair", Ring: true,
		Defaults: Point{Entries: 64, Cycles: 512, Vectors: 8, Width: 8, Element: 3}, Keys: []string{"ring_flags", "entries", "cycles", "vectors", "width", "element"},
		Requests: func(p *Point) int { return 2 * p.Vectors }, PerCall: func(p *Point) int { return p.Vectors }},
	{Name: "eagain", Means: "`waits` that fail, `batch` an `io_uring_enter`", Unit: "ns/wait", Operation: "wait", Ring: true,
		Defaults: Point{Entries: 64, Waits: 100_000, Batch: 1}, Virtual: Point{Waits: 20_000}, Keys: []string{"ring_flags", "entries", "waits", "batch"},
		Requests: func(p *Point) int { return p.Batch }, PerCall: func(p *Point) int { return p.Batch }},
	{Name: "timeout", Means: "futex(2) waits that time out after `timeout`", Unit: "ns/wait", Operation: "wait",
		Defaults: Point{Waits: 20_000, Timeout: Duration(100 * time.Microsecond)}, Virtual: Point{Waits: 10_000}, Keys: []string{"waits", "timeout"}},
	{Name: "hash", Means: "what `perf bench futex hash` does", Unit: "ops/s/thread", Operation: "wait", Threads: true,
		Defaults: Point{Threads: 1, Words: 1024, Runtime: Duration(200 * time.Millisecond), Buckets: DefaultBuckets}, Virtual: Point{Runtime: Duration(100 * time.Millisecond)}, Keys: []string{"threads", "words", "runtime", "buckets"}},
	{Name: "mismatch", Means: "futex(2) waits of `threads`, a share `mismatching`, the others woken by a partner", Unit: "ops/s/thread", Operation: "wait", Threads: true, Partners: true,
		Defaults: Point{Threads: 1, Words: 64, Runtime: Duration(200 * time.Millisecond), Mismatching: 0.5, Buckets: DefaultBuckets},
		Keys:     []string{"threads", "words", "runtime", "mismatching", "buckets"}},
}

// WorkloadNamed returns the workload of a name; it is the zero one where there is none.
func WorkloadNamed(name string) Workload {
	at := slices.IndexFunc(Workloads, func(w Workload) bool { return w.Name == name })
	if at < 0 {
		return Workload{}
	}
	return Workloads[at]
}

// sizes are the keys of points that only some workloads take.
var sizes = []string{"ring_flags", "entries", "cycles", "words", "vectors", "width", "element", "waits", "batch", "timeout", "threads", "runtime", "mismatching", "buckets"}

// validateMicro checks a scenario of kind "micro" and fills in its defaults.
func (s *Scenario) validateMicro() error {
	m, top := s.Micro, place{s, "", 0}
	for _, e := range s.document.entries {
		if e.table != "" && e.table != "point" && e.table != "compare" {
			return s.Errorf(e.table, 0, "", "a scenario of kind \"micro\" has [[point]]s only")
		}
	}
	if err := firstOf(
		top.named("name", s.Name),
		top.between("warmup_rounds", int64(m.WarmupRounds), 0, maxRounds),
		oneOf(top, "policy", m.Policy, []string{"other", "fifo", "rr", "batch", "idle"}),
	); err != nil {
		return err
	}
	if m.Spread < 0 || m.Spread > maxWork {
		return top.errorf("spread", "%s is not within 0 and %s", m.Spread, maxWork)
	}
	if err := firstOf(top.priority(m.Policy, m.Priority), top.cpus(m.CPUs)); err != nil {
		return err
	}
	if len(m.Points) == 0 {
		return top.errorf("kind", "a scenario of kind \"micro\" needs a [[point]]")
	}
	if len(m.Points) > maxPoints {
		return top.errorf("kind", "%d points, and there may be %d", len(m.Points), maxPoints)
	}
	for i := range m.Points {
		p, at := &m.Points[i], place{s, "point", i}
		p.Name = cmp.Or(p.Name, p.Workload)
		if err := at.named("name", p.Name); err != nil {
			return err
		}
		if slices.ContainsFunc(m.Points[:i], func(o Point) bool { return o.Name == p.Name }) {
			return at.errorf("name", "%q is given twice", p.Name)
		}
		if err := p.complete(at); err != nil {
			return err
		}
	}
	return s.ValidateSizes()
}

// ValidateSizes checks the sizes of the points, which may have been changed after the
// file was read.
func (s *Scenario) ValidateSizes() error {
	if err := (place{s, "", 0}).between("rounds", int64(s.Micro.Rounds), 1, maxRounds); err != nil {
		return err
	}
	for i := range s.Micro.Points {
		if err := s.Micro.Points[i].validate(place{s, "point", i}); err != nil {
			return err
		}
	}
	return nil
}

// complete refuses sizes that the point's workload has no use for, and fills in the
// others.
func (p *Point) complete(at place) error {
	w := WorkloadNamed(p.Workload)
	if w.Name == "" {
		var names []string
		for _, w := range Workloads {
			names = append(names, w.Name)
		}
		return oneOf(at, "workload", p.Workload, names)
	}
	for _, key := range sizes {
		if _, given := at.s.document.find(at.table, at.index, key); given && !slices.Contains(w.Keys, key) {
			return at.errorf(key, "workload %q has no such size; it takes %s", p.Workload, strings.Join(w.Keys, ", "))
		}
	}
	defaults := w.Defaults
	defaults.Name, defaults.Workload, defaults.Futex = p.Name, p.Workload, p.Futex
	fillOne(&at.s.document, at.table, at.index, p, defaults)
	return oneOf(at, "futex", p.Futex, words)
}

func (p *Point) validate(at place) error {
	w := WorkloadNamed(p.Workload)
	if err := at.ringFlags(p.RingFlags); err != nil {
		return err
	}
	// What a workload does not use is 0 and passes.
	uses := func(key string) bool { return slices.Contains(w.Keys, key) }
	for _, r := range []struct {
		key       string
		v         int
		low, high int64
	}{
		{"entries", p.Entries, 1, maxEntries}, {"cycles", p.Cycles, 1, 1 << 30}, {"words", p.Words, 1, 1 << 20}, {"vectors", p.Vectors, 1, maxEntries / 2},
		{"width", p.Width, 1, maxVector}, {"waits", p.Waits, 1, 1 << 30}, {"batch", p.Batch, 1, maxEntries}, {"threads", p.Threads, 1, maxThreads},
	} {
		if uses(r.key) {
			if err := at.between(r.key, int64(r.v), r.low, r.high); err != nil {
				return err
			}
		}
	}
	if uses("timeout") {
		if err := at.upTo("timeout", p.Timeout, maxWork); err != nil {
			return err
		}
	}
	if uses("runtime") {
		if err := at.upTo("runtime", p.Runtime, maxWork); err != nil {
			return err
		}
	}
	switch {
	case w.Requests != nil && w.Requests(p) > p.Entries:
		return at.errorf("entries", "a ring of %d entries does not take the %d requests of a cycle; make it larger, or the cycle smaller", p.Entries, w.Requests(p))
	case uses("element"):
		return at.between("element", int64(p.Element), 0, int64(p.Width)-1)
	case uses("buckets") && !p.Buckets.valid():
		return at.errorf("buckets", "%s is none of \"default\", 0 (the global hash) and a power of two from 2", p.Buckets)
	case uses("mismatching") && p.Threads > maxWaiters:
		return at.errorf("threads", "%d is more than %d, the bits by which a partner finds its waiter", p.Threads, maxWaiters)
	}
	return nil
}
