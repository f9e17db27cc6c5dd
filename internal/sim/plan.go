package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"time"

	"aossim/channel"
	"aossim/eventloop"
	"aossim/internal/actors"
	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/result"
	"aossim/internal/uring"
	"aossim/internal/wait"
	"aossim/scenarios"
)

// Kinds of actors, as the result names them.
const (
	publisher  = "publisher"
	subscriber = "subscriber"
	load       = "load"
)

// Plan is a scenario laid out on this machine: who runs where, in which process,
// and where in the shared memory everything lies. Actor processes get it as JSON.
type Plan struct {
	Scenario  *scenarios.Scenario
	Options   Options  `json:"-"`
	Windows   []window // number 1 is the first
	Channels  []channelPlan
	Actors    []actorPlan
	Processes []processPlan
	Eventfds  int
	Traces    int           // bytes of the gaps of all traces, behind the channels
	Lock      bool          // lock memory
	Break     time.Duration // a latency above which the trace is stopped; 0 for none
	// CPUs are those that this process may use; Housekeeping those of them for all
	// threads that are no actors.
	CPUs         []int
	Housekeeping []int
	Observe      observe.Plan `json:"-"`
}

// window is a stretch in which the controller changes nothing.
type window struct {
	Phase int
	Kind  windowKind
}

// In a preparing window nobody publishes: actors join and leave. Then comes the
// warm-up, then what counts.
type windowKind int

const (
	preparing windowKind = iota
	warmingUp
	measuring
)

type channelPlan struct {
	Offset   int // in the shared memory
	Config   channel.Config
	Scope    linux.Scope
	Futex    bool  // somebody waits on the word
	Eventfds []int // of those who do not
}

type actorPlan struct {
	Kind     string
	Entry    int // the [[publisher]], [[subscriber]] or [[load]] it comes from
	Group    string
	Sched    linux.Sched
	CPUs     []int
	Active   []bool
	Channels []int
	Slots    []int // publisher: its number on each channel
	Eventfds []int // subscriber: one for each channel, if it polls
	Mask     uint32
	Offset   int64 // publisher: ns that its first deadline is shifted
	Seed     uint64
	// Publisher of a trace: bytes of its gaps, and where they lie in the shared memory; ns from its last
	// time to the first of its next round, 0 where there is none.
	Gaps, GapsOffset int
	Again            int64
}

type processPlan struct {
	Group  string
	Actors []int
}

// maxEventfds keeps the eventfds, which every process inherits, below the usual limit
// of 1,024 files.
const maxEventfds = 900

// Layout of the control block at the start of the shared memory. The controller
// writes its two lines, each actor its own.
//
//	0    window (futex word)
//	64   start, end of publishing
//	128  a line an actor: count, done, ready, thread, broke, publishing
const (
	lineSize     = 64
	timesOffset  = lineSize
	actorsOffset = 2 * lineSize
)

// control is the shared memory as a process sees it.
type control struct {
	mem     []byte
	windows eventloop.Windows
}

func newControl(mem []byte) *control {
	times := linux.Uint64sAt(mem, timesOffset, 2)
	return &control{mem, eventloop.Windows{Current: linux.Uint32At(mem, 0), Start: &times[0], End: &times[1]}}
}

func (c *control) line(i int) []atomic.Uint64 {
	return linux.Uint64sAt(c.mem, actorsOffset+lineSize*i, 6)
}

// progress returns what an actor tells while it runs.
func (c *control) progress(i int) eventloop.Progress {
	line := c.line(i)
	return eventloop.Progress{Count: &line[0], Done: &line[1], Broke: &line[4], Publishing: &line[5]}
}

// ready is not 0 once an actor waits for its first window.
func (c *control) ready(i int) *atomic.Uint64 { return &c.line(i)[2] }

// thread is the actor's thread, once it is ready.
func (c *control) thread(i int) *atomic.Uint64 { return &c.line(i)[3] }

// count returns how many actors there are of a kind.
func (p *Plan) count(kind string) (n int) {
	for _, a := range p.Actors {
		if a.Kind == kind {
			n++
		}
	}
	return n
}

// size returns how many bytes of shared memory the plan takes.
func (p *Plan) size() int {
	size := actorsOffset + lineSize*len(p.Actors)
	for i := range p.Channels {
		size += p.Channels[i].Config.Size()
	}
	size += p.Traces
	page := os.Getpagesize()
	return (size + page - 1) / page * page
}

// traces returns those of the scenario, each once, in the order in which they lie. Only the
// controller has them.
func (p *Plan) traces() (list []*scenarios.Trace) {
	for i := range p.Scenario.Publishers {
		if t := p.Scenario.Publishers[i].Times; t != nil && !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	return list
}

// layTraces says where each publisher's trace lies, from an offset of the shared memory on.
func (p *Plan) layTraces(offset int) {
	for _, t := range p.traces() {
		for i := range p.Actors {
			a := &p.Actors[i]
			if a.Kind == publisher && p.Scenario.Publishers[a.Entry].Times == t {
				a.Gaps, a.GapsOffset, a.Again = len(t.Gaps), offset, t.Again
			}
		}
		offset += len(t.Gaps)
		p.Traces += len(t.Gaps)
	}
}

// channels makes or opens the plan's channels in shared memory.
func (p *Plan) channels(mem []byte, open func([]byte, channel.Config) (*channel.Channel, error)) (list []*channel.Channel, err error) {
	list = make([]*channel.Channel, len(p.Channels))
	for i, c := range p.Channels {
		if list[i], err = open(mem[c.Offset:c.Offset+c.Config.Size()], c.Config); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// kind is what signals a process is to hear.
func (p *Plan) kind(process int) actors.Kind {
	a := &p.Actors[p.Processes[process].Actors[0]]
	switch {
	case a.Kind != load:
		return actors.Measuring
	case scenarios.LoadKindNamed(p.Scenario.Loads[a.Entry].Kind).Command:
		return actors.Gentle
	}
	return actors.Loading
}

// newPlan lays s out on the CPUs given; a CPU that is named may be another one that is
// usable, such as an isolated one. It returns an error that names a line of the
// scenario where this machine has no room for it.
func newPlan(s *scenarios.Scenario, o Options, cpus []int, usable func(cpu int) bool) (*Plan, error) {
	p := &Plan{Scenario: s, Options: o, Lock: !o.NoRT, Break: o.Break, CPUs: cpus}
	for phase := range s.Phases {
		p.Windows = append(p.Windows, window{phase, preparing})
		if o.Warmup > 0 {
			p.Windows = append(p.Windows, window{phase, warmingUp})
		}
		p.Windows = append(p.Windows, window{phase, measuring})
	}
	byName := map[string][]int{}
	for _, c := range s.Channels {
		for range c.Count {
			byName[c.Name] = append(byName[c.Name], len(p.Channels))
			p.Channels = append(p.Channels, channelPlan{
				Scope: scopeOf(c), Config: channel.Config{MaxSize: c.MaxSize, QueueSize: c.QueueSize, Start: c.StartIndex},
			})
		}
	}
	if err := p.addActors(usable, byName); err != nil {
		return nil, err
	}
	p.Housekeeping = p.housekeeping(cpus)
	offset := actorsOffset + lineSize*len(p.Actors)
	for i := range p.Channels {
		p.Channels[i].Offset = offset
		p.Channels[i].Config.Publishers = max(1, p.Channels[i].Config.Publishers)
		offset += p.Channels[i].Config.Size()
	}
	p.layTraces(offset)
	return p, p.fits(linux.MemoryTotal())
}

// scopeOf is who uses a channel's word.
func scopeOf(c scenarios.Channel) linux.Scope {
	if c.Private() {
		return linux.Private
	}
	return linux.Shared
}

// histograms is how many bytes those of all subscribers take.
func (p *Plan) histograms() uint64 {
	const besides = 2 // for warm-ups, and for between phases
	return uint64(result.HistogramsSize * (len(p.Scenario.Phases) + besides) * p.count(subscriber))
}

// fits says whether the plan has room in so many bytes of memory; 0 is unknown.
func (p *Plan) fits(total uint64) error {
	s := p.Scenario
	histograms := p.histograms()
	switch {
	case total == 0:
	case histograms > total/2:
		return s.Errorf("subscriber", 0, "count", "the histograms of %d subscribers in %d phases would take %d MiB, more than half of this machine's %d MiB", p.count(subscriber), len(s.Phases), histograms>>20, total>>20)
	case uint64(p.Traces) > total/4:
		longest := slices.MaxFunc(p.traces(), func(a, b *scenarios.Trace) int { return cmp.Compare(len(a.Gaps), len(b.Gaps)) })
		i := slices.IndexFunc(s.Publishers, func(p scenarios.Publisher) bool { return p.Times == longest })
		return s.Errorf("publisher", i, "trace", "the times of all traces would take %d MiB, more than a quarter of this machine's %d MiB; a shorter phase or file takes less", p.Traces>>20, total>>20)
	case uint64(p.size()) > total/2:
		largest := 0
		for i, c := range s.Channels {
			if c.Count*c.QueueSize*c.MaxSize > s.Channels[largest].Count*s.Channels[largest].QueueSize*s.Channels[largest].MaxSize {
				largest = i
			}
		}
		return s.Errorf("channel", largest, "queue_size", "the channels would take %d MiB, more than half of this machine's %d MiB; make queue_size, max_size or count smaller", p.size()>>20, total>>20)
	}
	return nil
}

// layout is what addActors keeps in mind from actor to actor.
type layout struct {
	*Plan
	usable    func(cpu int) bool
	byName    map[string][]int // channels
	random    *rand.Rand
	waiters   []int          // by channel: how many there are
	processes map[string]int // of a group
	turn      int            // CPUs are dealt to real-time threads in turn
	busy      []int          // CPUs of real-time subscribers
}

func (p *Plan) addActors(usable func(cpu int) bool, byName map[string][]int) error {
	l := &layout{Plan: p, usable: usable, byName: byName, random: rand.New(rand.NewPCG(p.Scenario.Seed, 1)),
		waiters: make([]int, len(p.Channels)), processes: map[string]int{}}
	for _, m := range p.Scenario.Members() {
		sched, err := l.check(m.Member, m.Table, m.Index)
		if err != nil {
			return err
		}
		first, end := p.Scenario.Span(m.Member)
		for range m.Count {
			a := actorPlan{Kind: m.Table, Entry: m.Index, Group: m.Group, Sched: sched, CPUs: m.CPUs, Seed: l.random.Uint64()}
			for _, w := range p.Windows {
				a.Active = append(a.Active, w.Phase >= first && w.Phase < end)
			}
			l.deal(&a, m.Member)
			switch m.Table {
			case publisher:
				l.publisher(&a)
			case subscriber:
				err = l.subscriber(&a)
			case load:
				l.load(&a)
			}
			if err != nil {
				return err
			}
			if len(a.CPUs) == 0 {
				a.CPUs = p.CPUs
			}
			l.place(a, m.Member)
		}
	}
	return nil
}

// check returns what a member asks of the scheduler, and an error for what this machine
// does not have.
func (l *layout) check(m *scenarios.Member, table string, index int) (linux.Sched, error) {
	s := l.Scenario
	policy, err := linux.ParsePolicy(m.Policy)
	if err != nil {
		return linux.Sched{}, s.Errorf(table, index, "policy", "%s", err)
	}
	for _, c := range m.CPUs {
		if !l.usable(c) {
			return linux.Sched{}, s.Errorf(table, index, "cpus", "CPU %d is not there or not allowed here; there are %s", c, linux.FormatCPUs(l.CPUs))
		}
	}
	if table == load && len(s.Loads[index].Command) > 0 {
		if _, err := exec.LookPath(s.Loads[index].Command[0]); err != nil {
			return linux.Sched{}, s.Errorf(table, index, "command", "%s; install it, or name its whole path", err)
		}
	}
	return l.Options.Sched(linux.Sched{Policy: policy, Priority: m.Priority, Nice: m.Nice,
		Runtime: int64(m.Runtime), Deadline: int64(m.Deadline), Period: int64(m.Period)}), nil
}

// deal gives a thread of a fixed priority that has no CPU the next one, also where the
// options take its policy.
func (l *layout) deal(a *actorPlan, m *scenarios.Member) {
	if len(a.CPUs) > 0 || m.Policy != "fifo" && m.Policy != "rr" {
		return
	}
	dealt := l.CPUs
	if len(l.Options.CPUs) > 0 {
		dealt = l.Options.CPUs
	}
	a.CPUs = []int{dealt[l.turn%len(dealt)]}
	l.turn++
}

func (l *layout) publisher(a *actorPlan) {
	pub := &l.Scenario.Publishers[a.Entry]
	if offset := l.random.Float64(); pub.Arrival != scenarios.Traced {
		a.Offset = int64(offset * 1e9 / float64(pub.Rate))
	}
	a.Channels = l.byName[pub.Channel]
	for _, c := range a.Channels {
		a.Slots = append(a.Slots, l.Channels[c].Config.Publishers)
		l.Channels[c].Config.Publishers++
	}
}

func (l *layout) subscriber(a *actorPlan) error {
	sub := &l.Scenario.Subscribers[a.Entry]
	kind, _ := wait.Named(sub.Wait)
	for _, name := range sub.Channels {
		a.Channels = append(a.Channels, l.byName[name]...)
	}
	number := 0
	for _, c := range a.Channels {
		number = max(number, l.waiters[c])
		if !kind.Eventfd {
			l.Channels[c].Futex = true
			continue
		}
		if l.Eventfds == maxEventfds {
			return l.Scenario.Errorf(subscriber, a.Entry, "wait", "%q takes a file for each subscriber and channel, and there are more than %d; use \"io_uring\"", sub.Wait, maxEventfds)
		}
		a.Eventfds = append(a.Eventfds, l.Eventfds)
		l.Channels[c].Eventfds = append(l.Channels[c].Eventfds, l.Eventfds)
		l.Eventfds++
	}
	for _, c := range a.Channels {
		l.waiters[c] = number + 1
	}
	a.Mask = linux.AllocateBitset(number)
	if a.Sched.Policy.RealTime() {
		l.busy = append(l.busy, a.CPUs...)
	}
	return nil
}

func (l *layout) load(a *actorPlan) {
	entry := &l.Scenario.Loads[a.Entry]
	// Interrupts matter on the CPU that runs the subscriber.
	if len(a.CPUs) == 0 && scenarios.LoadKindNamed(entry.Kind).Interrupts {
		a.CPUs = slices.Compact(slices.Sorted(slices.Values(l.busy)))
	}
	// Each thread has its own: those before it have had theirs.
	if all := l.byName[entry.Channel]; len(all) > 0 {
		n := l.waiters[all[0]]
		l.waiters[all[0]]++
		a.Channels = all[n : n+1]
	}
}

// place puts an actor into its group's process; each load is a process of its own, unless
// it acts on its group's.
func (l *layout) place(a actorPlan, m *scenarios.Member) {
	key := m.Group
	if a.Kind == load && !scenarios.LoadKindNamed(l.Scenario.Loads[a.Entry].Kind).Joins {
		key = fmt.Sprintf("%s\x00%d", m.Group, a.Entry)
	}
	process, ok := l.processes[key]
	if !ok || m.Processes {
		process = len(l.Processes)
		l.processes[key] = process
		l.Processes = append(l.Processes, processPlan{Group: m.Group})
	}
	l.Processes[process].Actors = append(l.Processes[process].Actors, len(l.Actors))
	l.Actors = append(l.Actors, a)
}

// housekeeping returns CPUs that have no real-time actor; or else those that have
// no real-time subscriber or load, as publishers are woken by a timer of their own CPU while
// a subscriber's CPU has to be interrupted from another when it runs something else; or else all.
func (p *Plan) housekeeping(cpus []int) []int {
	for _, kinds := range [][]string{{publisher, subscriber, load}, {subscriber, load}} {
		var free []int
		for _, c := range cpus {
			if !slices.ContainsFunc(p.Actors, func(a actorPlan) bool {
				return a.Sched.Policy.RealTime() && slices.Contains(kinds, a.Kind) && slices.Contains(a.CPUs, c)
			}) {
				free = append(free, c)
			}
		}
		if len(free) > 0 {
			return free
		}
	}
	return cpus
}

// subscriberConfig is the event loop of a subscriber, without what needs the
// shared memory.
func (p *Plan) subscriberConfig(a *actorPlan) (eventloop.SubscriberConfig, error) {
	sub := &p.Scenario.Subscribers[a.Entry]
	kind, _ := wait.Named(sub.Wait)
	c := eventloop.SubscriberConfig{
		Wait: kind, Combined: sub.Submit == scenarios.Combined, Mask: a.Mask, Work: int64(sub.Work), Late: int64(p.Scenario.Late), Active: a.Active,
	}
	if p.Break > 0 {
		for _, w := range p.Windows {
			limit := int64(0)
			if w.Kind == measuring {
				limit = int64(p.Break)
			}
			c.Break = append(c.Break, limit)
		}
	}
	for _, name := range sub.RingFlags {
		f, ok := uring.ParseSetupFlag(name)
		if !ok {
			return c, fmt.Errorf("no ring flag %q", name)
		}
		c.Flags |= f
	}
	return c, nil
}

var arrivals = map[scenarios.Arrival]eventloop.Arrival{
	scenarios.Periodic: eventloop.Periodic, scenarios.Poisson: eventloop.Poisson, scenarios.Bursts: eventloop.Bursts,
	scenarios.Traced: eventloop.Trace,
}
