package question

import (
	"fmt"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// resized is whether waits that were armed before the private hash is resized are still woken.
var resized = question{"a private wait armed before the private hash is resized is still woken", func(l *lab) (string, string) {
	slots, err := linux.FutexHashSlots()
	if err != nil {
		return Unknown, fmt.Sprintf("there is no private hash to resize: %s", err)
	}
	const words = 64
	woken, to := 0, 2*max(slots, 16)
	if slots >= 1024 {
		to = 16
	}
	err = withRing(words, func(r *uring.Ring) error {
		for i := range words {
			r.Push(uring.FutexWait(linux.WordAddress(linux.Uint32At(l.mem, 64*i)), 0, linux.MatchAny, uring.WordFlags(linux.Private), 1))
		}
		if err := submit(r); err != nil {
			return err
		}
		if err := linux.SetFutexHash(to); err != nil {
			return fmt.Errorf("prctl(PR_FUTEX_HASH, SET_SLOTS, %d): %w", to, err)
		}
		for i := range words {
			n, _ := linux.FutexWake(linux.Uint32At(l.mem, 64*i), 1, linux.MatchAny, linux.Private)
			woken += max(0, n)
		}
		return nil
	})
	now, _ := linux.FutexHashSlots()
	switch {
	case err != nil:
		return unknown(err)
	case now == slots:
		return Unknown, fmt.Sprintf("the hash was asked for %d slots and still has %d", to, now)
	}
	answer := lost
	if woken == words {
		answer = stillWoken
	}
	return answer, fmt.Sprintf("%d of %d waits armed with %d slots were woken with %d", woken, words, slots, now)
}}

// The answers of resized and installed.
const stillWoken, lost = "yes", "NO: wakes are lost"
