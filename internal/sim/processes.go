package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"aossim/eventloop"
	"aossim/internal/linux"
	"aossim/internal/machine"
)

// process is an actor process as the controller has it.
type process struct {
	processPlan
	cmd      *exec.Cmd
	stdout   bytes.Buffer
	stderr   bytes.Buffer
	report   *report     // once it has ended in order
	err      error       // how it ended otherwise
	external bool        // runs external programs
	ended    bool        // the controller took notice
	gone     atomic.Bool // the process was reaped: its number may be another's
}

func (c *controller) spawn(i int, inherited []*os.File) error {
	p := &process{processPlan: c.plan.Processes[i], external: c.plan.external(i)}
	orders, err := json.Marshal(order{c.plan, i, os.Getpid()})
	if err != nil {
		return err
	}
	p.cmd = linux.Actor(ActorCommand, len(p.Actors), p.external)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = bytes.NewReader(orders), &p.stdout, &p.stderr
	p.cmd.ExtraFiles = inherited
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("starting an actor process of group %q: %w", p.Group, err)
	}
	c.processes = append(c.processes, p)
	go func() {
		err := p.cmd.Wait()
		p.gone.Store(true)
		p.report = new(report)
		switch e := json.Unmarshal(p.stdout.Bytes(), p.report); {
		case e != nil:
			p.report = nil
			p.err = fmt.Errorf("a process of group %q ended before its time: %s%s", p.Group, linux.DescribeExit(p.cmd.ProcessState), linux.Tail(p.stderr.String()))
		case p.report.Missing:
			p.err = fmt.Errorf("group %q %w: %s", p.Group, machine.ErrCannot, p.report.Error)
		case p.report.Error != "":
			p.err = fmt.Errorf("group %q: %s", p.Group, p.report.Error)
		case err != nil:
			p.err = fmt.Errorf("a process of group %q: %w", p.Group, err)
		}
		c.exits <- p
	}()
	return nil
}

// external says whether a process runs external programs.
func (p *Plan) external(process int) bool {
	a := &p.Actors[p.Processes[process].Actors[0]]
	return a.Kind == load && p.Scenario.Loads[a.Entry].Kind == "command"
}

// exited notes that a process has ended.
func (c *controller) exited(p *process) error {
	p.ended = true
	if p.err != nil {
		return p.err
	}
	return fmt.Errorf("a process of group %q ended before its time", p.Group)
}

// stop ends all actors and gathers their reports as far as they come.
func (c *controller) stop(ctx context.Context) {
	c.set(eventloop.Stop, 0, 0)
	limit := joinLimit
	if ctx.Err() != nil {
		limit = interruptLimit
	}
	timeout := time.After(limit)
	for range c.left() {
		select {
		case p := <-c.exits:
			p.ended = true
		case <-timeout:
			return
		}
	}
}

// left is how many processes have not been seen to end.
func (c *controller) left() (n int) {
	for _, p := range c.processes {
		if !p.ended {
			n++
		}
	}
	return n
}

// end ends what is left of the actor processes, and waits until they are gone.
func (c *controller) end() {
	c.kill()
	force := time.After(time.Second)
	for range c.left() {
		select {
		case <-c.exits:
		case <-force:
			for _, p := range c.processes {
				if !p.gone.Load() {
					linux.KillGroup(p.cmd)
				}
			}
			<-c.exits
		}
	}
}

// kill ends all actor processes at once; those that run an external program are
// asked to, as only they know its process group. It does nothing but system calls: the
// watchdog uses it when there is no CPU for anything else.
func (c *controller) kill() {
	for _, p := range c.processes {
		switch {
		case p.gone.Load():
		case p.external:
			linux.TerminateGroup(p.cmd)
		default:
			linux.KillGroup(p.cmd)
		}
	}
}
