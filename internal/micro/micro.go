// Package micro runs the micro-benchmarks: each point in a process of its own, which is
// told to do one round after the other, so that the points of a scenario take turns.
package micro

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"aossim/internal/actors"
	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/machine"
	"aossim/internal/metric"
	"aossim/internal/observe"
	"aossim/internal/profile"
	"aossim/internal/refusal"
	"aossim/internal/result"
	"aossim/internal/uring"
	"aossim/scenarios"
)

// Options change a scenario from the command line; zero values leave it as it is.
type Options struct {
	actors.Options
	Rounds, Cycles int // there are no more rounds to warm up than measured ones then
	RingFlags      []string
	Points         []string // only these; none are all
	Profile        bool     // after the rounds of the first run the host of this guest traces one more of each point
}

// list returns all that changes what is run, as typed.
func (o Options) list() (l []string) {
	if o.Rounds != 0 {
		l = append(l, fmt.Sprintf("--rounds=%d", o.Rounds))
	}
	if o.Cycles != 0 {
		l = append(l, fmt.Sprintf("--cycles=%d", o.Cycles))
	}
	if len(o.RingFlags) > 0 {
		l = append(l, "--ring-flags="+strings.Join(o.RingFlags, ","))
	}
	for _, name := range o.Points {
		l = append(l, "--point="+name)
	}
	return append(l, o.List()...)
}

// Plan is a scenario that can run here.
type Plan struct {
	Options    Options
	scenario   *scenarios.Scenario
	sched      linux.Sched
	cpus       []int
	observe    observe.Plan
	roundLimit time.Duration // how long a round may take beyond what its sizes ask for
	virtual    bool          // time is (result.ClockInstructions)
	changed    []string      // what virtual time changed in the scenario
	alone      bool          // the machine has one CPU
}

// Prepare finds out whether this kernel and user can run s. Its error is one of the
// scenario's (*scenarios.Error), or a refusal of package refusal.
func Prepare(s *scenarios.Scenario, o Options) (*Plan, error) {
	m := s.Micro
	p := &Plan{Options: o, scenario: s, roundLimit: time.Minute, virtual: machine.Virtual()}
	if online, err := linux.Online(); err == nil {
		p.alone = len(online) == 1
	}
	rings, err := p.change()
	if err != nil {
		return nil, refusal.Usage("--point: %w", err)
	}
	if err := s.ValidateSizes(); err != nil {
		return nil, fmt.Errorf("%w: %w", refusal.ErrUsage, err)
	}
	if err := p.place(); err != nil {
		return nil, err
	}
	policy, err := linux.ParsePolicy(m.Policy)
	if err != nil {
		return nil, s.Errorf("", 0, "policy", "%s", err)
	}
	p.sched = o.Sched(linux.Sched{Policy: policy, Priority: m.Priority})
	need := limits.Need{Processes: len(m.Points)}
	for i := range m.Points {
		point := &m.Points[i]
		need.Threads += 2 * point.Threads
		const each = 12 // bytes: the word, and where it is
		need.Memory += each * int64(point.Words) * int64(max(1, point.Threads))
		need.Files += 4
	}
	if total := int64(linux.MemoryTotal()); total > 0 && need.Memory > total/2 {
		return nil, refusal.Usage("%s: the words of its points would take %d MiB, more than half of this machine's %d MiB; make words or threads smaller", s.File, need.Memory>>20, total>>20)
	}
	if err := limits.Read().Check(need); err != nil {
		return nil, err
	}
	if _, err := limits.Try(limits.Thread{Sched: p.sched, CPUs: p.cpus[:1]}); err != nil {
		return nil, refusal.Cannot("%w", err)
	}
	mode := observe.Never
	if rings {
		if err := uring.Probe(uring.OpFutexWait); err != nil {
			return nil, err
		}
		mode = o.Observe
	}
	p.observe, err = observe.NewPlan(mode)
	return p, err
}

// change makes the scenario what the options have, and says whether it has rings. Its error is of
// a point that is not there.
func (p *Plan) change() (rings bool, err error) {
	m, o := p.scenario.Micro, p.Options
	if o.Rounds != 0 {
		m.Rounds, m.WarmupRounds = o.Rounds, min(m.WarmupRounds, o.Rounds)
	}
	if p.virtual { // no cache has to warm up, and nothing disturbs
		m.WarmupRounds, m.Spread = min(m.WarmupRounds, 1), 0
		p.changed = append([]string{fmt.Sprintf("warmup_rounds=%d", m.WarmupRounds), "spread=0s"}, p.scenario.InVirtualTime()...)
	}
	if len(o.Points) > 0 {
		if err := p.scenario.Only(o.Points); err != nil {
			return false, err
		}
	}
	for i := range m.Points {
		point := &m.Points[i]
		ring := scenarios.WorkloadNamed(point.Workload).Ring
		rings = rings || ring
		if o.Cycles != 0 && point.Cycles != 0 {
			point.Cycles = o.Cycles
		}
		if len(o.RingFlags) > 0 && ring {
			point.RingFlags = o.RingFlags
		}
	}
	return rings, nil
}

// place finds the CPUs of the threads.
func (p *Plan) place() error {
	usable, err := linux.Affinity()
	if err != nil {
		return err
	}
	if p.cpus = p.Options.CPUs; len(p.cpus) > 0 {
		return p.Options.CheckCPUs(usable)
	}
	p.cpus = p.scenario.Micro.CPUs
	for _, c := range p.cpus {
		if !actors.Usable(usable, c) {
			return p.scenario.Errorf("", 0, "cpus", "CPU %d is not there or not allowed here; there are %s", c, linux.FormatCPUs(usable))
		}
	}
	if len(p.cpus) == 0 {
		// The last one first: the first one has the most interrupts as a rule.
		p.cpus = slices.Clone(usable)
		slices.Reverse(p.cpus)
	}
	return nil
}

// Run runs the plan. A run that began always gives a result; the error wraps
// refusal.ErrCannot.
func (p *Plan) Run(ctx context.Context) (*result.Result, error) {
	// Processes are tied to the thread that starts them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	options := p.Options.list()
	if p.virtual {
		options = append(options, "virtual time: "+strings.Join(p.changed, ", "))
	}
	r := machine.NewResult(p.scenario, options, p.Options.NoRT)
	r.Observer = p.observe.Result()
	// A thread that never sleeps has no wake-ups to shorten; idle CPUs that poll would take
	// the core from it where they share one.
	r.Environment.DMALatency = "not held: micro-benchmarks do not sleep"
	err := p.Options.Repeat(ctx, r, func(number int) (result.Run, error) {
		defer func() { r.Observer = p.observe.Result() }()
		return p.run(ctx, number)
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// point is one point's process as the controller has it.
type point struct {
	*scenarios.Point
	*actors.Process
	out      result.Micro
	observer *observe.Observer
	ready    answer
	limit    time.Duration // of a round
	took     time.Duration // what it was asked last
	ended    bool
	stuck    bool // it did not answer in time
}

// ask has the process do something, and waits for what it answers. A round that does not end
// in time is a failed check, and the last thing that is asked.
func (pt *point) ask(ctx context.Context, c command, limit time.Duration) (a answer, err error) {
	start := time.Now()
	pt.Tell(c)
	err = pt.Hear(ctx, limit, &a)
	pt.took = time.Since(start)
	if errors.Is(err, actors.ErrTimeout) {
		pt.stuck = true
		pt.out.Checks = []result.Check{{Name: checkTimeout, Detail: fmt.Sprintf("a %s did not end within %s", c.Do, limit)}}
	}
	return a, err
}

// run is one run: the warm-up rounds, the measured rounds and the observed ones of all
// points in turn.
func (p *Plan) run(ctx context.Context, number int) (run result.Run, err error) {
	run = result.Run{Phases: []result.Phase{}, Processes: []result.Process{}, Checks: []result.Check{}}
	var points []*point
	defer func() {
		for _, pt := range points {
			pt.close()
			if len(pt.out.Rounds) > 0 || len(pt.out.Checks) > 0 {
				pt.out.Spread = result.SpreadOf(pt.out.Rounds)
				pt.out.WithoutFirst = result.SpreadOf(pt.out.Rounds[min(1, len(pt.out.Rounds)):])
				run.Micro = append(run.Micro, pt.out)
			}
		}
	}()
	for i := range p.scenario.Micro.Points {
		pt, err := p.start(ctx, &p.scenario.Micro.Points[i])
		if pt != nil {
			points = append(points, pt)
		}
		if err != nil {
			return run, err
		}
		run.Processes = append(run.Processes, result.Process{Group: pt.Point.Name, PID: pt.PID(), Actors: pt.out.Actors})
	}
	if err := p.rounds(ctx, points, number); err != nil {
		return run, err
	}
	for _, pt := range points {
		if p.Options.Profile && number == 0 { // before the observer: its programs would be executed
			calls := profile.Calls(result.SpreadOf(pt.out.Rounds).Median * float64(pt.PerCall()))
			a, err := pt.ask(ctx, command{Do: doTrace, Name: p.scenario.Name, Calls: calls}, 10*pt.limit)
			if err != nil {
				return run, fmt.Errorf("the traced round of %w", err)
			}
			pt.out.Traced = &result.Traced{Figure: pt.figure(a), Interrupts: a.Interrupts}
		}
	}
	for _, pt := range points {
		if err := p.observed(ctx, pt); err != nil {
			return run, err
		}
		if err := pt.finish(ctx); err != nil {
			return run, err
		}
	}
	return run, nil
}

// start starts a point's process and has it set up.
func (p *Plan) start(ctx context.Context, s *scenarios.Point) (*point, error) {
	pt := &point{Point: s, limit: p.roundLimit + time.Duration(s.Runtime)*2 + time.Duration(s.Waits)*time.Duration(s.Timeout)*10}
	var err error
	pt.Process, err = actors.Start(fmt.Sprintf("point %q", s.Name), ActorCommand, actors.Measuring, 2*s.Threads, order{Point: s, CPUs: p.cpus, Sched: p.sched, Virtual: p.virtual})
	if err != nil {
		return nil, err
	}
	if pt.ready, err = pt.ask(ctx, command{Do: doSetup}, p.roundLimit); err != nil {
		return pt, err
	}
	pt.out = result.Micro{Name: s.Name, Workload: s.Workload, Unit: p.unit(s), Rounds: []float64{}, Actors: []result.Actor{pt.ready.Granted}}
	for _, name := range pt.ready.Figures {
		pt.out.Figures = append(pt.out.Figures, result.Figure{Name: name, Rounds: []float64{}})
	}
	if p.observe.Result().Mode == result.ObservedAll {
		err = pt.observe()
	}
	return pt, err
}

// rounds does the warm-up rounds and the measured ones.
func (p *Plan) rounds(ctx context.Context, points []*point, number int) error {
	m := p.scenario.Micro
	limit := limits.Read()
	met := limit.Events()
	defer func() {
		if stopped := limit.ThrottledSince(met); stopped != "" {
			for _, pt := range points {
				pt.out.Checks = append(pt.out.Checks, result.Check{Name: "CPU quota", Detail: stopped})
			}
		}
	}()
	one := m.WarmupRounds + m.Rounds
	for done := range one {
		measured, stage := done >= m.WarmupRounds, "warm-up"
		if measured {
			stage = "measured"
		}
		for _, pt := range points {
			if measured {
				if err := pt.spread(ctx, time.Duration(m.Spread)); err != nil {
					return err
				}
			}
			begin := time.Now()
			a, err := pt.ask(ctx, command{Do: doRound, Count: measured}, pt.limit)
			if err != nil {
				_ = pt.finish(ctx) // what it can still say of its checks
				return fmt.Errorf("a round of %w", err)
			}
			if measured {
				pt.add(a, begin)
			}
		}
		if p.Options.Progress != nil { // a round is shown as a second
			all := one * max(1, p.Options.Runs)
			p.Options.Progress(time.Duration(number*one+done+1)*time.Second, time.Duration(all)*time.Second, stage+" rounds")
		}
	}
	return nil
}

// spread does rounds that are not measured for d, so that those that are lie apart in
// time, and what disturbs the machine for a moment does not hit all. It does none where a
// round takes longer than that anyway. A pause would do the same, but let go of the CPU and its caches.
func (pt *point) spread(ctx context.Context, d time.Duration) error {
	for start, last := time.Now(), time.Duration(0); time.Since(start)+last < d && pt.took < d; {
		begin := time.Now()
		if _, err := pt.ask(ctx, command{Do: doRound}, pt.limit); err != nil {
			return err
		}
		last = time.Since(begin)
	}
	return nil
}

// add takes a measured round.
func (pt *point) add(a answer, began time.Time) {
	if len(pt.out.Rounds) == 0 {
		pt.out.Operations, pt.out.BeganNS = a.Operations, began.UnixNano()
	}
	pt.out.DurationNS = time.Now().UnixNano() - pt.out.BeganNS
	pt.out.Rounds = append(pt.out.Rounds, pt.figure(a))
	for i, v := range a.Values {
		pt.out.Figures[i].Rounds = append(pt.out.Figures[i].Rounds, v)
	}
}

// unit is that of a point's figure here. Virtual time is instructions where nothing but the point
// executes any: with more CPUs or threads it is those of all of them.
func (p *Plan) unit(s *scenarios.Point) string {
	w := scenarios.WorkloadNamed(s.Workload)
	switch {
	case !p.virtual:
		return w.Unit
	case p.alone && s.OneThread():
		return metric.InstructionsPer + w.Operation
	case strings.HasPrefix(w.Unit, "ns/"):
		return "virtual " + w.Unit
	}
	return strings.Replace(w.Unit, "/s/", "/virtual s/", 1)
}

// figure is a round's in the point's unit.
func (pt *point) figure(a answer) float64 {
	if metric.Unit(pt.out.Unit).Counted() && metric.Unit(scenarios.WorkloadNamed(pt.Workload).Unit).HigherIsBetter() {
		return 1e9 / a.Value
	}
	return a.Value
}

// observe starts to watch the point's thread, where it arms on a ring.
func (pt *point) observe() (err error) {
	if pt.ready.ThreadID == 0 {
		return nil
	}
	pt.observer, err = observe.Start([]observe.Watched{{ThreadID: pt.ready.ThreadID, Wrap: 0}})
	return err
}

// observed does a point's observed rounds, where there are to be any.
func (p *Plan) observed(ctx context.Context, pt *point) error {
	if p.observe.Result().Mode == result.ObservedPass {
		if err := pt.observe(); err != nil {
			if p.observe.GoesOnWithout(err) { // it could when the plan was made
				return nil
			}
			return errors.New("observed rounds: " + err.Error()) // no refusal: what was measured stays
		}
	}
	if pt.observer == nil {
		return nil
	}
	before, err := pt.observer.Snapshot()
	if err != nil {
		return err
	}
	start, ops := time.Now(), int64(0)
	for range max(1, p.scenario.Micro.Rounds/observe.Share) {
		a, err := pt.ask(ctx, command{Do: doRound}, pt.limit)
		if err != nil {
			return err
		}
		ops += a.Operations
	}
	after, err := pt.observer.Snapshot()
	if err != nil {
		return err
	}
	k := observe.NewKernel(pt.observer.Timing, int64(time.Since(start)), after.Missed-before.Missed)
	threads, sites := after.Since(before)
	observe.Add(k, 0, pt.ready.ThreadID, threads, sites)
	if k.ProgramArms = ops; pt.ready.Fail {
		k.ProgramEAGAIN = ops
	}
	pt.out.Kernel = k
	return nil
}

// endLimit is for a process to account for its checks; wide, as for emulated machines.
const endLimit = time.Minute

// finish has the process account for its checks.
func (pt *point) finish(ctx context.Context) error {
	if pt.stuck {
		return nil
	}
	a, err := pt.ask(ctx, command{Do: doEnd}, endLimit)
	if err != nil {
		return err
	}
	pt.ended = true
	pt.out.Latencies = a.Latencies
	pt.out.Checks = append(pt.out.Checks, a.Checks...)
	if k := pt.out.Kernel; k != nil {
		pt.out.Checks = append(pt.out.Checks, result.Check{
			Name: "observer", Pass: k.Arms == k.ProgramArms && k.EAGAIN == k.ProgramEAGAIN,
			Detail: fmt.Sprintf("the kernel counted %d waits, %d of them failed, the program %d and %d", k.Arms, k.EAGAIN, k.ProgramArms, k.ProgramEAGAIN)})
	}
	return nil
}

// close ends the process, however far it is.
func (pt *point) close() {
	if pt.observer != nil {
		pt.observer.Close()
	}
	if !pt.ended {
		pt.Kill()
	}
	_ = pt.End(time.Second) // what it measured has been heard
}
