package sim

import (
	"fmt"
	"slices"
	"strings"

	"aossim/internal/result"
	"aossim/scenarios"
)

// gather makes a run's result of what the actors reported and of what the
// controller saw itself.
func (c *controller) gather() result.Run {
	run := result.Run{Phases: []result.Phase{}, Processes: []result.Process{}}
	reports := make([]*actorReport, len(c.plan.Actors))
	var dead []string
	for _, p := range c.processes {
		if p.err != nil {
			dead = append(dead, p.err.Error()+"; what it counted is lost")
		}
		if p.report == nil {
			continue
		}
		process := result.Process{Group: p.Group, PID: p.PID(), Collections: p.report.Collections, Locked: c.plan.Lock && c.plan.Actors[p.Actors[0]].Kind != load}
		for i := range p.report.Actors {
			a := &p.report.Actors[i]
			reports[a.Actor] = a
			process.Actors = append(process.Actors, a.Granted)
			run.Observations = append(run.Observations, a.Found...)
		}
		run.Processes = append(run.Processes, process)
	}
	for i, truth := range c.phases {
		run.Phases = append(run.Phases, c.phase(i, truth, reports))
	}
	c.check(&run, reports, dead)
	return run
}

// check adds what must hold for the run to be believed.
func (c *controller) check(run *result.Run, reports []*actorReport, dead []string) {
	check := func(name string, problems []string, detail string, args ...any) {
		k := result.Check{Name: name, Pass: len(problems) == 0, Detail: strings.Join(problems, "; ")}
		if k.Pass {
			k.Detail = fmt.Sprintf(detail, args...)
		}
		run.Checks = append(run.Checks, k)
	}
	check("actors", dead, "%d processes ended in order", len(c.processes))
	if len(run.Phases) == 0 {
		return // nothing was measured that could be checked
	}
	messages, problems := c.accounts(reports, run.Phases)
	check("accounts", problems, "published = handled + overrun for every subscriber in every phase, %d messages", messages)
	arms, problems := c.arms(reports)
	check("arms", problems, "arms = wakes + failed arms + cancelled, %d arms", arms)
	var all result.Counts
	for _, p := range run.Phases {
		for _, g := range p.Groups {
			all.Add(g.Counts)
		}
	}
	if c.observes {
		arms, problems := reconcile(run.Phases)
		check("observer", problems, "arms and failed arms as the program and as the kernel counted them are the same in every group and phase, %d arms", arms)
	}
	check("CPU quota", c.stops, "no control group's stopped an ordinary thread in any phase")
	check("granted", c.lost, "every actor had its CPUs, policy and priority to the end of each phase")
	check("checksums", some(all.Corrupt, "messages with a wrong checksum"), "all right")
	check("lost wakes", some(all.LostWakes, "lost wakes"), "none")
	check("collections", collected(run.Processes), "no garbage collection in any process that measures")
	check("major faults", some(all.MajorFaults, "major page faults in actor threads"), "none")
	check("disturbances", nil, "%d minor faults, %d EINTR, %d involuntary and %d voluntary switches of actor threads in the phases",
		all.MinorFaults, all.EINTR, all.InvoluntarySwitches, all.VoluntarySwitches)
}

func some(n int64, what string) []string {
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d %s", n, what)}
}

func collected(processes []result.Process) (problems []string) {
	for _, p := range processes {
		if p.Collections != 0 && p.Actors[0].Kind != load {
			problems = append(problems, fmt.Sprintf("%d garbage collections in a process of group %q", p.Collections, p.Group))
		}
	}
	return problems
}

// accounts holds what publishers and subscribers counted against how far the
// words moved.
func (c *controller) accounts(reports []*actorReport, phases []result.Phase) (messages int64, problems []string) {
	for i := range phases {
		published := make([]int64, len(c.channels))
		byName := map[string]int64{} // what publishers say; they share channels by name
		for n, r := range reports {
			a := &c.plan.Actors[n]
			if a.Kind != publisher || r == nil {
				continue
			}
			byName[c.plan.Scenario.Publishers[a.Entry].Channel] += r.Phases[i].Published
		}
		for ch, n := range c.phases[i].published {
			published[ch] = int64(n)
			messages += int64(n)
		}
		sums := map[string]int64{}
		next := 0
		for _, entry := range c.plan.Scenario.Channels {
			for range entry.Count {
				sums[entry.Name] += published[next]
				next++
			}
		}
		for name, n := range sums {
			if byName[name] != n {
				problems = append(problems, fmt.Sprintf("%s: the index of %s moved by %d, its publishers counted %d", phases[i].Name, name, n, byName[name]))
			}
		}
		for n, r := range reports {
			a := &c.plan.Actors[n]
			if a.Kind != subscriber || !c.activeIn(n, i) {
				continue
			}
			offered := c.offered(n, i)
			if r == nil {
				problems = append(problems, fmt.Sprintf("%s: a subscriber of group %q gave no account", phases[i].Name, a.Group))
			} else if got := r.Phases[i].Handled + r.Phases[i].Overrun; got != offered {
				problems = append(problems, fmt.Sprintf("%s: a subscriber of group %q accounts for %d of %d messages", phases[i].Name, a.Group, got, offered))
			}
		}
	}
	slices.Sort(problems)
	return messages, problems
}

// offered is how many messages were published on a subscriber's channels in a
// phase.
func (c *controller) offered(actor, phase int) (n int64) {
	for _, ch := range c.plan.Actors[actor].Channels {
		n += int64(c.phases[phase].published[ch])
	}
	return n
}

// activeIn says whether an actor takes part in a phase.
func (c *controller) activeIn(actor, phase int) bool {
	for w, win := range c.plan.Windows {
		if win.Phase == phase {
			return c.plan.Actors[actor].Active[w]
		}
	}
	return false
}

func (c *controller) arms(reports []*actorReport) (arms int64, problems []string) {
	for i, r := range reports {
		if r == nil || c.plan.Actors[i].Kind != subscriber {
			continue
		}
		t := &r.Total
		arms += t.Arms
		if ended := t.Wakes + t.EAGAIN + r.Cancelled; ended != t.Arms {
			problems = append(problems, fmt.Sprintf("a subscriber of group %q issued %d arms and %d ended", c.plan.Actors[i].Group, t.Arms, ended))
		}
	}
	return arms, problems
}

// phase merges the reports of each group.
func (c *controller) phase(i int, truth phaseTruth, reports []*actorReport) result.Phase {
	ph := result.Phase{Name: c.plan.Scenario.Phases[i], BeganNS: truth.began, DurationNS: truth.duration, Groups: []result.Group{}}
	index := map[string]int{}
	for n := range c.plan.Actors {
		a := &c.plan.Actors[n]
		if a.Kind == load || !c.activeIn(n, i) {
			continue
		}
		at, ok := index[a.Group]
		if !ok {
			at = len(ph.Groups)
			index[a.Group] = at
			ph.Groups = append(ph.Groups, result.Group{Name: a.Group})
		}
		g := &ph.Groups[at]
		if a.Kind == publisher {
			g.Publishers++
		} else {
			sub := &c.plan.Scenario.Subscribers[a.Entry]
			g.Subscribers++
			g.Channels = len(a.Channels)
			g.Wait, g.Submit = sub.Wait, string(sub.Submit)
			g.Offered += c.offered(n, i)
			g.LonePeriodic = c.lonePeriodic(a, i)
		}
		r := reports[n]
		if r == nil {
			continue
		}
		g.Policy, g.Priority = r.Granted.Policy, r.Granted.Priority
		g.Counts.Add(r.Phases[i].Counts)
		g.Warmup.Arms += r.Phases[i].Warmup.Arms
		g.Warmup.EAGAIN += r.Phases[i].Warmup.EAGAIN
		if a.Kind == subscriber {
			g.Histograms.Merge(r.Phases[i].Histograms)
			g.OverTime.Add(&r.Phases[i].OverTime)
		}
		if at := slices.Index(c.watched, n); at >= 0 && i < len(c.seen) {
			c.seen[i].add(g, at, &r.Phases[i], c.control.thread(n).Load(), truth.duration, c.observer.Timing)
		}
	}
	return ph
}

// lonePeriodic says whether each arm of a subscriber hears a single periodic
// publisher: then nothing can race it but the next period.
func (c *controller) lonePeriodic(sub *actorPlan, phase int) bool {
	publishers := 0
	for _, ch := range sub.Channels {
		if !c.plan.waitOf(sub).OneArm {
			publishers = 0 // each channel has an arm of its own
		}
		for n, a := range c.plan.Actors {
			if a.Kind != publisher || !c.activeIn(n, phase) || !slices.Contains(a.Channels, ch) {
				continue
			}
			if publishers++; publishers > 1 || c.plan.Scenario.Publishers[a.Entry].Arrival != scenarios.Periodic {
				return false
			}
		}
	}
	return true
}
