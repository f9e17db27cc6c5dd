package question

import (
	"fmt"
	"time"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// cachePatch is about upstream commit 02caa5922184, "io_uring/futex: return a wait's data to
// the cache when it fails to arm": without it each failed arm is a kfree and a kmalloc.
var cachePatch = question{"cache patch: a failed arm's data is kept for the next", func(l *lab) (string, string) {
	const arms, limit = 100_000, 10 * time.Second // fewer where they take longer, as under emulation
	word, n := linux.Uint32At(l.mem, 0), int64(0)
	t, sites, err := l.observed(func() error {
		return withRing(1, func(r *uring.Ring) error {
			for end := linux.Now() + int64(limit); n < arms && linux.Now() < end; n++ {
				r.Push(uring.FutexWait(linux.WordAddress(word), 1, linux.MatchAny, uring.WordFlags(linux.Private), 1))
				if err := take(r, "a wait that must fail", -int32(linux.EAGAIN)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return unknown(err)
	case t.Failed != n || n < few:
		return Unknown, fmt.Sprintf("%d arms failed, and the kernel was seen to fail %d", n, t.Failed)
	}
	l.arming = sites
	answer := Unknown
	switch {
	case t.Kmalloc*10 >= n*9 && t.Kmalloc*10 <= n*11:
		answer = "not there"
	case t.Kmalloc*100 <= n:
		answer = "there"
	}
	return answer, fmt.Sprintf("%d kmallocs and %d kfrees for %d failed arms, %.2f kmallocs per failed arm", t.Kmalloc, t.Kfree, n, float64(t.Kmalloc)/float64(n))
}}
