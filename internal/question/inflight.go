package question

import (
	"fmt"
	"strings"
	"sync/atomic"

	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/uring"
)

// inflight is which futex requests the kernel counts as inflight, so that the exit of a task
// waits for them: none, all (079afb081c42), waits only, private waits only.
var inflight = question{"inflight tracking of futex requests", func(l *lab) (string, string) {
	position, ok := observe.EnumValue("REQ_F_INFLIGHT_BIT")
	if !ok {
		return Unknown, "the kernel's BTF has no REQ_F_INFLIGHT_BIT"
	}
	var tracked [3]bool
	var seen []string
	for i, x := range []struct {
		name string
		run  func() error
		kind int // of observe.Thread.Flags
	}{
		{"private waits", func() error { return waits(linux.Uint32At(l.mem, 0), linux.Private) }, 0},
		{"shared waits", func() error { return waits(linux.Uint32At(l.shm, 0), linux.Shared) }, 0},
		{"wakes", func() error { return wakes(linux.Uint32At(l.mem, 0)) }, 1},
	} {
		t, _, err := l.observed(x.run)
		if err != nil {
			return Unknown, fmt.Sprintf("%s: %s", x.name, err)
		}
		tracked[i] = t.Flags[x.kind]>>position&1 != 0
		seen = append(seen, fmt.Sprintf("flags %#x on %s", t.Flags[x.kind], x.name))
	}
	answer, ok := map[[3]bool]string{
		{}: "none", {true, true, true}: "all futex requests", {true, true, false}: "waits, private and shared", {true, false, false}: "private waits only",
	}[tracked]
	if !ok {
		answer = fmt.Sprintf("private waits %t, shared waits %t, wakes %t", tracked[0], tracked[1], tracked[2])
	}
	return answer, fmt.Sprintf("REQ_F_INFLIGHT is bit %d (%#x): %s", position, uint64(1)<<position, strings.Join(seen, ", "))
}}

// waits arms and wakes a word a few times.
func waits(word *atomic.Uint32, scope linux.Scope) error {
	return withRing(1, func(r *uring.Ring) error {
		for range few {
			r.Push(uring.FutexWait(linux.WordAddress(word), word.Load(), linux.MatchAny, uring.WordFlags(scope), 1))
			if err := submit(r); err != nil {
				return err
			}
			if err := wake(word, scope); err != nil {
				return err
			}
			if err := take(r, "a woken wait", 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// wakes wakes nobody, a few times, on a ring.
func wakes(word *atomic.Uint32) error {
	return withRing(1, func(r *uring.Ring) error {
		for range few {
			r.Push(uring.FutexWake(linux.WordAddress(word), 1, uring.WordFlags(linux.Private), 1))
			if err := take(r, "a wake of nobody", 0); err != nil {
				return err
			}
		}
		return nil
	})
}
