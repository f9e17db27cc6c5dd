package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"time"

	"aossim/channel"
	"aossim/eventloop"
	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/result"
	"aossim/internal/uring"
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
	Lock      bool          // lock memory
	Break     time.Duration // a latency above which the trace is stopped; 0 for none
	// CPUs are those that this process may use; Housekeeping those of them for all
	// threads that are no actors.
	CPUs         []int
	Housekeeping []int
	// Observe is how the kernel is, and Unobserved why it cannot be, nil where it can.
	Observe    observe.Mode `json:"-"`
	Unobserved error        `json:"-"`
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
	Private  bool
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
//	128  a line an actor: count, done, ready, thread, broke
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
	return linux.Uint64sAt(c.mem, actorsOffset+lineSize*i, 5)
}

// progress returns what an actor tells while it runs.
func (c *control) progress(i int) eventloop.Progress {
	line := c.line(i)
	return eventloop.Progress{Count: &line[0], Done: &line[1], Broke: &line[4]}
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
	page := os.Getpagesize()
	return (size + page - 1) / page * page
}

// open returns the plan's channels in shared memory, laid out first where create
// is set.
func (p *Plan) open(mem []byte, create bool) []*channel.Channel {
	list := make([]*channel.Channel, len(p.Channels))
	for i, c := range p.Channels {
		part := mem[c.Offset : c.Offset+c.Config.Size()]
		if create {
			list[i] = channel.Create(part, c.Config)
		} else {
			list[i] = channel.Open(part, c.Config)
		}
	}
	return list
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
				Private: c.Private(), Config: channel.Config{MaxSize: c.MaxSize, QueueSize: c.QueueSize, Start: c.StartIndex},
			})
		}
	}
	if err := p.addActors(s, o, usable, byName); err != nil {
		return nil, err
	}
	p.Housekeeping = p.housekeeping(cpus)
	offset := actorsOffset + lineSize*len(p.Actors)
	for i := range p.Channels {
		p.Channels[i].Offset = offset
		p.Channels[i].Config.Publishers = max(1, p.Channels[i].Config.Publishers)
		offset += p.Channels[i].Config.Size()
	}
	total := linux.MemoryTotal()
	if histograms := uint64(result.HistogramsSize * len(s.Phases) * p.count(subscriber)); total > 0 && histograms > total/2 {
		return nil, s.Errorf("subscriber", 0, "count", "the histograms of %d subscribers in %d phases would take %d MiB, more than half of this machine's %d MiB", p.count(subscriber), len(s.Phases), histograms>>20, total>>20)
	}
	if total > 0 && uint64(p.size()) > total/2 {
		largest := 0
		for i, c := range s.Channels {
			if c.Count*c.QueueSize*c.MaxSize > s.Channels[largest].Count*s.Channels[largest].QueueSize*s.Channels[largest].MaxSize {
				largest = i
			}
		}
		return nil, s.Errorf("channel", largest, "queue_size", "the channels would take %d MiB, more than half of this machine's %d MiB; make queue_size, max_size or count smaller", p.size()>>20, total>>20)
	}
	return p, nil
}

func (p *Plan) addActors(s *scenarios.Scenario, o Options, usable func(cpu int) bool, byName map[string][]int) error {
	cpus := p.CPUs
	random := rand.New(rand.NewPCG(s.Seed, 1))
	waiters := make([]int, len(p.Channels))
	byGroup := map[string]int{} // process of a group
	turn := 0                   // CPUs are dealt to real-time threads in turn
	var busy []int              // CPUs of real-time subscribers
	for _, m := range s.Members() {
		sched, err := schedOf(m.Member, o)
		if err != nil {
			return s.Errorf(m.Table, m.Index, "policy", "%s", err)
		}
		for _, c := range m.CPUs {
			if !usable(c) {
				return s.Errorf(m.Table, m.Index, "cpus", "CPU %d is not there or not allowed here; there are %s", c, FormatCPUs(cpus))
			}
		}
		if m.Table == load && s.Loads[m.Index].Kind == "command" {
			if _, err := exec.LookPath(s.Loads[m.Index].Command[0]); err != nil {
				return s.Errorf(m.Table, m.Index, "command", "%s; install it, or name its whole path", err)
			}
		}
		first, end := s.Span(m.Member)
		for range m.Count {
			a := actorPlan{Kind: m.Table, Entry: m.Index, Group: m.Group, Sched: sched, CPUs: m.CPUs, Seed: random.Uint64()}
			for _, w := range p.Windows {
				a.Active = append(a.Active, w.Phase >= first && w.Phase < end)
			}
			fixed := sched.Policy == linux.FIFO || sched.Policy == linux.RR || o.NoRT && (m.Policy == "fifo" || m.Policy == "rr")
			if len(a.CPUs) == 0 && fixed {
				dealt := cpus
				if len(o.CPUs) > 0 {
					dealt = o.CPUs
				}
				a.CPUs = []int{dealt[turn%len(dealt)]}
				turn++
			}
			switch m.Table {
			case publisher:
				pub := &s.Publishers[m.Index]
				a.Offset = int64(random.Float64() * 1e9 / float64(pub.Rate))
				a.Channels = byName[pub.Channel]
				for _, c := range a.Channels {
					a.Slots = append(a.Slots, p.Channels[c].Config.Publishers)
					p.Channels[c].Config.Publishers++
				}
			case subscriber:
				sub := &s.Subscribers[m.Index]
				for _, name := range sub.Channels {
					a.Channels = append(a.Channels, byName[name]...)
				}
				number := 0
				for _, c := range a.Channels {
					number = max(number, waiters[c])
					if sub.Wait == "eventfd" {
						if p.Eventfds == maxEventfds {
							return s.Errorf(m.Table, m.Index, "wait", "\"eventfd\" takes a file for each subscriber and channel, and there are more than %d; use \"io_uring\"", maxEventfds)
						}
						a.Eventfds = append(a.Eventfds, p.Eventfds)
						p.Channels[c].Eventfds = append(p.Channels[c].Eventfds, p.Eventfds)
						p.Eventfds++
					} else {
						p.Channels[c].Futex = true
					}
				}
				for _, c := range a.Channels {
					waiters[c] = number + 1
				}
				a.Mask = linux.AllocateBitset(number)
				if sched.Policy.RealTime() {
					busy = append(busy, a.CPUs...)
				}
			case load:
				// Short timers matter on the CPU that runs the subscriber.
				if len(a.CPUs) == 0 && s.Loads[m.Index].Kind == "timer" {
					a.CPUs = slices.Compact(slices.Sorted(slices.Values(busy)))
				}
				a.Channels = byName[s.Loads[m.Index].Channel]
			}
			if len(a.CPUs) == 0 {
				a.CPUs = cpus
			}
			key := m.Group
			if m.Table == load && s.Loads[m.Index].Kind != "hash" {
				key = fmt.Sprintf("%s\x00%d", m.Group, m.Index)
			}
			process, ok := byGroup[key]
			if !ok || m.Processes {
				process = len(p.Processes)
				byGroup[key] = process
				p.Processes = append(p.Processes, processPlan{Group: m.Group})
			}
			p.Processes[process].Actors = append(p.Processes[process].Actors, len(p.Actors))
			p.Actors = append(p.Actors, a)
		}
	}
	return nil
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

// schedOf is what a member asks of the scheduler under the options.
func schedOf(m *scenarios.Member, o Options) (linux.Sched, error) {
	policy, err := linux.ParsePolicy(m.Policy)
	if err != nil {
		return linux.Sched{}, err
	}
	s := linux.Sched{Policy: policy, Priority: m.Priority, Nice: m.Nice,
		Runtime: int64(m.Runtime), Deadline: int64(m.Deadline), Period: int64(m.Period)}
	switch {
	case o.NoRT:
		return linux.Sched{Policy: linux.Other}, nil
	case o.Priority != 0 && (policy == linux.FIFO || policy == linux.RR):
		s.Priority = o.Priority
	}
	return s, nil
}

// subscriberConfig is the event loop of a subscriber, without what needs the
// shared memory.
func (p *Plan) subscriberConfig(a *actorPlan) (eventloop.SubscriberConfig, error) {
	sub := &p.Scenario.Subscribers[a.Entry]
	c := eventloop.SubscriberConfig{
		Wait: waits[sub.Wait], Combined: sub.Submit == "combined", Mask: a.Mask, Work: int64(sub.Work), Late: int64(p.Scenario.Late), Active: a.Active,
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

var waits = map[string]eventloop.Wait{
	"io_uring": eventloop.URing, "io_uring_waitv": eventloop.URingWaitv, "futex": eventloop.Futex, "eventfd": eventloop.Eventfd,
}

var arrivals = map[string]eventloop.Arrival{
	"periodic": eventloop.Periodic, "poisson": eventloop.Poisson, "burst": eventloop.Bursts,
}
