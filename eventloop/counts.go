package eventloop

import (
	"slices"
	"strconv"

	"aossim/internal/linux"
	"aossim/internal/result"
)

// Stats are one actor's counts and distributions of one window.
type Stats struct {
	result.Counts
	result.Histograms
	OverTime result.Series
}

// NewStats returns empty stats.
func NewStats() *Stats { return &Stats{Histograms: result.NewHistograms()} }

// account adds the thread's use of the machine since before to c.
func account(c *result.Counts, before linux.Usage) {
	u := linux.ThreadUsage().Sub(before)
	c.MinorFaults += u.MinorFaults
	c.MajorFaults += u.MajorFaults
	c.VoluntarySwitches += u.VoluntarySwitches
	c.InvoluntarySwitches += u.InvoluntarySwitches
}

// interval is the stretch that one value of the -EAGAIN rate is over (ns).
const interval = 100_000_000

// Total returns the counts of the thread's life, windows or not: here wakes, failed
// arms and those cancelled at the end add up to the arms. For when Run has returned.
func (s *Subscriber) Total() result.Counts {
	total := s.idle.Counts
	for i, of := range s.stats {
		if !slices.Contains(s.stats[:i], of) {
			total.Add(of.Counts)
		}
	}
	if !s.Wait.Rearmed {
		total.Wakes = 0 // no arm ends with one
	}
	return total
}

// turn closes the accounts of the window that was and opens those of w; 0 is no
// window. No message is under way.
func (s *Subscriber) turn(w uint32) {
	s.flush()
	s.intervalEnds(s.intervalEnd)
	account(&s.now.Counts, s.before)
	s.window, s.now, s.limit = w, s.idle, 0
	if s.active(w) {
		s.now = s.stats[w-1]
		if s.Break != nil {
			s.limit = s.Break[w-1]
		}
	}
	s.before = linux.ThreadUsage()
	s.begins, s.ends = int64(s.windows.Start.Load()), int64(s.windows.End.Load())
	s.intervalEnd = s.begins + interval
}

// settle ends a pass, when everything is armed: it records what was measured on
// the way and tells the controller.
func (s *Subscriber) settle(now int64) {
	s.flush()
	if now >= s.intervalEnd {
		s.intervalEnds(s.intervalEnd)
		s.intervalEnd += (now-s.intervalEnd)/interval*interval + interval
	}
	s.progress.Count.Store(s.consumed)
	s.progress.Done.Store(uint64(s.window))
}

// intervalEnds accounts for the arms of an interval.
func (s *Subscriber) intervalEnds(at int64) {
	if s.intervalArms > 0 {
		s.now.EAGAINRate.Record(s.intervalEAGAIN * result.MillionArms / s.intervalArms)
		n, stretch := len(s.now.OverTime), 0
		if s.ends > s.begins {
			stretch = int((at - interval/2 - s.begins) * int64(n) / (s.ends - s.begins))
		}
		of := &s.now.OverTime[max(0, min(stretch, n-1))]
		of.Arms += s.intervalArms
		of.EAGAIN += s.intervalEAGAIN
	}
	s.intervalArms, s.intervalEAGAIN = 0, 0
}

// flush does what has waited until everything was armed: it accounts for the last
// message, and records what was measured.
func (s *Subscriber) flush() {
	if s.began != 0 {
		s.accountMessage()
	}
	for _, m := range s.samples[:s.taken] {
		m.h.Record(m.v)
		if s.limit > 0 && m.v > s.limit && s.progress.Broke.Load() == 0 {
			s.breaks(m)
		}
	}
	s.taken = 0
}

// breaks stops the trace at a latency that is above the limit.
func (s *Subscriber) breaks(m sample) {
	what := "re-arm"
	switch m.h {
	case s.now.Rearm:
	case s.now.Delivery:
		what = "delivery"
	default:
		return
	}
	var room [128]byte
	line := append(append(room[:0], "aossim: "...), what...)
	line = strconv.AppendInt(append(line, " took "...), m.v, 10)
	line = strconv.AppendInt(append(line, " ns, above "...), s.limit, 10)
	s.Tracing.Stop(append(line, " ns"...))
	s.progress.Broke.Store(uint64(m.v))
}

// later has a value recorded by flush, so that recording delays no arm.
func (s *Subscriber) later(h *result.Histogram, v int64) {
	if s.taken == len(s.samples) {
		s.flush()
	}
	s.samples[s.taken] = sample{h, v}
	s.taken++
}

// accountMessage accounts for the message that was handled last, and looks at its
// checksum. None of that is handling, so it waits until everything is armed, or until
// the next message takes the place.
func (s *Subscriber) accountMessage() {
	began, announced := s.began, s.announced
	s.began, s.announced = 0, 0
	m := s.message.Message()
	s.later(s.now.Delivery, began-m.Published)
	s.later(s.now.Response, began-m.Scheduled)
	if announced != 0 && announced-m.Published > s.Late {
		s.now.LateWakes++
	}
	if !s.message.Whole() {
		s.now.Corrupt++
	}
}

// refused accounts for a failed arm whose submission returned at after.
func (s *Subscriber) refused(u *unit, after int64) {
	var behind uint32
	for i := range u.inputs {
		behind += u.inputs[i].reader.Pending(u.inputs[i].word.Load())
	}
	s.now.EAGAIN++
	s.intervalEAGAIN++
	s.now.Behind.Record(behind)
	s.later(s.now.ArmWindowEAGAIN, after-u.loaded)
}

// unobserved counts an arm whose success only its wake shows, so that neither
// its window nor its latency has an end to measure.
func (s *Subscriber) unobserved(u *unit) {
	s.now.ArmWindow.Missed++
	if u.woke != 0 {
		s.now.Rearm.Missed++
	}
}
