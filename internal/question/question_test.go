package question

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
	"aossim/internal/observe"
	"aossim/internal/uring"
)

func TestMain(m *testing.M) { os.Exit(linuxtest.Main(m)) }

// TestEvidence: what an experiment saw instead of what it must is said as a number, whatever
// it was.
func TestEvidence(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	word := linux.Uint32At(linuxtest.Map(t, os.Getpagesize()), 0)
	found := map[string]error{"a wake woke 0": wake(word, linux.Private)}
	err := withRing(1, func(r *uring.Ring) error {
		r.Push(uring.FutexWake(linux.WordAddress(word), 1, uring.WordFlags(linux.Private), 1))
		found["a wake of nobody completed with 0 instead of 7"] = take(r, "a wake of nobody", 7)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for want, err := range found {
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := mismatch(word); err != nil {
		t.Error(err)
	}
}

// TestUnobserved: a kernel that cannot be observed answers what it can, and says why it
// cannot tell the rest.
func TestUnobserved(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	why := errors.New("no BTF here")
	l := &lab{why: why, mem: linuxtest.Map(t, 16*os.Getpagesize()), shm: linuxtest.Map(t, os.Getpagesize())}
	for _, q := range questions {
		answer, evidence := q.try(l)
		if answer == "" || evidence == "" || strings.Contains(evidence, "%!") {
			t.Errorf("%s: %q, %q", q.text, answer, evidence)
		}
		if answer == Unknown && strings.HasPrefix(q.text, "cache patch") && evidence != why.Error() {
			t.Errorf("%s: %q", q.text, evidence)
		}
	}
}

// TestObservedOften: more experiments than there are threads for is an error, and no panic.
func TestObservedOften(t *testing.T) {
	l := &lab{observer: &observe.Observer{}}
	if _, _, err := l.observed(func() error { return nil }); err == nil {
		t.Error("an experiment without a thread was observed")
	}
}
