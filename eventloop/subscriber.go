package eventloop

import (
	"fmt"
	"os"
	"sync/atomic"

	"aossim/channel"
	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/internal/uring"
	"aossim/internal/wait"
)

// In is one channel that a subscriber reads. Eventfd is for kinds of wait that poll one.
// Publishing are the words of Progress of all who publish there.
type In struct {
	Channel    *channel.Channel
	Scope      linux.Scope // of the word
	Eventfd    *os.File
	Publishing []*atomic.Uint64
}

// SubscriberConfig describes a subscriber. Combined arms and waits in one
// io_uring_enter. Mask is the bitset of its waits; bits that no other waiter on its
// words has let the process's minder reach it alone. Work (ns) is spun for each
// message. A wake is late whose CQE is read more than Late ns after the message was
// published that it is for. Active says for each window whether it takes part.
type SubscriberConfig struct {
	Wait     wait.Kind
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
	In
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
	waits  waits // while the loop runs
	sleeps bool  // the call that arms also waits

	inputs   []input
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
	s.now, s.sleeps = s.idle, c.Combined && c.Wait.Rearmed || c.Wait.ArmSleeps
	s.inputs = make([]input, len(c.Ins))
	var channels []*channel.Channel
	for i, in := range c.Ins {
		to := &s.inputs[i]
		to.reader, to.word, to.In = in.Channel.Reader(), in.Channel.Word(), in
		channels = append(channels, in.Channel)
	}
	s.message = channel.NewIncoming(channels...)
	if c.Wait.OneArm {
		s.units = []unit{{inputs: s.inputs}}
	} else {
		for i := range s.inputs {
			s.units = append(s.units, unit{inputs: s.inputs[i : i+1], id: uint64(i)})
		}
	}
	s.ready = make([]uint64, 0, 2*len(s.units)) // armed, and woken again at once
	return s
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

// waits is a kind of wait as the common loop has it, on the loop's thread and pinned to it.
type waits interface {
	// arm handles what is there and arms every ready unit. It leaves ready those that failed
	// and those that have been woken since; after (ns) is when the arming call returned.
	arm() (failed bool, after int64, err error)
	// await blocks until a unit is ready.
	await() error
	// end cancels what is armed and releases everything; it returns how many arms were
	// cancelled, and how many were woken without having been seen.
	end() (cancelled, woken int, err error)
}

// kinds are the ways to make one, by the name of wait.Kind.
var kinds = map[string]func(s *Subscriber) (waits, error){}

// loop is the one that all kinds share: wake, handle, arm.
func (s *Subscriber) loop() (err error) {
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
	open, ok := kinds[s.Wait.Name]
	if !ok {
		return fmt.Errorf("no kind of wait %q", s.Wait.Name)
	}
	if s.waits, err = open(s); err != nil {
		return err
	}
	err = s.passes()
	cancelled, woken, e := s.waits.end()
	if s.Wait.Rearmed {
		s.Cancelled += int64(cancelled)
		s.idle.Wakes += int64(woken)
	}
	if err == nil {
		err = e
	}
	return err
}

// passes goes round until the subscriber has no part in the current window.
func (s *Subscriber) passes() error {
	linux.Pin()
	defer linux.Unpin()
	for s.stays() {
		if s.sleeps {
			// The call that arms also waits: what is to be recorded must be so before.
			s.drainReady()
			s.settle(linux.Now())
		}
		failed, after, err := s.waits.arm()
		if err != nil {
			return err
		}
		if failed {
			continue
		}
		if !s.sleeps {
			s.settle(after)
		}
		if err := s.waits.await(); err != nil {
			return err
		}
	}
	return nil
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
	if s.sleeps {
		u.note()
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
		woken = s.Wait.Rearmed // else the word was never armed
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
