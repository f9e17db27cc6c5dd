package question

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// bucketLock is whether a futex(2) wait whose value does not match takes the lock of its hash
// bucket ("futex: Avoid hash-bucket locking for mismatched waits").
var bucketLock = question{"a mismatched futex(2) wait takes the hash bucket's lock", func(l *lab) (string, string) {
	if l.observer == nil || !l.observer.CountsBucketLocks() {
		return l.bucketLockHeld()
	}
	const mismatches = 10_000
	word := linux.Uint32At(l.mem, 0)
	m, _, err := l.observed(func() error {
		for range mismatches {
			if err := mismatch(word); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return unknown(err)
	}
	control, _, err := l.observed(func() error {
		for range few {
			linux.FutexWaitFor(word, word.Load(), 1000, linux.Private)
		}
		return nil
	})
	if err != nil || control.BucketLocks < few*9/10 {
		return l.bucketLockHeld()
	}
	// A kernel that can be preempted within an eBPF program skips it for who preempts there, so that
	// some entries are not seen. All waits do the same.
	answer, sure := Unknown, "as good as certain, as a preempted program sees less"
	switch n := m.BucketLocks; {
	case n >= mismatches*9/10:
		answer = "yes"
	case n <= mismatches/100:
		answer = "no"
	}
	if m.BucketLocks == 0 || m.BucketLocks >= mismatches {
		sure = "certain"
	}
	return answer, fmt.Sprintf("%s: futex_q_lock() was seen entered %d times by %d mismatched waits, and %d times by %d matched ones", sure, m.BucketLocks, mismatches, control.BucketLocks, few)
}}

// bucketLockHeld tells by having another CPU hold the lock most of the time: a wake that
// matches none of very many waiters looks at all of them under it. A wait on the same
// word takes about as long, if it takes the lock.
func (l *lab) bucketLockHeld() (string, string) {
	const waiters, theirs = 8192, 1
	cpus, err := linux.Affinity()
	if err != nil || len(cpus) < 2 {
		return Unknown, "it takes fentry on futex_q_lock, or two CPUs"
	}
	h := holding{word: linux.Uint32At(l.mem, 0)}
	err = withRing(waiters, func(r *uring.Ring) error {
		for range waiters {
			if r.Push(uring.FutexWait(linux.WordAddress(h.word), 0, theirs, uring.WordFlags(linux.Private), 1)); r.Queued() == 64 {
				if err := submit(r); err != nil {
					return err
				}
			}
		}
		return h.race(cpus)
	})
	if err != nil {
		return unknown(err)
	}
	answer := Unknown
	switch {
	case h.holds < few || h.calls < few || h.held < 5000: // too little happened at once, or too short
	case h.long >= h.holds/3:
		answer = "yes"
	case h.long <= h.holds/20:
		answer = "no"
	}
	return answer, fmt.Sprintf("near certain: while another CPU held the bucket's lock %d times for %.1f us each, %d of %d mismatched waits took longer than half of that; fentry on futex_q_lock, which would tell for certain, is not to be had here",
		h.holds, float64(h.held)/1000, h.long, h.calls)
}

// holding is the experiment: held is how long one hold takes (ns), holds how many there were,
// calls how many waits meanwhile, and long how many took over half of a hold.
type holding struct {
	word                     *atomic.Uint32
	held, holds, calls, long int64
}

func (h *holding) hold() error {
	const others = 2 // a bit that no waiter has
	switch n, e := linux.FutexWake(h.word, linux.WakeAll, others, linux.Private); {
	case e != 0:
		return fmt.Errorf("a wake that matches nobody: %w", e)
	case n != 0:
		return fmt.Errorf("a wake that matches nobody woke %d", n)
	}
	return nil
}

func (h *holding) race(cpus []int) error {
	const alone, during = 50, int64(50 * time.Millisecond)
	from := linux.Now()
	for range alone {
		if err := h.hold(); err != nil {
			return err
		}
	}
	h.held = (linux.Now() - from) / alone
	holder, waiter := newSubject(), newSubject()
	defer holder.dismiss()
	defer waiter.dismiss()
	var running atomic.Bool
	running.Store(true)
	holder.start(func() error {
		_, err := linux.SetAffinity(cpus[:1])
		for ; err == nil && running.Load(); h.holds++ {
			err = h.hold()
		}
		return err
	})
	err := waiter.do(func() error {
		if _, err := linux.SetAffinity(cpus[1:2]); err != nil {
			return err
		}
		for now, end := linux.Now(), linux.Now()+during; now < end; h.calls++ {
			if err := mismatch(h.word); err != nil {
				return err
			}
			after := linux.Now()
			if after-now > h.held/2 {
				h.long++
			}
			now = after
		}
		return nil
	})
	running.Store(false)
	return errors.Join(err, holder.wait())
}
