// Package compare judges results against each other: what changed from before to after,
// and how sure that is. It never touches the kernel.
//
// A comparison is A-B-A where there are results from before and after and from before
// again: the change is against the midpoint of the two A's, and their drift stands beside
// it. A unit is a run; of a micro-benchmark a round, or the boot where there are several; in virtual time always the round.
package compare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"aossim/internal/refusal"
	"aossim/internal/result"
)

// Options say how to judge. Gates are by metric, as [compare] of a scenario names them.
type Options struct {
	Gate  float64 // as a fraction; 0 is DefaultGate, of instructions InstructionGate or VectorGate
	Gates map[string]float64
	// Progress is told how much of the whole is done, now and then; it may be nil.
	Progress func(done, all int)
}

func (o Options) gate(m Metric) float64 {
	for _, name := range m.gates {
		if gate, ok := o.Gates[name]; ok {
			return gate
		}
	}
	return cmp.Or(o.Gate, m.usual, DefaultGate)
}

// Comparison is what Compare finds.
type Comparison struct {
	Scenario string   `json:"scenario"`
	Before   string   `json:"before"` // kernels
	After    string   `json:"after"`
	Warnings []string `json:"warnings"`
	Emulated bool     `json:"emulated"`     // times are shown only
	Virtual  bool     `json:"virtual_time"` // of any side
	// Doubtful: a metric is missing on a side, or one boot or image is on both.
	Doubtful bool      `json:"doubtful"`
	Metrics  []Judged  `json:"metrics"`
	Maxima   []Maximum `json:"maxima"`
	Profiles []Profile `json:"profiles,omitempty"` // where results have them
}

// Worse returns the metrics that regressed.
func (c *Comparison) Worse() (list []Judged) {
	for _, m := range c.Metrics {
		if m.Verdict.Worse() {
			list = append(list, m)
		}
	}
	return list
}

// Decided says whether every judged metric has a verdict that is one.
func (c *Comparison) Decided() bool {
	judged := 0
	if c.Doubtful {
		return false
	}
	for _, m := range c.Metrics {
		switch m.Verdict {
		case TooFew, Inconclusive:
			return false
		case Shown:
		default:
			judged++
		}
	}
	return judged > 0
}

// Compare compares results of before with those of after, and of before again, which may
// be none. Its error wraps refusal.ErrUsage: they are not of the same scenario, or have nothing
// in common.
func Compare(before, after, again []*result.Result, o Options) (*Comparison, error) {
	all := slices.Concat(before, again, after)
	if err := comparable(all); err != nil {
		return nil, err
	}
	c := &Comparison{Scenario: before[0].Scenario.Name, Before: kernels(slices.Concat(before, again)), After: kernels(after), Warnings: warnings(all), Metrics: []Judged{}}
	for _, r := range all {
		c.Emulated, c.Virtual = c.Emulated || r.Environment.Emulated, c.Virtual || r.Environment.Virtual()
	}
	both := func(what, why string, of func(e *result.Environment) string) {
		for _, r := range after {
			if id := of(&r.Environment); id != "" && slices.ContainsFunc(slices.Concat(before, again), func(a *result.Result) bool { return of(&a.Environment) == id }) {
				c.Warnings, c.Doubtful = append(c.Warnings, fmt.Sprintf("%s %s is on both sides: %s", what, id, why)), true
				return
			}
		}
	}
	both("boot", "they are of one kernel, and nothing about it can differ", func(e *result.Environment) string { return e.BootID })
	both("image", "they are of one kernel", func(e *result.Environment) string { return e.Image })
	u := unitOf(slices.Concat(before, again), after)
	a, b, a2 := extract(before, u), extract(after, u), extract(again, u)
	sides := []*side{a, b}
	if len(again) > 0 {
		sides = append(sides, a2)
	}
	missing := map[string]bool{}
	for _, s := range sides {
		for _, m := range s.metrics {
			if !missing[m.Name] && slices.ContainsFunc(sides, func(s *side) bool { return s.samples[m.Name] == nil }) {
				missing[m.Name], c.Doubtful = true, true
				c.Warnings = append(c.Warnings, fmt.Sprintf("%s is not in all results, and not compared", m.Name))
			}
		}
	}
	for _, m := range a.metrics {
		if missing[m.Name] {
			continue
		}
		if units := unitsOf(m.Name, sides); len(units) > 1 {
			c.Doubtful = true
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s is in %s, and not compared", m.Name, strings.Join(units, " on one side and on another in ")))
			continue
		}
		c.Metrics = append(c.Metrics, judge(m, a.samples[m.Name], b.samples[m.Name], a2.samples[m.Name], o.gate(m)))
	}
	if len(c.Metrics) == 0 {
		return nil, refusal.Usage("nothing in these results of %s can be compared: no metric has values on every side", c.Scenario)
	}
	holm(c.Metrics)
	for i := range c.Metrics {
		m := &c.Metrics[i]
		if c.Emulated && m.Kind.Timed() {
			m.Verdict, m.Why = Shown, "the machine is emulated: times say nothing" // virtual ones neither: its CPUs take turns
			continue
		}
		m.decide()
	}
	c.Maxima = maxima(slices.Concat(before, again), after)
	c.Profiles = profiles(before, after, again)
	return c, nil
}

// unitsOf are those that a metric has on several sides: of the host's clock and of virtual time.
func unitsOf(name string, sides []*side) (units []string) {
	for _, s := range sides {
		for _, u := range s.samples[name].units {
			if !slices.Contains(units, u) {
				units = append(units, u)
			}
		}
	}
	return units
}

// comparable refuses results of different scenarios.
func comparable(all []*result.Result) error {
	a := all[0]
	for _, b := range all[1:] {
		if a.Scenario.SHA256 != b.Scenario.SHA256 || a.Scenario.Name != b.Scenario.Name {
			return refusal.Usage("these results cannot be compared: one is of scenario %s (sha256 %.12s), one of %s (%.12s); run the same file on both kernels", a.Scenario.Name, a.Scenario.SHA256, b.Scenario.Name, b.Scenario.SHA256)
		}
	}
	return nil
}

// warnings names what differs between the machines other than the kernel.
func warnings(all []*result.Result) []string {
	list := []string{}
	differs := func(what string, of func(r *result.Result) string) {
		var values []string
		for _, r := range all {
			if v := of(r); !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		if len(values) > 1 {
			list = append(list, fmt.Sprintf("%s differs: %s", what, strings.Join(values, " | ")))
		}
	}
	environment := func(of func(e *result.Environment) string) func(r *result.Result) string {
		return func(r *result.Result) string { return of(&r.Environment) }
	}
	differs("options", func(r *result.Result) string { return strings.Join(r.Scenario.Options, " ") })
	differs("machine", environment(func(e *result.Environment) string { return e.Machine }))
	differs("CPU", environment(func(e *result.Environment) string { return e.CPU }))
	differs("CPUs online", environment(func(e *result.Environment) string { return e.CPUs }))
	differs("governor", environment(func(e *result.Environment) string { return e.Governor }))
	differs("isolcpus", environment(func(e *result.Environment) string { return e.Isolated }))
	differs("nohz_full", environment(func(e *result.Environment) string { return e.NohzFull }))
	differs("RT throttling", environment(func(e *result.Environment) string { return e.RTThrottling }))
	differs("clock source", environment(func(e *result.Environment) string { return e.ClockSource }))
	differs("cpu_dma_latency", environment(func(e *result.Environment) string { return e.DMALatency }))
	differs("page size of the shared memory", environment(func(e *result.Environment) string { return fmt.Sprint(e.SharedPages) }))
	differs("mitigations", environment(func(e *result.Environment) string { return strings.Join(e.Mitigations, "; ") }))
	differs("limits", environment(func(e *result.Environment) string { return strings.Join(e.Limits, "; ") }))
	differs("clock", environment(func(e *result.Environment) string { return cmp.Or(e.Clock, "real time") }))
	differs("emulator", environment(func(e *result.Environment) string { return cmp.Or(e.Emulator, "none") }))
	differs("memory accounted to a control group", environment(func(e *result.Environment) string {
		return map[bool]string{true: "yes", false: "no"}[e.MemoryGroup == "" || strings.HasPrefix(e.MemoryGroup, "/")] // its name is another with each login
	}))
	differs("virtualization", environment(func(e *result.Environment) string { return e.Virtualization }))
	differs("the kernel's command line", environment(func(e *result.Environment) string { return e.CommandLine }))
	differs("the program", environment(func(e *result.Environment) string { return e.Program + ", " + e.GoVersion }))
	differs("observer", func(r *result.Result) string { return r.Observer.Mode })
	differs("how failures are timed", timing)
	differs("priority granted", granted)
	return list
}

func timing(r *result.Result) string {
	for _, run := range r.Runs {
		for _, p := range run.Phases {
			for _, g := range p.Groups {
				if g.Kernel != nil {
					return g.Kernel.Timing
				}
			}
		}
	}
	return "not observed"
}

// granted is what the kernel gave the actors, a word a group.
func granted(r *result.Result) string {
	var words []string
	if len(r.Runs) > 0 {
		for _, p := range r.Runs[0].Processes {
			for _, a := range p.Actors {
				if w := fmt.Sprintf("%s %s %d", p.Group, a.Policy, a.Priority); !slices.Contains(words, w) {
					words = append(words, w)
				}
			}
		}
	}
	return strings.Join(words, ", ")
}

// kernels names the kernels of results.
func kernels(results []*result.Result) string {
	var names []string
	for _, r := range results {
		if n := strings.TrimSpace(r.Environment.KernelRelease + " " + r.Environment.KernelVersion); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return strings.Join(names, " | ")
}
