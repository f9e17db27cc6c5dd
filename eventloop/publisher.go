package eventloop

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"sync/atomic"

	"aossim/channel"
	"aossim/internal/linux"
	"aossim/internal/uring"
)

// Arrival is how a publisher's scheduled times follow each other; it returns the time (ns)
// from one to the next.
type Arrival func(p *Publisher) float64

// Periodic has equal gaps.
func Periodic(p *Publisher) float64 { return p.period }

// Poisson has exponentially distributed gaps.
func Poisson(p *Publisher) float64 { return p.random.ExpFloat64() * p.period }

// Bursts has Burst messages at once, then a gap.
func Bursts(p *Publisher) float64 {
	if p.left--; p.left > 0 {
		return 0
	}
	p.left = p.Burst
	return float64(p.Burst) * p.period
}

// Trace has the gaps of PublisherConfig.Gaps, the first of them from the start of the window. The last
// one is followed by none before the end of any window, or by Again and the second one.
func Trace(p *Publisher) float64 {
	if p.at == len(p.Gaps) {
		if p.Again == 0 {
			return never
		}
		p.at = p.second
		return float64(p.Again)
	}
	gap, n := binary.Uvarint(p.Gaps[p.at:])
	p.at += n
	if p.second == 0 {
		p.second = n
	}
	return float64(gap)
}

// never is later than the end of any window (ns), and no overflow when it is added to one.
const never = float64(1 << 62)

// Out is one channel that a publisher sends on, and who has to be woken.
type Out struct {
	Channel   *channel.Publisher
	Word      *atomic.Uint32
	Scope     linux.Scope
	Futex     bool       // there are subscribers that wait on the word
	Eventfds  []*os.File // subscribers that poll an eventfd instead
	eventfds  []int
	wordFlags uring.FutexFlags
}

// PublisherConfig describes a publisher. Rate is in messages per second over all
// its Outs, which take turns; Offset (ns) shifts its first deadline; Active says for
// each window whether it publishes. Gaps (uvarints of encoding/binary) and Again are for
// Trace, in ns.
type PublisherConfig struct {
	Outs    []Out
	Rate    float64
	Arrival Arrival
	Burst   int
	Gaps    []byte
	Again   int64
	Seed    uint64
	Offset  int64
	URing   bool // wake by IORING_OP_FUTEX_WAKE instead of futex(2)
	Active  []bool
}

// Publisher sends messages at scheduled times.
type Publisher struct {
	PublisherConfig
	windows  *Windows
	progress Progress
	stats    []*Stats
	ring     *uring.Ring
	random   *rand.Rand
	period   float64
	sequence uint64
	left     int // messages of the burst under way
	at       int // in Gaps, of the next one
	second   int // in Gaps, where the second one lies
}

// NewPublisher makes a publisher for the calling thread; stats has one element for
// each window, from window 1 on, and may repeat one.
func NewPublisher(c PublisherConfig, ws *Windows, p Progress, stats []*Stats) (*Publisher, error) {
	pub := &Publisher{
		PublisherConfig: c, windows: ws, progress: p, stats: stats,
		random: rand.New(rand.NewPCG(c.Seed, 0)), period: 1e9 / c.Rate,
	}
	for i := range c.Outs {
		o := &c.Outs[i]
		o.wordFlags = uring.WordFlags(o.Scope)
		for _, f := range o.Eventfds {
			o.eventfds = append(o.eventfds, int(f.Fd()))
		}
	}
	if c.URing {
		var err error
		if pub.ring, err = uring.Setup(8, 8, 0); err != nil {
			return nil, err
		}
	}
	return pub, nil
}

// Close releases what the publisher holds.
func (p *Publisher) Close() error {
	for i := range p.Outs {
		p.Outs[i].Channel.Release()
	}
	if p.ring == nil {
		return nil
	}
	_, _, err := p.ring.Close()
	return err
}

// Run publishes in every window in which the publisher is active, until Stop.
func (p *Publisher) Run() error {
	linux.Pin()
	defer linux.Unpin()
	for w := p.windows.Next(0); w != Stop; w = p.windows.Next(w) {
		if p.Active[w-1] {
			s := p.stats[w-1]
			before := linux.ThreadUsage()
			if err := p.window(w, s); err != nil {
				return err
			}
			account(&s.Counts, before)
		}
		p.progress.Done.Store(uint64(w))
	}
	return nil
}

func (p *Publisher) window(w uint32, s *Stats) error {
	p.left, p.at = p.Burst, 0
	publishing := p.progress.Publishing.Load()
	due := float64(int64(p.windows.Start.Load()) + p.Offset)
	if p.Gaps != nil {
		due += p.Arrival(p)
	}
	for p.windows.sleepUntil(int64(due), w, &s.Counts) {
		out := &p.Outs[p.sequence%uint64(len(p.Outs))]
		payload := out.Channel.Payload()
		for i := 0; i+8 <= len(payload); i += 8 {
			binary.NativeEndian.PutUint64(payload[i:], p.sequence+uint64(i))
		}
		publishing++
		p.progress.Publishing.Store(publishing) // odd: see Progress
		now := linux.Now()
		moved := out.Channel.Publish(channel.Message{Published: now, Scheduled: int64(due), Sequence: p.sequence})
		if moved {
			if err := p.wake(out, s); err != nil {
				return err
			}
		}
		publishing++
		p.progress.Publishing.Store(publishing)
		out.Channel.Prefetch()
		p.sequence++
		s.Published++
		p.progress.Count.Store(p.sequence)
		// Messages that are due at once are none of them late.
		gap := p.Arrival(p)
		if due += gap; gap > 0 && float64(now) >= due {
			s.MissedDeadlines++
		}
	}
	// What was due and could not be published before the end.
	end := min(float64(p.windows.End.Load()), float64(linux.Now()))
	for ; due < end; due += p.Arrival(p) {
		s.MissedDeadlines++
	}
	return nil
}

func (p *Publisher) wake(o *Out, s *Stats) error {
	for _, fd := range o.eventfds {
		if e := linux.SignalEventfd(fd); e != 0 {
			return os.NewSyscallError("write to an eventfd", e)
		}
	}
	if !o.Futex {
		return nil
	}
	if p.ring == nil {
		if _, e := linux.FutexWake(o.Word, linux.WakeAll, linux.MatchAny, o.Scope); e != 0 {
			return os.NewSyscallError("futex(FUTEX_WAKE)", e)
		}
		return nil
	}
	p.ring.Push(uring.FutexWake(linux.WordAddress(o.Word), linux.WakeAll, o.wordFlags, 0))
	for {
		switch e := p.ring.Enter(1, uring.GetEvents); e {
		case 0:
		case linux.EINTR:
			s.EINTR++
		default:
			return os.NewSyscallError("io_uring_enter", e)
		}
		if c, ok := p.ring.Next(); ok {
			if c.Res < 0 {
				return os.NewSyscallError("IORING_OP_FUTEX_WAKE", c.Errno())
			}
			return nil
		}
	}
}
