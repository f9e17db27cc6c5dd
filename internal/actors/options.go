package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/refusal"
	"aossim/internal/result"
)

// Options change a scenario of either kind from the command line. Zero values leave it as
// it is.
type Options struct {
	Runs     int
	Priority int   // of every fifo and rr actor
	CPUs     []int // for real-time actors without cpus; for all threads of a micro-benchmark
	NoRT     bool  // everything under SCHED_OTHER
	Observe  observe.Mode
	// Progress is told how much of the whole is done, now and then; it may be nil.
	Progress func(done, all time.Duration, doing string)
}

// List returns all that changes what is run, as typed.
func (o Options) List() (list []string) {
	if o.Runs > 1 {
		list = append(list, fmt.Sprintf("--runs=%d", o.Runs))
	}
	if o.Priority != 0 {
		list = append(list, fmt.Sprintf("--priority=%d", o.Priority))
	}
	if len(o.CPUs) > 0 {
		list = append(list, "--affinity="+FormatCPUs(o.CPUs))
	}
	if o.NoRT {
		list = append(list, "--no-rt")
	}
	if o.Observe != "" && o.Observe != observe.IfPossible {
		list = append(list, "--observe="+string(o.Observe))
	}
	return list
}

// Sched returns what a thread asks of the scheduler, under the options.
func (o Options) Sched(s linux.Sched) linux.Sched {
	switch {
	case o.NoRT:
		return linux.Sched{Policy: linux.Other}
	case o.Priority != 0 && (s.Policy == linux.FIFO || s.Policy == linux.RR):
		s.Priority = o.Priority
	}
	return s
}

// Usable says whether this process may use a CPU: one of cpus, which it has, or another that
// it can get, such as an isolated one.
func Usable(cpus []int, cpu int) bool {
	return slices.Contains(cpus, cpu) || linux.OnThread(func() error { _, err := linux.SetAffinity([]int{cpu}); return err }) == nil
}

// CheckCPUs refuses CPUs of the options that are not there.
func (o Options) CheckCPUs(cpus []int) error {
	for _, c := range o.CPUs {
		if !Usable(cpus, c) {
			return refusal.Usage("--affinity: CPU %d is not there or not allowed here; there are %s", c, FormatCPUs(cpus))
		}
	}
	return nil
}

// Repeat adds runs to a result until one does not end as it should, which the result says
// then. Its error is that the first one could not be done here.
func (o Options) Repeat(ctx context.Context, r *result.Result, one func(number int) (result.Run, error)) error {
	for i := range max(1, o.Runs) {
		run, err := one(i)
		if errors.Is(err, refusal.ErrCannot) && i == 0 {
			return err
		}
		r.Runs = append(r.Runs, run)
		if ctx.Err() != nil {
			r.Interrupted = true
			return nil
		}
		if err != nil {
			r.Broken = err.Error()
			return nil
		}
	}
	return nil
}

// FormatCPUs writes CPUs as a list that taskset takes: 0-2,5.
func FormatCPUs(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if part := strconv.Itoa(cpus[i]); j > i {
			parts = append(parts, part+"-"+strconv.Itoa(cpus[j]))
		} else {
			parts = append(parts, part)
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// ParseCPUs reads what FormatCPUs writes.
func ParseCPUs(text string) ([]int, error) {
	var cpus []int
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(high)
		}
		if err != nil || first < 0 || last < first || last >= 1024 {
			return nil, fmt.Errorf("%q is no list of CPUs; write one such as 0-2,5", text)
		}
		for c := first; c <= last; c++ {
			cpus = append(cpus, c)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}
