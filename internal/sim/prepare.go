package sim

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/result"
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
	Observe  Observe
	// Progress is told how much of the whole is done, now and then; it may be nil.
	Progress func(done, all time.Duration, doing string)
}

// Observe says whether and when the kernel is observed: after each run in a shorter pass
// of its own if this kernel and user can; the same, and it must be possible; throughout;
// not at all.
type Observe string

// See Observe.
const (
	ObserveIfPossible Observe = "if-possible"
	ObservePass       Observe = "pass"
	ObserveAll        Observe = "all"
	ObserveNot        Observe = "no"
)

// mode is what the result says about it: there is nothing to observe where nobody arms
// on a ring.
func (p *Plan) mode() string {
	rings := slices.ContainsFunc(p.Actors, func(a actorPlan) bool { return a.Kind == subscriber && p.armsOnRing(&a) })
	switch o := p.Options.Observe; {
	case !rings:
	case o == ObserveAll:
		return result.ObservedAll
	case o == ObserveIfPossible, o == ObservePass:
		return result.ObservedPass
	}
	return result.ObservedNot
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
	if o.Observe != "" && o.Observe != ObserveIfPossible {
		l = append(l, "--observe="+string(o.Observe))
	}
	return l
}

// ErrCannot is wrapped by Run's error where this kernel or this user cannot run
// the scenario: nothing has started.
var ErrCannot = errors.New("cannot run here")

// Prepare lays the scenario out on this machine and finds out by doing whether this
// kernel and this user can run it. Its error is one of the scenario's
// (*scenarios.Error), or wraps ErrUsage or ErrCannot. Nothing has started then.
func Prepare(s *scenarios.Scenario, o Options) (*Plan, error) {
	cpus, err := linux.Affinity()
	if err != nil {
		return nil, err
	}
	if o.Duration > 0 {
		s.Duration = scenarios.Duration(o.Duration)
	}
	usable := func(cpu int) bool {
		return slices.Contains(cpus, cpu) || apart(func() error { _, err := linux.SetAffinity([]int{cpu}); return err }) == nil
	}
	for _, c := range o.CPUs {
		if !usable(c) {
			return nil, fmt.Errorf("%w: --affinity: CPU %d is not there or not allowed here; there are %s", ErrUsage, c, FormatCPUs(cpus))
		}
	}
	p, err := newPlan(s, o, cpus, usable)
	if err != nil {
		return nil, err
	}
	if err := p.possible(); err != nil {
		return nil, err
	}
	if p.mode() != result.ObservedNot {
		if observer, err := observe.Start(nil); err != nil {
			p.Unobserved = err
		} else {
			observer.Close()
		}
		if p.Unobserved != nil && o.Observe != ObserveIfPossible {
			return nil, fmt.Errorf("%w: %w", ErrCannot, p.Unobserved)
		}
	}
	return p, nil
}

// ErrUsage is wrapped by errors about options that no machine, or not this one,
// can follow.
var ErrUsage = errors.New("wrong usage")

// apart calls f on a thread of its own, which ends with it and takes along what f
// did to it.
func apart(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}

// possible finds out by doing whether this kernel and this user can run the plan.
func (p *Plan) possible() error {
	for i := range p.Actors {
		a := &p.Actors[i]
		s := p.Scenario
		if a.Kind == subscriber && s.Subscribers[a.Entry].Wait != "futex" || a.Kind == publisher && s.Publishers[a.Entry].Wake == "io_uring" ||
			a.Kind == load && s.Loads[a.Entry].Kind == "slab" {
			if err := apart(uring.Probe); err != nil {
				return fmt.Errorf("%w: %w", ErrCannot, err)
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
		switch err := apart(func() error { _, err := linux.SetSched(a.Sched); return err }); {
		case errors.Is(err, linux.ErrInvalid):
			return p.Scenario.Errorf(a.Kind, a.Entry, "policy", "%s: this kernel does not take these values", err)
		case err != nil:
			return fmt.Errorf("group %q %w: %w", a.Group, ErrCannot, err)
		}
	}
	if highest := p.highest(); highest > 0 {
		if err := apart(func() error { return above(highest) }); err != nil {
			return fmt.Errorf("%w: %w", ErrCannot, err)
		}
	}
	return nil
}
