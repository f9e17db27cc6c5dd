package scenarios

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
	"unicode"

	"aossim/internal/wait"
)

// Limits of a scenario: more would not fit a ring or tell anything more.
const (
	minRate      = 1e-3 // Hz
	maxRate      = 1e6  // Hz
	maxActors    = 1024
	maxWork      = Duration(time.Minute)
	maxInterval  = Duration(100 * time.Millisecond) // a load looks at its phase in between
	maxPeriod    = Duration(4 * time.Second)        // of policy deadline, sched_dl_period_max_us
	maxChannels  = 4096
	maxQueueSize = 1 << 20
	maxPayload   = 1 << 16
	maxVector    = 128 // FUTEX_WAITV_MAX
	maxPhases    = 1000
	maxPoints    = 1000
	maxName      = 128 // bytes, so that files and tags can be named after several
)

// MaxDuration is the longest phase or warm-up.
const MaxDuration = 1000 * time.Hour

var (
	policies  = []string{"fifo", "rr", "deadline", "other", "batch", "idle"}
	words     = []Words{Shared, PrivateWord}
	arrivals  = []Arrival{Periodic, Poisson, Bursts, Traced}
	wakes     = []Wake{WakeFutex, WakeURing}
	submits   = []Submit{Split, Combined}
	ringFlags = []string{"single_issuer", "coop_taskrun", "defer_taskrun", "taskrun_flag", "submit_all"}
)

// place is where in the file a check complains.
type place struct {
	s     *Scenario
	table string
	index int
}

func (p place) errorf(key, format string, args ...any) error {
	return p.s.Errorf(p.table, p.index, key, format, args...)
}

func oneOf[T ~string](p place, key string, value T, allowed []T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return p.errorf(key, "%q is none of %s", value, strings.Trim(strings.ReplaceAll(fmt.Sprint(allowed), " ", ", "), "[]"))
}

func (p place) between(key string, v, low, high int64) error {
	if v < low || v > high {
		return p.errorf(key, "%d is not within %d..%d", v, low, high)
	}
	return nil
}

func (p place) upTo(key string, d, most Duration) error {
	if d <= 0 || d > most {
		return p.errorf(key, "%s is not above 0 and up to %s", d, most)
	}
	return nil
}

// named checks a name that results and reports will bear.
func (p place) named(key, name string) error {
	if name == "" || len(name) > maxName {
		return p.errorf(key, "a name has 1 to %d bytes, and this one %d", maxName, len(name))
	}
	if strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return p.errorf(key, "%q: a name has no characters that cannot be shown", name)
	}
	return nil
}

// phase checks the name of a phase; none is given by "".
func (p place) phase(key, name string) error {
	if name == "" || slices.Contains(p.s.Phases, name) {
		return nil
	}
	return p.errorf(key, "there is no phase %q; phases has %s", name, strings.Join(p.s.Phases, ", "))
}

// priority checks one against its policy.
func (p place) priority(policy string, priority int) error {
	switch realtime := policy == "fifo" || policy == "rr"; {
	case realtime && (priority < 1 || priority > 99):
		return p.errorf("priority", "%d is not within 1..99, which policy %q needs", priority, policy)
	case !realtime && priority != 0:
		return p.errorf("priority", "policy %q has none; leave it out, or set policy to \"fifo\" or \"rr\"", policy)
	}
	return nil
}

// cpus checks a list of them, as far as any machine may have them.
func (p place) cpus(list []int) error {
	for i, c := range list {
		if c < 0 || slices.Contains(list[:i], c) {
			return p.errorf("cpus", "%d is no CPU, or given twice", c)
		}
	}
	return nil
}

// ringFlags checks names of ring flags.
func (p place) ringFlags(flags []string) error {
	for _, f := range flags {
		if err := oneOf(p, "ring_flags", f, ringFlags); err != nil {
			return err
		}
	}
	switch has := func(f string) bool { return slices.Contains(flags, f) }; {
	case has("defer_taskrun") && !has("single_issuer"):
		return p.errorf("ring_flags", "defer_taskrun needs single_issuer (io_uring_setup(2))")
	case has("taskrun_flag") && !has("coop_taskrun") && !has("defer_taskrun"):
		return p.errorf("ring_flags", "taskrun_flag needs coop_taskrun or defer_taskrun (io_uring_setup(2))")
	}
	return nil
}

// firstOf returns the first error among checks.
func firstOf(checks ...error) error {
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

// Members returns every member, with the table and index it stands at.
func (s *Scenario) Members() (list []struct {
	*Member
	Table string
	Index int
}) {
	add := func(m *Member, table string, i int) {
		list = append(list, struct {
			*Member
			Table string
			Index int
		}{m, table, i})
	}
	for i := range s.Publishers {
		add(&s.Publishers[i].Member, "publisher", i)
	}
	for i := range s.Subscribers {
		add(&s.Subscribers[i].Member, "subscriber", i)
	}
	for i := range s.Loads {
		add(&s.Loads[i].Member, "load", i)
	}
	return list
}

// groups returns the groups of publishers and subscribers in the file's order.
func (s *Scenario) groups() (names []string) {
	for _, m := range s.Members() {
		if m.Table != "load" && !slices.Contains(names, m.Group) {
			names = append(names, m.Group)
		}
	}
	return names
}

// Span returns the phases in which a member takes part: first <= phase < end.
func (s *Scenario) Span(m *Member) (first, end int) {
	end = len(s.Phases)
	if m.Joins != "" {
		first = slices.Index(s.Phases, m.Joins)
	}
	if m.Leaves != "" {
		end = slices.Index(s.Phases, m.Leaves)
	}
	return first, end
}

func (s *Scenario) validate() error {
	top := place{s, "", 0}
	if err := firstOf(top.named("name", s.Name), top.upTo("duration", s.Duration, Duration(MaxDuration)), top.upTo("late", s.Late, maxWork), s.validatePhases(top), s.validateChannels(top)); err != nil {
		return err
	}
	if len(s.Publishers) == 0 || len(s.Subscribers) == 0 {
		return top.errorf("", "a scenario needs a [[publisher]] and a [[subscriber]]")
	}
	for i := range s.Publishers {
		if err := s.validatePublisher(place{s, "publisher", i}, &s.Publishers[i]); err != nil {
			return err
		}
	}
	for i := range s.Subscribers {
		if err := s.validateSubscriber(place{s, "subscriber", i}, &s.Subscribers[i]); err != nil {
			return err
		}
	}
	for i := range s.Loads {
		if err := s.validateLoad(place{s, "load", i}, &s.Loads[i]); err != nil {
			return err
		}
	}
	return firstOf(s.validateGroups(), s.validateJoins(top), s.validatePrivate())
}

func (s *Scenario) validatePhases(top place) error {
	if err := top.between("phases", int64(len(s.Phases)), 1, maxPhases); err != nil {
		return err
	}
	for i, p := range s.Phases {
		if err := top.named("phases", p); err != nil {
			return err
		}
		if slices.Contains(s.Phases[:i], p) {
			return top.errorf("phases", "%q is given twice", p)
		}
	}
	return nil
}

func (s *Scenario) validateChannels(top place) error {
	if len(s.Channels) == 0 {
		return top.errorf("", "a scenario needs a [[channel]]")
	}
	all := 0
	for i := range s.Channels {
		c, p := &s.Channels[i], place{s, "channel", i}
		if !strings.HasPrefix(c.Name, "/") || len(c.Name) < 2 {
			return p.errorf("name", "%q is no channel's name; one starts with /, such as \"/imu\"", c.Name)
		}
		if err := p.named("name", c.Name); err != nil {
			return err
		}
		if slices.ContainsFunc(s.Channels[:i], func(d Channel) bool { return d.Name == c.Name }) {
			return p.errorf("name", "%q is given twice; count makes several channels of one name", c.Name)
		}
		if err := firstOf(
			p.between("max_size", int64(c.MaxSize), 8, maxPayload),
			p.between("queue_size", int64(c.QueueSize), 2, maxQueueSize),
			p.between("count", int64(c.Count), 1, maxChannels),
			oneOf(p, "futex", c.Futex, words),
		); err != nil {
			return err
		}
		if bits.OnesCount(uint(c.QueueSize)) != 1 {
			return p.errorf("queue_size", "%d is no power of two; %d is the next", c.QueueSize, 1<<bits.Len(uint(c.QueueSize)))
		}
		if limit := int64(1)<<32 - int64(c.QueueSize); int64(c.StartIndex) >= limit {
			return p.errorf("start_index", "%d is not below %d, where queue indexes of this channel wrap", c.StartIndex, limit)
		}
		if all += c.Count; all > maxChannels {
			return p.errorf("count", "more than %d channels in all", maxChannels)
		}
	}
	return nil
}

func (s *Scenario) validateMember(p place, m *Member) error {
	if err := firstOf(p.named("group", m.Group), oneOf(p, "policy", m.Policy, policies), p.between("count", int64(m.Count), 1, maxActors), p.between("nice", int64(m.Nice), -20, 19)); err != nil {
		return err
	}
	if err := p.priority(m.Policy, m.Priority); err != nil {
		return err
	}
	switch {
	case m.Policy == "deadline" && (m.Runtime <= 0 || m.Runtime > m.Deadline || m.Deadline > m.Period || m.Period > maxPeriod):
		return p.errorf("runtime", "policy \"deadline\" needs 0 < runtime <= deadline <= period <= %s", maxPeriod)
	case m.Policy == "deadline" && len(m.CPUs) > 0:
		return p.errorf("cpus", "policy \"deadline\" runs on all CPUs; leave it out")
	case m.Policy != "deadline" && (m.Runtime != 0 || m.Deadline != 0 || m.Period != 0):
		return p.errorf("runtime", "runtime, deadline and period are for policy \"deadline\"")
	}
	if err := firstOf(p.phase("joins", m.Joins), p.phase("leaves", m.Leaves)); err != nil {
		return err
	}
	if first, end := s.Span(m); first >= end {
		return p.errorf("leaves", "%q comes no later than the phase it joins at", m.Leaves)
	}
	return p.cpus(m.CPUs)
}

func (s *Scenario) channel(name string) *Channel {
	for i := range s.Channels {
		if s.Channels[i].Name == name {
			return &s.Channels[i]
		}
	}
	return nil
}

func (s *Scenario) missingChannel(p place, key, name string) error {
	var names []string
	for _, c := range s.Channels {
		names = append(names, c.Name)
	}
	return p.errorf(key, "there is no channel %q; there are %s", name, strings.Join(names, ", "))
}

// arrival checks what says when to publish: a rate, or a trace.
func (p place) arrival(pub *Publisher) error {
	_, rate := p.s.document.find(p.table, p.index, "rate")
	switch traced := pub.Arrival == Traced; {
	case traced && pub.Trace == "":
		return p.errorf("trace", "arrival = \"trace\" needs trace = \"FILE\", which has a time a line")
	case traced && rate:
		return p.errorf("rate", "arrival = \"trace\" has the times of its file; leave rate out")
	case !traced && pub.Trace != "":
		return p.errorf("trace", "is for arrival = \"trace\"")
	case !traced && pub.Repeat:
		return p.errorf("repeat", "is for arrival = \"trace\"")
	case !traced && !(pub.Rate >= minRate && pub.Rate <= maxRate):
		return p.errorf("rate", "%g Hz is not within 0.001 Hz and 1 MHz", float64(pub.Rate))
	}
	return nil
}

func (s *Scenario) validatePublisher(p place, pub *Publisher) error {
	if s.channel(pub.Channel) == nil {
		return s.missingChannel(p, "channel", pub.Channel)
	}
	if err := p.arrival(pub); err != nil {
		return err
	}
	if err := firstOf(s.validateMember(p, &pub.Member), oneOf(p, "arrival", pub.Arrival, arrivals), oneOf(p, "wake", pub.Wake, wakes)); err != nil {
		return err
	}
	if pub.Arrival != Bursts {
		if pub.Burst != 0 {
			return p.errorf("burst", "is for arrival = \"burst\"")
		}
		return nil
	}
	if float64(pub.Burst) > float64(pub.Rate)*time.Hour.Seconds() {
		return p.errorf("burst", "at %g Hz bursts of %d are more than an hour apart", float64(pub.Rate), pub.Burst)
	}
	return p.between("burst", int64(pub.Burst), 2, maxQueueSize)
}

func (s *Scenario) validateSubscriber(p place, sub *Subscriber) error {
	for i, name := range sub.Channels {
		if s.channel(name) == nil {
			return s.missingChannel(p, "channels", name)
		}
		if slices.Contains(sub.Channels[:i], name) {
			return p.errorf("channels", "%q is given twice", name)
		}
	}
	channels := s.width(sub)
	if channels == 0 {
		return p.errorf("channels", "a subscriber needs one at least")
	}
	if err := firstOf(s.validateMember(p, &sub.Member), oneOf(p, "wait", sub.Wait, wait.Names()), oneOf(p, "submit", sub.Submit, submits)); err != nil {
		return err
	}
	if err := p.ringFlags(sub.RingFlags); err != nil {
		return err
	}
	switch kind, _ := wait.Named(sub.Wait); {
	case sub.Work < 0 || sub.Work > maxWork:
		return p.errorf("work", "%s is not within 0 and %s", sub.Work, maxWork)
	case !kind.Ring() && len(sub.RingFlags) > 0:
		return p.errorf("ring_flags", "wait = %q has no ring", sub.Wait)
	case kind.MaxChannels > 0 && channels > kind.MaxChannels:
		return p.errorf("wait", "%q waits on %d words at most, and this subscriber has %d channels; use \"io_uring\"", sub.Wait, kind.MaxChannels, channels)
	}
	return nil
}

// validateGroups holds a group to one policy, priority and span: it has one row
// in the report.
func (s *Scenario) validateGroups() error {
	seen := map[string]*Member{}
	loops := map[string]*Subscriber{}
	actors := 0
	for _, m := range s.Members() {
		if actors += m.Count; actors > maxActors {
			return s.Errorf(m.Table, m.Index, "count", "more than %d actors in all", maxActors)
		}
		if m.Table == "subscriber" {
			sub := &s.Subscribers[m.Index]
			if o := loops[m.Group]; o != nil && (o.Wait != sub.Wait || o.Submit != sub.Submit || s.width(o) != s.width(sub)) {
				return s.Errorf(m.Table, m.Index, "", "wait, submit or the number of channels differ among the subscribers of group %q; figures of both would be mixed, so name another group", m.Group)
			}
			loops[m.Group] = sub
		}
		o := seen[m.Group]
		if o == nil {
			seen[m.Group] = m.Member
			continue
		}
		p := place{s, m.Table, m.Index}
		differs := ""
		switch {
		case o.Policy != m.Policy:
			differs = "policy"
		case o.Priority != m.Priority:
			differs = "priority"
		case o.Joins != m.Joins:
			differs = "joins"
		case o.Leaves != m.Leaves:
			differs = "leaves"
		case o.Processes != m.Processes && m.Table != "load":
			differs = "processes"
		default:
			continue
		}
		return p.errorf(differs, "differs within group %q; a group has one, so make it the same or name another group", m.Group)
	}
	return nil
}

// width is how many channels a subscriber reads.
func (s *Scenario) width(sub *Subscriber) (n int) {
	for _, name := range sub.Channels {
		n += s.channel(name).Count
	}
	return n
}

// validateJoins finds phases that change nothing.
func (s *Scenario) validateJoins(top place) error {
	changes := make([]bool, len(s.Phases))
	for _, m := range s.Members() {
		first, _ := s.Span(m.Member)
		changes[first] = true
	}
	for i, c := range changes {
		if !c {
			return top.errorf("phases", "nothing joins at %q; remove it, or give a group joins = %q", s.Phases[i], s.Phases[i])
		}
	}
	return nil
}

// validatePrivate finds private words that more than one process would use.
func (s *Scenario) validatePrivate() error {
	owner := map[string]string{}
	for _, m := range s.Members() {
		var names []string
		key := "channels"
		switch m.Table {
		case "publisher":
			names, key = []string{s.Publishers[m.Index].Channel}, "channel"
		case "subscriber":
			names = s.Subscribers[m.Index].Channels
		}
		for _, name := range names {
			if !s.channel(name).Private() {
				continue
			}
			p := place{s, m.Table, m.Index}
			if m.Processes {
				return p.errorf("processes", "%q has futex = \"private\", which works within one process only; make it \"shared\"", name)
			}
			if o := owner[name]; o != "" && o != m.Group {
				return p.errorf(key, "%q has futex = \"private\" and is used by groups %q and %q, which are processes of their own; make it \"shared\"", name, o, m.Group)
			}
			owner[name] = m.Group
		}
	}
	return nil
}
