package sim

import (
	"context"
	"fmt"
	"math"
	"os"
	"time"

	"aossim/eventloop"
	"aossim/internal/actors"
)

// process is an actor process as the controller has it.
type process struct {
	processPlan
	*actors.Process
	report *report // once it has ended in order
	err    error   // how it ended otherwise
	ended  bool    // the controller took notice
}

func (c *controller) spawn(i int, inherited []*os.File) error {
	p := &process{processPlan: c.plan.Processes[i]}
	var err error
	p.Process, err = actors.Start(fmt.Sprintf("group %q", p.Group), ActorCommand, c.plan.kind(i), len(p.Actors), order{c.plan, i}, inherited...)
	if err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	go func() {
		p.report = new(report)
		if p.err = p.Hear(context.Background(), math.MaxInt64, p.report); p.err != nil {
			p.report = nil
		}
		if err := p.End(time.Second); p.err == nil {
			p.err = err
		}
		c.exits <- p
	}()
	return nil
}

// exited notes that a process has ended.
func (c *controller) exited(p *process) error {
	p.ended = true
	if p.err != nil {
		return p.err
	}
	return fmt.Errorf("%s: its process ended before its time", p.Name)
}

// stop ends all actors and gathers their reports as far as they come.
func (c *controller) stop(ctx context.Context) {
	c.set(eventloop.Stop, 0, 0)
	limit := joinLimit
	if ctx.Err() != nil {
		limit = reportLimit
	}
	timeout := time.After(c.slow * limit)
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
	for range c.left() {
		select {
		case <-c.exits:
		case <-time.After(time.Second):
			for _, p := range c.processes {
				p.KillNow()
			}
			<-c.exits
		}
	}
}

// kill ends all actor processes. It does nothing but system calls: the watchdog uses it when
// there is no CPU for anything else.
func (c *controller) kill() {
	for _, p := range c.processes {
		p.Kill()
	}
}
