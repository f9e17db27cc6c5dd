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
	checkCPU         = "cpu"         // the thread did not move
	checkTimeout     = "timeout"     // each round ended in time
)

var checkNames = []string{checkResults, checkCompletions, checkOverflow, checkOutstanding, checkLeftover, checkCPU, checkTimeout}

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
	// unit and figures name what a round gives.
	unit() string
	figures() []string
	// round does one. What is wrong goes to problems; an error ends the point.
	round(p problems) (measured, error)
	// latencies returns the distributions since the last call.
	latencies() []result.Latency
	close() error
}

// A fault stands between the kernel and the program, to test the checks; it is "" but in
// tests.
type fault string

const (
	faultResult    fault = "result"    // a request returns something else
	faultMissing   fault = "missing"   // a CQE does not arrive
	faultTwice     fault = "twice"     // a CQE arrives twice
	faultFlag      fault = "flag"      // a CQE has a flag
	faultOverflow  fault = "overflow"  // the kernel counts a lost CQE
	faultExtra     fault = "extra"     // a request stays with the kernel
	faultWaiter    fault = "waiter"    // somebody else waits on a word
	faultCPU       fault = "cpu"       // the thread is on another CPU
	faultHang      fault = "hang"      // a round does not end
	faultNoTimeout fault = "notimeout" // a wait ends for another reason than its timeout
)

// setup makes a point's workload on the calling thread.
func setup(p *scenarios.Point, cpus []int, sched linux.Sched, f fault) (workload, error) {
	switch p.Workload {
	case "scalar", "waitv", "eagain":
		return newRings(p, f)
	case "timeout":
		return newTimeouts(p, f)
	case "hash", "mismatch":
		return newThreads(p, cpus, sched, f)
	}
	return nil, fmt.Errorf("no workload %q", p.Workload)
}

// mapWords returns memory for words that are private to the process or not.
func mapWords(p *scenarios.Point, size int) ([]byte, error) {
	if p.Private() {
		return linux.MapAnonymous(size)
	}
	return linux.MapAnonymousShared(size)
}
