// Package scenarios holds the scenario files, their schema and the built-in ones.
//
// A file is decoded strictly: Open and Parse return an *Error that names file, line,
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
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"
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
	// Gates are the changes that matter to a comparison, as fractions, by metric: as in
	// [expect], or GROUP.kmalloc; of a micro-benchmark POINT or POINT.kmalloc.
	Gates map[string]float64

	File string // as it was named
	Text string // the file, whole
}

// Channel is a [[channel]]: Count channels of one name, which a publisher takes
// in turn and a subscriber reads all.
type Channel struct {
	Name      string `toml:"name"`
	MaxSize   int    `toml:"max_size"`
	QueueSize int    `toml:"queue_size"`
	Futex     string `toml:"futex"`
	Count     int    `toml:"count"`
	// StartIndex is the queue index of the first message: one just below 2^32 -
	// QueueSize has the run cross the wrap.
	StartIndex uint32 `toml:"start_index"`
}

// Private says whether the channel's words belong to one process.
func (c Channel) Private() bool { return c.Futex == "private" }

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

// Publisher is a [[publisher]]: Count publishers with Rate messages a second each.
type Publisher struct {
	Member
	Channel string `toml:"channel"`
	Rate    Rate   `toml:"rate"`
	Arrival string `toml:"arrival"`
	Burst   int    `toml:"burst"`
	Wake    string `toml:"wake"`
}

// Subscriber is a [[subscriber]]: Count event loops.
type Subscriber struct {
	Member
	Channels  []string `toml:"channels"`
	Wait      string   `toml:"wait"`
	Submit    string   `toml:"submit"`
	RingFlags []string `toml:"ring_flags"`
	Work      Duration `toml:"work"`
}

// Load is a [[load]]: Count threads that keep the machine busy.
type Load struct {
	Member
	Kind     string   `toml:"kind"`
	Channel  string   `toml:"channel"`
	Interval Duration `toml:"interval"`
	Command  []string `toml:"command"`
}

// Error is what is wrong with a scenario file.
type Error struct {
	File string
	Line int
	Text string
}

// Error is "file:line: what is wrong".
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text) }

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
			return nil, &Error{name, 1, "no built-in scenario of this name; aossim list shows them, and a file's name ends in .toml"}
		}
		return Parse(name+".toml", data)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, &Error{name, 1, fmt.Sprintf("%s; aossim list shows the built-in scenarios, which are named without .toml", errors.Unwrap(err))}
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, &Error{name, 1, errors.Unwrap(err).Error()}
	}
	return Parse(name, data)
}

// SHA256 returns the checksum of the file in hexadecimal.
func (s *Scenario) SHA256() string {
	sum := sha256.Sum256([]byte(s.Text))
	return hex.EncodeToString(sum[:])
}

// file is the shape of the TOML file. The tables stay undecoded at first, so that
// an error can be laid at the door of one of several that are named alike.
type file struct {
	Name        string            `toml:"name"`
	Description string            `toml:"description"`
	Duration    Duration          `toml:"duration"`
	Phases      []string          `toml:"phases"`
	Seed        uint64            `toml:"seed"`
	Late        Duration          `toml:"late"`
	Channel     []toml.Primitive  `toml:"channel"`
	Publisher   []toml.Primitive  `toml:"publisher"`
	Subscriber  []toml.Primitive  `toml:"subscriber"`
	Load        []toml.Primitive  `toml:"load"`
	Expect      map[string]string `toml:"expect"`
	Compare     map[string]Share  `toml:"compare"`

	Kind         string           `toml:"kind"`
	Rounds       int              `toml:"rounds"`
	WarmupRounds int              `toml:"warmup_rounds"`
	Spread       Duration         `toml:"spread"`
	Policy       string           `toml:"policy"`
	Priority     int              `toml:"priority"`
	CPUs         []int            `toml:"cpus"`
	Point        []toml.Primitive `toml:"point"`
}

// The keys at the top that only one kind of scenario has.
var (
	loopKeys  = []string{"duration", "phases", "seed", "late", "expect"}
	microKeys = []string{"rounds", "warmup_rounds", "spread", "policy", "priority", "cpus", "point"}
)

// Parse decodes and validates a scenario; name stands for the file in errors.
func Parse(name string, data []byte) (*Scenario, error) {
	s := &Scenario{File: name, Text: string(data)}
	switch {
	case len(data) > maxSize:
		return nil, &Error{name, 1, fmt.Sprintf("larger than %d KiB, so no scenario", maxSize>>10)}
	case len(bytes.TrimSpace(data)) == 0:
		return nil, &Error{name, 1, "the file is empty; aossim list shows scenarios to start from"}
	}
	f := file{
		Name: strings.TrimSuffix(path.Base(name), ".toml"), Duration: Duration(10e9), Late: Duration(5e6),
		Phases: []string{"all"}, Seed: 1,
		Rounds: defaultRounds, WarmupRounds: defaultWarmupRounds, Spread: defaultSpread, Policy: "other",
	}
	md, err := toml.Decode(s.Text, &f)
	if err != nil {
		return nil, s.tomlError("", 0, err)
	}
	s.Name, s.Description, s.Duration, s.Phases, s.Seed, s.Late = f.Name, f.Description, f.Duration, f.Phases, f.Seed, f.Late
	var points []Point
	if err := errors.Join(
		decodeAll(s, &md, "point", f.Point, &points, unsetPoint()),
		decodeAll(s, &md, "channel", f.Channel, &s.Channels, Channel{MaxSize: 64, QueueSize: 1024, Futex: "shared", Count: 1}),
		decodeAll(s, &md, "publisher", f.Publisher, &s.Publishers, Publisher{Member: newMember("publishers"), Arrival: "periodic", Wake: "futex"}),
		decodeAll(s, &md, "subscriber", f.Subscriber, &s.Subscribers, Subscriber{Member: newMember("subscribers"), Wait: "io_uring", Submit: "split"}),
		decodeAll(s, &md, "load", f.Load, &s.Loads, Load{Member: newMember("load"), Interval: 5000}),
	); err != nil {
		return nil, first(err)
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		table, key := "", unknown[0]
		if len(key) > 1 {
			table = key[0]
		}
		line := s.find(table, -1, key[len(key)-1])
		if line == 1 && len(key) == 1 { // a table rather than a key
			line = s.find(key[0], 0, "")
		}
		return nil, &Error{name, line, fmt.Sprintf("unknown key %q; the README lists the keys of a scenario", key.String())}
	}
	others := microKeys
	switch f.Kind {
	case "":
	case "micro":
		others = loopKeys
	default:
		return nil, s.Errorf("", 0, "kind", "%q is no kind of scenario; leave it out, or write \"micro\"", f.Kind)
	}
	for _, key := range others {
		if md.IsDefined(key) {
			return nil, s.Errorf("", 0, key, "a scenario of kind %q has no such key", cmp.Or(f.Kind, "event loop (none given)"))
		}
	}
	if f.Kind == "micro" {
		s.Micro = &Micro{Rounds: f.Rounds, WarmupRounds: f.WarmupRounds, Spread: f.Spread, Policy: f.Policy, Priority: f.Priority, CPUs: f.CPUs, Points: points}
		if err := s.validateMicro(); err != nil {
			return nil, err
		}
		return s.withGates(f.Compare)
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	s.Expect, err = s.thresholds(f.Expect)
	if err != nil {
		return nil, err
	}
	return s.withGates(f.Compare)
}

func newMember(group string) Member { return Member{Group: group, Count: 1, Policy: "other"} }

// first returns the first of joined errors: a user mends one at a time.
func first(err error) error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()[0]
	}
	return err
}

func decodeAll[T any](s *Scenario, md *toml.MetaData, table string, from []toml.Primitive, to *[]T, defaults T) error {
	for i, p := range from {
		v := defaults
		if err := md.PrimitiveDecode(p, &v); err != nil {
			return s.tomlError(table, i, err)
		}
		*to = append(*to, v)
	}
	return nil
}

// wrongType takes the decoder's messages apart that have a key but no position.
var wrongType = regexp.MustCompile(`^toml: (?:line \d+ )?\(last key "([^"]*)"\): (.*)$`)

// tomlError turns the decoder's error into one with the right line: the decoder
// keeps one position for all tables of one name.
func (s *Scenario) tomlError(table string, index int, err error) error {
	var p toml.ParseError
	key, text, line := "", err.Error(), 0
	if errors.As(err, &p) {
		key, text, line = p.LastKey, p.Message, p.Position.Line
	} else if m := wrongType.FindStringSubmatch(text); m != nil {
		key, text = m[1], m[2]
	}
	key = key[strings.LastIndex(key, ".")+1:]
	if table != "" || line == 0 {
		line = s.find(table, index, key)
	}
	if key != "" {
		text = key + ": " + text
	}
	return &Error{s.File, line, strings.ReplaceAll(text, "\n", " ")}
}

// Errorf returns an *Error about a key of the index-th [[table]], or of the top
// of the file where table is empty.
func (s *Scenario) Errorf(table string, index int, key, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if key != "" {
		text = key + ": " + text
	}
	return &Error{s.File, s.find(table, index, key), text}
}

// find returns the line of a key in the index-th table of a name, or in the
// first that has it where index is -1; the table's own line where it has no such
// key, and 1 where nothing is found.
func (s *Scenario) find(table string, index int, key string) int {
	current, n, header := "", -1, 1
	for i, line := range strings.Split(s.Text, "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			current = strings.TrimSpace(strings.Trim(strings.SplitN(line, "#", 2)[0], "[] \t\r"))
			if current == table {
				if n++; n == index {
					header = i + 1
				}
			}
			continue
		}
		name, _, ok := strings.Cut(line, "=")
		name = strings.Trim(strings.TrimSpace(name), `"'`)
		if ok && current == table && (table == "" || index == -1 || n == index) && name == key {
			return i + 1
		}
	}
	return header
}
