package question

import (
	"fmt"
	"time"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// What the forked process of installed returns.
const (
	forkWoken = iota
	forkLost
	forkNotArmed
	forkNotInstalled
	forkArmedInstalled // arming had installed the hash
)

// forkLimit is wide: an emulated machine is slow, and its clock may be its host's.
const forkLimit = time.Minute

// installed is the same for the installation of the hash, which a process has only
// from its second thread, or from its first private futex on a ring. A forked process
// has one thread and no hash.
var installed = question{"a private wait armed before the private hash is installed is still woken", func(l *lab) (string, string) {
	if _, err := linux.FutexHashSlots(); err != nil {
		return Unknown, fmt.Sprintf("there is no private hash to install: %s", err)
	}
	r, err := uring.Setup(8, 8, 0)
	if err != nil {
		return unknown(err)
	}
	defer r.Abandon() // the other process's requests end with it
	r.Unregister()
	word := linux.Uint32At(l.mem, 0)
	request := uring.FutexWait(linux.WordAddress(word), 0, linux.MatchAny, uring.WordFlags(linux.Private), 1)
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
		n, _ := linux.FutexWake(word, 1, linux.MatchAny, linux.Private)
		switch {
		case n != 1:
			return forkLost
		case after != before:
			return forkArmedInstalled
		}
		return forkWoken
	}, forkLimit)
	switch {
	case err != nil:
		return unknown(err)
	case code == forkNotArmed:
		return Unknown, "a forked process could not arm a wait"
	case code == forkNotInstalled:
		return Unknown, "prctl(PR_FUTEX_HASH, SET_SLOTS, 16) was refused in a forked process"
	case code == forkArmedInstalled:
		return stillWoken, "in a forked process of one thread arming itself installed the hash; the wait was woken after another change of its size"
	}
	const how = "in a forked process of one thread a wait was armed without the hash; the wake after prctl(PR_FUTEX_HASH, SET_SLOTS, 16) woke "
	if code == forkWoken {
		return stillWoken, how + "1 waiter"
	}
	return lost, how + "nobody"
}}
