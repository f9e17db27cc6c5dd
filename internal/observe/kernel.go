package observe

import (
	"cmp"
	"slices"

	"aossim/internal/result"
)

// NewKernel returns an empty account of a stretch of so many ns, in which so many events
// were missed on the machine.
func NewKernel(timing Timing, duration, missed int64) *result.Kernel {
	return &result.Kernel{Timing: string(timing), DurationNS: duration, MissedEvents: missed,
		Failure: result.NewHistogram(result.Highest), Sites: []result.KernelSite{}}
}

// Add adds thread at of those of Snapshot.Since, whose number is id, to an account.
func Add(k *result.Kernel, at, id int, threads []Thread, sites []Site) {
	addThread(k, at, id, &threads[at], sites)
}

// addThread adds thread at of those that sites are of.
func addThread(k *result.Kernel, at, id int, t *Thread, sites []Site) {
	k.Arms += t.Arms
	k.EAGAIN += t.Failed
	k.Kmalloc += t.Kmalloc
	k.Kfree += t.Kfree
	k.CacheAlloc += t.CacheAlloc
	k.Within6us += t.Within6us
	k.Over40us += t.Over40us
	k.BehindUnknown += t.Unread
	k.Unplaced += t.Unplaced
	for i, n := range t.Behind {
		k.Behind[i] += n
	}
	for bucket, n := range t.Latency {
		k.Failure.RecordMany(Middle(bucket), n)
	}
	for _, s := range sites {
		if s.Thread != at {
			continue
		}
		site := result.KernelSite{Operation: s.Operation.String(), Function: s.Function, Size: s.Size, Room: s.Room, Waking: s.Waking}
		i := slices.IndexFunc(k.Sites, func(have result.KernelSite) bool { have.Count = 0; return have == site })
		if i < 0 {
			i = len(k.Sites)
			k.Sites = append(k.Sites, site)
		}
		k.Sites[i].Count += s.Count
	}
	slices.SortFunc(k.Sites, func(a, b result.KernelSite) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Function, b.Function))
	})
	k.Threads = append(k.Threads, result.KernelThread{ThreadID: id, Arms: t.Arms, EAGAIN: t.Failed, Kmalloc: t.Kmalloc, Kfree: t.Kfree})
}
