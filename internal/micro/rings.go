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

// virtualSets is how many sets of words a cycle's requests have in virtual time, in turn. Which words share
// a bucket hangs on where the kernel put the process's mm, by chance other in two boots: their mean is less so.
const virtualSets = 16

// rings are workloads of requests on one ring, the same ones each cycle.
type rings struct {
	*scenarios.Point
	mem   []byte
	words []*atomic.Uint32
	ring  *uring.Ring
	sets  [][]uring.SQE // the requests of a cycle, on words of each set's own; their ids are their places
	completions
	cycles int
	ops    int64 // a round
	wait   uint32
	fails  bool           // all its waits fail
	more   []func() error // release what else the workload has
}

// newRings makes the ring and the requests of a cycle: fill adds them, for so many words, a cache line apart.
// A round is so many cycles, each of so many operations.
func newRings(m place, cycles, ops, words int, fill func(w *rings, words []*atomic.Uint32) error) (w *rings, err error) {
	sets := 1
	if m.virtual {
		sets = virtualSets
	}
	w = &rings{Point: m.Point, cycles: cycles, ops: int64(cycles) * int64(ops)}
	if w.mem, err = m.mapWords(lineSize * words * sets); err != nil {
		return nil, err
	}
	for i := range words * sets {
		w.words = append(w.words, linux.Uint32At(w.mem, lineSize*i))
	}
	for set := range sets {
		w.sets, w.want = append(w.sets, nil), nil // each set's requests complete as the others'
		if err := fill(w, w.words[set*words:][:words]); err != nil {
			return nil, err
		}
	}
	w.seen, w.wait = make([]uint32, len(w.want)), uint32(len(w.want))
	var flags uring.SetupFlags
	for _, name := range m.RingFlags {
		flag, ok := uring.ParseSetupFlag(name)
		if !ok {
			return nil, fmt.Errorf("no ring flag %q", name)
		}
		flags |= flag
	}
	w.ring, err = uring.Setup(m.Entries, 2*m.Entries, flags)
	return w, err
}

// add adds a request to the set, and what it completes with.
func (w *rings) add(e uring.SQE, want int32) {
	set := &w.sets[len(w.sets)-1]
	e.UserData = uint64(len(*set))
	*set, w.want = append(*set, e), append(w.want, want)
}

func (w *rings) arms() (on, fail bool)       { return true, w.fails }
func (w *rings) figures() []string           { return nil }
func (w *rings) latencies() []result.Latency { return nil }

func (w *rings) round(p problems, calls int) (measured, error) {
	cycles := atMost(w.cycles, calls)
	ops := w.ops / int64(w.cycles) * int64(cycles)
	start := linux.Now()
	for set := 0; cycles > 0; cycles-- {
		w.ring.PushAll(w.sets[set])
		if set++; set == len(w.sets) {
			set = 0
		}
		if err := w.take(p); err != nil {
			return measured{}, err
		}
	}
	took := linux.Now() - start
	w.after(p)
	return measured{Value: float64(took) / float64(ops), Operations: ops}, nil
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
	w.begin()
	for c, ok := w.ring.Next(); ok; c, ok = w.ring.Next() {
		w.completed(c, p)
	}
	return w.end(p)
}

// completions holds a cycle's completions against its requests.
type completions struct {
	want  []int32  // what each request completes with
	seen  []uint32 // the cycle in which each last completed
	cycle uint32
	left  int
}

// errMissing is about a cycle whose requests did not all complete.
var errMissing = errors.New("requests are missing; what came after would say nothing")

func (w *completions) begin() {
	w.cycle++
	w.left = len(w.want)
}

func (w *completions) completed(c uring.CQE, p problems) {
	if id := c.UserData; id < uint64(len(w.want)) && c.Res == w.want[id] && c.Flags == 0 && w.seen[id] != w.cycle {
		w.seen[id] = w.cycle
		w.left--
		return
	}
	w.wrong(c, p)
}

// wrong says what is wrong with a completion.
func (w *completions) wrong(c uring.CQE, p problems) {
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

func (w *completions) end(p problems) error {
	if w.left == 0 {
		return nil
	}
	p.add(checkCompletions, "%d of %d requests did not complete as they must", w.left, len(w.want))
	return errMissing
}

// after looks at what must not be left after a round.
func (w *rings) after(p problems) {
	w.lost(w.ring.Overflow(), p)
	if n := w.ring.Outstanding(); n != 0 {
		p.add(checkOutstanding, "%d requests are left with the kernel", n)
	}
	for i, at := range w.words {
		if n, e := linux.FutexWake(at, linux.WakeAll, linux.MatchAny, scope(w.Point)); e != 0 {
			p.add(checkResults, "a wake of word %d returned %d", i, e)
		} else if n != 0 {
			p.add(checkLeftover, "%d waiters are left on word %d", n, i)
		}
	}
}

func (w *completions) lost(overflow uint32, p problems) {
	if overflow != 0 {
		p.add(checkOverflow, "the kernel lost %d completions", overflow)
	}
}

func (w *rings) release() error {
	_, _, err := w.ring.Close()
	for _, release := range w.more {
		err = errors.Join(err, release())
	}
	return errors.Join(err, linux.Unmap(w.mem))
}
