package machine

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/uring"
)

// Finding is how the kernel behaves in one respect, found out by doing it.
type Finding struct {
	Question string `json:"question"`
	Answer   string `json:"answer"` // Unknown where it could not be told
	Evidence string `json:"evidence"`
}

// Unknown is the answer where there is none.
const Unknown = "could not tell"

// How often each experiment does its thing. The failed arms end early where they take
// longer than failedFor, as under emulation.
const (
	failedArms = 100_000
	failedFor  = 10 * time.Second
	few        = 100
	mismatches = 10_000
)

// subject is a locked thread on which experiments run, so that the observer can tell
// them apart.
type subject struct {
	thread int
	work   chan func() error
	done   chan error
}

func newSubject() *subject {
	s := &subject{work: make(chan func() error), done: make(chan error)}
	thread := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked
		thread <- linux.ThreadID()
		for f := range s.work {
			s.done <- f()
		}
	}()
	s.thread = <-thread
	return s
}

func (s *subject) start(f func() error) { s.work <- f }
func (s *subject) wait() error          { return <-s.done }
func (s *subject) do(f func() error) error {
	s.start(f)
	return s.wait()
}

// The experiments that are observed, each on a thread of its own.
const (
	failing = iota
	private
	shared
	waking
	vector
	mismatching
	matching
	racerA
	racerB
	subjects
)

// lab is where the experiments are done.
type lab struct {
	subjects [subjects]*subject
	observer *observe.Observer // nil where the kernel cannot be observed
	why      error             // why not
	mem      []byte            // private memory for words
	shm      []byte            // shared memory for words
	findings []Finding
}

func (l *lab) say(question, answer, evidence string, args ...any) {
	l.findings = append(l.findings, Finding{question, answer, fmt.Sprintf(evidence, args...)})
}

// behaviour does all experiments.
func behaviour() (findings []Finding, timing string, err error) {
	runtime.LockOSThread() // rings belong to their thread
	defer runtime.UnlockOSThread()
	l := &lab{}
	if l.mem, err = linux.MapAnonymous(16 * os.Getpagesize()); err != nil {
		return nil, "", err
	}
	defer linux.Unmap(l.mem)
	if l.shm, err = linux.MapAnonymousShared(os.Getpagesize()); err != nil {
		return nil, "", err
	}
	defer linux.Unmap(l.shm)
	var watched []observe.Watched
	for i := range l.subjects {
		l.subjects[i] = newSubject()
		defer close(l.subjects[i].work)
		watched = append(watched, observe.Watched{ThreadID: l.subjects[i].thread})
	}
	if l.observer, l.why = observe.Start(watched); l.why == nil {
		defer l.observer.Close()
		timing = string(l.observer.Timing)
	}
	arms := l.failedArms()
	l.inflight()
	l.accounting()
	l.bucketLock()
	l.privateHash()
	l.size(arms)
	l.resized()
	l.installed()
	return l.findings, timing, nil
}

// observed runs an experiment and returns what its thread did in the kernel.
func (l *lab) observed(which int, f func() error) (observe.Thread, []observe.Site, error) {
	var none observe.Thread
	if l.observer == nil {
		return none, nil, l.why
	}
	before, err := l.observer.Snapshot()
	if err != nil {
		return none, nil, err
	}
	if err := l.subjects[which].do(f); err != nil {
		return none, nil, err
	}
	after, err := l.observer.Snapshot()
	if err != nil {
		return none, nil, err
	}
	threads, sites := after.Since(before)
	sites = slices.DeleteFunc(sites, func(s observe.Site) bool { return s.Thread != which })
	return threads[which], sites, nil
}

// withRing calls f with a ring of the calling thread.
func withRing(f func(r *uring.Ring) error) error { return withRingOf(64, f) }

// withRingOf is withRing for so many requests at once, 64 in an io_uring_enter.
func withRingOf(requests int, f func(r *uring.Ring) error) error {
	r, err := uring.Setup(64, 2*requests, 0)
	if err != nil {
		return err
	}
	err = f(r)
	if _, _, e := r.Close(); err == nil {
		err = e
	}
	return err
}

// take issues what was pushed and returns its completion, which must come at once.
func take(r *uring.Ring) (uring.CQE, error) {
	if e := r.Enter(1, uring.GetEvents); e != 0 {
		return uring.CQE{}, fmt.Errorf("io_uring_enter: %w", e)
	}
	c, ok := r.Next()
	if !ok {
		return c, errors.New("no completion")
	}
	return c, nil
}

// failedArms answers for the cache patch, 02caa5922184 upstream; and returns what arming
// allocated.
func (l *lab) failedArms() []observe.Site {
	const question = "cache patch: a failed arm's data is kept for the next"
	word := linux.Uint32At(l.mem, 0)
	n := int64(0)
	t, sites, err := l.observed(failing, func() error {
		return withRing(func(r *uring.Ring) error {
			for end := linux.Now() + int64(failedFor); n < failedArms && linux.Now() < end; n++ {
				r.Push(uring.FutexWait(linux.WordAddress(word), 1, linux.MatchAny, uring.WordFlags(true), 1))
				if c, err := take(r); err != nil || c.Errno() != linux.EAGAIN {
					return fmt.Errorf("a wait that must fail completed with %d, %w", c.Res, err)
				}
			}
			return nil
		})
	})
	switch {
	case err != nil:
		l.say(question, Unknown, "%s", err)
		return nil
	case t.Failed != n || n < 100:
		l.say(question, Unknown, "%d arms failed, and the kernel was seen to fail %d", n, t.Failed)
		return nil
	}
	answer := Unknown
	switch {
	case t.Kmalloc*10 >= n*9 && t.Kmalloc*10 <= n*11:
		answer = "not there"
	case t.Kmalloc*100 <= n:
		answer = "there"
	}
	l.say(question, answer, "%d kmallocs and %d kfrees for %d failed arms, %.2f kmallocs per failed arm", t.Kmalloc, t.Kfree, n, float64(t.Kmalloc)/float64(n))
	return sites
}

// waits arms and wakes a word a few times on one thread.
func waits(word *atomic.Uint32, isPrivate bool) error {
	return withRing(func(r *uring.Ring) error {
		for range few {
			r.Push(uring.FutexWait(linux.WordAddress(word), word.Load(), linux.MatchAny, uring.WordFlags(isPrivate), 1))
			if e := r.Enter(0, 0); e != 0 {
				return fmt.Errorf("io_uring_enter: %w", e)
			}
			if n, e := linux.FutexWake(word, 1, linux.MatchAny, isPrivate); n != 1 {
				return fmt.Errorf("a wake woke %d: %w", n, e)
			}
			if c, err := take(r); err != nil || c.Res != 0 {
				return fmt.Errorf("a woken wait completed with %d, %w", c.Res, err)
			}
		}
		return nil
	})
}

// inflight answers which futex requests the kernel counts as inflight, so that the exit
// of a task waits for them: none, all (079afb081c42), waits only, private waits only.
func (l *lab) inflight() {
	const question = "inflight tracking of futex requests"
	position, ok := observe.EnumValue("REQ_F_INFLIGHT_BIT")
	if !ok {
		l.say(question, Unknown, "the kernel's BTF has no REQ_F_INFLIGHT_BIT")
		return
	}
	var tracked [3]bool
	var seen []string
	for i, x := range []struct {
		name string
		run  func() error
		kind int
	}{
		{"private waits", func() error { return waits(linux.Uint32At(l.mem, 0), true) }, 0},
		{"shared waits", func() error { return waits(linux.Uint32At(l.shm, 0), false) }, 0},
		{"wakes", func() error {
			return withRing(func(r *uring.Ring) error {
				for range few {
					r.Push(uring.FutexWake(linux.WordAddress(linux.Uint32At(l.mem, 0)), 1, uring.WordFlags(true), 1))
					if c, err := take(r); err != nil || c.Res != 0 {
						return fmt.Errorf("a wake completed with %d, %w", c.Res, err)
					}
				}
				return nil
			})
		}, 1},
	} {
		t, _, err := l.observed(private+i, x.run)
		if err != nil {
			l.say(question, Unknown, "%s: %s", x.name, err)
			return
		}
		tracked[i] = t.Flags[x.kind]>>position&1 != 0
		seen = append(seen, fmt.Sprintf("flags %#x on %s", t.Flags[x.kind], x.name))
	}
	answers := map[[3]bool]string{
		{}: "none", {true, true, true}: "all futex requests", {true, true, false}: "waits, private and shared", {true, false, false}: "private waits only",
	}
	answer, ok := answers[tracked]
	if !ok {
		answer = fmt.Sprintf("private waits %t, shared waits %t, wakes %t", tracked[0], tracked[1], tracked[2])
	}
	l.say(question, answer, "REQ_F_INFLIGHT is bit %d (%#x): %s", position, uint64(1)<<position, strings.Join(seen, ", "))
}

// accountFlag returns __GFP_ACCOUNT of this kernel: an enum since Linux 6.10, before that
// only in the trace event's format.
func accountFlag() (uint64, bool) {
	if position, ok := observe.EnumValue("___GFP_ACCOUNT_BIT"); ok {
		return 1 << position, true
	}
	format, err := os.ReadFile("/sys/kernel/tracing/events/kmem/kmalloc/format")
	if err != nil {
		return 0, false
	}
	m := regexp.MustCompile(`0x([0-9a-f]+)u?\)*, "__GFP_ACCOUNT"`).FindSubmatch(format)
	if m == nil {
		return 0, false
	}
	v, err := strconv.ParseUint(string(m[1]), 16, 64)
	return v, err == nil && bits.OnesCount64(v) == 1
}

// accounting answers whether a vector's copy is charged to the memory cgroup, 6e0d71c288fd.
func (l *lab) accounting() {
	const question = "WAITV data accounted to the memory cgroup"
	const words = 8
	_, sites, err := l.observed(vector, func() error {
		v, err := uring.NewVector(words)
		if err != nil {
			return err
		}
		defer v.Close()
		return withRing(func(r *uring.Ring) error {
			for range few {
				for i := range words {
					v.Set(i, linux.WordAddress(linux.Uint32At(l.mem, 64*i)), 0, uring.WordFlags(true))
				}
				r.Push(uring.FutexWaitv(v.Addr(), words, 1))
				if e := r.Enter(0, 0); e != 0 {
					return fmt.Errorf("io_uring_enter: %w", e)
				}
				if n, e := linux.FutexWake(linux.Uint32At(l.mem, 64*3), 1, linux.MatchAny, true); n != 1 {
					return fmt.Errorf("a wake woke %d: %w", n, e)
				}
				if c, err := take(r); err != nil || c.Res != 3 {
					return fmt.Errorf("a woken vector completed with %d, %w", c.Res, err)
				}
			}
			return nil
		})
	})
	flag, ok := accountFlag()
	switch {
	case err != nil:
		l.say(question, Unknown, "%s", err)
		return
	case !ok:
		l.say(question, Unknown, "neither the kernel's BTF nor the kmalloc trace event tells the value of __GFP_ACCOUNT")
		return
	}
	// The copy grows with the vector: no smaller than a futex_waitv an element.
	sites = slices.DeleteFunc(sites, func(s observe.Site) bool {
		return s.Operation != observe.Kmalloc || s.Size < words*24 || s.Count < few/2
	})
	if len(sites) == 0 {
		l.say(question, Unknown, "no allocation of a vector's size was seen for %d vectors", few)
		return
	}
	s := sites[0]
	answer := "no"
	if s.GFP&flag != 0 {
		answer = "yes"
	}
	l.say(question, answer, "%d kmallocs of %d bytes with flags %#x at %s; __GFP_ACCOUNT is %#x", s.Count, s.Size, s.GFP, s.Function, flag)
}

// bucketLock answers whether a futex(2) wait whose value does not match takes the lock
// of its hash bucket ("futex: Avoid hash-bucket locking for mismatched waits").
func (l *lab) bucketLock() {
	const question = "a mismatched futex(2) wait takes the hash bucket's lock"
	word := linux.Uint32At(l.mem, 0)
	mismatch := func() error {
		for range mismatches {
			if e := linux.FutexWait(word, 1, linux.MatchAny, true); e != linux.EAGAIN {
				return fmt.Errorf("a wait that must fail: %w", e)
			}
		}
		return nil
	}
	if l.observer != nil && l.observer.CountsBucketLocks() {
		m, _, err := l.observed(mismatching, mismatch)
		if err != nil {
			l.say(question, Unknown, "%s", err)
			return
		}
		control, _, err := l.observed(matching, func() error {
			for range few {
				linux.FutexWaitFor(word, 0, 1000, true)
			}
			return nil
		})
		if err == nil && control.BucketLocks >= few {
			answer := "no"
			if m.BucketLocks >= mismatches {
				answer = "yes"
			}
			l.say(question, answer, "certain: futex_q_lock() was entered %d times by %d mismatched waits, and %d times by %d matched ones", m.BucketLocks, mismatches, control.BucketLocks, few)
			return
		}
	}
	l.bucketLockHeld(question)
}

// bucketLockHeld tells by having another CPU hold the lock most of the time: a wake that
// matches none of very many waiters looks at all of them under it. A wait on the same
// word takes about as long, if it takes the lock.
func (l *lab) bucketLockHeld(question string) {
	const waiters, theirs, others = 8192, 1, 2
	const during = int64(50 * time.Millisecond)
	cpus, err := linux.Affinity()
	if err != nil || len(cpus) < 2 {
		l.say(question, Unknown, "it takes fentry on futex_q_lock, or two CPUs")
		return
	}
	word := linux.Uint32At(l.mem, 0)
	hold := func() error {
		if n, e := linux.FutexWake(word, linux.WakeAll, others, true); n != 0 {
			return fmt.Errorf("a wake that matches nobody woke %d: %w", n, e)
		}
		return nil
	}
	var held, holds, calls, long int64
	err = withRingOf(waiters, func(r *uring.Ring) error {
		for range waiters {
			if r.Push(uring.FutexWait(linux.WordAddress(word), 0, theirs, uring.WordFlags(true), 1)); r.Queued() == 64 {
				if e := r.Enter(0, 0); e != 0 {
					return fmt.Errorf("io_uring_enter: %w", e)
				}
			}
		}
		const alone = 50
		from := linux.Now()
		for range alone {
			if err := hold(); err != nil {
				return err
			}
		}
		held = (linux.Now() - from) / alone
		var running atomic.Bool
		running.Store(true)
		l.subjects[racerA].start(func() error {
			_, err := linux.SetAffinity(cpus[:1])
			for ; err == nil && running.Load(); holds++ {
				err = hold()
			}
			return err
		})
		err := l.subjects[racerB].do(func() error {
			if _, err := linux.SetAffinity(cpus[1:2]); err != nil {
				return err
			}
			for now, end := linux.Now(), linux.Now()+during; now < end; calls++ {
				if e := linux.FutexWait(word, 1, linux.MatchAny, true); e != linux.EAGAIN {
					return fmt.Errorf("a wait that must fail: %w", e)
				}
				after := linux.Now()
				if after-now > held/2 {
					long++
				}
				now = after
			}
			return nil
		})
		running.Store(false)
		if e := l.subjects[racerA].wait(); err == nil {
			err = e
		}
		return err
	})
	if err != nil {
		l.say(question, Unknown, "%s", err)
		return
	}
	answer := Unknown
	switch {
	case holds < few || calls < few || held < 5000: // too little happened at once, or too short
	case long >= holds/3:
		answer = "yes"
	case long <= holds/20:
		answer = "no"
	}
	l.say(question, answer, "near certain: while another CPU held the bucket's lock %d times for %.1f us each, %d of %d mismatched waits took longer than half of that; fentry on futex_q_lock, which would tell for certain, is not to be had here", holds, float64(held)/1000, long, calls)
}

// privateHash answers whether the process has a hash of its own for private futexes.
func (l *lab) privateHash() {
	const question = "process-private futex hash"
	slots, err := linux.FutexHashSlots()
	switch {
	case errors.Is(err, linux.ErrInvalid):
		l.say(question, "not there", "prctl(PR_FUTEX_HASH, GET_SLOTS): %s (it came with Linux 6.16, CONFIG_FUTEX_PRIVATE_HASH)", err)
	case err != nil:
		l.say(question, Unknown, "prctl(PR_FUTEX_HASH, GET_SLOTS): %s", err)
	default:
		l.say(question, "there", "%d slots in this process now", slots)
	}
}

// size answers how large io_futex_data is, by what arming a FUTEX_WAIT allocated.
func (l *lab) size(sites []observe.Site) {
	const question = "size of io_futex_data, bytes"
	for _, s := range sites {
		if s.Operation != observe.Kfree {
			l.say(question, strconv.FormatInt(s.Size, 10), "%s of %d bytes, given %d, at %s", s.Operation, s.Size, s.Room, s.Function)
			return
		}
	}
	if l.observer == nil {
		l.say(question, Unknown, "%s", l.why)
		return
	}
	l.say(question, Unknown, "no allocation was seen while waits were armed")
}

// resized answers whether waits that were armed before the private hash is resized are
// still woken.
func (l *lab) resized() {
	const question = "a private wait armed before the private hash is resized is still woken"
	slots, err := linux.FutexHashSlots()
	if err != nil {
		l.say(question, Unknown, "there is no private hash to resize: %s", err)
		return
	}
	const words = 64
	woken := 0
	to := 2 * max(slots, 16)
	if slots >= 1024 {
		to = 16
	}
	err = l.subjects[private].do(func() error {
		return withRing(func(r *uring.Ring) error {
			for i := range words {
				r.Push(uring.FutexWait(linux.WordAddress(linux.Uint32At(l.mem, 64*i)), 0, linux.MatchAny, uring.WordFlags(true), 1))
			}
			if e := r.Enter(0, 0); e != 0 {
				return fmt.Errorf("io_uring_enter: %w", e)
			}
			if err := linux.SetFutexHash(to); err != nil {
				return fmt.Errorf("prctl(PR_FUTEX_HASH, SET_SLOTS, %d): %w", to, err)
			}
			for i := range words {
				n, _ := linux.FutexWake(linux.Uint32At(l.mem, 64*i), 1, linux.MatchAny, true)
				woken += n
			}
			return nil
		})
	})
	now, _ := linux.FutexHashSlots()
	switch {
	case err != nil:
		l.say(question, Unknown, "%s", err)
	case now == slots:
		l.say(question, Unknown, "the hash was asked for %d slots and still has %d", to, now)
	default:
		l.say(question, yes(woken == words), "%d of %d waits armed with %d slots were woken with %d", woken, words, slots, now)
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO: wakes are lost"
}

// What the forked process of installed returns.
const (
	forkWoken = iota
	forkLost
	forkNotArmed
	forkNotInstalled
	forkArmedInstalled // arming had installed the hash
)

// installed answers the same for the installation of the hash, which a process has only
// from its second thread, or from its first private futex on a ring. A forked process
// has one thread and no hash.
func (l *lab) installed() {
	const question = "a private wait armed before the private hash is installed is still woken"
	if _, err := linux.FutexHashSlots(); err != nil {
		l.say(question, Unknown, "there is no private hash to install: %s", err)
		return
	}
	r, err := uring.Setup(8, 8, 0)
	if err != nil {
		l.say(question, Unknown, "%s", err)
		return
	}
	defer r.Abandon() // the other process's requests end with it
	r.Unregister()
	word := linux.Uint32At(l.mem, 0)
	request := uring.FutexWait(linux.WordAddress(word), 0, linux.MatchAny, uring.WordFlags(true), 1)
	code, err := linux.Fork(func() int {
		before, _ := linux.FutexHashSlots()
		r.Push(request)
		if r.Enter(0, 0) != 0 || r.Queued() != 0 {
			return forkNotArmed
		}
		after, _ := linux.FutexHashSlots()
		if linux.SetFutexHash(16) != nil {
			return forkNotInstalled
		}
		n, _ := linux.FutexWake(word, 1, linux.MatchAny, true)
		switch {
		case n != 1:
			return forkLost
		case after != before:
			return forkArmedInstalled
		}
		return forkWoken
	}, 5*time.Second)
	switch {
	case err != nil:
		l.say(question, Unknown, "%s", err)
	case code == forkNotArmed:
		l.say(question, Unknown, "a forked process could not arm a wait")
	case code == forkNotInstalled:
		l.say(question, Unknown, "prctl(PR_FUTEX_HASH, SET_SLOTS, 16) was refused in a forked process")
	case code == forkArmedInstalled:
		l.say(question, yes(true), "in a forked process of one thread arming itself installed the hash; the wait was woken after another change of its size")
	default:
		l.say(question, yes(code == forkWoken), "in a forked process of one thread a wait was armed without the hash; the wake after prctl(PR_FUTEX_HASH, SET_SLOTS, 16) woke %d waiters", map[bool]int{true: 1}[code == forkWoken])
	}
}
