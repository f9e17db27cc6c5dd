package micro

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/internal/uring"
	"aossim/scenarios"
)

// lineSize keeps words a cache line apart, in bytes.
const lineSize = 64

// rings are the workloads scalar, waitv and eagain: requests on one ring, a cycle at a
// time.
type rings struct {
	*scenarios.Point
	fault    fault
	mem      []byte
	words    []*atomic.Uint32
	vectors  []*uring.Vector
	ring     *uring.Ring
	requests []uring.SQE // of a cycle; their ids are their places
	want     []int32     // what each completes with
	seen     []uint32    // the cycle in which each last completed
	cycle    uint32
	cycles   int
	ops      int64 // a round
	wait     uint32
}

func newRings(p *scenarios.Point, f fault) (w *rings, err error) {
	w = &rings{Point: p, fault: f}
	n := map[string]int{"scalar": p.Words, "waitv": p.Vectors * p.Width, "eagain": 1}[p.Workload]
	if w.mem, err = mapWords(p, lineSize*n); err != nil {
		return nil, err
	}
	for i := range n {
		w.words = append(w.words, linux.Uint32At(w.mem, lineSize*i))
	}
	var flags uring.SetupFlags
	for _, name := range p.RingFlags {
		flag, ok := uring.ParseSetupFlag(name)
		if !ok {
			return nil, fmt.Errorf("no ring flag %q", name)
		}
		flags |= flag
	}
	if w.ring, err = uring.Setup(p.Entries, 2*p.Entries, flags); err != nil {
		return nil, err
	}
	word := uring.WordFlags(p.Private())
	add := func(e uring.SQE, want int32) {
		e.UserData = uint64(len(w.requests))
		w.requests, w.want = append(w.requests, e), append(w.want, want)
	}
	switch p.Workload {
	case "scalar":
		for _, at := range w.words {
			add(uring.FutexWait(linux.WordAddress(at), 0, linux.MatchAny, word, 0), 0)
		}
		for _, at := range w.words {
			add(uring.FutexWake(linux.WordAddress(at), 1, word, 0), 1)
		}
		w.cycles, w.ops = p.Cycles, int64(p.Cycles)*int64(p.Words)
	case "waitv":
		for v := range p.Vectors {
			vector, err := uring.NewVector(p.Width)
			if err != nil {
				return nil, err
			}
			w.vectors = append(w.vectors, vector)
			for i := range p.Width {
				vector.Set(i, linux.WordAddress(w.words[v*p.Width+i]), 0, word)
			}
			add(uring.FutexWaitv(vector.Addr(), p.Width, 0), int32(p.Element))
		}
		for v := range p.Vectors {
			add(uring.FutexWake(linux.WordAddress(w.words[v*p.Width+p.Element]), 1, word, 0), 1)
		}
		w.cycles, w.ops = p.Cycles, int64(p.Cycles)*int64(p.Vectors)
	case "eagain":
		for range p.Batch {
			add(uring.FutexWait(linux.WordAddress(w.words[0]), 1, linux.MatchAny, word, 0), -int32(linux.EAGAIN))
		}
		w.cycles, w.ops = max(1, p.Waits/p.Batch), int64(max(1, p.Waits/p.Batch)*p.Batch)
	}
	w.seen = make([]uint32, len(w.requests))
	w.wait = uint32(len(w.requests))
	return w, nil
}

func (w *rings) unit() string {
	if w.Workload == "eagain" {
		return "ns/wait"
	}
	return "ns/pair"
}

func (w *rings) figures() []string           { return nil }
func (w *rings) latencies() []result.Latency { return nil }

func (w *rings) round(p problems) (measured, error) {
	start := linux.Now()
	for range w.cycles {
		w.ring.PushAll(w.requests)
		if err := w.take(p); err != nil {
			return measured{}, err
		}
	}
	took := linux.Now() - start
	w.after(p)
	return measured{Value: float64(took) / float64(w.ops), Operations: w.ops}, nil
}

// take submits a cycle's requests and takes their completions, one each.
func (w *rings) take(p problems) error {
	e := w.ring.Enter(w.wait, uring.GetEvents)
	for e == linux.EINTR {
		e = w.ring.Enter(w.wait, uring.GetEvents)
	}
	if e != 0 {
		return os.NewSyscallError("io_uring_enter", e)
	}
	if w.ring.Queued() != 0 {
		return uring.ErrPartial
	}
	w.cycle++
	cycle, left, faulty := w.cycle, len(w.requests), w.fault != ""
	want, seen := w.want, w.seen[:len(w.want)]
	for c, ok := w.ring.Next(); ok; c, ok = w.ring.Next() {
		if faulty && !w.meddle(&c, &left) {
			continue
		}
		if id := c.UserData; id < uint64(len(want)) && c.Res == want[id] && c.Flags == 0 && seen[id] != cycle {
			seen[id] = cycle
			left--
			continue
		}
		w.wrong(c, p)
	}
	if left != 0 {
		p.add(checkCompletions, "%d of %d requests did not complete as they must", left, len(w.requests))
		return errors.New("requests are missing; what came after would say nothing")
	}
	return nil
}

// wrong says what is wrong with a completion.
func (w *rings) wrong(c uring.CQE, p problems) {
	switch id := c.UserData; {
	case id >= uint64(len(w.want)):
		p.add(checkCompletions, "a completion of no request: %d", id)
	case c.Res != w.want[id]:
		p.add(checkResults, "request %d completed with %d instead of %d", id, c.Res, w.want[id])
	case c.Flags != 0:
		p.add(checkCompletions, "request %d completed with flags %#x", id, uint32(c.Flags))
	default:
		p.add(checkCompletions, "request %d completed twice", id)
	}
}

// meddle does to the first completion of a cycle what a fault is about; false drops it.
func (w *rings) meddle(c *uring.CQE, left *int) bool {
	if c.UserData != 0 {
		return true
	}
	switch w.fault {
	case faultResult:
		c.Res++
	case faultMissing:
		return false
	case faultTwice: // the first time has been
		w.seen[c.UserData] = w.cycle
		*left--
	case faultFlag:
		c.Flags = uring.CQEMore
	}
	return true
}

// after looks at what must not be left after a round.
func (w *rings) after(p problems) {
	if n := w.ring.Overflow(); n != 0 || w.fault == faultOverflow {
		p.add(checkOverflow, "the kernel lost %d completions", n)
	}
	if w.fault == faultExtra || w.fault == faultWaiter {
		// On a word that no wake of the workload reaches, or that one does.
		at := w.words[len(w.words)-1]
		w.ring.Push(uring.FutexWait(linux.WordAddress(at), 0, linux.MatchAny, uring.WordFlags(w.Private()), 0))
		w.ring.Enter(0, 0)
	}
	if n := w.ring.Outstanding(); n != 0 {
		p.add(checkOutstanding, "%d requests are left with the kernel", n)
	}
	for i, at := range w.words {
		if n, _ := linux.FutexWake(at, linux.WakeAll, linux.MatchAny, w.Private()); n != 0 {
			p.add(checkLeftover, "%d waiters are left on word %d", n, i)
		}
	}
}

func (w *rings) close() error {
	_, _, err := w.ring.Close()
	for _, v := range w.vectors {
		if e := v.Close(); err == nil {
			err = e
		}
	}
	if e := linux.Unmap(w.mem); err == nil {
		err = e
	}
	return err
}
