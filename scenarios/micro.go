package scenarios

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
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
	Workload  string   `toml:"workload"`
	Futex     string   `toml:"futex"`
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
func (p *Point) Private() bool { return p.Futex == "private" }

// Share is a fraction, written "30%".
type Share float64

// UnmarshalText reads a percentage of 0 to 100.
func (s *Share) UnmarshalText(text []byte) error {
	number, ok := strings.CutSuffix(string(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || err != nil || !(v >= 0 && v <= 100) {
		return fmt.Errorf("%q is no percentage within 0%% and 100%%; write one such as \"30%%\"", text)
	}
	*s = Share(v / 100)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (s Share) MarshalText() ([]byte, error) {
	return []byte(strconv.FormatFloat(100*float64(s), 'g', -1, 64) + "%"), nil
}

// Buckets is a size of the process-private futex hash: "default" is what the kernel
// gives the process, 0 its global hash, else a power of two (prctl(2), PR_FUTEX_HASH).
type Buckets struct {
	Given bool
	Slots int
}

// UnmarshalTOML reads "default" or a number.
func (b *Buckets) UnmarshalTOML(v any) error {
	switch n := v.(type) {
	case string:
		if n == "default" {
			*b = Buckets{}
			return nil
		}
	case int64:
		if n == 0 || n > 1 && n <= 1<<20 && n&(n-1) == 0 {
			*b = Buckets{true, int(n)}
			return nil
		}
	}
	return fmt.Errorf("%v is none of \"default\", 0 (the global hash) and a power of two from 2", v)
}

// String is what a file says for it.
func (b Buckets) String() string {
	if b.Given {
		return strconv.Itoa(b.Slots)
	}
	return "default"
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

// workloads are the keys that each takes, with their defaults, besides name, workload and
// futex.
var workloads = map[string]struct {
	defaults Point
	keys     []string
}{
	"scalar":   {Point{Entries: 64, Cycles: 512, Words: 32}, []string{"ring_flags", "entries", "cycles", "words"}},
	"waitv":    {Point{Entries: 64, Cycles: 512, Vectors: 8, Width: 8, Element: 3}, []string{"ring_flags", "entries", "cycles", "vectors", "width", "element"}},
	"eagain":   {Point{Entries: 64, Waits: 100_000, Batch: 1}, []string{"ring_flags", "entries", "waits", "batch"}},
	"timeout":  {Point{Waits: 20_000, Timeout: Duration(100 * time.Microsecond)}, []string{"waits", "timeout"}},
	"mismatch": {Point{Threads: 1, Words: 64, Runtime: Duration(200 * time.Millisecond), Mismatching: 0.5}, []string{"threads", "words", "runtime", "mismatching", "buckets"}},
	"hash":     {Point{Threads: 1, Words: 1024, Runtime: Duration(200 * time.Millisecond)}, []string{"threads", "words", "runtime", "buckets"}},
}

// given are the keys of a point that were written, by what differs from nothing.
func (p *Point) given() (keys []string) {
	for _, k := range []struct {
		key   string
		given bool
	}{
		{"ring_flags", len(p.RingFlags) > 0}, {"entries", p.Entries != unset}, {"cycles", p.Cycles != unset}, {"words", p.Words != unset}, {"vectors", p.Vectors != unset},
		{"width", p.Width != unset}, {"element", p.Element != unset}, {"waits", p.Waits != unset}, {"batch", p.Batch != unset}, {"timeout", p.Timeout != unset},
		{"threads", p.Threads != unset}, {"runtime", p.Runtime != unset}, {"mismatching", p.Mismatching != unset}, {"buckets", p.Buckets.Given},
	} {
		if k.given {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// unset marks a key that the file does not have: no valid value is negative.
const unset = -1 << 62

func unsetPoint() Point {
	return Point{Futex: "private", Entries: unset, Cycles: unset, Words: unset, Vectors: unset, Width: unset, Element: unset,
		Waits: unset, Batch: unset, Timeout: unset, Threads: unset, Runtime: unset, Mismatching: unset}
}

// fill gives the keys that the file does not have their defaults.
func (p *Point) fill(d Point) {
	for _, f := range []struct {
		to   *int
		from int
	}{
		{&p.Entries, d.Entries}, {&p.Cycles, d.Cycles}, {&p.Words, d.Words}, {&p.Vectors, d.Vectors}, {&p.Width, d.Width},
		{&p.Element, d.Element}, {&p.Waits, d.Waits}, {&p.Batch, d.Batch}, {&p.Threads, d.Threads},
	} {
		if *f.to == unset {
			*f.to = f.from
		}
	}
	if p.Timeout == unset {
		p.Timeout = d.Timeout
	}
	if p.Runtime == unset {
		p.Runtime = d.Runtime
	}
	if p.Mismatching == unset {
		p.Mismatching = d.Mismatching
	}
}

// validateMicro checks a scenario of kind "micro" and fills in its defaults.
func (s *Scenario) validateMicro() error {
	m, top := s.Micro, place{s, "", 0}
	for table, n := range map[string]int{"channel": len(s.Channels), "publisher": len(s.Publishers), "subscriber": len(s.Subscribers), "load": len(s.Loads)} {
		if n > 0 {
			return s.Errorf(table, 0, "", "a scenario of kind \"micro\" has [[point]]s only")
		}
	}
	if err := firstOf(
		top.between("warmup_rounds", int64(m.WarmupRounds), 0, maxRounds),
		top.oneOf("policy", m.Policy, []string{"other", "fifo", "rr", "batch", "idle"}),
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
	for i := range m.Points {
		p, at := &m.Points[i], place{s, "point", i}
		p.Name = cmp.Or(p.Name, p.Workload)
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
	w, ok := workloads[p.Workload]
	if !ok {
		return at.errorf("workload", "%q is none of eagain, hash, mismatch, scalar, timeout, waitv", p.Workload)
	}
	for _, key := range p.given() {
		if !slices.Contains(w.keys, key) {
			return at.errorf(key, "workload %q has no such size; it takes %s", p.Workload, strings.Join(w.keys, ", "))
		}
	}
	p.fill(w.defaults)
	return at.oneOf("futex", p.Futex, futexes)
}

func (p *Point) validate(at place) error {
	w := workloads[p.Workload]
	if err := at.ringFlags(p.RingFlags); err != nil {
		return err
	}
	// What a workload does not use is 0 and passes.
	uses := func(key string) bool { return slices.Contains(w.keys, key) }
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
	requests := map[string]int{"scalar": 2 * p.Words, "waitv": 2 * p.Vectors, "eagain": p.Batch}[p.Workload]
	switch {
	case requests > p.Entries && uses("entries"):
		return at.errorf("entries", "a ring of %d entries does not take the %d requests of a cycle; make it larger, or the cycle smaller", p.Entries, requests)
	case uses("element"):
		return at.between("element", int64(p.Element), 0, int64(p.Width)-1)
	case p.Workload == "mismatch" && p.Threads > maxWaiters:
		return at.errorf("threads", "%d is more than %d, the bits by which a partner finds its waiter", p.Threads, maxWaiters)
	}
	return nil
}
