package micro

import (
	"fmt"

	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/scenarios"
)

// The checks of a point. Each counts what must not be.
const (
	checkResults     = "results"     // every wait and wake returned what it must
	checkCompletions = "completions" // no CQE missing, duplicated or with an unexpected flag
	checkOverflow    = "overflow"    // the completion queue did not overflow
	checkOutstanding = "outstanding" // no request is left with the kernel
	checkLeftover    = "leftover"    // no waiter is left on a word
	checkGranted     = "granted"     // the thread kept its CPUs, policy and priority
	checkCPU         = "cpu"         // the thread did not move
	checkTimeout     = "timeout"     // each round ended in time
)

var checkNames = []string{checkResults, checkCompletions, checkOverflow, checkOutstanding, checkLeftover, checkCPU, checkGranted, checkTimeout}

// problems are what the checks found, by name: the first, and how many.
type problems map[string]*problem

type problem struct {
	format string // of the first
	args   []any
	count  int64
}

// add may be called from a pinned thread: nothing is formatted before it is asked for.
func (p problems) add(check, format string, args ...any) {
	if p[check] == nil {
		p[check] = &problem{format: format, args: args}
	}
	p[check].count++
}

func (p *problem) String() string { return fmt.Sprintf(p.format, p.args...) }

// checks returns a check for every name.
func (p problems) checks() (list []result.Check) {
	for _, name := range checkNames {
		c := result.Check{Name: name, Pass: p[name] == nil, Detail: "none in any round"}
		if !c.Pass {
			c.Detail = fmt.Sprintf("%d times, the first: %s", p[name].count, p[name])
		}
		list = append(list, c)
	}
	return list
}

// measured is what one round gives.
type measured struct {
	Value      float64
	Operations int64
	Figures    []float64 // in the order of the workload's figures
}

// workload is what a point does. Its methods are called from the thread that set it up.
type workload interface {
	// figures names further figures of a round.
	figures() []string
	// arms says whether that thread arms on a ring, and whether all its waits fail.
	arms() (on, fail bool)
	// round does one, of at most so many system calls that do operations, 0 for all. What is wrong goes
	// to problems; an error ends the point.
	round(p problems, calls int) (measured, error)
	// latencies returns the distributions since the last call.
	latencies() []result.Latency
	release() error
}

// atMost is n, or limit where that is less and not 0.
func atMost(n, limit int) int {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// place is a point, and where and as what its threads run.
type place struct {
	*scenarios.Point
	cpus    []int
	sched   linux.Sched
	virtual bool // time is
}

// workloads make what a point does, on the calling thread, by the name of
// scenarios.Workload.
var workloads = map[string]func(m place) (workload, error){}
