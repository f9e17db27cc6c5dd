package scenarios

import "slices"

// LoadKind is a kind of load. What its threads do is in internal/sim, a function a kind.
type LoadKind struct {
	Name  string
	Means string // in the documentation
	// Command: it runs a program of the user's.
	Command bool
	// Words: it leaves waits on the words of channels, which nobody else may use.
	Words bool
	// Joins: it is a thread of its group's process, rather than of one of its own.
	Joins bool
	// Interrupts: without cpus it goes to those of the real-time subscribers.
	Interrupts bool
	// Ring: it issues futex waits on an io_uring.
	Ring bool
}

// LoadKinds are all there are.
var LoadKinds = []LoadKind{
	{Name: "timer", Means: "sleeps `interval` at a time: timer interrupts, on the CPUs of real-time subscribers unless `cpus` says others", Interrupts: true},
	{Name: "net", Means: "datagrams to itself over loopback: network softirqs"},
	{Name: "fork", Means: "processes that end at once"},
	{Name: "memory", Means: "fresh pages, given back: page faults and TLB shootdowns"},
	{Name: "slab", Means: "waits that fail: kfrees and kmallocs of what arming allocates", Ring: true},
	{Name: "cpu", Means: "computes"},
	{Name: "command", Means: "an external program, `command = [\"stress-ng\", \"--vm\", \"1\"]`", Command: true},
	{Name: "hash", Means: "resizes the futex hash of its group's process each `interval`", Joins: true},
	{Name: "rings", Means: "closes rings with waits armed on the words of `channel`, which has nobody else", Words: true, Ring: true},
}

// LoadKindNamed returns the kind of a name; it is the zero one where there is none.
func LoadKindNamed(name string) LoadKind {
	at := slices.IndexFunc(LoadKinds, func(k LoadKind) bool { return k.Name == name })
	if at < 0 {
		return LoadKind{}
	}
	return LoadKinds[at]
}

func (s *Scenario) validateLoad(p place, l *Load) error {
	var names []string
	for _, k := range LoadKinds {
		names = append(names, k.Name)
	}
	if err := firstOf(oneOf(p, "kind", l.Kind, names), s.validateMember(p, &l.Member), p.upTo("interval", l.Interval, maxInterval)); err != nil {
		return err
	}
	kind := LoadKindNamed(l.Kind)
	if kind.Command != (len(l.Command) > 0) {
		return p.errorf("command", "goes with kind = \"command\", as a list: [\"stress-ng\", \"--vm\", \"1\"]")
	}
	if kind.Words != (l.Channel != "") {
		return p.errorf("channel", "goes with kind = \"rings\", which leaves waits on its words")
	}
	if kind.Joins && (!slices.Contains(s.groups(), l.Group) || l.Processes) {
		return p.errorf("group", "%q is no group of publishers or subscribers; kind = %q acts on its group's process", l.Group, l.Kind)
	}
	if kind.Words {
		return s.validateWords(p, l)
	}
	return nil
}

// validateWords holds a load that leaves waits to a channel of its own: the wake by which
// it counts them reaches whoever waits there, whatever its bitset (a vector has none).
func (s *Scenario) validateWords(p place, l *Load) error {
	c := s.channel(l.Channel)
	switch {
	case c == nil:
		return s.missingChannel(p, "channel", l.Channel)
	case c.Private():
		return p.errorf("channel", "%q has futex = \"private\", and this load is a process of its own; make it \"shared\"", l.Channel)
	case slices.ContainsFunc(s.Publishers, func(o Publisher) bool { return o.Channel == l.Channel }),
		slices.ContainsFunc(s.Subscribers, func(o Subscriber) bool { return slices.Contains(o.Channels, l.Channel) }):
		return p.errorf("channel", "%q has publishers or subscribers, whose waits would be woken and counted; give this load a [[channel]] of its own", l.Channel)
	}
	threads := 0
	for _, o := range s.Loads {
		if o.Channel == l.Channel {
			threads += o.Count
		}
	}
	if threads > c.Count {
		return p.errorf("count", "%d threads on %d channels %q would count each other's waits; give the channel count = %d", threads, c.Count, l.Channel, threads)
	}
	return nil
}
