package sim

import (
	"fmt"
	"time"

	"aossim/internal/observe"
	"aossim/internal/result"
	"aossim/scenarios"
)

// observedName stands in front of what is said about the observed pass.
const observedName = "observed pass: "

// An observed pass takes observe.Share of the time, but a second a phase at least where
// the phase is as long, and warms up for no longer than it has to.
const (
	observedLeast  = time.Second
	observedWarmup = 200 * time.Millisecond
)

// observedPass returns the plan of the shorter pass.
func (p *Plan) observedPass() *Plan {
	pass, scenario := *p, *p.Scenario
	d := time.Duration(scenario.Duration)
	least := observedLeast
	for i := range scenario.Publishers {
		if t := scenario.Publishers[i].Times; t != nil {
			least = max(least, observedLeast+time.Duration(t.First))
		}
	}
	scenario.Duration = scenarios.Duration(max(d/observe.Share, min(d, least)))
	pass.Scenario = &scenario
	pass.Options.Warmup = min(pass.Options.Warmup, observedWarmup)
	return &pass
}

// length returns how long all windows of a pass take.
func (p *Plan) length() time.Duration {
	return time.Duration(len(p.Scenario.Phases)) * (p.Options.Warmup + time.Duration(p.Scenario.Duration))
}

// observed is what the kernel did in a phase.
type observed struct {
	threads []observe.Thread
	sites   []observe.Site
	missed  int64
}

// observe starts to watch the threads of all subscribers that arm on a ring. They are
// ready, and have made none yet.
func (c *controller) observe() (err error) {
	var threads []observe.Watched
	for i := range c.plan.Actors {
		a := &c.plan.Actors[i]
		if a.Kind != subscriber || !c.plan.waitOf(a).Observable() {
			continue
		}
		w := observe.Watched{ThreadID: int(c.control.thread(i).Load()), Wrap: c.channels[a.Channels[0]].Wrap()}
		for _, ch := range a.Channels {
			if c.channels[ch].Wrap() != w.Wrap {
				w.Wrap = 0
			}
		}
		threads = append(threads, w)
		c.watched = append(c.watched, i)
	}
	c.observer, err = observe.Start(threads)
	return err
}

// look returns what was observed until now.
func (c *controller) look() (s observe.Snapshot, err error) {
	if c.observer == nil {
		return s, nil
	}
	return c.observer.Snapshot()
}

// since adds a phase: what was observed after before.
func (c *controller) since(before observe.Snapshot) error {
	if c.observer == nil {
		return nil
	}
	now, err := c.look()
	if err != nil {
		return err
	}
	var o observed
	o.threads, o.sites = now.Since(before)
	o.missed = now.Missed - before.Missed
	c.seen = append(c.seen, o)
	return nil
}

// add adds watched thread at, whose actor reported r, to its group.
func (o *observed) add(g *result.Group, at int, r *phaseReport, thread uint64, duration int64, timing observe.Timing) {
	if g.Kernel == nil {
		g.Kernel = observe.NewKernel(timing, duration, o.missed)
	}
	observe.Add(g.Kernel, at, int(thread), o.threads, o.sites)
	g.Kernel.ProgramArms += r.Arms
	g.Kernel.ProgramEAGAIN += r.EAGAIN
	g.Kernel.Messages += r.Handled
}

// reconcile holds what the program counted against what the kernel did.
func reconcile(phases []result.Phase) (arms int64, problems []string) {
	for _, p := range phases {
		for _, g := range p.Groups {
			k := g.Kernel
			if k == nil {
				continue
			}
			arms += k.Arms
			if k.Arms != k.ProgramArms || k.EAGAIN != k.ProgramEAGAIN {
				problems = append(problems, fmt.Sprintf("%s: group %q counted %d arms and %d failed ones, the kernel %d and %d",
					p.Name, g.Name, k.ProgramArms, k.ProgramEAGAIN, k.Arms, k.EAGAIN))
			}
		}
	}
	return arms, problems
}

// addObserved fills the kernel parts of a run from its observed pass, and adds the check
// of the observer and every one that did not pass there.
func addObserved(run, pass *result.Run) {
	for i := range run.Phases {
		if i >= len(pass.Phases) {
			break
		}
		for j := range run.Phases[i].Groups {
			g := &run.Phases[i].Groups[j]
			for _, from := range pass.Phases[i].Groups {
				if from.Name == g.Name && from.Kernel != nil {
					g.Kernel = from.Kernel
					g.Kernel.Rearm = from.Histograms.Rearm
				}
			}
		}
	}
	for _, c := range pass.Checks {
		if c.Name == "observer" || !c.Pass {
			c.Name = observedName + c.Name
			run.Checks = append(run.Checks, c)
		}
	}
}
