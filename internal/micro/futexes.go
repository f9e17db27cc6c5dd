package micro

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/scenarios"
)

// timeouts is the workload timeout: waits by futex(2) that nobody wakes.
type timeouts struct {
	*scenarios.Point
	fault fault
	mem   []byte
	word  *atomic.Uint32
}

func newTimeouts(p *scenarios.Point, f fault) (*timeouts, error) {
	mem, err := mapWords(p, os.Getpagesize())
	if err != nil {
		return nil, err
	}
	return &timeouts{p, f, mem, linux.Uint32At(mem, 0)}, nil
}

func (w *timeouts) unit() string { return "ns/wait" }
func (w *timeouts) figures() []string {
	return []string{"waits/s", "voluntary switches/wait", "involuntary switches/wait"}
}
func (w *timeouts) latencies() []result.Latency { return nil }

func (w *timeouts) round(p problems) (measured, error) {
	value := uint32(0)
	if w.fault == faultNoTimeout {
		value = 1
	}
	before, start := linux.ThreadUsage(), linux.Now()
	for range w.Waits {
		if e := linux.FutexWaitFor(w.word, value, int64(w.Timeout), w.Private()); e != linux.ETIMEDOUT {
			p.add(checkResults, "a wait that must time out returned %d", e)
		}
	}
	took, used := float64(linux.Now()-start), linux.ThreadUsage().Sub(before)
	n := float64(w.Waits)
	return measured{Value: took / n, Operations: int64(w.Waits), Figures: []float64{
		n / took * 1e9, float64(used.VoluntarySwitches) / n, float64(used.InvoluntarySwitches) / n,
	}}, nil
}

func (w *timeouts) close() error { return linux.Unmap(w.mem) }

// mismatched is a value that no word has.
const mismatched = 1234

// threads are the workloads hash and mismatch: several threads wait by futex(2). Threads
// stay from round to round; what begins and ends a round goes through channels.
type threads struct {
	*scenarios.Point
	fault   fault
	mem     []byte
	workers []*worker
}

// worker is one thread and, in mismatch, its partner.
type worker struct {
	*threads
	number   int
	words    []*atomic.Uint32
	request  *atomic.Uint32 // the place of the word to be woken, plus 1; or leave
	start    chan int64     // when to begin, ns; closed at the end
	done     chan error
	partner  chan error // nil in hash
	found    problems
	ops      int64
	matched  *result.Histogram
	other    *result.Histogram
	random   *rand.Rand
	duration int64
}

const leave = ^uint32(0)

// hashWord is how far apart words of the workload hash are, as in perf bench futex hash.
const hashWord = 4

func newThreads(p *scenarios.Point, cpus []int, sched linux.Sched, f fault) (*threads, error) {
	if p.Buckets.Given {
		if err := linux.SetFutexHash(p.Buckets.Slots); err != nil {
			return nil, fmt.Errorf("a private futex hash of %d buckets (prctl(PR_FUTEX_HASH)): %w; it takes Linux 6.16 and CONFIG_FUTEX_PRIVATE_HASH, leave buckets out", p.Buckets.Slots, err)
		}
	}
	w := &threads{Point: p, fault: f}
	hash := p.Workload == "hash"
	apart, n := lineSize, p.Words
	if hash {
		apart, n = hashWord, p.Words*p.Threads
	}
	var err error
	if w.mem, err = mapWords(p, apart*n+lineSize*(p.Threads+1)); err != nil {
		return nil, err
	}
	requests := (apart*n + lineSize - 1) / lineSize * lineSize
	ready := make(chan error)
	members := 1
	if !hash {
		members = 2
	}
	for i := range p.Threads {
		t := &worker{threads: w, number: i, request: linux.Uint32At(w.mem, requests+lineSize*i), start: make(chan int64), done: make(chan error),
			found: problems{}, random: rand.New(rand.NewPCG(1, uint64(i))),
			matched: result.NewHistogram(result.Highest), other: result.NewHistogram(result.Highest)}
		for j := range p.Words {
			at := j
			if hash {
				at += i * p.Words
			}
			t.words = append(t.words, linux.Uint32At(w.mem, apart*at))
		}
		w.workers = append(w.workers, t)
		become := func(member int) error {
			runtime.LockOSThread()
			if _, err := linux.SetAffinity([]int{cpus[(members*i+member)%len(cpus)]}); err != nil {
				return err
			}
			_, err := linux.SetSched(sched)
			return err
		}
		go func() {
			err := become(0)
			ready <- err
			for begin := range t.start {
				t.done <- t.run(begin)
			}
		}()
		if !hash {
			t.partner = make(chan error)
			go func() {
				err := become(1)
				ready <- err
				if err == nil {
					linux.Pin()
					err = t.wakes()
					linux.Unpin()
				}
				t.partner <- err
			}()
		}
		for range members {
			if err := <-ready; err != nil {
				return nil, err
			}
		}
	}
	return w, nil
}

func (w *threads) unit() string      { return "ops/s/thread" }
func (w *threads) figures() []string { return nil }

func (w *threads) latencies() (list []result.Latency) {
	if w.Workload == "hash" {
		return nil
	}
	mismatch, matched := result.NewHistogram(result.Highest), result.NewHistogram(result.Highest)
	for _, t := range w.workers {
		mismatch.Merge(t.other)
		matched.Merge(t.matched)
		t.other, t.matched = result.NewHistogram(result.Highest), result.NewHistogram(result.Highest)
	}
	return []result.Latency{{Name: "mismatched wait", Histogram: mismatch}, {Name: "matched wait, woken by its partner", Histogram: matched}}
}

func (w *threads) round(p problems) (m measured, err error) {
	begin := linux.Now() + 1_000_000
	for _, t := range w.workers {
		t.start <- begin
	}
	for _, t := range w.workers {
		if e := <-t.done; err == nil {
			err = e
		}
		m.Operations += t.ops
		m.Value += float64(t.ops) / (float64(t.duration) / 1e9) / float64(len(w.workers))
		for name, found := range t.found {
			p.add(name, "thread %d: %s", t.number, found)
			p[name].count += found.count - 1
		}
		t.found = problems{}
	}
	for i := range w.workers[0].words {
		if n, _ := linux.FutexWake(w.workers[0].words[i], linux.WakeAll, linux.MatchAny, w.Private()); n != 0 {
			p.add(checkLeftover, "%d waiters are left on word %d", n, i)
		}
	}
	return m, err
}

// run is a worker's part of a round.
func (t *worker) run(begin int64) error {
	cpu := linux.CPU()
	linux.Pin()
	defer linux.Unpin()
	t.ops = 0
	for linux.Now() < begin {
	}
	start := linux.Now()
	end := start + int64(t.Runtime)
	var err error
	if t.Workload == "hash" {
		err = t.mismatches(end)
	} else {
		err = t.mixed(end)
	}
	t.duration = linux.Now() - start
	if now := linux.CPU(); now != cpu {
		t.found.add(checkCPU, "it moved from CPU %d to %d", cpu, now)
	}
	return err
}

// mismatches waits on each word in turn for a value that none has.
func (t *worker) mismatches(end int64) error {
	for linux.Now() < end {
		n, e := linux.FutexMismatches(t.words[0], len(t.words), mismatched, t.Private())
		if n != 0 || t.fault == faultResult {
			t.found.add(checkResults, "%d waits that mismatch returned %d", n, e)
		}
		t.ops += int64(len(t.words))
	}
	return nil
}

// mixed waits on words at random, some for what they hold: those its partner wakes.
func (t *worker) mixed(end int64) error {
	bit := linux.AllocateBitset(t.number)
	for now := linux.Now(); now < end; t.ops++ {
		at := t.random.IntN(len(t.words))
		word := t.words[at]
		if t.random.Float64() < float64(t.Mismatching) {
			if e := linux.FutexWait(word, mismatched, bit, t.Private()); e != linux.EAGAIN || t.fault == faultResult {
				t.found.add(checkResults, "a wait that mismatches returned %d", e)
			}
			after := linux.Now()
			t.other.Record(after - now)
			now = after
			continue
		}
		t.request.Store(uint32(at) + 1)
		linux.FutexWake(t.request, 1, linux.MatchAny, t.Private())
		from := linux.Now()
		e := linux.FutexWait(word, 0, bit, t.Private())
		for e == linux.EINTR {
			e = linux.FutexWait(word, 0, bit, t.Private())
		}
		if e != 0 {
			t.found.add(checkResults, "a wait that matches returned %d", e)
		}
		now = linux.Now()
		t.matched.Record(now - from)
	}
	return nil
}

// wakes is a partner: it wakes the word that is asked for, as soon as its worker waits.
func (t *worker) wakes() error {
	bit := linux.AllocateBitset(t.number)
	for {
		at := t.request.Load()
		switch at {
		case 0:
			linux.FutexWait(t.request, 0, linux.MatchAny, t.Private())
			continue
		case leave:
			return nil
		}
		// Before the wake: the worker asks again as soon as it is woken.
		t.request.Store(0)
		// No other waiter has this bit; until it waits, the wake finds nobody.
		for {
			n, e := linux.FutexWake(t.words[at-1], 1, bit, t.Private())
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

func (w *threads) close() (err error) {
	for _, t := range w.workers {
		close(t.start)
		if t.partner == nil {
			continue
		}
		t.request.Store(leave)
		linux.FutexWake(t.request, 1, linux.MatchAny, w.Private())
		if e := <-t.partner; err == nil {
			err = e
		}
	}
	if e := linux.Unmap(w.mem); err == nil {
		err = e
	}
	return err
}
