// Package check is what aossim check finds: whether this machine is fit to measure on, and how
// its kernel behaves.
package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"aossim/internal/klog"
	"aossim/internal/linux"
	"aossim/internal/machine"
	"aossim/internal/metric"
	"aossim/internal/question"
	"aossim/internal/report"
	"aossim/internal/result"
)

// Schema names the format of a check.
const Schema = "aossim.check/1"

// Check is what aossim check finds.
type Check struct {
	Schema      string             `json:"schema"`
	Environment result.Environment `json:"environment"`
	Machine     []machine.Item     `json:"machine"`
	Self        *machine.Self      `json:"self"`
	Kernel      []question.Finding `json:"kernel"`
	Timing      string             `json:"observed_by,omitempty"` // fexit or tracepoints
	KernelError string             `json:"kernel_error,omitempty"`
	// Log says whether the kernel complained meanwhile.
	Log result.Check `json:"kernel_log"`
}

// Run does everything, in some ten seconds. priority is that of SCHED_FIFO that actors
// are to have, 1..99. It takes process-wide steps (memory locking, the private futex
// hash), so the process should do nothing else.
func Run(priority int) *Check {
	wanted := linux.Sched{Policy: linux.FIFO, Priority: priority}
	log := klog.Start()
	defer log.Close()
	c := &Check{Schema: Schema, Environment: machine.Environment()}
	if c.Machine = machine.Room(); len(c.Machine) > 0 {
		c.Self, c.Log = &machine.Self{Policy: wanted.String(), Error: "there is no room to try anything"}, log.Check()
		return c
	}
	c.Machine, c.Self = machine.Fitness(wanted), machine.SelfCheck(wanted)
	if !c.missing("io_uring") {
		findings, timing, err := question.Ask()
		c.Kernel, c.Timing = findings, string(timing)
		if err != nil {
			c.KernelError = err.Error()
		}
	}
	c.Log = log.Check()
	return c
}

// missing says whether something is that the tool needs, by the start of its name.
func (c *Check) missing(name string) bool {
	for _, i := range c.Machine {
		if i.Verdict == machine.No && strings.HasPrefix(i.Name, name) {
			return true
		}
	}
	return false
}

// Fit says that nothing is missing that the tool needs.
func (c *Check) Fit() bool { return !c.missing("") }

// Decode reads what Encode wrote, of another process or machine.
func Decode(data []byte) (*Check, error) {
	c := new(Check)
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("no check: %w", err)
	}
	if c.Schema != Schema || c.Self == nil {
		return nil, fmt.Errorf("no check: its schema is %q and this program reads %q, with all its parts", c.Schema, Schema)
	}
	return c, nil
}

// Encode writes the check as indented JSON.
func (c *Check) Encode(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(c)
}

// Text writes the check for people.
func (c *Check) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	plain := report.Plain // a guest may have said it
	fmt.Fprintf(t, "Linux %s %s, %s\n\nIs this machine fit to measure?\n\n", plain(c.Environment.KernelRelease), plain(c.Environment.KernelVersion), plain(c.Environment.CPU))
	for _, i := range c.Machine {
		fmt.Fprintf(t, "%s\t%s\t%s\n", plain(string(i.Verdict)), plain(i.Name), plain(i.Detail))
		if i.Fix != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", plain(i.Fix))
		}
	}
	fmt.Fprintf(t, "\nHow late is this program itself? (clock_nanosleep to a deadline each %d us, %s)\n\n", c.Self.PeriodNS/1000, plain(c.Self.Policy))
	if c.Self.Error != "" {
		fmt.Fprintf(t, "not measured: %s\n", plain(c.Self.Error))
	} else {
		for _, p := range []float64{50, 99} {
			v, _ := c.Self.Latency.Percentile(p)
			fmt.Fprintf(t, "p%g %.2f us, ", p, float64(v)/1000)
		}
		fmt.Fprintf(t, "max %.2f us of %d; %d garbage collections and %d stolen ticks meanwhile\n", float64(c.Self.Latency.Max())/1000, c.Self.Latency.Count(), c.Self.Collected, c.Self.Stolen)
	}
	fmt.Fprintf(t, "\nHow does this kernel behave?")
	if c.Timing != "" {
		fmt.Fprintf(t, " (observed by %s)", plain(c.Timing))
	}
	fmt.Fprintf(t, "\n\n")
	if c.KernelError != "" {
		fmt.Fprintf(t, "not found out: %s\n", plain(c.KernelError))
	}
	for _, f := range c.Kernel {
		fmt.Fprintf(t, "%s:\t%s\n\t%s\n", plain(f.Question), plain(string(f.Answer)), plain(f.Evidence))
	}
	fmt.Fprintf(t, "did it complain meanwhile?\t%s\n\t%s\n", c.complained(), plain(c.Log.Detail))
	return t.Flush()
}

// complained is a word for whether the kernel did.
func (c *Check) complained() string {
	if c.Log.Pass {
		return "no"
	}
	return "YES"
}

// Table writes the answers of several checks, questions down and kernels across.
func Table(w io.Writer, checks []*Check) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var kernels []*result.Environment
	for _, c := range checks {
		kernels = append(kernels, &c.Environment)
	}
	heads := report.KernelHeads(kernels)
	line := func(first string, cell func(i int) string) {
		cells := []string{first}
		for i := range checks {
			cells = append(cells, report.Plain(cell(i)))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	for n := range 2 {
		if slices.ContainsFunc(heads, func(h []string) bool { return len(h) > n }) {
			line("", func(i int) string {
				if n < len(heads[i]) {
					return heads[i][n]
				}
				return ""
			})
		}
	}
	for _, q := range question.Words() {
		line(q, func(i int) string {
			at := slices.IndexFunc(checks[i].Kernel, func(f question.Finding) bool { return f.Question == q })
			if at < 0 {
				return metric.None
			}
			return checks[i].Kernel[at].Answer
		})
	}
	line("something is missing", func(i int) string {
		var missing []string
		for _, item := range checks[i].Machine {
			if item.Verdict == machine.No {
				missing = append(missing, item.Name)
			}
		}
		if checks[i].KernelError != "" {
			missing = append(missing, checks[i].KernelError)
		}
		return cmp.Or(strings.Join(missing, ", "), "no")
	})
	line("it complained meanwhile", func(i int) string { return checks[i].complained() })
	return t.Flush()
}
