package micro

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"aossim/internal/actors"
	"aossim/internal/linux"
	"aossim/internal/profile"
	"aossim/internal/refusal"
	"aossim/internal/result"
	"aossim/scenarios"
)

// ActorCommand is the first argument of a point's process.
const ActorCommand = "actor-micro"

// order is what a point's process is told first.
type order struct {
	Point *scenarios.Point
	CPUs  []int
	Sched linux.Sched
	// Virtual: time is.
	Virtual bool
}

// command is what it is told then.
type command struct {
	Do doing
	// Of doTrace: the scenario's name, and how many system calls the round has that do operations.
	Name  string
	Calls int
	Count bool // the round is measured: its latencies count
}

type doing string

const (
	doSetup doing = "setup"
	doRound doing = "round"
	doTrace doing = "trace" // a round of which the host of a guest has every instruction
	doEnd   doing = "end"
)

// answer is what it says to each command.
type answer struct {
	// To doSetup.
	ThreadID int  // of the thread that arms, 0 if none does on a ring
	Fail     bool // all its waits fail
	Granted  result.Actor
	Figures  []string
	// To doRound.
	Value      float64
	Operations int64
	Values     []float64
	// To doTrace, with those above.
	Interrupts float64 // their share of virtual time
	// To doEnd.
	Latencies []result.Latency
	Checks    []result.Check
}

// ActorMain is a point's process: it does what it is told until in ends, and returns
// its exit code. It must be the only thing its process does.
func ActorMain(in io.Reader, out io.Writer) int {
	return actors.Serve(in, out, func(o order, c *actors.Conversation) error {
		a := &actor{order: o, found: problems{}}
		for {
			var do command
			if !c.Hear(&do) {
				return nil
			}
			reply, err := a.do(do)
			if err := c.Say(reply, err); err != nil || do.Do == doEnd {
				return err
			}
		}
	})
}

// actor is a point's process.
type actor struct {
	order
	work  workload
	found problems
	cpu   int
	on    []int // as it was granted
}

func (a *actor) do(c command) (r answer, err error) {
	switch c.Do {
	case doSetup:
		return a.setup()
	case doRound:
		return a.round(c.Count, 0, nil)
	case doTrace:
		t, err := profile.NewTracing(profile.Ask{Scenario: c.Name, Point: a.Point.Name})
		if err != nil {
			return r, err
		}
		share := interrupts()
		r, err = a.round(false, c.Calls, t)
		r.Interrupts = share
		return r, errors.Join(err, t.Close())
	}
	if got, err := linux.GetSched(); err == nil && (got.Policy != a.Sched.Policy || got.Priority != a.Sched.Priority) {
		a.found.add(checkGranted, "the thread was to have %s and has %s now", a.Sched, got)
	}
	if cpus, err := linux.Affinity(); err == nil && !slices.Equal(cpus, a.on) {
		a.found.add(checkGranted, "the thread was to run on CPUs %s and has %s now", linux.FormatCPUs(a.on), linux.FormatCPUs(cpus))
	}
	return answer{Latencies: a.work.latencies(), Checks: a.found.checks()}, a.work.release()
}

// interrupts is the share of virtual time that they take of a thread which only reads the clock: what
// lies between two readings and is longer than those.
func interrupts() float64 {
	const watched, usual = 40_000_000, 1000 // ns, which are instructions: ten ticks; far above a reading
	linux.Pin()
	defer linux.Unpin()
	linux.SleepFor(settle)
	var taken int64
	begin := linux.Now()
	last := begin
	for last-begin < watched {
		now := linux.Now()
		if now-last > usual {
			taken += now - last
		}
		last = now
	}
	return float64(taken) / float64(last-begin)
}

// settle is how long a thread sleeps before a round in virtual time (ns): meanwhile the controller,
// on the same CPU, goes to sleep, and Go's monitor looks after this process less and less often.
const settle = 50_000_000

// round does one, of at most so many calls, traced by the host if t is not nil. Where the workload has
// threads they stay on their CPUs themselves.
func (a *actor) round(count bool, calls int, t *profile.Tracing) (answer, error) {
	alone := !scenarios.WorkloadNamed(a.Point.Workload).Threads
	if alone {
		linux.Pin()
		if a.Virtual {
			linux.SleepFor(settle)
		}
	}
	var err error
	if t != nil {
		err = t.Begin()
	}
	var m measured
	if err == nil {
		m, err = a.work.round(a.found, calls)
	}
	if t != nil {
		err = errors.Join(err, t.End())
	}
	if alone {
		linux.Unpin()
		if cpu := linux.CPU(); cpu != a.cpu {
			a.found.add(checkCPU, "the thread moved from CPU %d to %d", a.cpu, cpu)
		}
	}
	if !count {
		// Only such rounds came before: their latencies do not count either.
		a.work.latencies()
	}
	return answer{Value: m.Value, Operations: m.Operations, Values: m.Figures}, err
}

func (a *actor) setup() (r answer, err error) {
	a.cpu = a.CPUs[0]
	on := a.CPUs[:1]
	if scenarios.WorkloadNamed(a.Point.Workload).Threads {
		on = a.CPUs // this one only leads
	}
	got, cpus, err := actors.Become("micro "+a.Point.Name, on, a.Sched)
	a.on = cpus
	if err == nil {
		actors.NoCollections() // what rounds allocate is little
		a.work, err = workloads[a.Point.Workload](place{a.Point, a.CPUs, a.Sched, a.Virtual})
	}
	if errors.Is(err, linux.ErrInvalid) { // a CPU that went, or a size that this kernel does not take
		return r, fmt.Errorf("%w: %w", refusal.ErrLacking, err)
	}
	if err != nil {
		return r, err
	}
	r = answer{Figures: a.work.figures(), Granted: result.Actor{Kind: "micro", Policy: got.Policy.String(), Priority: got.Priority, CPUs: cpus}}
	if arms, fail := a.work.arms(); arms {
		r.ThreadID, r.Fail = linux.ThreadID(), fail
	}
	return r, nil
}
