package sim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"aossim/channel"
	"aossim/eventloop"
	"aossim/internal/actors"
	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/scenarios"
)

// ActorCommand is the first argument of an actor process, and NopCommand that of
// a process which ends at once (the fork load).
const (
	ActorCommand = "actor-process"
	NopCommand   = "actor-nop"
)

// Files that an actor process inherits from the controller.
const (
	memoryFD   = 3
	eventfdsFD = 4
)

// order is what an actor process is told.
type order struct {
	Plan    *Plan
	Process int
}

// report is what an actor process answers when it ends.
type report struct {
	Collections int64
	Actors      []actorReport
}

type actorReport struct {
	Actor     int
	Granted   result.Actor
	Phases    []phaseReport // by phase of the scenario
	Total     result.Counts // of the thread's life
	Cancelled int64         // arms that were outstanding at the end
	Found     []result.Observation
}

type phaseReport struct {
	eventloop.Stats
	Warmup result.Counts
}

// ActorMain is an actor process: it does its orders until the controller says stop, answers
// on out, and returns its exit code. It must be the only thing its process does.
func ActorMain(in io.Reader, out io.Writer) int {
	return actors.Serve(in, out, func(o order, c *actors.Conversation) error {
		r, err := o.run()
		if err != nil {
			return err
		}
		return c.Say(r, nil)
	})
}

// mindEvery is how often the minders look. More often would show: every ordinary
// thread that runs on an actor's CPU delays it, by an interprocessor interrupt at least.
const mindEvery = int64(20 * time.Millisecond)

// run starts the process's actors and returns their report when the last has left.
func (o *order) run() (*report, error) {
	p, r := o.Plan, &report{}
	mem, _, err := linux.Map(os.NewFile(memoryFD, "shared memory"), p.size())
	if err != nil {
		return r, err
	}
	var eventfds []*os.File
	for i := range p.Eventfds {
		eventfds = append(eventfds, os.NewFile(uintptr(eventfdsFD+i), "eventfd"))
	}
	ctl := newControl(mem)
	mine := p.Processes[o.Process].Actors
	channels, err := p.channels(mem, channel.Open)
	if err != nil {
		return r, err
	}
	if p.kind(o.Process) != actors.Measuring {
		return r, o.runLoads(ctl, channels, r)
	}
	if p.Lock {
		if err := limits.Lock(); err != nil {
			return r, err
		}
	}
	// From here until the last actor has left.
	actors.NoCollections()
	before := actors.Collections()

	sh := shared{ctl, channels, eventfds}
	done := make(chan outcome, len(mine))
	minders := make(chan *eventloop.Minder, len(mine))
	for _, i := range mine {
		if p.Actors[i].Kind == load {
			go func() { done <- o.runLoad(i, ctl, channels, new(programs)) }()
			continue
		}
		go func() { done <- o.runActor(i, sh, minders) }()
	}
	var minded []*eventloop.Minder
	var counted []func()
	for left := len(mine); left > 0; {
		select {
		case m := <-minders:
			minded = append(minded, m)
			continue
		case d := <-done:
			if d.err != nil {
				return r, d.err
			}
			r.Actors = append(r.Actors, d.report)
			counted = append(counted, d.warmups)
			left--
			continue
		default:
		}
		for _, m := range minded {
			m.Look()
		}
		sleepPinned(mindEvery)
	}
	for _, m := range minded {
		m.Account()
	}
	for _, warmups := range counted {
		warmups()
	}
	r.Collections = actors.Collections() - before
	return r, nil
}

type outcome struct {
	report  actorReport
	warmups func() // copies the counts of the warm-ups, when those are complete
	err     error
}

// become gives the calling thread, which it locks, the actor's policy and place.
func (a *actorPlan) become() (result.Actor, error) {
	got, cpus, err := actors.Become(a.Kind[:3]+" "+a.Group, a.CPUs, a.Sched)
	return result.Actor{Kind: a.Kind, Policy: got.Policy.String(), Priority: got.Priority, CPUs: cpus}, err
}

// stats returns a slot for each window, and the phases that they fill.
func (p *Plan) stats(a *actorPlan) ([]*eventloop.Stats, []phaseReport) {
	phases := make([]phaseReport, len(p.Scenario.Phases))
	scratch := &eventloop.Stats{}
	if a.Kind == subscriber {
		scratch = eventloop.NewStats()
	}
	windows := make([]*eventloop.Stats, len(p.Windows))
	for i, w := range p.Windows {
		switch {
		case !a.Active[i] || w.Kind == preparing:
			windows[i] = scratch
		case w.Kind == warmingUp:
			windows[i] = &eventloop.Stats{Histograms: scratch.Histograms}
		default:
			if a.Kind == subscriber {
				phases[w.Phase].Histograms = result.NewHistograms()
			}
			windows[i] = &phases[w.Phase].Stats
		}
	}
	return windows, phases
}

// warmups copies what the warm-up windows counted into their phases.
func (p *Plan) warmups(windows []*eventloop.Stats, phases []phaseReport) {
	for i, w := range p.Windows {
		if w.Kind == warmingUp {
			phases[w.Phase].Warmup = windows[i].Counts
		}
	}
}

// shared is what the actors of a process have in common.
type shared struct {
	*control
	channels []*channel.Channel
	eventfds []*os.File
}

func (o *order) runActor(i int, sh shared, minders chan<- *eventloop.Minder) (d outcome) {
	p, a := o.Plan, &o.Plan.Actors[i]
	d.report.Actor = i
	// The thread has its priority before it makes its ring and arms: the kernel
	// queues waiters by it.
	var err error
	if d.report.Granted, err = a.become(); err == nil {
		sh.thread(i).Store(uint64(linux.ThreadID()))
		windows, phases := p.stats(a)
		d.report.Phases, d.warmups = phases, func() { p.warmups(windows, phases) }
		if a.Kind == publisher {
			err = p.publish(i, sh, windows)
		} else {
			err = p.subscribe(i, sh, windows, &d.report, minders)
		}
	}
	if err != nil {
		d.err = fmt.Errorf("%s: %w", a.Kind, err)
	}
	return d
}

func (p *Plan) publish(i int, sh shared, windows []*eventloop.Stats) error {
	c, err := p.publisherConfig(&p.Actors[i], sh)
	if err != nil {
		return err
	}
	pub, err := eventloop.NewPublisher(c, &sh.windows, sh.progress(i), windows)
	if err != nil {
		return err
	}
	sh.ready(i).Store(1)
	return errors.Join(pub.Run(), pub.Close())
}

func (p *Plan) subscribe(i int, sh shared, windows []*eventloop.Stats, r *actorReport, minders chan<- *eventloop.Minder) error {
	a := &p.Actors[i]
	c, err := p.subscriberConfig(a)
	if err != nil {
		return err
	}
	if c.Break != nil {
		if c.Tracing, err = linux.OpenTracing(); err != nil {
			return err
		}
		defer c.Tracing.Close()
	}
	for n, ch := range a.Channels {
		in := eventloop.In{Channel: sh.channels[ch], Scope: p.Channels[ch].Scope}
		if len(a.Eventfds) > 0 {
			in.Eventfd = sh.eventfds[a.Eventfds[n]]
		}
		for other := range p.Actors {
			if p.Actors[other].Kind == publisher && slices.Contains(p.Actors[other].Channels, ch) {
				in.Publishing = append(in.Publishing, sh.progress(other).Publishing)
			}
		}
		c.Ins = append(c.Ins, in)
	}
	sub := eventloop.NewSubscriber(c, &sh.windows, sh.progress(i), windows)
	minders <- eventloop.NewMinder(sub)
	sh.ready(i).Store(1)
	if err := sub.Run(); err != nil {
		return err
	}
	r.Total, r.Cancelled = sub.Total(), sub.Cancelled
	return nil
}

func (p *Plan) publisherConfig(a *actorPlan, sh shared) (eventloop.PublisherConfig, error) {
	pub := &p.Scenario.Publishers[a.Entry]
	c := eventloop.PublisherConfig{
		Rate: float64(pub.Rate), Arrival: arrivals[pub.Arrival], Burst: pub.Burst,
		Seed: a.Seed, Offset: a.Offset, URing: pub.Wake == scenarios.WakeURing, Active: a.Active,
	}
	if a.Gaps > 0 {
		c.Gaps, c.Again = sh.mem[a.GapsOffset:a.GapsOffset+a.Gaps], a.Again
	}
	self := linux.ProcessIdentity(os.Getpid())
	for n, ch := range a.Channels {
		pub, _, err := sh.channels[ch].Claim(a.Slots[n], self, linux.ProcessAlive)
		if err != nil {
			return c, err
		}
		o := eventloop.Out{
			Channel: pub, Word: sh.channels[ch].Word(),
			Scope: p.Channels[ch].Scope, Futex: p.Channels[ch].Futex,
		}
		for _, f := range p.Channels[ch].Eventfds {
			o.Eventfds = append(o.Eventfds, sh.eventfds[f])
		}
		c.Outs = append(c.Outs, o)
	}
	return c, nil
}
