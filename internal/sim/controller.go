// Package sim runs a scenario: it lays it out on the machine, starts the actor
// processes, leads them through the phases and gathers the result. It is the only
// place where channels, event loops and processes are wired together.
package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"aossim/channel"
	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/machine"
	"aossim/internal/observe"
	"aossim/internal/result"
	"aossim/scenarios"
)

// Run runs the plan. A run that began always gives a result, with Interrupted or
// Broken set where it did not end as it should; the error wraps refusal.ErrCannot.
func (p *Plan) Run(ctx context.Context) (*result.Result, error) {
	// Actor processes are tied to the thread that starts them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A collection would stop the watchdog's thread, and be stopped by starved ones:
	// there is one only if a run is very long. That thread and its canary keep their Ps.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(512 << 20))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 4))
	// This process and what it starts stay off the actors' CPUs: on one of them the
	// runtime's monitor alone would set a timer every 20 us to 10 ms.
	if err := linux.SetProcessAffinity(p.Housekeeping); err != nil {
		return nil, err
	}
	// What a command leaves behind is ended, however it was detached.
	if err := linux.AdoptOrphans(); err != nil {
		return nil, err
	}
	children := linux.Children(os.Getpid())
	defer func() { linux.EndChildren(children, endPatience) }()
	defer linux.SetProcessAffinity(p.CPUs)

	r := machine.NewResult(p.Scenario, p.options(), p.Options.NoRT)
	r.Observer = p.Observe.Result()
	if dma, err := linux.HoldDMALatency(); err == nil {
		defer dma.Close()
		r.Environment.DMALatency = "0 us"
	} else {
		r.Environment.DMALatency = "not held: " + err.Error()
	}
	passes := &passes{plan: p, pass: p.observedPass(), result: r}
	if err := p.Options.Repeat(ctx, r, func(number int) (result.Run, error) { return passes.run(ctx, number) }); err != nil {
		return nil, err
	}
	return r, nil
}

// passes are what a run consists of: all phases, and in an observed pass once more.
type passes struct {
	plan, pass *Plan
	result     *result.Result
	done       time.Duration
}

// all is how long all passes of all runs take.
func (ps *passes) all() time.Duration {
	one := ps.plan.length()
	if ps.result.Observer.Mode == result.ObservedPass {
		one += ps.pass.length()
	}
	return one * time.Duration(max(1, ps.plan.Options.Runs))
}

// run does one run. What its observed pass met is its error, and does not take away what was
// measured.
func (ps *passes) run(ctx context.Context, number int) (result.Run, error) {
	defer runtime.GC() // between runs nobody is starved
	c := &controller{plan: ps.plan, number: number, observes: ps.result.Observer.Mode == result.ObservedAll, before: ps.done, total: ps.all()}
	run, err := c.run(ctx)
	ps.done += ps.plan.length()
	ps.result.Environment.SharedPages = int64(c.page)
	if err != nil || ctx.Err() != nil {
		return run, err
	}
	if ps.result.Observer.Mode == result.ObservedPass {
		err = ps.observe(ctx, number, &run)
	}
	for _, t := range ps.plan.Scenario.Expect {
		run.Checks = append(run.Checks, t.Judge(run.Phases, machine.Emulated()))
	}
	return run, err
}

// observe does a run's observed pass.
func (ps *passes) observe(ctx context.Context, number int, run *result.Run) error {
	runtime.GC()
	c := &controller{plan: ps.pass, number: number, observes: true, pass: true, before: ps.done, total: ps.all()}
	observed, err := c.run(ctx)
	ps.done += ps.pass.length()
	if errors.Is(err, errObserve) && ps.plan.Observe.GoesOnWithout(err) {
		// It could when the plan was made.
		ps.result.Observer = ps.plan.Observe.Result()
		return nil
	}
	addObserved(run, &observed)
	if err != nil {
		return errors.New(observedName + err.Error())
	}
	return nil
}

// errObserve is wrapped by the error of a pass whose observer did not start.
var errObserve = errors.New("starting to observe")

// controller leads one run.
type controller struct {
	plan      *Plan
	number    int  // of the run
	observes  bool // the kernel, throughout
	pass      bool // it is the observed pass after a run
	control   *control
	channels  []*channel.Channel
	processes []*process
	exits     chan *process
	eventfds  []*os.File

	words  []uint32 // as they were last looked at
	moved  []uint64 // by how much each channel's word has moved
	base   []uint64 // moved, as it was when the current window began
	counts []uint64 // what each subscriber had counted by then
	phases []phaseTruth
	limits *limits.Set
	slow   time.Duration // how many times as long actors may take
	stops  []string      // how the CPU quota stopped threads, by phase
	lost   []string      // what actors had been granted, and had not any more when a phase ended
	// For progress: the time of what came before and of all, and of the windows so far.
	before, total, done time.Duration

	tracing  *linux.Tracing // where phases are marked
	observer *observe.Observer
	watched  []int // actors, in the order of the observer's threads
	seen     []observed
	page     int // size (bytes) of the shared memory's pages
}

// phaseTruth is what the controller itself saw of a measured window.
type phaseTruth struct {
	began     int64 // Unix time, ns
	duration  int64
	published []uint64 // by channel: how far the word moved
}

// run leads the actors through all windows. It returns what was measured, and an
// error where the run broke.
func (c *controller) run(ctx context.Context) (result.Run, error) {
	if c.limits, c.slow = limits.Read(), 1; machine.Emulated() {
		c.slow = 10
	}
	err := c.start(ctx)
	if err == nil && c.plan.Options.Mark {
		c.tracing, err = linux.OpenTracing()
	}
	if err == nil && c.observes {
		if err = c.observe(); err != nil {
			err = fmt.Errorf("%w: %w", errObserve, err)
		}
	}
	if err == nil {
		dog, e := startWatchdog(c.plan.highest(), c.plan.Housekeeping, c.plan.CPUs, c.limits.ThrottleFiles(), c.kill)
		if err = e; err == nil {
			err = c.lead(ctx)
			c.stop(ctx)
			if dog.end() {
				err = fmt.Errorf("the watchdog ended the run: the real-time actors of %s left ordinary threads no CPU for %s; lower work, rate or count, or leave a CPU free", c.plan.realTimeGroups(), dog.waited)
			}
		}
	}
	c.end()
	if c.observer != nil {
		c.observer.Close()
	}
	if c.tracing != nil {
		c.tracing.Mark("aossim: the run ends")
		c.tracing.Close()
	}
	for _, f := range c.eventfds {
		f.Close()
	}
	run := result.Run{Phases: []result.Phase{}, Processes: []result.Process{}, Checks: []result.Check{}}
	if ctx.Err() == nil || len(c.phases) > 0 {
		run = c.gather()
	}
	if c.control != nil {
		linux.Unmap(c.control.mem)
	}
	return run, err
}

// start starts the actor processes and waits until every actor is ready.
func (c *controller) start(ctx context.Context) error {
	p := c.plan
	file, err := linux.CreateShared("aossim", p.size())
	if err != nil {
		return err
	}
	defer file.Close()
	mem, page, err := linux.Map(file, p.size())
	if err != nil {
		return err
	}
	c.page = page
	c.control = newControl(mem)
	if c.channels, err = p.channels(mem, channel.Create); err != nil {
		return err
	}
	for i := range p.Actors {
		if a := &p.Actors[i]; a.Gaps > 0 {
			copy(mem[a.GapsOffset:], p.Scenario.Publishers[a.Entry].Times.Gaps)
		}
	}
	c.words = make([]uint32, len(c.channels))
	c.moved, c.base = make([]uint64, len(c.channels)), make([]uint64, len(c.channels))
	for i, ch := range c.channels {
		c.words[i] = ch.Word().Load()
	}
	c.counts = make([]uint64, len(p.Actors))
	inherited := []*os.File{file}
	for range p.Eventfds {
		f, err := linux.NewEventfd()
		if err != nil {
			return err
		}
		c.eventfds = append(c.eventfds, f)
		inherited = append(inherited, f)
	}
	c.exits = make(chan *process, len(p.Processes))
	for i := range p.Processes {
		if err := c.spawn(i, inherited); err != nil {
			return err
		}
	}
	return c.until(ctx, 30*time.Second, "get ready", func() (slow []int) {
		for i := range p.Actors {
			if c.control.ready(i).Load() == 0 {
				slow = append(slow, i)
			}
		}
		return slow
	}, nil)
}

// until waits until left returns no actors any more. It returns an error where an
// actor process ends, where ctx does, or where progress, which may be nil, has not
// changed for limit.
func (c *controller) until(ctx context.Context, limit time.Duration, what string, left func() []int, progress func() uint64) error {
	limit *= c.slow
	since, last := time.Now(), uint64(0)
	for {
		slow := left()
		if len(slow) == 0 {
			return nil
		}
		if progress != nil {
			if now := progress(); now != last {
				since, last = time.Now(), now
			}
		}
		if time.Since(since) > limit {
			return fmt.Errorf("actors of %s did not %s within %s", c.plan.groups(slow), what, limit)
		}
		select {
		case p := <-c.exits:
			return c.exited(p)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// groups names the groups of some actors for a message.
func (p *Plan) groups(actors []int) string {
	var names []string
	for _, i := range actors {
		names = append(names, fmt.Sprintf("group %q", p.Actors[i].Group))
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// realTimeGroups names the groups that have a real-time policy.
func (p *Plan) realTimeGroups() string {
	var actors []int
	for i := range p.Actors {
		if p.Actors[i].Sched.Policy.RealTime() {
			actors = append(actors, i)
		}
	}
	return p.groups(actors)
}

// set makes w the current window.
func (c *controller) set(w uint32, start, end int64) {
	ws := &c.control.windows
	ws.Start.Store(uint64(start))
	ws.End.Store(uint64(end))
	ws.Current.Store(w)
	linux.FutexWake(ws.Current, linux.WakeAll, linux.MatchAny, linux.Shared)
}

// How long actors may take: to join or leave, to handle a single message, and all
// of it once the user has interrupted the run.
const (
	joinLimit      = 10 * time.Second
	stallLimit     = 2 * time.Second
	interruptLimit = 300 * time.Millisecond
	reportLimit    = 5 * time.Second       // for the accounts of an interrupted run, under whatever load
	notice         = 20 * time.Millisecond // from announcing a window to its start
	grace          = 5 * time.Millisecond  // for the wakes of the last messages
)

// lead leads the actors through all windows.
func (c *controller) lead(ctx context.Context) error {
	for i := range c.plan.Windows {
		w := uint32(i + 1)
		err := ctx.Err()
		if err == nil && c.plan.Windows[i].Kind == preparing {
			err = c.prepare(ctx, w)
		} else if err == nil {
			err = c.measure(ctx, w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare lets actors join and leave.
func (c *controller) prepare(ctx context.Context, w uint32) error {
	c.set(w, 0, 0)
	err := c.until(ctx, joinLimit, "join or leave", func() (slow []int) {
		for i, a := range c.plan.Actors {
			before := w > 1 && a.Active[w-2]
			if before == a.Active[w-1] {
				continue
			}
			if c.control.progress(i).Done.Load() < uint64(w) {
				slow = append(slow, i)
			}
		}
		return slow
	}, nil)
	c.account()
	return err
}

// follow adds up how far the words move. It has to be called before one can come
// around to where it was.
func (c *controller) follow() {
	for i, ch := range c.channels {
		word := ch.Word().Load()
		c.moved[i] += uint64(ch.Distance(c.words[i], word))
		c.words[i] = word
	}
}

// account starts to count from where everything is now.
func (c *controller) account() {
	c.follow()
	copy(c.base, c.moved)
	for i := range c.plan.Actors {
		c.counts[i] = c.control.progress(i).Count.Load()
	}
}

// measure leads the actors through a window in which messages are published, and
// waits until every one is handled.
func (c *controller) measure(ctx context.Context, w uint32) error {
	win := c.plan.Windows[w-1]
	length := time.Duration(c.plan.Scenario.Duration)
	if win.Kind == warmingUp {
		length = c.plan.Options.Warmup
	}
	before, err := c.look()
	if err != nil {
		return err
	}
	met := c.limits.Events()
	start, began := linux.Now()+int64(notice), time.Now().Add(notice).UnixNano()
	c.set(w, start, start+int64(length))
	broken := c.sleep(ctx, win, length)
	if broken == nil {
		broken = c.settle(ctx, w)
	}
	if broken != nil && broken == ctx.Err() {
		// The user wants to end: what was published until now still counts.
		c.control.windows.End.Store(uint64(max(start, min(linux.Now(), start+int64(length)))))
		limit, cancel := context.WithTimeout(context.Background(), interruptLimit)
		defer cancel()
		// Where it does not settle the accounts will show it.
		_ = c.settle(limit, w)
	} else if broken != nil {
		return broken
	}
	c.done += length
	c.granted(w)
	if win.Kind == measuring {
		if stopped := c.limits.ThrottledSince(met); stopped != "" {
			c.stops = append(c.stops, c.plan.Scenario.Phases[win.Phase]+": "+stopped)
		}
		truth := phaseTruth{began: began, duration: int64(c.control.windows.End.Load()) - start}
		c.follow()
		for i := range c.channels {
			truth.published = append(truth.published, c.moved[i]-c.base[i])
		}
		c.phases = append(c.phases, truth)
		if err := c.since(before); err != nil {
			return err
		}
	}
	c.account()
	return broken
}

// granted looks whether the actors of a window still have what they were granted: their CPUs,
// policy and priority. A cpuset that changes, a CPU that goes offline or chrt takes it away.
func (c *controller) granted(w uint32) {
	for i := range c.plan.Actors {
		a := &c.plan.Actors[i]
		thread := int(c.control.thread(i).Load())
		if !a.Active[w-1] || thread == 0 {
			continue
		}
		lost := func(format string, args ...any) {
			c.lost = append(c.lost, fmt.Sprintf("%s: a %s of group %q ", c.plan.Scenario.Phases[c.plan.Windows[w-1].Phase], a.Kind, a.Group)+fmt.Sprintf(format, args...))
		}
		if cpus, err := linux.AffinityOf(thread); err == nil && !slices.Equal(cpus, slices.Sorted(slices.Values(a.CPUs))) {
			lost("was to run on CPUs %s and has %s now", linux.FormatCPUs(a.CPUs), linux.FormatCPUs(cpus))
		} else if cpu, ok := linux.CPUOf(thread); ok && !slices.Contains(a.CPUs, cpu) {
			lost("was to run on CPUs %s and ran on %d", linux.FormatCPUs(a.CPUs), cpu)
		}
		if got, err := linux.SchedOf(thread); err == nil && (got.Policy != a.Sched.Policy || got.Priority != a.Sched.Priority) {
			lost("was to have %s and has %s now", a.Sched, got)
		}
	}
}

// sleep waits for the end of a window. It returns ctx's error, or that of an actor
// process that ended.
func (c *controller) sleep(ctx context.Context, win window, length time.Duration) error {
	end := time.Now().Add(notice + length)
	phase := c.plan.Scenario.Phases[win.Phase]
	if win.Kind == warmingUp {
		phase += ", warming up"
	}
	if c.pass {
		phase = observedName + phase
	}
	if c.plan.Options.Runs > 1 {
		phase = fmt.Sprintf("run %d, %s", c.number+1, phase)
	}
	if c.tracing != nil {
		c.tracing.Mark("aossim: " + phase + " begins")
	}
	ticks, over := time.NewTicker(250*time.Millisecond), time.NewTimer(notice+length)
	defer ticks.Stop()
	defer over.Stop()
	for {
		c.follow()
		if err := c.broke(phase); err != nil {
			return err
		}
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if c.plan.Options.Progress != nil {
			c.plan.Options.Progress(c.before+c.done+length-min(left, length), c.total, phase)
		}
		select {
		case p := <-c.exits:
			return c.exited(p)
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		case <-over.C:
		}
	}
}

// broke says whether a subscriber stopped the trace, and where.
func (c *controller) broke(phase string) error {
	if c.plan.Break == 0 {
		return nil
	}
	for i := range c.plan.Actors {
		if v := c.control.progress(i).Broke.Load(); v != 0 {
			return fmt.Errorf("breaktrace: a latency of %s in group %q, %s, exceeded %s; the trace is stopped, and a marker is its last line (/sys/kernel/tracing/trace)",
				time.Duration(v), c.plan.Actors[i].Group, phase, c.plan.Break)
		}
	}
	return nil
}

// settle waits until all publishers are done with window w and every message is
// handled or overrun.
func (c *controller) settle(ctx context.Context, w uint32) error {
	err := c.until(ctx, joinLimit, "stop publishing", func() (slow []int) {
		for i, a := range c.plan.Actors {
			if a.Kind == publisher && c.control.progress(i).Done.Load() < uint64(w) {
				slow = append(slow, i)
			}
		}
		return slow
	}, nil)
	if err != nil {
		return err
	}
	var work scenarios.Duration
	for _, s := range c.plan.Scenario.Subscribers {
		work = max(work, s.Work)
	}
	c.follow()
	err = c.until(ctx, stallLimit+2*time.Duration(work), "handle what was published", func() (slow []int) {
		for i, a := range c.plan.Actors {
			if a.Kind != subscriber || !a.Active[w-1] {
				continue
			}
			expected := c.counts[i]
			for _, ch := range a.Channels {
				expected += c.moved[ch] - c.base[ch]
			}
			if c.control.progress(i).Count.Load() < expected {
				slow = append(slow, i)
			}
		}
		return slow
	}, func() (sum uint64) {
		for i := range c.plan.Actors {
			sum += c.control.progress(i).Count.Load()
		}
		return sum
	})
	time.Sleep(grace)
	return err
}
