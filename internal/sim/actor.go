package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"aossim/channel"
	"aossim/eventloop"
	"aossim/internal/linux"
	"aossim/internal/result"
)

// ActorCommand is the first argument of an actor process, and NopCommand that of
// a process which ends at once (the fork load). They are the program's own affair
// and not part of its command line.
const (
	ActorCommand = "actor-process"
	NopCommand   = "actor-nop"
)

// Files that an actor process inherits from the controller.
const (
	memoryFD   = 3
	eventfdsFD = 4
)

// order is what an actor process is told on its standard input.
type order struct {
	Plan       *Plan
	Process    int
	Controller int // its process number
}

// report is what an actor process answers on its standard output when it ends.
type report struct {
	Error       string
	Missing     bool // the error is that this user or kernel cannot do it
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

// ActorMain is an actor process: it takes its orders from in, runs until the
// controller says stop, answers on out, and returns its exit code. It must be the
// only thing its process does.
func ActorMain(in io.Reader, out io.Writer) int {
	var o order
	r, err := &report{}, json.NewDecoder(in).Decode(&o)
	if err == nil {
		r, err = o.run()
	}
	if err != nil {
		r.Error, r.Missing = err.Error(), errors.Is(err, linux.ErrNoRealTime)
	}
	if e := json.NewEncoder(out).Encode(r); e != nil || err != nil {
		return 1
	}
	return 0
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
	loads := p.Actors[mine[0]].Kind == load
	runtime.LockOSThread()
	if err := linux.DieWithParent(o.Controller, p.external(o.Process)); err != nil {
		return r, err
	}
	// The controller decides when to end: a signal to everybody must not take the
	// measurements with it. An external load has to hear that the controller died.
	linux.IgnoreSignals(!loads)
	channels := p.open(mem, false)
	if loads {
		return r, o.runLoads(ctl, channels, r)
	}
	if p.Lock {
		if err := linux.LockMemory(); err != nil {
			return r, fmt.Errorf("%w; %w", err, linux.ErrNoRealTime)
		}
	}
	// From here until the last actor has left.
	linux.NoCollections()
	before := collections()

	done := make(chan outcome, len(mine))
	minders := make(chan *eventloop.Minder, len(mine))
	for _, i := range mine {
		if p.Actors[i].Kind == load {
			go func() { done <- o.runLoad(i, ctl, channels) }()
			continue
		}
		go func() { done <- o.runActor(i, ctl, channels, eventfds, minders) }()
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
	r.Collections = collections() - before
	return r, nil
}

type outcome struct {
	report  actorReport
	warmups func() // copies the counts of the warm-ups, when those are complete
	err     error
}

// collections returns how many garbage collections this process has done. It
// stops the world, so no actor may be running.
func collections() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.NumGC)
}

// become gives the calling thread, which it locks, the actor's policy and place.
func (a *actorPlan) become() (result.Actor, error) {
	runtime.LockOSThread()
	// As ps, top and bpftrace will show it.
	linux.NameThread(a.Kind[:3] + " " + a.Group)
	cpus, err := linux.SetAffinity(a.CPUs)
	if err != nil {
		return result.Actor{}, err
	}
	got, err := linux.SetSched(a.Sched)
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

func (o *order) runActor(i int, ctl *control, channels []*channel.Channel, eventfds []*os.File, minders chan<- *eventloop.Minder) (d outcome) {
	p, a := o.Plan, &o.Plan.Actors[i]
	fail := func(err error) outcome { return outcome{err: fmt.Errorf("%s: %w", a.Kind, err)} }
	d.report.Actor = i
	// The thread has its priority before it makes its ring and arms: the kernel
	// queues waiters by it.
	var err error
	if d.report.Granted, err = a.become(); err != nil {
		return fail(err)
	}
	ctl.thread(i).Store(uint64(linux.ThreadID()))
	windows, phases := p.stats(a)
	progress := ctl.progress(i)
	if a.Kind == publisher {
		c, err := p.publisherConfig(a, channels, eventfds)
		if err != nil {
			return fail(err)
		}
		pub, err := eventloop.NewPublisher(c, &ctl.windows, progress, windows)
		if err != nil {
			return fail(err)
		}
		ctl.ready(i).Store(1)
		err = pub.Run()
		if e := pub.Close(); err == nil {
			err = e
		}
		if err != nil {
			return fail(err)
		}
	} else {
		c, err := p.subscriberConfig(a)
		if err != nil {
			return fail(err)
		}
		if c.Break != nil {
			if c.Tracing, err = linux.OpenTracing(); err != nil {
				return fail(err)
			}
			defer c.Tracing.Close()
		}
		for n, ch := range a.Channels {
			in := eventloop.In{Channel: channels[ch], Private: p.Channels[ch].Private}
			if len(a.Eventfds) > 0 {
				in.Eventfd = eventfds[a.Eventfds[n]]
			}
			c.Ins = append(c.Ins, in)
		}
		sub := eventloop.NewSubscriber(c, &ctl.windows, progress, windows)
		minders <- eventloop.NewMinder(sub)
		ctl.ready(i).Store(1)
		if err := sub.Run(); err != nil {
			return fail(err)
		}
		d.report.Total, d.report.Cancelled = sub.Total(), sub.Cancelled
	}
	d.report.Phases, d.warmups = phases, func() { p.warmups(windows, phases) }
	return d
}

func (p *Plan) publisherConfig(a *actorPlan, channels []*channel.Channel, eventfds []*os.File) (eventloop.PublisherConfig, error) {
	pub := &p.Scenario.Publishers[a.Entry]
	c := eventloop.PublisherConfig{
		Rate: float64(pub.Rate), Arrival: arrivals[pub.Arrival], Burst: pub.Burst,
		Seed: a.Seed, Offset: a.Offset, URing: pub.Wake == "io_uring", Active: a.Active,
	}
	self := linux.ProcessIdentity(os.Getpid())
	for n, ch := range a.Channels {
		pub, _, err := channels[ch].Claim(a.Slots[n], self, linux.ProcessAlive)
		if err != nil {
			return c, err
		}
		o := eventloop.Out{
			Channel: pub, Word: channels[ch].Word(),
			Private: p.Channels[ch].Private, Futex: p.Channels[ch].Futex,
		}
		for _, f := range p.Channels[ch].Eventfds {
			o.Eventfds = append(o.Eventfds, eventfds[f])
		}
		c.Outs = append(c.Outs, o)
	}
	return c, nil
}
