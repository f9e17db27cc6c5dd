package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"aossim/internal/linux"
	"aossim/internal/machine"
	"aossim/internal/observe"
	"aossim/internal/uring"
	"aossim/scenarios"
)

// Options change a scenario from the command line. Zero values leave it as it is,
// but for Warmup, which is the time before each phase that is not counted.
type Options struct {
	Duration time.Duration // of each phase
	Warmup   time.Duration
	Runs     int
	Priority int   // of every fifo and rr actor
	CPUs     []int // dealt to real-time actors without cpus
	NoRT     bool  // everything under SCHED_OTHER
	Observe  observe.Mode
	Break    time.Duration // a re-arm or delivery latency above which the trace is stopped, and the run
	Mark     bool          // write phases into the trace
	// Progress is told how much of the whole is done, now and then; it may be nil.
	Progress func(done, all time.Duration, doing string)
}

// list returns the options that are not as they are by default, as typed.
func (o Options) list() (l []string) {
	if o.Duration != 0 {
		l = append(l, "--duration="+o.Duration.String())
	}
	l = append(l, "--warmup="+o.Warmup.String())
	if o.Priority != 0 {
		l = append(l, fmt.Sprintf("--priority=%d", o.Priority))
	}
	if len(o.CPUs) > 0 {
		l = append(l, "--affinity="+FormatCPUs(o.CPUs))
	}
	if o.NoRT {
		l = append(l, "--no-rt")
	}
	if o.Break > 0 {
		l = append(l, fmt.Sprintf("--breaktrace=%d", o.Break.Microseconds()))
	}
	if o.Observe != "" && o.Observe != observe.IfPossible {
		l = append(l, "--observe="+string(o.Observe))
	}
	return l
}

// Prepare lays the scenario out on this machine and finds out by doing whether this
// kernel and this user can run it. Its error is one of the scenario's
// (*scenarios.Error), or wraps machine.ErrUsage or machine.ErrCannot. Nothing has started then.
func Prepare(s *scenarios.Scenario, o Options) (*Plan, error) {
	cpus, err := linux.Affinity()
	if err != nil {
		return nil, err
	}
	if o.Duration > 0 {
		s.Duration = scenarios.Duration(o.Duration)
	}
	usable := func(cpu int) bool {
		return slices.Contains(cpus, cpu) || linux.OnThread(func() error { _, err := linux.SetAffinity([]int{cpu}); return err }) == nil
	}
	for _, c := range o.CPUs {
		if !usable(c) {
			return nil, fmt.Errorf("%w: --affinity: CPU %d is not there or not allowed here; there are %s", machine.ErrUsage, c, FormatCPUs(cpus))
		}
	}
	p, err := newPlan(s, o, cpus, usable)
	if err != nil {
		return nil, err
	}
	if err := p.possible(); err != nil {
		return nil, err
	}
	if o.Break > 0 || o.Mark {
		t, err := linux.OpenTracing()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", machine.ErrCannot, err)
		}
		t.Close()
	}
	// There is nothing to observe where nobody arms on a ring.
	if slices.ContainsFunc(p.Actors, func(a actorPlan) bool { return a.Kind == subscriber && p.armsOnRing(&a) }) {
		p.Observe = o.Observe
	}
	if p.Unobserved, err = p.Observe.Try(); err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrCannot, err)
	}
	return p, nil
}

// possible finds out by doing whether this kernel and this user can run the plan.
func (p *Plan) possible() error {
	for i := range p.Actors {
		a := &p.Actors[i]
		s := p.Scenario
		if a.Kind == subscriber && s.Subscribers[a.Entry].Wait != "futex" || a.Kind == publisher && s.Publishers[a.Entry].Wake == "io_uring" ||
			a.Kind == load && s.Loads[a.Entry].Kind == "slab" {
			if err := uring.Probe(uring.OpFutexWait); err != nil {
				return fmt.Errorf("%w: %w", machine.ErrCannot, err)
			}
			break
		}
	}
	tried := map[linux.Sched]bool{}
	for i := range p.Actors {
		a := &p.Actors[i]
		if tried[a.Sched] {
			continue
		}
		tried[a.Sched] = true
		switch err := linux.OnThread(func() error { _, err := linux.SetSched(a.Sched); return err }); {
		case errors.Is(err, linux.ErrInvalid):
			return p.Scenario.Errorf(a.Kind, a.Entry, "policy", "%s: this kernel does not take these values", err)
		case err != nil:
			return fmt.Errorf("group %q %w: %w", a.Group, machine.ErrCannot, err)
		}
	}
	if highest := p.highest(); highest > 0 {
		if err := linux.OnThread(func() error { return above(highest) }); err != nil {
			return fmt.Errorf("%w: %w", machine.ErrCannot, err)
		}
	}
	return nil
}
