// Package sim runs a scenario: it lays it out on the machine, starts the actor
// processes, leads them through the phases and gathers the result. It is the only
// place where channels, event loops and processes are wired together.
package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"aossim/channel"
	"aossim/eventloop"
	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/internal/uring"
	"aossim/scenarios"
)

// Options change a scenario from the command line. Zero values leave it as it is,
// but for Warmup, which is the time before each phase that is not counted.
type Options struct {
	Duration time.Duration // of each phase
	Warmup   time.Duration
	Runs     int
	Priority int   // of every fifo and rr actor
	CPUs     []int // dealt to real-time actors without cpus
	NoRT     bool  // everything under SCHED_OTHER
	// Progress is told how much of the whole is done, now and then; it may be nil.
	Progress func(done, all time.Duration, doing string)
}

// list returns the options that are not as they are by default, as typed.
func (o Options) list() (l []string) {
	if o.Duration != 0 {
		l = append(l, "--duration="+o.Duration.String())
	}
	l = append(l, "--warmup="+o.Warmup.String())
	if o.Priority != 0 {
		l = append(l, fmt.Sprintf("--priority=%d", o.Priority))
	}
	if len(o.CPUs) > 0 {
		l = append(l, "--affinity="+FormatCPUs(o.CPUs))
	}
	if o.NoRT {
		l = append(l, "--no-rt")
	}
	return l
}

// ErrCannot is wrapped by Run's error where this kernel or this user cannot run
// the scenario: nothing has started.
var ErrCannot = errors.New("cannot run here")

// Run runs the scenario. The error is one of the scenario's (*scenarios.Error) or
// wraps ErrCannot, and then there is no result; a run that began always gives one,
// with Interrupted or Broken set where it did not end as it should.
func Run(ctx context.Context, s *scenarios.Scenario, o Options) (*result.Result, error) {
	cpus, err := linux.Affinity()
	if err != nil {
		return nil, err
	}
	if o.Duration > 0 {
		s.Duration = scenarios.Duration(o.Duration)
	}
	for _, c := range o.CPUs {
		if !slices.Contains(cpus, c) {
			return nil, fmt.Errorf("%w: --affinity: CPU %d is not there or not allowed here; there are %s", ErrUsage, c, FormatCPUs(cpus))
		}
	}
	p, err := newPlan(s, o, cpus)
	if err != nil {
		return nil, err
	}
	if err := p.possible(); err != nil {
		return nil, err
	}
	// Actor processes are tied to the thread that starts them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A collection would stop the watchdog's thread, and be stopped by starved ones;
	// and that thread and its canary keep their Ps.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 4))
	// What this thread starts, and it itself, stays off the actors' CPUs.
	if _, err := linux.SetAffinity(p.Housekeeping); err != nil {
		return nil, err
	}
	defer linux.SetAffinity(cpus)

	r := &result.Result{
		Schema: result.Schema, Started: time.Now().Format(time.RFC3339),
		Scenario:    result.Scenario{Name: s.Name, SHA256: s.SHA256(), Text: s.Text, Options: o.list()},
		Environment: environment(o),
	}
	if dma, err := linux.HoldDMALatency(); err == nil {
		defer dma.Close()
		r.Environment.DMALatency = "0 us"
	} else {
		r.Environment.DMALatency = "not held: " + err.Error()
	}
	for i := range max(1, o.Runs) {
		c := &controller{plan: p, options: o, number: i}
		run, err := c.run(ctx)
		r.Runs = append(r.Runs, run)
		runtime.GC() // between runs nobody is starved
		if ctx.Err() != nil {
			r.Interrupted = true
			break
		}
		if errors.Is(err, ErrCannot) && i == 0 {
			return nil, err
		}
		if err != nil {
			r.Broken = err.Error()
			break
		}
	}
	return r, nil
}

// ErrUsage is wrapped by errors about options that no machine, or not this one,
// can follow.
var ErrUsage = errors.New("wrong usage")

// possible finds out by doing whether this kernel and this user can run the plan.
func (p *plan) possible() error {
	var result error
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked, so that the thread ends with the policies it tried.
		runtime.LockOSThread()
		for i := range p.Actors {
			a := &p.Actors[i]
			if a.Kind == subscriber && p.Scenario.Subscribers[a.Entry].Wait != "futex" || a.Kind == publisher && p.Scenario.Publishers[a.Entry].Wake == "io_uring" {
				if err := uring.Probe(); err != nil {
					result = fmt.Errorf("%w: %w", ErrCannot, err)
					return
				}
				break
			}
		}
		for _, a := range p.Actors {
			if _, err := linux.SetSched(a.Sched); err != nil {
				result = fmt.Errorf("group %q %w: %w", a.Group, ErrCannot, err)
				return
			}
		}
	}()
	<-done
	return result
}

// process is an actor process as the controller has it.
type process struct {
	processPlan
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr bytes.Buffer
	report *report     // once it has ended in order
	err    error       // how it ended otherwise
	ended  bool        // the controller took notice
	gone   atomic.Bool // the process was reaped: its number may be another's
}

// controller leads one run.
type controller struct {
	plan      *plan
	options   Options
	number    int
	control   *control
	channels  []*channel.Channel
	processes []*process
	exits     chan *process
	eventfds  []*os.File

	base   []uint32 // words up to which everything is accounted for
	counts []uint64 // what each subscriber had counted by then
	phases []phaseTruth
	done   time.Duration // of all windows, for progress
}

// phaseTruth is what the controller itself saw of a measured window.
type phaseTruth struct {
	duration  int64
	published []uint32 // by channel: how far the word moved
}

// run leads the actors through all windows. It returns what was measured, and an
// error where the run broke.
func (c *controller) run(ctx context.Context) (result.Run, error) {
	err := c.start(ctx)
	if err == nil {
		dog, e := startWatchdog(c.plan.highest(), c.plan.CPUs, c.kill)
		if err = e; err == nil {
			err = c.lead(ctx)
			c.stop(ctx)
			if dog.end() {
				err = fmt.Errorf("the watchdog ended the run: the real-time actors of %s left ordinary threads no CPU for %s; lower work, rate or count, or leave a CPU free", c.plan.realTimeGroups(), patience*tick)
			}
		}
	}
	c.kill()
	for range c.left() {
		<-c.exits
	}
	for _, f := range c.eventfds {
		f.Close()
	}
	run := result.Run{Phases: []result.Phase{}, Processes: []result.Process{}, Checks: []result.Check{}}
	if ctx.Err() == nil || len(c.phases) > 0 {
		run = c.gather(err == nil && ctx.Err() == nil)
	}
	if c.control != nil {
		linux.Unmap(c.control.mem)
	}
	return run, err
}

// start starts the actor processes and waits until every actor is ready.
func (c *controller) start(ctx context.Context) error {
	p := c.plan
	file, err := linux.CreateShared("aossim", p.size())
	if err != nil {
		return err
	}
	defer file.Close()
	mem, err := linux.Map(file, p.size())
	if err != nil {
		return err
	}
	c.control = newControl(mem)
	c.channels = p.open(mem, true)
	c.base = make([]uint32, len(c.channels))
	c.counts = make([]uint64, len(p.Actors))
	inherited := []*os.File{file}
	for range p.Eventfds {
		f, err := linux.NewEventfd()
		if err != nil {
			return err
		}
		c.eventfds = append(c.eventfds, f)
		inherited = append(inherited, f)
	}
	c.exits = make(chan *process, len(p.Processes))
	for i := range p.Processes {
		if err := c.spawn(i, inherited); err != nil {
			return err
		}
	}
	return c.until(ctx, 30*time.Second, "get ready", func() (slow []int) {
		for i := range p.Actors {
			if _, ready, _ := c.control.actor(i); !ready() {
				slow = append(slow, i)
			}
		}
		return slow
	}, nil)
}

func (c *controller) spawn(i int, inherited []*os.File) error {
	p := &process{processPlan: c.plan.Processes[i]}
	orders, err := json.Marshal(order{c.plan, i})
	if err != nil {
		return err
	}
	p.cmd = exec.Command("/proc/self/exe", ActorCommand)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = bytes.NewReader(orders), &p.stdout, &p.stderr
	p.cmd.ExtraFiles = inherited
	p.cmd.WaitDelay = time.Second
	// Every actor keeps a P while it blocks, and a few are for the runtime. The
	// signal by which the scheduler preempts would interrupt the actors' system calls.
	p.cmd.Env = append(os.Environ(),
		fmt.Sprintf("GOMAXPROCS=%d", len(p.Actors)+4),
		"GODEBUG="+strings.TrimPrefix(os.Getenv("GODEBUG")+",asyncpreemptoff=1", ","))
	a := &c.plan.Actors[p.Actors[0]]
	external := a.Kind == load && c.plan.Scenario.Loads[a.Entry].Kind == "command"
	linux.TieToParent(p.cmd, external)
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
			p.err = fmt.Errorf("a process of group %q ended before its time: %s%s", p.Group, linux.DescribeExit(p.cmd.ProcessState), tail(p.stderr.String()))
		case p.report.Missing:
			p.err = fmt.Errorf("group %q %w: %s", p.Group, ErrCannot, p.report.Error)
		case p.report.Error != "":
			p.err = fmt.Errorf("group %q: %s", p.Group, p.report.Error)
		case err != nil:
			p.err = fmt.Errorf("a process of group %q: %w", p.Group, err)
		}
		c.exits <- p
	}()
	return nil
}

// tail returns the end of what a process said on its standard error.
func tail(text string) string {
	const most = 2000
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return ": " + text[max(0, len(text)-most):]
}

// exited notes that a process has ended.
func (c *controller) exited(p *process) error {
	p.ended = true
	if p.err != nil {
		return p.err
	}
	return fmt.Errorf("a process of group %q ended before its time", p.Group)
}

// until waits until left returns no actors any more. It returns an error where an
// actor process ends, where ctx does, or where progress, which may be nil, has not
// changed for limit.
func (c *controller) until(ctx context.Context, limit time.Duration, what string, left func() []int, progress func() uint64) error {
	since, last := time.Now(), uint64(0)
	for {
		slow := left()
		if len(slow) == 0 {
			return nil
		}
		if progress != nil {
			if now := progress(); now != last {
				since, last = time.Now(), now
			}
		}
		if time.Since(since) > limit {
			return fmt.Errorf("actors of %s did not %s within %s", c.plan.groups(slow), what, limit)
		}
		select {
		case p := <-c.exits:
			return c.exited(p)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// groups names the groups of some actors for a message.
func (p *plan) groups(actors []int) string {
	var names []string
	for _, i := range actors {
		names = append(names, fmt.Sprintf("group %q", p.Actors[i].Group))
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// realTimeGroups names the groups that have a real-time policy.
func (p *plan) realTimeGroups() string {
	var actors []int
	for i := range p.Actors {
		if p.Actors[i].Sched.Policy.RealTime() {
			actors = append(actors, i)
		}
	}
	return p.groups(actors)
}

// set makes w the current window.
func (c *controller) set(w uint32, start, end int64) {
	ws := &c.control.windows
	ws.Start.Store(uint64(start))
	ws.End.Store(uint64(end))
	ws.Current.Store(w)
	linux.FutexWake(ws.Current, linux.WakeAll, linux.MatchAny, false)
}

// How long actors may take: to join or leave, to handle a single message, and all
// of it once the user has interrupted the run.
const (
	joinLimit      = 10 * time.Second
	stallLimit     = 2 * time.Second
	interruptLimit = 300 * time.Millisecond
	notice         = 20 * time.Millisecond // from announcing a window to its start
	grace          = 5 * time.Millisecond  // for the wakes of the last messages
)

// lead leads the actors through all windows.
func (c *controller) lead(ctx context.Context) error {
	for i := range c.plan.Windows {
		w := uint32(i + 1)
		err := ctx.Err()
		if err == nil && c.plan.Windows[i].Kind == preparing {
			err = c.prepare(ctx, w)
		} else if err == nil {
			err = c.measure(ctx, w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare lets actors join and leave.
func (c *controller) prepare(ctx context.Context, w uint32) error {
	c.set(w, 0, 0)
	err := c.until(ctx, joinLimit, "join or leave", func() (slow []int) {
		for i, a := range c.plan.Actors {
			before := w > 1 && a.Active[w-2]
			if before == a.Active[w-1] {
				continue
			}
			if p, _, _ := c.control.actor(i); p.Done.Load() < uint64(w) {
				slow = append(slow, i)
			}
		}
		return slow
	}, nil)
	c.account()
	return err
}

// account starts to count from where everything is now.
func (c *controller) account() {
	for i, ch := range c.channels {
		c.base[i] = ch.Word().Load()
	}
	for i := range c.plan.Actors {
		p, _, _ := c.control.actor(i)
		c.counts[i] = p.Count.Load()
	}
}

// measure leads the actors through a window in which messages are published, and
// waits until every one is handled.
func (c *controller) measure(ctx context.Context, w uint32) error {
	win := c.plan.Windows[w-1]
	length := time.Duration(c.plan.Scenario.Duration)
	if win.Kind == warmingUp {
		length = c.options.Warmup
	}
	start := linux.Now() + int64(notice)
	c.set(w, start, start+int64(length))
	broken := c.sleep(ctx, win, length)
	if broken != nil {
		if broken != ctx.Err() {
			return broken
		}
		// The user wants to end: what was published until now still counts.
		c.control.windows.End.Store(uint64(min(linux.Now(), start+int64(length))))
		limit, cancel := context.WithTimeout(context.Background(), interruptLimit)
		defer cancel()
		ctx = limit
	}
	c.done += length
	if err := c.settle(ctx, w); err != nil && broken == nil {
		return err
	}
	if win.Kind == measuring {
		truth := phaseTruth{duration: int64(c.control.windows.End.Load()) - start}
		for i, ch := range c.channels {
			truth.published = append(truth.published, ch.Distance(c.base[i], ch.Word().Load()))
		}
		c.phases = append(c.phases, truth)
	}
	c.account()
	return broken
}

// sleep waits for the end of a window. It returns ctx's error, or that of an actor
// process that ended.
func (c *controller) sleep(ctx context.Context, win window, length time.Duration) error {
	end := time.Now().Add(notice + length)
	phase := c.plan.Scenario.Phases[win.Phase]
	if win.Kind == warmingUp {
		phase += ", warming up"
	}
	if c.options.Runs > 1 {
		phase = fmt.Sprintf("run %d, %s", c.number+1, phase)
	}
	ticks := time.NewTicker(250 * time.Millisecond)
	defer ticks.Stop()
	for {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if c.options.Progress != nil {
			all := time.Duration(len(c.plan.Scenario.Phases)) * (c.options.Warmup + time.Duration(c.plan.Scenario.Duration))
			runs := time.Duration(max(1, c.options.Runs))
			c.options.Progress(all*time.Duration(c.number)+c.done+length-min(left, length), all*runs, phase)
		}
		select {
		case p := <-c.exits:
			return c.exited(p)
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		case <-time.After(left):
		}
	}
}

// settle waits until all publishers are done with window w and every message is
// handled or overrun.
func (c *controller) settle(ctx context.Context, w uint32) error {
	err := c.until(ctx, joinLimit, "stop publishing", func() (slow []int) {
		for i, a := range c.plan.Actors {
			if p, _, _ := c.control.actor(i); a.Kind == publisher && p.Done.Load() < uint64(w) {
				slow = append(slow, i)
			}
		}
		return slow
	}, nil)
	if err != nil {
		return err
	}
	var work scenarios.Duration
	for _, s := range c.plan.Scenario.Subscribers {
		work = max(work, s.Work)
	}
	counted := make([]uint64, len(c.channels))
	for i, ch := range c.channels {
		counted[i] = uint64(ch.Distance(c.base[i], ch.Word().Load()))
	}
	err = c.until(ctx, stallLimit+2*time.Duration(work), "handle what was published", func() (slow []int) {
		for i, a := range c.plan.Actors {
			if a.Kind != subscriber || !a.Active[w-1] {
				continue
			}
			expected := c.counts[i]
			for _, ch := range a.Channels {
				expected += counted[ch]
			}
			if p, _, _ := c.control.actor(i); p.Count.Load() < expected {
				slow = append(slow, i)
			}
		}
		return slow
	}, func() (sum uint64) {
		for i := range c.plan.Actors {
			p, _, _ := c.control.actor(i)
			sum += p.Count.Load()
		}
		return sum
	})
	time.Sleep(grace)
	return err
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

// kill ends all actor processes at once. It does nothing but system calls: the
// watchdog uses it when there is no CPU for anything else.
func (c *controller) kill() {
	for _, p := range c.processes {
		if !p.gone.Load() {
			linux.KillGroup(p.cmd)
		}
	}
}
