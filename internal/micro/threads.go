package micro

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/result"
	"aossim/scenarios"
)

// mismatched is a value that no word has.
const mismatched = 1234

// threads are workloads of several threads that wait by futex(2). Threads stay from round to
// round; what begins and ends a round goes through channels.
type threads struct {
	place
	mem     []byte
	workers []*worker
}

// worker is one thread and, where its workload has them, its partner.
type worker struct {
	*threads
	number   int
	cpu      int // where it is to run
	words    []*atomic.Uint32
	start    chan int64 // when to begin, ns; closed at the end
	done     chan error
	found    problems
	ops      int64
	duration int64
	do       func(end int64) error // a round's part, until end (ns)
}

// newThreads maps memory for so many bytes of words and starts a worker for each thread, on
// each members-th CPU. make has each worker do something.
func newThreads(m place, size, members int, prepare func(t *worker)) (*threads, error) {
	if m.Buckets != scenarios.DefaultBuckets {
		if err := linux.SetFutexHash(int(m.Buckets)); err != nil {
			return nil, fmt.Errorf("a private futex hash of %d buckets (prctl(PR_FUTEX_HASH)): %w; it takes Linux 6.16 and CONFIG_FUTEX_PRIVATE_HASH, leave buckets out", m.Buckets, err)
		}
	}
	w := &threads{place: m}
	var err error
	if w.mem, err = m.mapWords(size); err != nil {
		return nil, err
	}
	for i := range m.Threads {
		t := &worker{threads: w, number: i, cpu: m.cpus[members*i%len(m.cpus)], start: make(chan int64), done: make(chan error), found: problems{}}
		w.workers = append(w.workers, t)
		prepare(t)
		err := m.goOn(members*i, func() error {
			for begin := range t.start {
				t.done <- t.run(begin)
			}
			return nil
		}, nil)
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

// goOn calls f on a thread of its own with the point's policy, on the n-th CPU. It returns
// when that thread has both; ended gets what f returns, where it is not nil.
func (m place) goOn(n int, f func() error, ended chan<- error) error {
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		_, err := linux.SetAffinity([]int{m.cpus[n%len(m.cpus)]})
		if err == nil {
			_, err = linux.SetSched(m.sched)
		}
		if ready <- err; err == nil {
			err = f()
		}
		if ended != nil {
			ended <- err
		}
	}()
	return <-ready
}

func (w *threads) arms() (on, fail bool)       { return false, false }
func (w *threads) figures() []string           { return nil }
func (w *threads) latencies() []result.Latency { return nil }

// round does one; its length is a time, whatever calls are.
func (w *threads) round(p problems, _ int) (m measured, err error) {
	begin := linux.Now() + 1_000_000
	for _, t := range w.workers {
		t.start <- begin
	}
	for _, t := range w.workers {
		err = errors.Join(err, <-t.done)
		m.Operations += t.ops
		m.Value += float64(t.ops) / (float64(t.duration) / 1e9) / float64(len(w.workers))
		for name, found := range t.found {
			p.add(name, "thread %d: %s", t.number, found)
			p[name].count += found.count - 1
		}
		t.found = problems{}
	}
	for i := range w.workers[0].words {
		if n, e := linux.FutexWake(w.workers[0].words[i], linux.WakeAll, linux.MatchAny, scope(w.Point)); e != 0 {
			p.add(checkResults, "a wake of word %d returned %d", i, e)
		} else if n != 0 {
			p.add(checkLeftover, "%d waiters are left on word %d", n, i)
		}
	}
	return m, err
}

// run is a worker's part of a round.
func (t *worker) run(begin int64) error {
	linux.Pin()
	t.ops = 0
	for linux.Now() < begin {
	}
	start := linux.Now()
	err := t.do(start + int64(t.Runtime))
	t.duration = linux.Now() - start
	cpu := linux.CPU()
	linux.Unpin()
	if cpu != t.cpu {
		t.found.add(checkCPU, "it was to run on CPU %d and ran on %d", t.cpu, cpu)
	}
	if got, e := linux.GetSched(); e == nil && (got.Policy != t.sched.Policy || got.Priority != t.sched.Priority) {
		t.found.add(checkGranted, "it was to have %s and has %s now", t.sched, got)
	}
	return err
}

func (w *threads) release() error {
	for _, t := range w.workers {
		close(t.start)
	}
	return linux.Unmap(w.mem)
}

// scope is who uses a point's words.
func scope(p *scenarios.Point) linux.Scope {
	if p.Private() {
		return linux.Private
	}
	return linux.Shared
}

// wordsAt is where words lie in virtual time, where two boots must not differ: above programs and
// below Go's heap, on every architecture.
const wordsAt = 0x20_0000_0000

// mapWords returns memory for words that are private to the process or not.
func (m place) mapWords(size int) ([]byte, error) {
	at := uintptr(0)
	if m.virtual {
		at = wordsAt
	}
	return linux.MapAnonymousAt(at, max(size, os.Getpagesize()), !m.Private())
}
