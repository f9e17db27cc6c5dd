// Package micro runs the micro-benchmarks: each point in a process of its own, which is
// told to do one round after the other, so that the points of a scenario take turns.
package micro

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"aossim/internal/linux"
	"aossim/internal/machine"
	"aossim/internal/observe"
	"aossim/internal/result"
	"aossim/internal/uring"
	"aossim/scenarios"
)

// Options change a scenario from the command line; zero values leave it as it is.
type Options struct {
	Rounds, Cycles int // there are no more rounds to warm up than measured ones then
	RingFlags      []string
	Runs           int
	Priority       int   // of policies fifo and rr
	CPUs           []int // instead of the scenario's
	NoRT           bool
	Observe        observe.Mode
	// Progress is told how much of the whole is done, now and then, a round as a second; it
	// may be nil.
	Progress func(done, all time.Duration, doing string)

	fault fault
}

// Plan is a scenario that can run here.
type Plan struct {
	Options    Options
	scenario   *scenarios.Scenario
	options    []string // as typed
	sched      linux.Sched
	cpus       []int
	unobserved error
}

// roundLimit is how long a round may take beyond what its sizes ask for.
var roundLimit = time.Minute

// observedShare is which part of the measured rounds is observed after them.
const observedShare = 4

// Prepare finds out whether this kernel and user can run s. Its error is one of the
// scenario's (*scenarios.Error), or wraps machine.ErrUsage or machine.ErrCannot.
func Prepare(s *scenarios.Scenario, o Options) (*Plan, error) {
	m := s.Micro
	p := &Plan{Options: o, scenario: s}
	if o.Rounds != 0 {
		m.Rounds = o.Rounds
		m.WarmupRounds = min(m.WarmupRounds, o.Rounds)
		p.options = append(p.options, fmt.Sprintf("--rounds=%d", o.Rounds))
	}
	rings := false
	for i := range m.Points {
		point := &m.Points[i]
		ring := point.Workload == "scalar" || point.Workload == "waitv" || point.Workload == "eagain"
		rings = rings || ring
		if o.Cycles != 0 && point.Cycles != 0 {
			point.Cycles = o.Cycles
		}
		if len(o.RingFlags) > 0 && ring {
			point.RingFlags = o.RingFlags
		}
	}
	if o.Cycles != 0 {
		p.options = append(p.options, fmt.Sprintf("--cycles=%d", o.Cycles))
	}
	if len(o.RingFlags) > 0 {
		p.options = append(p.options, "--ring-flags="+strings.Join(o.RingFlags, ","))
	}
	if err := s.ValidateSizes(); err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrUsage, err)
	}
	usable, err := linux.Affinity()
	if err != nil {
		return nil, err
	}
	if p.cpus = m.CPUs; len(o.CPUs) > 0 {
		p.cpus = o.CPUs
	}
	for _, c := range p.cpus {
		if linux.OnThread(func() error { _, err := linux.SetAffinity([]int{c}); return err }) != nil {
			return nil, s.Errorf("", 0, "cpus", "CPU %d is not there or not allowed here; there are %v", c, usable)
		}
	}
	if len(p.cpus) == 0 {
		// The last one first: the first one has the most interrupts as a rule.
		p.cpus = slices.Clone(usable)
		slices.Reverse(p.cpus)
	}
	policy, err := linux.ParsePolicy(m.Policy)
	if err != nil {
		return nil, s.Errorf("", 0, "policy", "%s", err)
	}
	p.sched = linux.Sched{Policy: policy, Priority: m.Priority}
	if o.NoRT {
		p.sched = linux.Sched{Policy: linux.Other}
		p.options = append(p.options, "--no-rt")
	} else if o.Priority != 0 && policy.RealTime() {
		p.sched.Priority = o.Priority
		p.options = append(p.options, fmt.Sprintf("--priority=%d", o.Priority))
	}
	if err := linux.OnThread(func() error { _, err := linux.SetSched(p.sched); return err }); err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrCannot, err)
	}
	if rings {
		if err := uring.Probe(uring.OpFutexWait); err != nil {
			return nil, fmt.Errorf("%w: %w", machine.ErrCannot, err)
		}
	}
	if o.Observe == "" || !rings {
		p.Options.Observe = observe.Never
	}
	if p.unobserved, err = p.Options.Observe.Try(); err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrCannot, err)
	}
	return p, nil
}

// Run runs the plan. A run that began always gives a result; the error wraps
// machine.ErrCannot.
func (p *Plan) Run(ctx context.Context) (*result.Result, error) {
	// Processes are tied to the thread that starts them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := machine.NewResult(p.scenario, p.options, p.Options.NoRT)
	r.Observer = p.Options.Observe.Result(p.unobserved)
	// A thread that never sleeps has no wake-ups to shorten; idle CPUs that poll would take
	// the core from it where they share one.
	r.Environment.DMALatency = "not held: micro-benchmarks do not sleep"
	for i := range max(1, p.Options.Runs) {
		run, err := p.run(ctx, i, r.Observer.Mode)
		if errors.Is(err, machine.ErrCannot) && i == 0 {
			return nil, err
		}
		r.Runs = append(r.Runs, run)
		r.Observer = p.Options.Observe.Result(p.unobserved)
		if ctx.Err() != nil {
			r.Interrupted = true
			break
		}
		if err != nil {
			r.Broken = err.Error()
			break
		}
	}
	return r, nil
}

// point is one point's process as the controller has it.
type point struct {
	*scenarios.Point
	out      result.Micro
	cmd      *exec.Cmd
	in       io.WriteCloser
	commands *json.Encoder
	answers  chan answer
	stderr   bytes.Buffer
	observer *observe.Observer
	ready    answer
	took     time.Duration // what it was asked last
	ended    bool
}

// ask has the process do something, and waits for what it answers.
func (pt *point) ask(ctx context.Context, c command, limit time.Duration) (answer, error) {
	start := time.Now()
	defer func() { pt.took = time.Since(start) }()
	if err := pt.commands.Encode(c); err != nil {
		return answer{}, fmt.Errorf("point %q: its process is gone: %w%s", pt.Name, err, linux.Tail(pt.stderr.String()))
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a, ok := <-pt.answers:
		switch {
		case !ok:
			return a, fmt.Errorf("point %q: its process ended before its time%s", pt.Name, linux.Tail(pt.stderr.String()))
		case a.Missing:
			return a, fmt.Errorf("point %q %w: %s", pt.Name, machine.ErrCannot, a.Error)
		case a.Error != "":
			return a, fmt.Errorf("point %q: %s", pt.Name, a.Error)
		}
		return a, nil
	case <-ctx.Done():
		return answer{}, ctx.Err()
	case <-timer.C:
		return answer{}, errTimeout
	}
}

var errTimeout = errors.New("no answer in time")

// limit is how long a round of the point may take.
func (pt *point) limit() time.Duration {
	return roundLimit + time.Duration(pt.Runtime)*2 + time.Duration(pt.Waits)*time.Duration(pt.Timeout)*10
}

// run is one run: the warm-up rounds, the measured rounds and the observed ones of all
// points in turn.
func (p *Plan) run(ctx context.Context, number int, mode string) (run result.Run, err error) {
	run = result.Run{Phases: []result.Phase{}, Processes: []result.Process{}, Checks: []result.Check{}}
	var points []*point
	defer func() {
		for _, pt := range points {
			pt.end()
			if len(pt.out.Rounds) > 0 || len(pt.out.Checks) > 0 {
				pt.out.Spread = result.SpreadOf(pt.out.Rounds)
				pt.out.WithoutFirst = result.SpreadOf(pt.out.Rounds[min(1, len(pt.out.Rounds)):])
				run.Micro = append(run.Micro, pt.out)
			}
		}
	}()
	for i := range p.scenario.Micro.Points {
		pt, err := p.start(&p.scenario.Micro.Points[i])
		if err != nil {
			return run, err
		}
		points = append(points, pt)
		if pt.ready, err = pt.ask(ctx, command{Do: doSetup}, roundLimit); err != nil {
			return run, err
		}
		pt.out = result.Micro{Name: pt.Name, Workload: pt.Workload, Unit: pt.ready.Unit, Rounds: []float64{}, Actors: []result.Actor{pt.ready.Granted}}
		for _, name := range pt.ready.Figures {
			pt.out.Figures = append(pt.out.Figures, result.Figure{Name: name, Rounds: []float64{}})
		}
		run.Processes = append(run.Processes, result.Process{Group: pt.Name, PID: pt.cmd.Process.Pid, Actors: pt.out.Actors})
		if mode == result.ObservedAll {
			if err := pt.observe(); err != nil {
				return run, err
			}
		}
	}
	m := p.scenario.Micro
	stages := []struct {
		name     string
		rounds   int
		measured bool
	}{{"warm-up", m.WarmupRounds, false}, {"measured", m.Rounds, true}}
	all := (m.WarmupRounds + m.Rounds) * max(1, p.Options.Runs)
	done := number * (m.WarmupRounds + m.Rounds)
	for _, stage := range stages {
		for range stage.rounds {
			for _, pt := range points {
				if stage.measured {
					if err := pt.spread(ctx, time.Duration(m.Spread)); err != nil {
						return run, err
					}
				}
				a, err := pt.ask(ctx, command{Do: doRound, Count: stage.measured}, pt.limit())
				if errors.Is(err, errTimeout) {
					pt.out.Checks = []result.Check{{Name: checkTimeout, Detail: fmt.Sprintf("a round did not end within %s", pt.limit())}}
				}
				if err != nil {
					pt.finish(ctx)
					return run, err
				}
				if stage.measured {
					pt.add(a)
				}
			}
			if done++; p.Options.Progress != nil {
				p.Options.Progress(time.Duration(done)*time.Second, time.Duration(all)*time.Second, stage.name+" rounds")
			}
		}
	}
	for _, pt := range points {
		if mode == result.ObservedPass {
			switch err := pt.observe(); {
			case errors.Is(err, observe.ErrCannot) && p.Options.Observe == observe.IfPossible:
				p.unobserved = err // it could when the plan was made
			case err != nil:
				return run, err
			}
		}
		if pt.observer != nil {
			if err := pt.observed(ctx, max(1, m.Rounds/observedShare)); err != nil {
				return run, err
			}
		}
		if err := pt.finish(ctx); err != nil {
			return run, err
		}
	}
	return run, nil
}

// spread does rounds that are not measured for d, so that those that are lie apart in
// time, and what disturbs the machine for a moment does not hit all. It does none where a
// round takes longer than that anyway. A pause would do the same, but let go of the CPU and its caches.
func (pt *point) spread(ctx context.Context, d time.Duration) error {
	for start, last := time.Now(), time.Duration(0); time.Since(start)+last < d && pt.took < d; {
		begin := time.Now()
		if _, err := pt.ask(ctx, command{Do: doRound}, pt.limit()); err != nil {
			return err
		}
		last = time.Since(begin)
	}
	return nil
}

// add takes a measured round.
func (pt *point) add(a answer) {
	if pt.out.Operations == 0 {
		pt.out.Operations = a.Operations
	}
	pt.out.Rounds = append(pt.out.Rounds, a.Value)
	for i, v := range a.Values {
		pt.out.Figures[i].Rounds = append(pt.out.Figures[i].Rounds, v)
	}
}

// observe starts to watch the point's thread, where it arms on a ring.
func (pt *point) observe() (err error) {
	if pt.ready.ThreadID == 0 {
		return nil
	}
	pt.observer, err = observe.Start([]observe.Watched{{ThreadID: pt.ready.ThreadID, Wrap: 0}})
	return err
}

// observed does the observed rounds.
func (pt *point) observed(ctx context.Context, rounds int) error {
	before, err := pt.observer.Snapshot()
	if err != nil {
		return err
	}
	start, ops := time.Now(), int64(0)
	for range rounds {
		a, err := pt.ask(ctx, command{Do: doRound}, pt.limit())
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
	if k.ProgramArms = ops; pt.Workload == "eagain" {
		k.ProgramEAGAIN = ops
	}
	pt.out.Kernel = k
	return nil
}

// finish has the process account for its checks.
func (pt *point) finish(ctx context.Context) error {
	a, err := pt.ask(ctx, command{Do: doEnd}, time.Second*5)
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

// end ends the process, however far it is.
func (pt *point) end() {
	if pt.observer != nil {
		pt.observer.Close()
	}
	pt.in.Close()
	if !pt.ended {
		linux.KillGroup(pt.cmd)
	}
	for range pt.answers {
	}
	_ = pt.cmd.Wait()
}

// start starts a point's process.
func (p *Plan) start(s *scenarios.Point) (*point, error) {
	pt := &point{Point: s, cmd: linux.Actor(ActorCommand, 2*s.Threads, false), answers: make(chan answer)}
	in, err := pt.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := pt.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	pt.cmd.Stderr = &pt.stderr
	if err := pt.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the process of point %q: %w", s.Name, err)
	}
	pt.in, pt.commands = in, json.NewEncoder(in)
	go func() {
		defer close(pt.answers)
		for d := json.NewDecoder(out); ; {
			var a answer
			if d.Decode(&a) != nil {
				return
			}
			pt.answers <- a
		}
	}()
	return pt, pt.commands.Encode(order{Point: s, CPUs: p.cpus, Sched: p.sched, Controller: os.Getpid(), Fault: p.Options.fault})
}
