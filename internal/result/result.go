// Package result is the one file format: what ran where, what was counted and
// measured, and whether it may be believed. It builds on every OS and never
// touches the kernel.
//
// Decode and Load return an error that names the file and the place for anything
// that is not a whole result of this schema; nothing here panics on input.
package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
)

// Schema names the format. Fields are added within it, never renamed.
const Schema = "aossim.result/1"

// Result is one file. All times are ns.
type Result struct {
	Schema      string      `json:"schema"`
	Started     string      `json:"started"` // RFC 3339
	Interrupted bool        `json:"interrupted"`
	Broken      string      `json:"broken,omitempty"` // why a run ended early
	Environment Environment `json:"environment"`
	Observer    Observer    `json:"observer"`
	Scenario    Scenario    `json:"scenario"`
	Runs        []Run       `json:"runs"`
}

// Observer says how the kernel parts came about.
type Observer struct {
	Mode    string `json:"mode"`              // one of the Observed constants
	Missing string `json:"missing,omitempty"` // why there are none, where there should be
}

// The kernel was not observed; in a shorter pass after each run; or throughout, so
// that the program's own figures are those of an observed run too.
const (
	ObservedNot  = "none"
	ObservedPass = "pass"
	ObservedAll  = "all"
	ObservedLive = "live" // other programs were observed, and aossim ran none
)

// Scenario is the file that was run, whole, and the options that changed it.
type Scenario struct {
	Name    string   `json:"name"`
	SHA256  string   `json:"sha256"`
	Text    string   `json:"text"`
	Options []string `json:"options,omitempty"`
}

// Run is one pass through all phases.
type Run struct {
	Phases       []Phase       `json:"phases"`
	Micro        []Micro       `json:"micro,omitempty"`
	Processes    []Process     `json:"processes"`
	Observing    *Observing    `json:"observing,omitempty"` // of a live observation
	Observations []Observation `json:"observations,omitempty"`
	Checks       []Check       `json:"checks"`
}

// Micro is one point of a micro-benchmark.
type Micro struct {
	Name     string `json:"name"`
	Workload string `json:"workload"`
	Unit     string `json:"unit"`
	// Operations are those that one value of Rounds is about, of a round or, at a rate,
	// of all threads of the first measured one.
	Operations int64     `json:"operations"`
	Rounds     []float64 `json:"rounds"` // the figure of each measured round
	// BeganNS is when the first measured round began, as Unix time, and DurationNS how long
	// the last one ended after that: points take turns, so others lie between.
	BeganNS    int64 `json:"began_ns,omitempty"`
	DurationNS int64 `json:"duration_ns,omitempty"`
	Spread
	WithoutFirst Spread    `json:"without_first"` // the same with the first round dropped
	Figures      []Figure  `json:"figures,omitempty"`
	Latencies    []Latency `json:"latencies,omitempty"`
	Kernel       *Kernel   `json:"kernel,omitempty"` // of the observed rounds
	Traced       *Traced   `json:"traced,omitempty"`
	Profile      *Profile  `json:"profile,omitempty"` // of a further round, by aossim vm --profile
	Actors       []Actor   `json:"actors"`
	Checks       []Check   `json:"checks"` // over all rounds, warm-up too
}

// Spread is how values of rounds lie: CV is the standard deviation of the sample over
// the mean.
type Spread struct {
	Mean   float64 `json:"mean"`
	Median float64 `json:"median"`
	CV     float64 `json:"cv"`
}

// SpreadOf returns the spread of values; it is 0 without any, and CV with one.
func SpreadOf(values []float64) (s Spread) {
	if len(values) == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	s.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
	for _, v := range values {
		s.Mean += v / float64(n)
	}
	if n > 1 && s.Mean != 0 {
		sum := 0.0
		for _, v := range values {
			sum += (v - s.Mean) * (v - s.Mean)
		}
		s.CV = math.Sqrt(sum/float64(n-1)) / s.Mean
	}
	return s
}

// Figure is a further figure of a point, one value a measured round.
type Figure struct {
	Name   string    `json:"name"`
	Rounds []float64 `json:"rounds"`
}

// Latency is how long the calls of one kind took (ns), over all measured rounds.
type Latency struct {
	Name      string     `json:"name"`
	Histogram *Histogram `json:"histogram"`
}

// Phase is one measured stretch.
type Phase struct {
	Name       string  `json:"name"`
	BeganNS    int64   `json:"began_ns,omitempty"` // Unix time
	DurationNS int64   `json:"duration_ns"`
	Groups     []Group `json:"groups"`
	Words      []Word  `json:"words,omitempty"` // of a live observation
}

// Group is what the actors of one name did in one phase.
type Group struct {
	Name        string `json:"name"`
	Policy      string `json:"policy"`   // granted
	Priority    int    `json:"priority"` // granted
	Publishers  int    `json:"publishers"`
	Subscribers int    `json:"subscribers"`
	Channels    int    `json:"channels"` // that each subscriber reads
	// Offered is how many messages were published on the channels of the group's
	// subscribers, counted once for each subscriber.
	Offered int64 `json:"offered"`
	// LonePeriodic: each arm can be raced by one publisher only, a periodic one.
	LonePeriodic bool `json:"lone_periodic"`
	Counts
	// Warmup is what was counted, and not measured, before the phase began.
	Warmup     Warmup     `json:"warmup"`
	Wait       string     `json:"wait,omitempty"`
	Submit     string     `json:"submit,omitempty"`
	Histograms Histograms `json:"histograms"`
	OverTime   Series     `json:"eagain_over_time"`
	Kernel     *Kernel    `json:"kernel,omitempty"`
	Live       *Live      `json:"live,omitempty"` // the group is a process that was observed, and not aossim's
}

// Kernel is what the kernel did for the arms of a group's io_uring subscribers, counted
// in the kernel. It is of the observed pass that followed the run, or of the run itself
// where all was observed.
type Kernel struct {
	Timing     string `json:"timing"` // how the moment of a failure is known: fexit or tracepoints
	DurationNS int64  `json:"duration_ns"`
	Arms       int64  `json:"arms"`
	EAGAIN     int64  `json:"eagain"`
	// What the program itself counted meanwhile.
	ProgramArms   int64 `json:"program_arms"`
	ProgramEAGAIN int64 `json:"program_eagain"`
	Messages      int64 `json:"messages"` // handled
	// Within the arming of waits only.
	Kmalloc    int64 `json:"kmalloc"`
	Kfree      int64 `json:"kfree"` // of what was not NULL
	CacheAlloc int64 `json:"kmem_cache_alloc"`
	// Of the failed arms, by the time from syscall entry.
	Within6us int64      `json:"within_6us"`
	Over40us  int64      `json:"over_40us"`
	Failure   *Histogram `json:"failure"` // that time, to 1.6 %
	// Behind counts failed arms as Counts.Behind does, but by the word at the failure;
	// BehindUnknown those where it could not be told, as for vectors.
	Behind        Behind       `json:"behind"`
	BehindUnknown int64        `json:"behind_unknown"`
	Rearm         *Histogram   `json:"rearm,omitempty"` // the program's, in the observed pass
	Sites         []KernelSite `json:"sites"`
	Unplaced      int64        `json:"unplaced"` // allocations and frees missing among the sites
	// MissedEvents is how many events the kernel did not give to the observer in this
	// phase, of all threads of the machine: so many allocations may be missing at most.
	MissedEvents int64          `json:"missed_events"`
	Threads      []KernelThread `json:"threads"`
}

// KernelSite is a place in the kernel that allocated or freed while waits were armed.
type KernelSite struct {
	Operation string `json:"operation"`        // kmalloc, kfree or kmem_cache_alloc
	Function  string `json:"function"`         // with offset
	Waking    bool   `json:"waking,omitempty"` // within a call that wakes, rather than while a wait was armed
	Size      int64  `json:"size"`             // bytes asked for; 0 for a kfree of what no arm had allocated
	Room      int64  `json:"room"`             // bytes given
	Count     int64  `json:"count"`
}

// KernelThread is one subscriber's thread.
type KernelThread struct {
	ThreadID int   `json:"thread_id"`
	Arms     int64 `json:"arms"`
	EAGAIN   int64 `json:"eagain"`
	Kmalloc  int64 `json:"kmalloc"`
	Kfree    int64 `json:"kfree"`
}

// Series is how arms fared over a phase, cut into as many equal stretches. An arm counts
// where the interval of 100 ms ended in which it was issued.
type Series [60]struct {
	Arms   int64 `json:"arms"`
	EAGAIN int64 `json:"eagain"`
}

// Add adds what another one counted in the same stretches.
func (s *Series) Add(o *Series) {
	for i := range s {
		s[i].Arms += o[i].Arms
		s[i].EAGAIN += o[i].EAGAIN
	}
}

// Warmup counts arms before a phase began.
type Warmup struct {
	Arms   int64 `json:"arms"`
	EAGAIN int64 `json:"eagain"`
}

// Counts are events; their words are those of docs/design.md.
type Counts struct {
	Published       int64  `json:"published"`
	Handled         int64  `json:"handled"`
	Overrun         int64  `json:"overrun"`
	Corrupt         int64  `json:"corrupt"` // handled messages whose checksum was wrong
	Arms            int64  `json:"arms"`
	EAGAIN          int64  `json:"eagain"`
	Wakes           int64  `json:"wakes"`
	LostWakes       int64  `json:"lost_wakes"`
	LateWakes       int64  `json:"late_wakes"` // read more than the scenario's bound after the message was published
	SpuriousWakes   int64  `json:"spurious_wakes"`
	MissedDeadlines int64  `json:"missed_deadlines"` // publishes later than the next one was due, or not made at all
	EINTR           int64  `json:"eintr"`            // waits and sleeps that a signal ended
	Behind          Behind `json:"behind"`
	// What getrusage counted for the group's actor threads.
	MinorFaults         int64 `json:"minor_faults"`
	MajorFaults         int64 `json:"major_faults"`
	VoluntarySwitches   int64 `json:"voluntary_switches"`
	InvoluntarySwitches int64 `json:"involuntary_switches"`
}

// Add adds d, field by field.
func (c *Counts) Add(d Counts) {
	c.Published += d.Published
	c.Handled += d.Handled
	c.Overrun += d.Overrun
	c.Corrupt += d.Corrupt
	c.Arms += d.Arms
	c.EAGAIN += d.EAGAIN
	c.Wakes += d.Wakes
	c.LostWakes += d.LostWakes
	c.LateWakes += d.LateWakes
	c.SpuriousWakes += d.SpuriousWakes
	c.MissedDeadlines += d.MissedDeadlines
	c.EINTR += d.EINTR
	for i := range c.Behind {
		c.Behind[i] += d.Behind[i]
	}
	c.MinorFaults += d.MinorFaults
	c.MajorFaults += d.MajorFaults
	c.VoluntarySwitches += d.VoluntarySwitches
	c.InvoluntarySwitches += d.InvoluntarySwitches
}

// Behind counts failed arms by how many messages past the armed value the word
// was found; the last element counts all from there on. The program loads the word
// right after the arm failed, so a count is an upper bound of what the kernel saw.
type Behind [17]int64

// Record counts one failed arm.
func (b *Behind) Record(distance uint32) { b[min(distance, uint32(len(b)-1))]++ }

// Total returns how many failed arms were counted.
func (b *Behind) Total() (n int64) {
	for _, v := range b {
		n += v
	}
	return n
}

func (b *Behind) key(i int) string {
	if i == len(b)-1 {
		return strconv.Itoa(i) + "+"
	}
	return strconv.Itoa(i)
}

// MarshalJSON writes an object of the distances that occurred: {"1": 97, "16+": 2}.
func (b Behind) MarshalJSON() ([]byte, error) {
	m := map[string]int64{}
	for i, n := range b {
		if n != 0 {
			m[b.key(i)] = n
		}
	}
	return json.Marshal(m)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (b *Behind) UnmarshalJSON(data []byte) error {
	var m map[string]int64
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	*b = Behind{}
	for i := range b {
		b[i] = m[b.key(i)]
		delete(m, b.key(i))
	}
	for k := range m {
		return fmt.Errorf("behind: no distance %q", k)
	}
	return nil
}

// Observation is what a load found out about the kernel.
type Observation struct {
	Load  string `json:"load"` // its kind
	What  string `json:"what"`
	Count int64  `json:"count"`
	Of    int64  `json:"of"`
}

// Process is one actor process and what its runtime did while it measured.
type Process struct {
	Group       string  `json:"group"`
	PID         int     `json:"pid"`
	Actors      []Actor `json:"actors"`
	Collections int64   `json:"collections"` // garbage collections between set-up and end
	Locked      bool    `json:"memory_locked"`
}

// Actor is one thread, as it was granted.
type Actor struct {
	Kind     string `json:"kind"` // publisher, subscriber or load
	Policy   string `json:"policy"`
	Priority int    `json:"priority"`
	CPUs     []int  `json:"cpus"`
}

// Check is a condition for the run to be believed, or a threshold of the
// scenario's [expect].
type Check struct {
	Name   string `json:"name"`
	Pass   bool   `json:"pass"`
	Detail string `json:"detail"`
}

// Environment is the machine as it was when the runs began.
type Environment struct {
	KernelRelease  string   `json:"kernel_release"`
	KernelVersion  string   `json:"kernel_version"`
	Preempt        string   `json:"preempt"`
	Realtime       bool     `json:"realtime"` // PREEMPT_RT
	BootID         string   `json:"boot_id"`
	Machine        string   `json:"machine"`
	CommandLine    string   `json:"command_line"` // the kernel's
	CPU            string   `json:"cpu"`
	CPUs           string   `json:"cpus_online"`
	Governor       string   `json:"governor"`
	Isolated       string   `json:"isolcpus"`
	NohzFull       string   `json:"nohz_full"`
	RTThrottling   string   `json:"rt_throttling"`
	ClockSource    string   `json:"clock_source"`
	Mitigations    []string `json:"mitigations"`
	Virtualization string   `json:"virtualization"`
	Emulated       bool     `json:"emulated"` // without hardware support: counts hold, times do not
	DMALatency     string   `json:"cpu_dma_latency"`
	SharedPages    int64    `json:"shared_page_bytes"`      // of the memory that holds the channels
	NotRealTime    bool     `json:"not_real_time"`          // --no-rt
	Image          string   `json:"image_sha256,omitempty"` // of the kernel that aossim vm booted, in hexadecimal
	// Clock is ClockInstructions where CLOCK_MONOTONIC is virtual, "" where it is real time; Emulator
	// the emulator's version and arguments.
	Clock    string `json:"clock,omitempty"`
	Emulator string `json:"emulator,omitempty"`
	// MemoryGroup is the memory control group that the program ran in, its path or what is known of it: in the root
	// group the kernel accounts nothing.
	MemoryGroup string   `json:"memory_cgroup,omitempty"`
	Limits      []string `json:"limits,omitempty"` // of control groups and resources, that the program was under
	Program     string   `json:"program"`
	GoVersion   string   `json:"go_version"`
}

// ClockInstructions: the clock of an emulated machine advances by 1 ns with each instruction that
// one of its CPUs executes, and to the next timer where all are idle (QEMU's -icount
// shift=0,sleep=off), so that no host can make it late.
const ClockInstructions = "instructions"

// Virtual says whether the machine's time is virtual.
func (e *Environment) Virtual() bool { return e.Clock == ClockInstructions }

// AllChecks returns the checks of the run and those of its points, under their names.
func (r *Run) AllChecks() []Check {
	all := slices.Clone(r.Checks)
	for _, m := range r.Micro {
		for _, c := range m.Checks {
			c.Name = m.Name + ": " + c.Name
			all = append(all, c)
		}
	}
	return all
}

// Failed returns the checks of all runs that did not pass.
func (r *Result) Failed() (failed []Check) {
	for i := range r.Runs {
		for _, c := range r.Runs[i].AllChecks() {
			if !c.Pass {
				failed = append(failed, c)
			}
		}
	}
	return failed
}

// Encode writes the result as indented JSON.
func (r *Result) Encode(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// MaxSize is the largest file that Load reads, in bytes; a result does not grow
// with its duration, and some 100 KiB with each run.
const MaxSize = 512 << 20

// Decode reads a result; name stands for it in errors.
func Decode(name string, data []byte) (*Result, error) {
	var head struct {
		Schema string `json:"schema"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&head); err != nil {
		return nil, fmt.Errorf("%s: %s", name, place(err, data, d.InputOffset()))
	}
	if head.Schema != Schema {
		return nil, fmt.Errorf("%s: its schema is %q and this program reads %q; use the program that wrote it", name, head.Schema, Schema)
	}
	r := new(Result)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %s", name, place(err, data, 0))
	}
	switch {
	case r.Runs == nil || r.Started == "" || r.Scenario.Name == "" || r.Environment.KernelRelease == "":
		return nil, fmt.Errorf("%s: it lacks its runs, its start, its scenario or its kernel, so it is no whole result", name)
	case r.profileFault() != "":
		return nil, fmt.Errorf("%s: it has %s, so it is damaged", name, r.profileFault())
	case r.phases() > maxPhases:
		return nil, fmt.Errorf("%s: %d groups and points in all its phases and runs, more than %d, which no run has", name, r.phases(), maxPhases)
	}
	return r, nil
}

// maxPhases is how many groups and points a result may have, over all phases and runs.
const maxPhases = 200_000

func (r *Result) phases() (n int) {
	for i := range r.Runs {
		n += len(r.Runs[i].Micro)
		for j := range r.Runs[i].Phases {
			n += 1 + len(r.Runs[i].Phases[j].Groups)
		}
	}
	return n
}

// place puts line and column in front of a JSON error, where it has one.
func place(err error, data []byte, offset int64) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var histogram *damagedHistogram
	switch {
	case errors.As(err, &histogram):
		offset = int64(bytes.Index(data, histogram.data))
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		offset = int64(len(data))
		err = errors.New("it ends before the result does")
	}
	before := data[:min(max(offset, 0), int64(len(data)))]
	line := 1 + bytes.Count(before, []byte("\n"))
	return fmt.Sprintf("line %d, column %d: %s", line, len(before)-bytes.LastIndexByte(before, '\n'), err)
}

// Load reads a result file.
func Load(path string) (*Result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(data) > MaxSize {
		return nil, fmt.Errorf("%s: larger than %d MiB, so no result file", path, MaxSize>>20)
	}
	return Decode(path, data)
}
