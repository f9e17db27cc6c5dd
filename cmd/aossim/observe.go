package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"aossim/internal/linux"
	"aossim/internal/machine"
	"aossim/internal/observe"
	"aossim/internal/output"
	"aossim/internal/record"
	"aossim/internal/refusal"
	"aossim/internal/report"
	"aossim/internal/result"
	"aossim/scenarios"
)

type observeCommand struct {
	Duration *time.Duration `short:"D" help:"How long; until a signal unless given."`
	Runs     int            `short:"r" default:"1" help:"So many times in turn, each a run of the result, for aossim compare."`
	PIDs     []int          `name:"pid" placeholder:"PID" help:"Only this process; again for another one."`
	Comms    []string       `name:"comm" sep:"none" placeholder:"COMM" help:"Only processes of this name, or with a thread of it, of 15 bytes at most (/proc/PID/comm); again for another one."`
	Words    bool           `help:"Also a row for each futex word."`
	Expect   []string       `sep:"none" placeholder:"LIMIT" help:"A limit as in [expect], such as \"camera.eagain_rate <= 5%\"; again for another one. The exit code is 1 where one does not hold."`
	Record   string         `placeholder:"FILE.toml" help:"Write a scenario that does what was observed, and a trace for each publisher beside it."`
	Output   string         `short:"o" placeholder:"FILE" help:"Write the result here, instead of a new file in results/."`
	JSON     bool           `name:"json" help:"Write the result to standard output, instead of the text."`
	Quiet    bool           `short:"q" help:"No progress, and of the text the first table only."`
}

// check refuses what cannot be meant.
func (c *observeCommand) check() (limits []scenarios.Threshold, err error) {
	switch {
	case given(c.Duration, 1) || or(c.Duration, 0) > scenarios.MaxDuration:
		return nil, refusal.Usage("--duration %s is not above 0 and up to %s", *c.Duration, scenarios.MaxDuration)
	case c.Runs < 1:
		return nil, refusal.Usage("--runs %d: there must be one at least", c.Runs)
	case c.Runs > 1 && c.Duration == nil:
		return nil, refusal.Usage("--runs %d: say with -D how long each is", c.Runs)
	}
	if c.Record != "" && c.Runs > 1 {
		return nil, refusal.Usage("--record takes one run, and --runs is %d", c.Runs)
	}
	if c.Record != "" && filepath.Ext(c.Record) != ".toml" {
		return nil, refusal.Usage("--record %q: a scenario's name ends in .toml", c.Record)
	}
	for _, comm := range c.Comms {
		if comm == "" || len(comm) > observe.CommLength {
			return nil, refusal.Usage("--comm %q: a comm has 1 to %d bytes, and the kernel cuts longer ones there; use what /proc/PID/comm has", comm, observe.CommLength)
		}
	}
	for _, pid := range c.PIDs {
		if pid == os.Getpid() {
			return nil, refusal.Usage("--pid %d: that is this aossim; what observing costs is in the result anyway", pid)
		}
		if pid < 1 || linux.ProcessIdentity(pid) == 0 {
			return nil, refusal.Usage("--pid %d: there is no such process; ps -e lists them, and --comm also takes those that are still to start", pid)
		}
	}
	for _, line := range c.Expect {
		t, err := scenarios.ParseThreshold(line)
		if err != nil {
			return nil, refusal.Usage("--expect %q: %w", line, err)
		}
		limits = append(limits, t)
	}
	return limits, nil
}

// options are what changed the observation, as the result has them.
func (c *observeCommand) options() (list []string) {
	for _, p := range c.PIDs {
		list = append(list, fmt.Sprintf("--pid=%d", p))
	}
	for _, name := range c.Comms {
		list = append(list, "--comm="+report.Plain(name))
	}
	slices.Sort(list)
	return list
}

func (c *observeCommand) Run(env *environment) (err error) {
	limits, err := c.check()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), linux.EndingSignals()...)
	defer stop()
	env.heed()
	to, err := c.place()
	if err != nil {
		return err
	}
	defer func() {
		if to != nil {
			to.Discard()
		}
	}()
	var scenario *record.File
	if c.Record != "" {
		if scenario, err = record.Open(c.Record); err != nil {
			return err
		}
		defer func() {
			if scenario != nil {
				scenario.Discard()
			}
		}()
	}
	live, err := observe.StartLive(observe.Filter{PIDs: c.PIDs, Comms: c.Comms}, c.Record != "")
	if err != nil {
		return err
	}
	defer live.Close()
	r := machine.NewResult(&scenarios.Scenario{Name: "observe"}, c.options(), false)
	r.Observer.Mode = result.ObservedLive
	states, interrupted, err := c.watch(ctx, env, live)
	if err != nil {
		return err
	}
	r.Runs, r.Interrupted = live.Runs(states), interrupted
	// What was seen is kept before anything is shown that could fail.
	var unrecorded error
	if scenario != nil {
		to := scenario
		scenario = nil
		recording := live.Recording(&states[0], &states[len(states)-1])
		var files []string
		if files, unrecorded = to.Save(&recording); len(files) > 0 && !c.Quiet {
			fmt.Fprintf(env.stderr, "aossim: the scenario is in %s, with %d traces beside it\n", report.Plain(files[0]), len(files)-1)
		}
	}
	for i := range r.Runs {
		if !c.Words {
			r.Runs[i].Phases[0].Words = nil
		}
		for _, t := range limits {
			r.Runs[i].Checks = append(r.Runs[i].Checks, t.Judge(r.Runs[i].Phases, r.Environment.Emulated))
		}
	}
	shown := to
	to = nil
	return errors.Join((&runCommand{JSON: c.JSON, Quiet: c.Quiet}).show(env, r, shown), unrecorded)
}

// watch observes as long as it is to, and reads a state at the end of each run.
func (c *observeCommand) watch(ctx context.Context, env *environment, live *observe.Live) (states []observe.State, interrupted bool, err error) {
	var bar func(done, all time.Duration, doing string)
	if !c.Quiet {
		bar = progress(env.stderr)
	}
	if bar != nil {
		defer func() { bar(0, 0, "") }()
	} else if c.Duration == nil && !c.Quiet {
		fmt.Fprintln(env.stderr, "aossim: observing until a signal (Ctrl-C)")
	}
	first, err := live.State()
	if err != nil {
		return nil, false, err
	}
	states = []observe.State{first}
	began := time.Now()
	const look = 100 * time.Millisecond
	every := time.NewTicker(look)
	defer every.Stop()
	for len(states) <= c.Runs && !interrupted {
		end := began.Add(time.Duration(len(states)) * or(c.Duration, scenarios.MaxDuration))
		rest := time.NewTimer(time.Until(end))
		for over := false; !over; {
			select {
			case <-ctx.Done():
				over, interrupted = true, true
			case <-rest.C:
				over = true
			case <-every.C:
				if err := live.Poll(); err != nil {
					return nil, false, err
				}
				if bar != nil && c.Duration != nil {
					bar(time.Since(began), time.Duration(c.Runs)*(*c.Duration), "observing")
				}
			}
		}
		rest.Stop()
		s, err := live.State()
		if err != nil {
			return nil, false, err
		}
		states = append(states, s)
	}
	return states, interrupted && c.Duration != nil, nil
}

// place tries where the result is to go; it is nil where no file is wanted.
func (c *observeCommand) place() (*output.File, error) {
	return (&runCommand{Output: c.Output, JSON: c.JSON}).place(&scenarios.Scenario{Name: "observe"})
}
