package eventloop

import (
	"os"
	"slices"
	"sync/atomic"

	"aossim/channel"
	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/internal/uring"
)

// Wait is how a subscriber waits for messages.
type Wait int

// One IORING_OP_FUTEX_WAIT a channel; one IORING_OP_FUTEX_WAITV for all; one
// futex(2) call, which arms and waits in one; a multishot poll of an eventfd a
// channel, which is never armed again.
const (
	URing Wait = iota
	URingWaitv
	Futex
	Eventfd
)

// In is one channel that a subscriber reads. Eventfd is for Wait Eventfd only.
type In struct {
	Channel *channel.Channel
	Private bool // the word is used by this process only
	Eventfd *os.File
}

// SubscriberConfig describes a subscriber. Combined arms and waits in one
// io_uring_enter. Mask is the bitset of its waits; bits that no other waiter on its
// words has let the process's minder reach it alone. Work (ns) is spun for each
// message. A wake is late whose CQE is read more than Late ns after the message was
// published that it is for. Active says for each window whether it takes part.
type SubscriberConfig struct {
	Wait     Wait
	Combined bool
	Mask     uint32
	Work     int64
	Late     int64
	Ins      []In
	Flags    uring.SetupFlags
	Active   []bool
	// Break is for each window the re-arm or delivery latency (ns, 0 for none) above which
	// Tracing is stopped, once, and Progress.Broke says so; nil for never.
	Break   []int64
	Tracing *linux.Tracing
}

// input is a channel as the loop has it, all in one place: see channel.Reader.
type input struct {
	reader channel.Reader
	word   *atomic.Uint32
	// entry is the last arm that may be slept on: its number << 32 | its value. The
	// minder reads it.
	entry   atomic.Uint64
	armed   uint32
	expects bool // a wake was read: the next message is the one that it is for
	Private bool
	Eventfd *os.File
}

// unit is what one arm covers: one input, or all of them with a vector.
type unit struct {
	inputs []input
	id     uint64
	woke   int64 // ns: when the wake's CQE was read that the next arm follows; 0 is none
	loaded int64 // ns: when the word was loaded for the arm under way
	failed bool  // the arm just submitted came back with -EAGAIN
	fired  bool  // a wake was read that is not accounted for yet
}

// sample is a value (ns) that is recorded once everything is armed again.
type sample struct {
	h *result.Histogram
	v int64
}

// interval is the stretch that one value of the -EAGAIN rate is over (ns).
const interval = 100_000_000

// Subscriber is one event loop.
type Subscriber struct {
	// What is touched on the way from a wake to the next arm lies together.
	windows      *Windows
	window       uint32
	now          *Stats // the current window's
	reaped       int64  // ns: when the last wake was read
	start        int64  // ns: reaped, if handling begins at once; else 0
	ring         *uring.Ring
	ready        []uint64 // ids of units to be handled and armed
	units        []unit
	message      *channel.Incoming
	began        int64 // ns: when the message began to be handled; 0 once it is accounted for
	announced    int64 // ns: when the wake was read that was for it; 0 is none
	consumed     uint64
	intervalArms int64
	taken        int // samples that wait to be recorded
	samples      []sample
	SubscriberConfig

	inputs   []input
	vector   *uring.Vector
	progress Progress
	stats    []*Stats
	idle     *Stats // takes what happens outside every window
	limit    int64  // ns: see Break, of this window
	before   linux.Usage
	running  atomic.Bool // waits are armed, or about to be
	thread   atomic.Int64

	begins, ends, intervalEnd int64 // ns: of the window, and of the interval
	intervalEAGAIN            int64

	// Cancelled is how many arms were outstanding when the loop left.
	Cancelled int64
}

// NewSubscriber makes a subscriber for the calling thread; stats has one element
// for each window, from window 1 on, and may repeat one.
func NewSubscriber(c SubscriberConfig, ws *Windows, p Progress, stats []*Stats) *Subscriber {
	s := &Subscriber{
		SubscriberConfig: c, windows: ws, progress: p, stats: stats,
		samples: make([]sample, 1024), idle: NewStats(),
	}
	for i := range s.samples {
		s.samples[i].v = -1 // touch its pages
	}
	s.now = s.idle
	s.inputs = make([]input, len(c.Ins))
	var channels []*channel.Channel
	for i, in := range c.Ins {
		to := &s.inputs[i]
		to.reader, to.word, to.Private, to.Eventfd = in.Channel.Reader(), in.Channel.Word(), in.Private, in.Eventfd
		channels = append(channels, in.Channel)
	}
	s.message = channel.NewIncoming(channels...)
	if c.Wait == URingWaitv {
		s.units = []unit{{inputs: s.inputs}}
	} else {
		for i := range s.inputs {
			s.units = append(s.units, unit{inputs: s.inputs[i : i+1], id: uint64(i)})
		}
	}
	s.ready = make([]uint64, 0, 2*len(s.units)) // armed, and woken again at once
	return s
}

// Total returns the counts of the thread's life, windows or not: here wakes, failed
// arms and those cancelled at the end add up to the arms. For when Run has returned.
func (s *Subscriber) Total() result.Counts {
	total := s.idle.Counts
	for i, of := range s.stats {
		if !slices.Contains(s.stats[:i], of) {
			total.Add(of.Counts)
		}
	}
	if s.Wait == Eventfd {
		total.Wakes = 0 // no arm ends with one
	}
	return total
}

// active says whether the subscriber takes part in window w.
func (s *Subscriber) active(w uint32) bool { return w != 0 && w != Stop && s.Active[w-1] }

// Run takes part in every window in which the subscriber is active, until Stop.
func (s *Subscriber) Run() error {
	s.thread.Store(int64(linux.ThreadID()))
	for {
		w := s.windows.Current.Load()
		for ; w != Stop && !s.active(w); w = s.windows.Next(w) {
			s.progress.Done.Store(uint64(w))
		}
		if w == Stop {
			return nil
		}
		s.turn(w)
		s.running.Store(true)
		err := s.loop()
		s.running.Store(false)
		if err != nil {
			return err
		}
	}
}

func (s *Subscriber) loop() error {
	for i := range s.inputs {
		s.inputs[i].reader.Skip()
	}
	s.ready = s.ready[:0]
	for i := range s.units {
		u := &s.units[i]
		u.woke, u.fired, u.failed = 0, false, false
		s.ready = append(s.ready, u.id)
	}
	defer s.leave()
	if s.Wait == Futex {
		return s.futexLoop()
	}
	var err error
	if s.ring, err = uring.Setup(max(8, len(s.units)), max(16, 2*len(s.units)), s.Flags); err != nil {
		return err
	}
	if s.Wait == URingWaitv {
		if s.vector, err = uring.NewVector(len(s.inputs)); err != nil {
			s.ring.Close()
			return err
		}
	}
	if s.Wait == Eventfd {
		err = s.pollLoop()
	} else {
		err = s.ringLoop()
	}
	cancelled, completed, e := s.ring.Close()
	if s.Wait != Eventfd {
		s.Cancelled += int64(cancelled)
		s.idle.Wakes += int64(completed)
	}
	if err == nil {
		err = e
	}
	if s.vector != nil {
		if e := s.vector.Close(); err == nil {
			err = e
		}
		s.vector = nil
	}
	return err
}

// leave accounts for what the last pass left over.
func (s *Subscriber) leave() {
	s.flush()
	for i := range s.units {
		if s.units[i].fired { // no pass followed the wake
			s.idle.Wakes++
		}
	}
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
	s.Tracing.Stop(linux.AppendMark(room[:0], what, m.v, s.limit))
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

// drain handles every message that was published before the word held word, or
// what it can of them before Stop. start is the time, or 0 for that of the clock: the
// first message after a wake starts to be handled when the wake was read.
func (s *Subscriber) drain(in *input, word uint32, start int64) {
	for ; in.reader.Pending(word) > 0 && s.windows.Current.Load() != Stop; start = 0 {
		if start == 0 {
			start = linux.Now()
		}
		if s.began != 0 {
			s.accountMessage()
		}
		outcome, n := in.reader.Read(word, s.message)
		s.consumed += uint64(n)
		if outcome == channel.Overrun {
			s.now.Overrun += int64(n)
			continue
		}
		s.now.Handled++
		s.began = start
		if in.expects {
			in.expects, s.announced = false, s.reaped
		}
		if s.Work > 0 {
			s.work(start)
		}
	}
}

// work spins until Work has passed since start.
func (s *Subscriber) work(start int64) {
	// A backlog may take long: the controller is to see that it gets shorter.
	s.progress.Count.Store(s.consumed)
	for linux.Now()-start < s.Work && s.windows.Current.Load() != Stop {
	}
}

// load handles what is there until the words stand still, and leaves in armed
// what to arm with. It begins at start, or at 0, now.
func (s *Subscriber) load(u *unit, start int64) {
	for still := false; !still; start = 0 {
		s.drainUnit(u, start)
		u.loaded = linux.Now()
		still = true
		for i := range u.inputs {
			in := &u.inputs[i]
			in.armed = in.word.Load()
			still = still && in.reader.Pending(in.armed) == 0
		}
		still = still || s.windows.Current.Load() == Stop
	}
	if s.Combined || s.Wait == Futex {
		u.note() // the call that arms also sleeps
	}
	s.now.Arms++
	s.intervalArms++
}

// note shows the minder what the unit sleeps on, before it can sleep.
func (u *unit) note() {
	for i := range u.inputs {
		in := &u.inputs[i]
		in.entry.Store((in.entry.Load()>>32+1)<<32 | uint64(in.armed))
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

// push queues the request that arms u.
func (s *Subscriber) push(u *unit) {
	switch s.Wait {
	case URing:
		in := &u.inputs[0]
		s.ring.PushFutexWait(linux.WordAddress(in.word), in.armed, s.Mask, uring.WordFlags(in.Private), u.id)
	case URingWaitv:
		s.pushVector(u)
	case Eventfd:
		s.ring.Push(uring.PollMultishot(int(u.inputs[0].Eventfd.Fd()), u.id))
	}
}

func (s *Subscriber) pushVector(u *unit) {
	for i := range u.inputs {
		in := &u.inputs[i]
		s.vector.Set(i, linux.WordAddress(in.word), in.armed, uring.WordFlags(in.Private))
	}
	s.ring.Push(uring.FutexWaitv(s.vector.Addr(), len(u.inputs), u.id))
}

// stays turns to the current window and returns false where the subscriber has no part
// in it.
func (s *Subscriber) stays() bool {
	return s.windows.Current.Load() == s.window || s.turns()
}

func (s *Subscriber) turns() bool {
	w := s.windows.Current.Load()
	stays := s.active(w)
	if !stays {
		w = 0
	}
	s.turn(w)
	return stays
}

// ringLoop keeps a wait armed for every unit.
func (s *Subscriber) ringLoop() error {
	linux.Pin()
	defer linux.Unpin()
	wait, flags := uint32(0), uring.EnterFlags(0)
	if s.Combined {
		wait, flags = 1, uring.GetEvents
	}
	for s.stays() {
		if s.Combined {
			// The enter that arms also waits: what is to be recorded must be so before.
			s.drainReady()
			s.settle(linux.Now())
		}
		start := s.begun()
		for _, id := range s.ready {
			u := &s.units[id]
			s.load(u, start)
			s.push(u)
			start = 0
		}
		if s.Combined {
			s.progress.Count.Store(s.consumed) // load may have handled more
		}
		e := s.ring.Enter(wait, flags)
		after := linux.Now()
		if e != 0 {
			if err := s.entered(e); err != nil {
				return err
			}
		}
		if s.ring.Queued() != 0 {
			return uring.ErrPartial
		}
		armed := len(s.ready)
		if err := s.reap(after); err != nil {
			return err
		}
		// Those that failed stay ready, and those that were woken already have become it.
		ready := s.ready[:0]
		for _, id := range s.ready[:armed] {
			u := &s.units[id]
			switch {
			case u.failed:
				u.failed = false
				s.refused(u, after)
				ready = append(ready, id)
			case s.Combined:
				s.unobserved(u)
			default:
				u.note()
				s.later(s.now.ArmWindow, after-u.loaded)
				if u.woke != 0 {
					s.later(s.now.Rearm, after-u.woke)
				}
			}
		}
		if err := s.intact(); err != nil {
			return err
		}
		failed := len(ready)
		s.ready = s.ready[:failed+copy(s.ready[failed:], s.ready[armed:])]
		if failed > 0 {
			continue
		}
		if !s.Combined {
			s.settle(after)
		}
		if err := s.await(); err != nil {
			return err
		}
	}
	return nil
}

// pollLoop keeps a multishot poll of every eventfd.
func (s *Subscriber) pollLoop() error {
	linux.Pin()
	defer linux.Unpin()
	for _, id := range s.ready {
		s.push(&s.units[id])
	}
	for s.stays() {
		s.drainReady()
		s.settle(linux.Now())
		if err := s.intact(); err != nil {
			return err
		}
		s.ready = s.ready[:0]
		if err := s.await(); err != nil {
			return err
		}
	}
	return nil
}

// futexLoop waits by futex(2).
func (s *Subscriber) futexLoop() error {
	linux.Pin()
	defer linux.Unpin()
	u := &s.units[0]
	in := &u.inputs[0]
	for s.stays() {
		s.drainReady()
		s.settle(linux.Now())
		s.load(u, 0)
		s.progress.Count.Store(s.consumed) // load may have handled more
		e := linux.FutexWait(in.word, in.armed, s.Mask, in.Private)
		after := linux.Now()
		switch e {
		case 0:
			s.unobserved(u)
			u.fired, s.reaped, s.start = true, after, after
		case linux.EAGAIN:
			s.refused(u, after)
		case linux.EINTR:
			// The same wait is issued again: it is no arm of its own.
			s.now.EINTR++
			s.now.Arms--
			s.intervalArms--
		default:
			return os.NewSyscallError("futex(FUTEX_WAIT)", e)
		}
	}
	return nil
}

func (s *Subscriber) drainReady() {
	start := s.begun()
	for _, id := range s.ready {
		s.drainUnit(&s.units[id], start)
		start = 0
	}
}

// begun returns when the pass began, for its first message, and 0 for every other.
func (s *Subscriber) begun() int64 {
	start := s.start
	s.start = 0
	return start
}

// drainUnit accounts for the wake of a unit, if one was read, and handles its messages,
// from start on as drain has it.
func (s *Subscriber) drainUnit(u *unit, start int64) {
	woken := u.fired
	if woken {
		u.fired, u.woke = false, s.reaped
		s.now.Wakes++
		woken = s.Wait != Eventfd // with one, the word was never armed
	}
	for i := range u.inputs {
		in := &u.inputs[i]
		word := in.word.Load()
		if woken && word != in.armed {
			in.expects, woken = true, false
		}
		s.drain(in, word, start)
		start = 0
	}
	if woken {
		s.now.SpuriousWakes++
	}
}

// intact says whether every completion had its place in the ring.
func (s *Subscriber) intact() error {
	if s.ring.Overflow() != 0 {
		return uring.ErrOverflow
	}
	return nil
}

// entered judges an error of io_uring_enter.
func (s *Subscriber) entered(e linux.Errno) error {
	if e == linux.EINTR {
		s.now.EINTR++
		return nil
	}
	return os.NewSyscallError("io_uring_enter", e)
}

// await blocks until a unit is ready.
func (s *Subscriber) await() error {
	for len(s.ready) == 0 {
		e := s.ring.Enter(1, uring.GetEvents)
		now := linux.Now()
		if e != 0 {
			if err := s.entered(e); err != nil {
				return err
			}
		}
		if err := s.reap(now); err != nil {
			return err
		}
		s.start = s.reaped
	}
	return nil
}

// reap takes the completions, and adds the units of the wakes among them to those
// that are ready.
func (s *Subscriber) reap(now int64) error {
	for {
		c, ok := s.ring.Next()
		if !ok {
			return nil
		}
		u := &s.units[c.UserData]
		switch {
		case c.Res >= 0:
			if s.Wait == Eventfd && c.Flags&uring.CQEMore == 0 {
				s.push(u)
			}
			if u.fired {
				continue // an eventfd that was written to twice
			}
			if len(u.inputs) == 1 {
				u.inputs[0].reader.Prefetch()
			}
			u.fired, s.reaped = true, now
			s.ready = append(s.ready, u.id)
		case c.Errno() == linux.EAGAIN && s.Wait != Eventfd:
			u.failed = true
		default:
			return os.NewSyscallError("a wait's completion", c.Errno())
		}
	}
}
