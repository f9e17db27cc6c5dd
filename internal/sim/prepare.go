package sim

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"aossim/internal/actors"
	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/refusal"
	"aossim/internal/uring"
	"aossim/internal/wait"
	"aossim/scenarios"
)

// Options change a scenario from the command line. Zero values leave it as it is,
// but for Warmup, which is the time before each phase that is not counted.
type Options struct {
	actors.Options
	Duration time.Duration // of each phase
	Warmup   time.Duration
	Break    time.Duration // a re-arm or delivery latency above which the trace is stopped, and the run
	Mark     bool          // write phases into the trace
}

// list returns all that changes what is run, as typed.
func (o Options) list() (l []string) {
	if o.Duration != 0 {
		l = append(l, "--duration="+o.Duration.String())
	}
	l = append(l, "--warmup="+o.Warmup.String())
	if o.Break > 0 {
		l = append(l, fmt.Sprintf("--breaktrace=%d", o.Break.Microseconds()))
	}
	if o.Mark {
		l = append(l, "--tracemark")
	}
	return append(l, o.List()...)
}

// options are the plan's, and the traces that its publishers play: the scenario has their names only.
func (p *Plan) options() []string {
	list := p.Options.list()
	for i := range p.Scenario.Publishers {
		if pub := &p.Scenario.Publishers[i]; pub.Times != nil {
			list = append(list, "trace:"+pub.Trace+":"+pub.Times.SHA256)
		}
	}
	return slices.Compact(list)
}

// Prepare lays the scenario out on this machine and finds out by doing whether this
// kernel and this user can run it. Its error is one of the scenario's
// (*scenarios.Error), or a refusal of package refusal. Nothing has started then.
func Prepare(s *scenarios.Scenario, o Options) (*Plan, error) {
	cpus, err := linux.Affinity()
	if err != nil {
		return nil, err
	}
	if o.Duration > 0 {
		s.Duration = scenarios.Duration(o.Duration)
	}
	if err := s.ReadTraces(max(s.Duration, scenarios.Duration(o.Warmup))); err != nil {
		return nil, err
	}
	for i := range s.Publishers {
		if t := s.Publishers[i].Times; t != nil && t.First >= int64(s.Duration) {
			return nil, s.Errorf("publisher", i, "trace", "%s begins %s after the start, and a phase lasts %s: nothing would be published; take the first time off all of them", s.TracePath(&s.Publishers[i]), scenarios.Duration(t.First), s.Duration)
		}
	}
	if err := o.CheckCPUs(cpus); err != nil {
		return nil, err
	}
	p, err := newPlan(s, o, cpus, func(cpu int) bool { return actors.Usable(cpus, cpu) })
	if err != nil {
		return nil, err
	}
	if err := p.possible(); err != nil {
		return nil, err
	}
	if o.Break > 0 || o.Mark {
		t, err := linux.OpenTracing()
		if err != nil {
			return nil, refusal.Cannot("%w", err)
		}
		t.Close()
	}
	// There is nothing to observe where nobody arms on a ring.
	mode := observe.Never
	if slices.ContainsFunc(p.Actors, func(a actorPlan) bool { return a.Kind == subscriber && p.waitOf(&a).Observable() }) {
		mode = o.Observe
	}
	p.Observe, err = observe.NewPlan(mode)
	return p, err
}

// possible finds out by doing whether this kernel and this user can run the plan.
func (p *Plan) possible() error {
	if err := limits.Read().Check(p.need()); err != nil {
		return err
	}
	for op := range p.operations() {
		if err := uring.Probe(op); err != nil {
			return err
		}
	}
	for i := range p.Scenario.Loads {
		if p.Scenario.Loads[i].Kind == "net" {
			if err := tryLoopback(); err != nil {
				return refusal.Cannot("the load %q needs the loopback device: %w; ip link set lo up", "net", err)
			}
		}
	}
	return p.admitted()
}

// admitted finds out whether the kernel grants the actors their policies, and the watchdog
// its own: of deadline all at once, of others each kind once.
func (p *Plan) admitted() error {
	var threads []limits.Thread
	var of []*actorPlan
	tried := map[linux.Sched]bool{}
	for i := range p.Actors {
		if a := &p.Actors[i]; a.Sched.Policy == linux.Deadline || !tried[a.Sched] {
			tried[a.Sched] = true
			threads, of = append(threads, limits.Thread{Sched: a.Sched, CPUs: a.CPUs}), append(of, a)
		}
	}
	if highest := p.highest(); highest > 0 {
		threads = append(threads, limits.Thread{Sched: limits.Above(highest)})
	}
	switch refused, err := limits.Try(threads...); {
	case err == nil:
		return nil
	case refused == len(of):
		return refusal.Cannot("the watchdog needs %s, to run before all actors: %w", threads[refused].Sched, err)
	case errors.Is(err, linux.ErrInvalid):
		a := of[refused]
		return p.Scenario.Errorf(a.Kind, a.Entry, "policy", "%s: this kernel does not take these values", err)
	default:
		return fmt.Errorf("group %q %w: %w", of[refused].Group, refusal.ErrCannot, err)
	}
}

// need is what the plan takes of what may be limited.
func (p *Plan) need() limits.Need {
	n := limits.Need{Shared: int64(linux.SharedSize(p.size())), Memory: int64(p.histograms()), Processes: len(p.Processes), Threads: len(p.Actors), Files: p.Eventfds + 4*len(p.Processes)}
	for _, proc := range p.Processes {
		n.Files = max(n.Files, p.Eventfds+3*len(proc.Actors))
	}
	return n
}

// tryLoopback sends a datagram as the load net does.
func tryLoopback() error {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.WriteTo([]byte("x"), conn.LocalAddr())
	return err
}

// operations are those of io_uring that the plan needs.
func (p *Plan) operations() map[uring.Opcode]bool {
	all := map[uring.Opcode]bool{}
	for i := range p.Actors {
		a := &p.Actors[i]
		switch s := p.Scenario; {
		case a.Kind == subscriber && p.waitOf(a).Ring():
			all[uring.Opcode(p.waitOf(a).Opcode)] = true
		case a.Kind == publisher && s.Publishers[a.Entry].Wake == scenarios.WakeURing:
			all[uring.OpFutexWake] = true
		case a.Kind == load && scenarios.LoadKindNamed(s.Loads[a.Entry].Kind).Ring:
			all[uring.OpFutexWait] = true
		}
	}
	return all
}

// waitOf is a subscriber's kind of wait.
func (p *Plan) waitOf(a *actorPlan) wait.Kind {
	kind, _ := wait.Named(p.Scenario.Subscribers[a.Entry].Wait)
	return kind
}
