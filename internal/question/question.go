// Package question finds out how this kernel behaves, by doing and never by version numbers.
// Each question is a file: its words, how it is tried, and what the answer rests on.
//
// Nothing here fails: what cannot be told is said, with why, as the answer Unknown.
package question

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"aossim/internal/linux"
	"aossim/internal/observe"
)

// Finding is how the kernel behaves in one respect.
type Finding struct {
	Question string `json:"question"`
	Answer   string `json:"answer"` // Unknown where it could not be told
	Evidence string `json:"evidence"`
}

// Unknown is the answer where there is none.
const Unknown = "could not tell"

// question is its words and how it is tried; try returns the answer and its evidence.
type question struct {
	text string
	try  func(l *lab) (answer, evidence string)
}

// questions are all there are, in the order in which they are asked: dataSize wants
// what cachePatch saw.
var questions = []question{cachePatch, inflight, accounting, bucketLock, privateHash, dataSize, resized, installed}

// Words lists the questions.
func Words() (list []string) {
	for _, q := range questions {
		list = append(list, q.text)
	}
	return list
}

// few is how often an experiment does its thing where once would do.
const few = 100

// lab is where the experiments are done.
type lab struct {
	observer *observe.Observer // nil where the kernel cannot be observed
	why      error             // why not
	fresh    []*subject        // for observed
	used     int
	mem      []byte         // private memory for words
	shm      []byte         // shared memory for words
	arming   []observe.Site // what arming a wait that fails allocated, once that was tried
}

// subjects is how many experiments can be observed, each on a thread of its own.
const subjects = 12

// Ask asks every question, in some ten seconds, and says how failures were timed, "" where the
// kernel could not be observed. It changes the process's private futex hash, so the process should do
// nothing else. The error is that there is no memory for it.
func Ask() (findings []Finding, timing observe.Timing, err error) {
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
	for range subjects {
		s := newSubject()
		defer s.dismiss()
		l.fresh = append(l.fresh, s)
		watched = append(watched, observe.Watched{ThreadID: s.thread})
	}
	if l.observer, l.why = observe.Start(watched); l.why == nil {
		defer l.observer.Close()
		timing = l.observer.Timing
	}
	for _, q := range questions {
		answer, evidence := q.try(l)
		findings = append(findings, Finding{q.text, answer, evidence})
	}
	return findings, timing, nil
}

// unknown is the answer where an experiment failed.
func unknown(err error) (answer, evidence string) { return Unknown, err.Error() }

// observed runs an experiment on a thread that has done nothing before, and returns what
// that did in the kernel.
func (l *lab) observed(f func() error) (seen observe.Thread, sites []observe.Site, err error) {
	if l.observer == nil {
		return seen, nil, l.why
	}
	if l.used == len(l.fresh) {
		return seen, nil, fmt.Errorf("more than %d experiments are observed", subjects)
	}
	at := l.used
	l.used++
	before, err := l.observer.Snapshot()
	if err != nil {
		return seen, nil, err
	}
	if err := l.fresh[at].do(f); err != nil {
		return seen, nil, err
	}
	after, err := l.observer.Snapshot()
	if err != nil {
		return seen, nil, err
	}
	threads, sites := after.Since(before)
	return threads[at], slices.DeleteFunc(sites, func(s observe.Site) bool { return s.Thread != at }), nil
}

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

func (s *subject) dismiss()             { close(s.work) }
func (s *subject) start(f func() error) { s.work <- f }
func (s *subject) wait() error          { return <-s.done }
func (s *subject) do(f func() error) error {
	s.start(f)
	return s.wait()
}
