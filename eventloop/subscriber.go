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
	flags   uring.FutexFlags // of the word
	armed   uint32
	expects bool // a wake was read: the next message is the one that it is for
	In
}

// unit is what one arm covers: one input, or all of them with a vector.
type unit struct {
	inputs []*input
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
	ready        []*unit // to be handled and armed
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
	var inputs []*input
	for i, in := range c.Ins {
		to := &s.inputs[i]
		to.reader, to.word, to.flags, to.In = in.Channel.Reader(), in.Channel.Word(), uring.WordFlags(in.Scope), in
		channels, inputs = append(channels, in.Channel), append(inputs, to)
	}
	s.message = channel.NewIncoming(channels...)
	if c.Wait.OneArm {
		s.units = []unit{{inputs: inputs}}
	} else {
		for i := range inputs {
			s.units = append(s.units, unit{inputs: inputs[i : i+1], id: uint64(i)})
		}
	}
	s.ready = make([]*unit, 0, 2*len(s.units)) // armed, and woken again at once
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
		s.ready = append(s.ready, u)
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
			s.loadReady()
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

// work spins until Work has passed since start.
func (s *Subscriber) work(start int64) {
	// A backlog may take long: the controller is to see that it gets shorter.
	s.progress.Count.Store(s.consumed)
	for linux.Now()-start < s.Work && s.windows.Current.Load() != Stop {
	}
}

// load accounts for the wake of a unit, if one was read, handles what is there until the words
// stand still, or until Stop, and leaves in armed what to arm with. The first message starts to be
// handled at start, or at 0, now. It is the way from a wake to the next arm: what is not handling waits
// for flush. Functions on it that are nosplit do not look whether the runtime wants the thread, which each
// 10 ms would cost them a vain way through its scheduler.
//
//go:nosplit
func (s *Subscriber) load(u *unit, start int64) {
	woken := u.fired
	if woken {
		u.fired, u.woke = false, s.reaped
		s.now.Wakes++
		woken = s.Wait.Rearmed // else the word was never armed
	}
	for still := false; !still; {
		for _, in := range u.inputs {
			word := in.word.Load()
			if woken && word != in.armed {
				in.expects, woken = true, false
			}
			in.armed = word
			for behind := in.reader.Pending(word); behind > 0; start = 0 {
				if start == 0 {
					start = linux.Now()
				}
				if s.began != 0 {
					s.accountMessage()
				}
				outcome, n := in.reader.Read(behind, s.message)
				behind -= n
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
				if behind > 0 && s.windows.Current.Load() == Stop {
					break
				}
			}
			start = 0
		}
		if woken {
			s.now.SpuriousWakes++
			woken = false
		}
		u.loaded = linux.Now()
		still = true
		for _, in := range u.inputs {
			if word := in.word.Load(); word != in.armed {
				in.armed, still = word, s.windows.Current.Load() == Stop
			}
		}
	}
}

// arms counts the arm that follows load.
func (s *Subscriber) arms(u *unit) {
	if s.sleeps {
		u.note()
	}
	s.now.Arms++
	s.intervalArms++
}

// note shows the minder what the unit sleeps on, before it can sleep.
func (u *unit) note() {
	for _, in := range u.inputs {
		in.entry.Store((in.entry.Load()>>32+1)<<32 | uint64(in.armed))
	}
}

// loadReady handles what there is for every ready unit.
func (s *Subscriber) loadReady() {
	start := s.begun()
	for _, u := range s.ready {
		s.load(u, start)
		start = 0
	}
}

// begun returns when the pass began, for its first message, and 0 for every other.
func (s *Subscriber) begun() int64 {
	start := s.start
	s.start = 0
	return start
}
