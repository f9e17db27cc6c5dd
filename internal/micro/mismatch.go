package micro

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/result"
)

// mixed is the workload mismatch: a share of the waits mismatch, and the others are woken by
// a partner of each thread.
type mixed struct {
	*threads
	pairs []*mixedPair
}

// mixedPair is a worker and its partner.
type mixedPair struct {
	*worker
	request                 *atomic.Uint32 // the place of the word to be woken, plus 1; or leave
	partner                 chan error
	mismatchedOnes, matched *result.Histogram
	random                  *rand.Rand
}

const leave = ^uint32(0)

func init() {
	workloads["mismatch"] = func(m place) (workload, error) {
		w := &mixed{}
		var err error
		w.threads, err = newThreads(m, lineSize*(m.Words+m.Threads), 2, func(t *worker) {
			for i := range m.Words {
				t.words = append(t.words, linux.Uint32At(t.mem, lineSize*i))
			}
			p := &mixedPair{worker: t, request: linux.Uint32At(t.mem, lineSize*(m.Words+t.number)), partner: make(chan error, 1),
				random: rand.New(rand.NewPCG(1, uint64(t.number)))}
			p.reset()
			t.do = p.mixed
			w.pairs = append(w.pairs, p)
		})
		if err != nil {
			return nil, err
		}
		for _, p := range w.pairs {
			if err := m.goOn(2*p.number+1, p.wakes, p.partner); err != nil {
				return nil, err
			}
		}
		return w, nil
	}
}

func (p *mixedPair) reset() {
	p.mismatchedOnes, p.matched = result.NewHistogram(result.Highest), result.NewHistogram(result.Highest)
}

func (w *mixed) latencies() []result.Latency {
	mismatch, matched := result.NewHistogram(result.Highest), result.NewHistogram(result.Highest)
	for _, p := range w.pairs {
		mismatch.Merge(p.mismatchedOnes)
		matched.Merge(p.matched)
		p.reset()
	}
	return []result.Latency{{Name: "mismatched wait", Histogram: mismatch}, {Name: "matched wait, woken by its partner", Histogram: matched}}
}

// mixed waits on words at random, some for what they hold: those its partner wakes.
func (p *mixedPair) mixed(end int64) error {
	bit := linux.AllocateBitset(p.number)
	for now := linux.Now(); now < end; p.ops++ {
		at := p.random.IntN(len(p.words))
		word := p.words[at]
		if p.random.Float64() < float64(p.Mismatching) {
			if e := linux.FutexWait(word, mismatched, bit, scope(p.Point)); e != linux.EAGAIN {
				p.found.add(checkResults, "a wait that mismatches returned %d", e)
			}
			after := linux.Now()
			p.mismatchedOnes.Record(after - now)
			now = after
			continue
		}
		p.request.Store(uint32(at) + 1)
		linux.FutexWake(p.request, 1, linux.MatchAny, scope(p.Point))
		from := linux.Now()
		e := linux.FutexWait(word, 0, bit, scope(p.Point))
		for e == linux.EINTR {
			e = linux.FutexWait(word, 0, bit, scope(p.Point))
		}
		if e != 0 {
			p.found.add(checkResults, "a wait that matches returned %d", e)
		}
		now = linux.Now()
		p.matched.Record(now - from)
	}
	return nil
}

// wakes is a partner: it wakes the word that is asked for, as soon as its worker waits.
func (p *mixedPair) wakes() error {
	linux.Pin()
	defer linux.Unpin()
	bit := linux.AllocateBitset(p.number)
	for {
		at := p.request.Load()
		switch at {
		case 0:
			linux.FutexWait(p.request, 0, linux.MatchAny, scope(p.Point))
			continue
		case leave:
			return nil
		}
		// Before the wake: the worker asks again as soon as it is woken.
		p.request.Store(0)
		// No other waiter has this bit; until it waits, the wake finds nobody.
		for {
			n, e := linux.FutexWake(p.words[at-1], 1, bit, scope(p.Point))
			if n == 1 {
				break
			}
			if e != 0 {
				return os.NewSyscallError("futex(FUTEX_WAKE_BITSET)", e)
			}
			linux.Yield()
		}
	}
}

func (w *mixed) release() (err error) {
	for _, p := range w.pairs {
		p.request.Store(leave)
		linux.FutexWake(p.request, 1, linux.MatchAny, scope(p.Point))
		err = errors.Join(err, <-p.partner)
	}
	return errors.Join(err, w.threads.release())
}
