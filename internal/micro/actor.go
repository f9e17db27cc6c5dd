package micro

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"runtime"
	"time"

	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/scenarios"
)

// ActorCommand is the first argument of a point's process. It is the program's own
// affair and not part of its command line.
const ActorCommand = "actor-micro"

// order is what a point's process is told first.
type order struct {
	Point      *scenarios.Point
	CPUs       []int
	Sched      linux.Sched
	Controller int
	Fault      fault
}

// command is what it is told then.
type command struct {
	Do    doing
	Count bool // the round is measured: its latencies count
}

type doing string

const (
	doSetup doing = "setup"
	doRound doing = "round"
	doEnd   doing = "end"
)

// answer is what it says to each command.
type answer struct {
	Error   string
	Missing bool // the error is that this user or kernel cannot do it
	// To doSetup.
	ThreadID int // of the thread that arms, 0 if none does on a ring
	Granted  result.Actor
	Unit     string
	Figures  []string
	// To doRound.
	Value      float64
	Operations int64
	Values     []float64
	// To doEnd.
	Latencies []result.Latency
	Checks    []result.Check
}

// ActorMain is a point's process: it does what it is told until in ends, and returns
// its exit code. It must be the only thing its process does.
func ActorMain(in io.Reader, out io.Writer) int {
	runtime.LockOSThread()
	linux.IgnoreSignals(true)
	var o order
	commands, answers := json.NewDecoder(in), json.NewEncoder(out)
	if commands.Decode(&o) != nil || linux.DieWithParent(o.Controller, false) != nil {
		return 1
	}
	a := &actor{order: o, found: problems{}}
	for {
		var c command
		if commands.Decode(&c) != nil {
			return 0
		}
		reply, err := a.do(c)
		if err != nil {
			reply.Error, reply.Missing = err.Error(), errors.Is(err, linux.ErrNoRealTime) || errors.Is(err, linux.ErrInvalid) && c.Do == doSetup
		}
		if answers.Encode(reply) != nil || c.Do == doEnd {
			return 0
		}
	}
}

// actor is a point's process.
type actor struct {
	order
	work  workload
	found problems
	cpu   int
}

func (a *actor) do(c command) (r answer, err error) {
	switch c.Do {
	case doSetup:
		return a.setup()
	case doRound:
		if a.Fault == faultHang {
			time.Sleep(math.MaxInt64)
		}
		pinned := a.Point.Threads == 0 // the others pin their threads themselves
		if pinned {
			linux.Pin()
		}
		m, err := a.work.round(a.found)
		if pinned {
			linux.Unpin()
		}
		if cpu := linux.CPU(); cpu != a.cpu && pinned || a.Fault == faultCPU {
			a.found.add(checkCPU, "the thread moved from CPU %d to %d", a.cpu, cpu)
		}
		if !c.Count {
			// Only such rounds came before: their latencies do not count either.
			a.work.latencies()
		}
		return answer{Value: m.Value, Operations: m.Operations, Values: m.Figures}, err
	}
	r = answer{Latencies: a.work.latencies(), Checks: a.found.checks()}
	return r, a.work.close()
}

func (a *actor) setup() (r answer, err error) {
	a.cpu = a.CPUs[0]
	cpus, err := linux.SetAffinity(a.CPUs[:1])
	if err != nil {
		return r, err
	}
	got, err := linux.SetSched(a.Sched)
	if err != nil {
		return r, err
	}
	if a.Point.Threads > 0 {
		// Their threads run where CPUs has them; this one only leads.
		if _, err = linux.SetAffinity(a.CPUs); err != nil {
			return r, err
		}
		cpus = a.CPUs
	}
	linux.NoCollections() // what rounds allocate is little
	if a.work, err = setup(a.Point, a.CPUs, a.Sched, a.Fault); err != nil {
		return r, err
	}
	r = answer{Unit: a.work.unit(), Figures: a.work.figures(), Granted: result.Actor{Kind: "micro", Policy: got.Policy.String(), Priority: got.Priority, CPUs: cpus}}
	if _, ok := a.work.(*rings); ok {
		r.ThreadID = linux.ThreadID()
	}
	return r, nil
}
