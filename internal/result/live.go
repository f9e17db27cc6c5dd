package result

// Live is what a process that aossim did not start did with futexes, as the kernel saw it. What it
// did by io_uring stands in its group's Counts and Kernel: arms, failed arms, wakes.
type Live struct {
	PID   int    `json:"pid"`
	Comm  string `json:"comm"` // bytes that are no UTF-8, and what cannot be shown, as in a Go string
	Ended bool   `json:"ended,omitempty"`
	// Waits are the waiting system calls by kind and outcome, Outcomes the same over all kinds.
	Waits    []WaitCalls `json:"waits,omitempty"`
	Outcomes []Outcome   `json:"outcomes,omitempty"`
	Wakes    []WakeCalls `json:"wakes,omitempty"`
	// Wake is from the entry of a waker's call to the waiter's return to user space, of waiters that slept;
	// AwakeReturns are the returns without: the waiter was awake, or its waker made no futex call.
	Wake         *Histogram `json:"wake_to_return,omitempty"`
	AwakeReturns int64      `json:"awake_returns"`
	// Handling is from a return from a wake to the entry of the thread's next waiting call or arm.
	Handling *Histogram `json:"handling,omitempty"`
	// Rearm is from a return from a wake to the end of the thread's next arm on a ring that was queued.
	Rearm *Histogram `json:"rearm,omitempty"`
	// RingOther are waits of rings that ended neither by a wake nor with -EAGAIN: cancelled, say.
	RingOther int64 `json:"ring_other"`
	// Within calls that wake.
	KmallocWaking    int64        `json:"kmalloc_waking"`
	KfreeWaking      int64        `json:"kfree_waking"`
	CacheAllocWaking int64        `json:"kmem_cache_alloc_waking"`
	Threads          []LiveThread `json:"threads"`
}

// WaitCalls are waiting system calls of one kind that ended in one way.
type WaitCalls struct {
	Call    string `json:"call"` // futex, futex_wait, futex_waitv or futex PI
	Outcome string `json:"outcome"`
	Calls   int64  `json:"calls"`
	NS      int64  `json:"ns"` // from entry to exit, of all together
}

// The outcomes of a waiting system call: another call woke it, or it had the lock that it was for; the word was not as
// given (-EAGAIN); its time was up; a signal came; any other error.
const (
	OutcomeWoken       = "woken"
	OutcomeMismatch    = "mismatch"
	OutcomeTimeout     = "timeout"
	OutcomeInterrupted = "interrupted"
	OutcomeOther       = "other"
)

// Outcome is how waiting system calls ended that ended in one way.
type Outcome struct {
	Outcome string     `json:"outcome"`
	Calls   int64      `json:"calls"`
	NS      int64      `json:"ns"`
	Time    *Histogram `json:"time"` // from entry to exit, to 1.6 %
	// Of those calls that took the lock of a futex hash bucket: how long futex_q_lock() took, where the kernel lets it be
	// told; its waiting included, and that of the observer itself.
	Locked   int64      `json:"locked"`
	LockNS   int64      `json:"lock_ns"`
	LockOver int64      `json:"lock_over_1us"`
	Lock     *Histogram `json:"lock,omitempty"`
}

// WakeCalls are calls that wake or requeue, of one kind.
type WakeCalls struct {
	Call  string `json:"call"` // futex, futex_wake, futex_requeue, futex requeue or io_uring
	Calls int64  `json:"calls"`
	NS    int64  `json:"ns"`    // of system calls, from entry to exit
	Woken int64  `json:"woken"` // or requeued, by what the calls returned
}

// LiveThread is one thread of an observed process.
type LiveThread struct {
	ThreadID int    `json:"thread_id"`
	Comm     string `json:"comm"`
	Policy   string `json:"policy"` // as the kernel had it when it was last asked
	Priority int    `json:"priority"`
	CPUs     string `json:"cpus"` // that it may run on; "unknown" of one that ended too early
	Arms     int64  `json:"arms"`
	EAGAIN   int64  `json:"eagain"`
	Waits    int64  `json:"waits"` // waiting system calls
	Mismatch int64  `json:"mismatches"`
	Wakes    int64  `json:"wakes"` // calls and requests that wake
}

// Word is a futex word that observed threads used.
type Word struct {
	// Name is a shared word's file and offset, of others the address and the process.
	Name     string   `json:"name"`
	Private  bool     `json:"private"`
	Waiters  []string `json:"waiters"` // groups whose threads waited on it
	Wakers   []string `json:"wakers"`
	Arms     int64    `json:"arms"`
	EAGAIN   int64    `json:"eagain"`
	Waits    int64    `json:"waits"`
	Mismatch int64    `json:"mismatches"`
	Wakes    int64    `json:"wakes"`
	Woken    int64    `json:"woken"` // by what the wakes returned
}

// Observing is what a live observation was of, what it cost and what it lost.
type Observing struct {
	Events     int64  `json:"events"`      // that programs of the observer ran for
	ProgramsNS int64  `json:"programs_ns"` // that they ran, on all CPUs
	ObserverNS int64  `json:"observer_ns"` // CPU time of the observer's own process
	CPUs       int    `json:"cpus"`        // of the machine
	LockTimes  bool   `json:"lock_times"`  // futex_q_lock() could be timed
	Losses     []Loss `json:"losses"`
	// Skipped is how many events at most the kernel did not give to the observer, of any thread of the machine: it was busy
	// with another one that it had interrupted.
	Skipped int64 `json:"skipped"`
}

// Loss is what was not counted.
type Loss struct {
	What  string `json:"what"`
	Count int64  `json:"count"`
}
