package question

import (
	"errors"
	"fmt"
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// withRing calls f with a ring of the calling thread, with room for so many requests at
// once, 64 in an io_uring_enter.
func withRing(requests int, f func(r *uring.Ring) error) error {
	r, err := uring.Setup(64, max(128, 2*requests), 0)
	if err != nil {
		return err
	}
	err = f(r)
	_, _, e := r.Close()
	return errors.Join(err, e)
}

// submit issues what was pushed.
func submit(r *uring.Ring) error {
	if e := r.Enter(0, 0); e != 0 {
		return fmt.Errorf("io_uring_enter: %w", e)
	}
	return nil
}

// take issues what was pushed and takes its completion, which must come at once and be want.
func take(r *uring.Ring, what string, want int32) error {
	if e := r.Enter(1, uring.GetEvents); e != 0 {
		return fmt.Errorf("io_uring_enter: %w", e)
	}
	switch c, ok := r.Next(); {
	case !ok:
		return fmt.Errorf("%s did not complete", what)
	case c.Res != want:
		return fmt.Errorf("%s completed with %d instead of %d", what, c.Res, want)
	}
	return nil
}

// wake wakes one waiter, who must be there.
func wake(word *atomic.Uint32, scope linux.Scope) error {
	switch n, e := linux.FutexWake(word, 1, linux.MatchAny, scope); {
	case e != 0:
		return fmt.Errorf("a wake: %w", e)
	case n != 1:
		return fmt.Errorf("a wake woke %d", n)
	}
	return nil
}

// mismatch waits by futex(2) for a value that the word does not have.
func mismatch(word *atomic.Uint32) error {
	if e := linux.FutexWait(word, word.Load()+1, linux.MatchAny, linux.Private); e != linux.EAGAIN {
		return fmt.Errorf("a wait that mismatches returned %d (%s)", e, e)
	}
	return nil
}
