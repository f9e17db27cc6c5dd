// Package scenarios holds the scenario files, their schema and the built-in ones.
//
// A file is decoded strictly: Open and Parse return an *Error that names file, line, column,
// key and the way out for anything that is not a scenario, and never panic. It
// builds on every OS; what depends on the machine (CPUs, memory) is checked by
// internal/sim before anything starts, with errors made by Scenario.Errorf.
package scenarios

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"aossim/internal/refusal"
)

// Scenario is one file. Defaults are filled in.
type Scenario struct {
	Name        string
	Description string
	Duration    Duration // of each phase, warm-up not included
	Phases      []string
	Seed        uint64   // of random arrivals and offsets
	Late        Duration // from publishing to the wake's CQE, above which a wake is late
	Channels    []Channel
	Publishers  []Publisher
	Subscribers []Subscriber
	Loads       []Load
	Expect      []Threshold
	Micro       *Micro // of kind "micro": nothing else but name, description and Gates is set then
	// Gates are the changes that matter to a comparison, as fractions, by metric as in
	// [expect], or GROUP.kmalloc; of a micro-benchmark POINT, POINT.instructions or POINT.kmalloc.
	Gates map[string]float64

	File string // as it was named
	Text string // the file, whole

	document document
}

// Words says who uses a channel's futex word, or a point's.
type Words string

// Several processes; one process only (FUTEX2_PRIVATE).
const (
	Shared      Words = "shared"
	PrivateWord Words = "private"
)

// Channel is a [[channel]]: Count channels of one name, which a publisher takes
// in turn and a subscriber reads all.
type Channel struct {
	Name      string `toml:"name"`
	MaxSize   int    `toml:"max_size"`
	QueueSize int    `toml:"queue_size"`
	Futex     Words  `toml:"futex"`
	Count     int    `toml:"count"`
	// StartIndex is the queue index of the first message: one just below 2^32 -
	// QueueSize has the run cross the wrap.
	StartIndex uint32 `toml:"start_index"`
}

// Private says whether the channel's words belong to one process.
func (c Channel) Private() bool { return c.Futex == PrivateWord }

// Member is what publishers, subscribers and loads have in common.
type Member struct {
	Group     string   `toml:"group"`
	Joins     string   `toml:"joins"`
	Leaves    string   `toml:"leaves"`
	Processes bool     `toml:"processes"`
	Count     int      `toml:"count"`
	Policy    string   `toml:"policy"`
	Priority  int      `toml:"priority"`
	Nice      int      `toml:"nice"`
	CPUs      []int    `toml:"cpus"`
	Runtime   Duration `toml:"runtime"`
	Deadline  Duration `toml:"deadline"`
	Period    Duration `toml:"period"`
}

// Arrival is how a publisher's scheduled times follow each other.
type Arrival string

// Equal gaps; exponentially distributed gaps; Burst messages at once, then a gap; or the times of a file.
const (
	Periodic Arrival = "periodic"
	Poisson  Arrival = "poisson"
	Bursts   Arrival = "burst"
	Traced   Arrival = "trace"
)

// Wake is how a publisher wakes: by futex(2) or by IORING_OP_FUTEX_WAKE.
type Wake string

// See Wake.
const (
	WakeFutex Wake = "futex"
	WakeURing Wake = "io_uring"
)

// Submit says whether a subscriber arms in one io_uring_enter and waits in another.
type Submit string

// See Submit.
const (
	Split    Submit = "split"
	Combined Submit = "combined"
)

// Publisher is a [[publisher]]: Count publishers with Rate messages a second each, or each with those
// of Trace, a file, which Repeat begins anew at its end.
type Publisher struct {
	Member
	Channel string  `toml:"channel"`
	Rate    Rate    `toml:"rate"`
	Arrival Arrival `toml:"arrival"`
	Burst   int     `toml:"burst"`
	Trace   string  `toml:"trace"`
	Repeat  bool    `toml:"repeat"`
	Wake    Wake    `toml:"wake"`
	// Times are those of Trace, once Scenario.ReadTraces has read it.
	Times *Trace `toml:"-" json:"-"`
}

// Subscriber is a [[subscriber]]: Count event loops. Wait is the name of a wait.Kind.
type Subscriber struct {
	Member
	Channels  []string `toml:"channels"`
	Wait      string   `toml:"wait"`
	Submit    Submit   `toml:"submit"`
	RingFlags []string `toml:"ring_flags"`
	Work      Duration `toml:"work"`
}

// Load is a [[load]]: Count threads that keep the machine busy. Kind is the name of a LoadKind.
type Load struct {
	Member
	Kind     string   `toml:"kind"`
	Channel  string   `toml:"channel"`
	Interval Duration `toml:"interval"`
	Command  []string `toml:"command"`
}

// Error is what is wrong with a scenario file; it is a refusal.ErrUsage. Line and Column
// count from 1 and are 0 where it is not about a place in it.
type Error struct {
	File         string
	Line, Column int
	Text         string
}

// Error is "file:line:column: what is wrong".
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Text)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// Is makes it a refusal.ErrUsage.
func (e *Error) Is(target error) bool { return target == refusal.ErrUsage }

//go:embed *.toml
var builtin embed.FS

// maxSize is the largest scenario file in bytes.
const maxSize = 1 << 20

// List returns the built-in scenarios, by name.
func List() ([]*Scenario, error) {
	entries, err := builtin.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var list []*Scenario
	for _, e := range entries {
		s, err := Open(strings.TrimSuffix(e.Name(), ".toml"))
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// Open reads the scenario file at name, or the built-in scenario of that name.
func Open(name string) (*Scenario, error) {
	if path.Ext(name) != ".toml" {
		data, err := builtin.ReadFile(name + ".toml")
		if err != nil {
			return nil, &Error{File: name, Text: "no built-in scenario of this name; aossim list shows them, and a file's name ends in .toml"}
		}
		return Parse(name+".toml", data)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, &Error{File: name, Text: fmt.Sprintf("%s; aossim list shows the built-in scenarios, which are named without .toml", errors.Unwrap(err))}
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, &Error{File: name, Text: errors.Unwrap(err).Error()}
	}
	return Parse(name, data)
}

// SHA256 returns the checksum of the file in hexadecimal.
func (s *Scenario) SHA256() string {
	sum := sha256.Sum256([]byte(s.Text))
	return hex.EncodeToString(sum[:])
}

// file is the shape of the TOML file.
type file struct {
	Name        string            `toml:"name"`
	Description string            `toml:"description"`
	Duration    Duration          `toml:"duration"`
	Phases      []string          `toml:"phases"`
	Seed        uint64            `toml:"seed"`
	Late        Duration          `toml:"late"`
	Channel     []Channel         `toml:"channel"`
	Publisher   []Publisher       `toml:"publisher"`
	Subscriber  []Subscriber      `toml:"subscriber"`
	Load        []Load            `toml:"load"`
	Expect      map[string]string `toml:"expect"`
	Compare     map[string]Share  `toml:"compare"`

	Kind         string   `toml:"kind"`
	Rounds       int      `toml:"rounds"`
	WarmupRounds int      `toml:"warmup_rounds"`
	Spread       Duration `toml:"spread"`
	Policy       string   `toml:"policy"`
	Priority     int      `toml:"priority"`
	CPUs         []int    `toml:"cpus"`
	Point        []Point  `toml:"point"`
}

// The keys at the top that only one kind of scenario has.
var (
	loopKeys  = []string{"duration", "phases", "seed", "late"}
	microKeys = []string{"rounds", "warmup_rounds", "spread", "policy", "priority", "cpus"}
)

// microKind is the kind of a scenario of micro-benchmarks; event loops have none.
const microKind = "micro"

// Parse decodes and validates a scenario; name stands for the file in errors.
func Parse(name string, data []byte) (*Scenario, error) {
	s := &Scenario{File: name, Text: string(data)}
	switch {
	case len(data) > maxSize:
		return nil, &Error{name, 1, 1, fmt.Sprintf("larger than %d KiB, so no scenario", maxSize>>10)}
	case len(bytes.TrimSpace(data)) == 0:
		return nil, &Error{name, 1, 1, "the file is empty; aossim list shows scenarios to start from"}
	}
	f := file{
		Name: strings.TrimSuffix(path.Base(name), ".toml"), Duration: Duration(10e9), Late: Duration(5e6),
		Phases: []string{"all"}, Seed: 1,
		Rounds: defaultRounds, WarmupRounds: defaultWarmupRounds, Spread: defaultSpread, Policy: "other",
	}
	if err := s.decode(&f); err != nil {
		return nil, err
	}
	s.Name, s.Description, s.Duration, s.Phases, s.Seed, s.Late = f.Name, f.Description, f.Duration, f.Phases, f.Seed, f.Late
	s.Channels, s.Publishers, s.Subscribers, s.Loads = f.Channel, f.Publisher, f.Subscriber, f.Load
	if err := s.kind(&f); err != nil {
		return nil, err
	}
	if f.Kind == microKind {
		s.Micro = &Micro{Rounds: f.Rounds, WarmupRounds: f.WarmupRounds, Spread: f.Spread, Policy: f.Policy, Priority: f.Priority, CPUs: f.CPUs, Points: f.Point}
		if err := s.validateMicro(); err != nil {
			return nil, err
		}
	} else {
		if err := s.validate(); err != nil {
			return nil, err
		}
		if err := s.thresholds(f.Expect); err != nil {
			return nil, err
		}
	}
	return s, s.gates(f.Compare)
}

// kind refuses what belongs to the other kind of scenario.
func (s *Scenario) kind(f *file) error {
	others := microKeys
	switch f.Kind {
	case "":
	case microKind:
		others = loopKeys
	default:
		return s.Errorf("", 0, "kind", "%q is no kind of scenario; leave it out, or write \"micro\"", f.Kind)
	}
	for _, e := range s.document.entries {
		if e.table == "" && slices.Contains(others, e.key) {
			return s.Errorf("", 0, e.key, "a scenario of kind %q has no such key", cmp.Or(f.Kind, "event loop (none given)"))
		}
	}
	if f.Kind != microKind && len(f.Point) > 0 {
		return s.Errorf("point", 0, "", "[[point]]s are for kind = \"micro\"")
	}
	return nil
}

func newMember(group string) Member { return Member{Group: group, Count: 1, Policy: "other"} }

// nameErrorf returns an *Error about the name of a key, where Errorf has one about its value.
func (s *Scenario) nameErrorf(table, key, format string, args ...any) error {
	at := s.document.place(table, 0, key)
	if e, ok := s.document.find(table, 0, key); ok {
		at = e.name
	}
	return s.errorAt(at, strings.ReplaceAll(key, "%", "%%")+": "+format, args...)
}

// Errorf returns an *Error about a key of the index-th [[table]], or of the top
// of the file where table is empty.
func (s *Scenario) Errorf(table string, index int, key, format string, args ...any) error {
	if key != "" {
		format = strings.ReplaceAll(key, "%", "%%") + ": " + format
	}
	return s.errorAt(s.document.place(table, index, key), format, args...)
}
