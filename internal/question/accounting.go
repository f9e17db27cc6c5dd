package question

import (
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"slices"
	"strconv"

	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/uring"
)

// vectorWords is how long the vectors of accounting are.
const vectorWords = 8

// accounting is whether a vector's copy is charged to the memory cgroup, 6e0d71c288fd.
var accounting = question{"WAITV data accounted to the memory cgroup", func(l *lab) (string, string) {
	_, sites, err := l.observed(l.vectors)
	flag, ok := accountFlag()
	switch {
	case err != nil:
		return unknown(err)
	case !ok:
		return Unknown, "neither the kernel's BTF nor the kmalloc trace event tells the value of __GFP_ACCOUNT"
	}
	// The copy grows with the vector: no smaller than a futex_waitv an element.
	sites = slices.DeleteFunc(sites, func(s observe.Site) bool {
		return s.Operation != observe.Kmalloc || s.Size < vectorWords*24 || s.Count < few/2
	})
	if len(sites) == 0 {
		return Unknown, fmt.Sprintf("no allocation of a vector's size was seen for %d vectors", few)
	}
	s := sites[0]
	answer := "no"
	if s.GFP&flag != 0 {
		answer = "yes"
	}
	return answer, fmt.Sprintf("%d kmallocs of %d bytes with flags %#x at %s; __GFP_ACCOUNT is %#x", s.Count, s.Size, s.GFP, s.Function, flag)
}}

// vectors arms and wakes a vector a few times.
func (l *lab) vectors() error {
	v, err := uring.NewVector(vectorWords)
	if err != nil {
		return err
	}
	defer v.Close()
	const woken = 3
	return withRing(1, func(r *uring.Ring) error {
		for range few {
			for i := range vectorWords {
				v.Set(i, linux.WordAddress(linux.Uint32At(l.mem, 64*i)), 0, uring.WordFlags(linux.Private))
			}
			r.Push(uring.FutexWaitv(v.Addr(), vectorWords, 1))
			if err := submit(r); err != nil {
				return err
			}
			if err := wake(linux.Uint32At(l.mem, 64*woken), linux.Private); err != nil {
				return err
			}
			if err := take(r, "a woken vector", woken); err != nil {
				return err
			}
		}
		return nil
	})
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
