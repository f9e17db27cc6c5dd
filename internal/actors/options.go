package actors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"aossim/internal/klog"
	"aossim/internal/limits"
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
		list = append(list, "--affinity="+linux.FormatCPUs(o.CPUs))
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
			return refusal.Usage("--affinity: CPU %d is not there or not allowed here; there are %s", c, linux.FormatCPUs(cpus))
		}
	}
	return nil
}

// Repeat adds runs to a result until one does not end as it should, which the result says
// then. A limit that was met meanwhile is a check that failed. Its error is that the first one could not be done here.
func (o Options) Repeat(ctx context.Context, r *result.Result, one func(number int) (result.Run, error)) error {
	all := limits.Read()
	r.Environment.Limits = all.Strings()
	log := klog.Start()
	defer log.Close()
	for i := range max(1, o.Runs) {
		before := all.Events()
		run, err := one(i)
		if errors.Is(err, refusal.ErrCannot) && i == 0 {
			return err
		}
		met := strings.Join(all.Since(before), "; ") // one of the quota is judged by who measures
		run.Checks = append(run.Checks, result.Check{Name: "limits", Pass: met == "", Detail: cmp.Or(met, "none was met")}, log.Check())
		r.Runs = append(r.Runs, run)
		if ctx.Err() != nil {
			r.Interrupted = true
			if err != nil && !errors.Is(err, ctx.Err()) {
				r.Broken = err.Error()
			}
			return nil
		}
		if err != nil {
			r.Broken = err.Error()
			return nil
		}
	}
	return nil
}
