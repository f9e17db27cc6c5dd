// Package actors starts actor processes, tells them what to do and hears what they say: one
// harness for scenarios and micro-benchmarks.
//
// An actor process is this program once more, with a first argument that is no part of its
// command line. It gets its orders on standard input and answers on standard output, one
// JSON value each, and measures in between. It dies with the controller.
package actors

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"strings"

	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// orders is what a process is told first.
type orders struct {
	Controller int // its process number
	Kind       Kind
	Body       json.RawMessage
}

// answer is what it says to each command.
type answer struct {
	Error  string
	Cannot bool // the error is that this kernel or this user cannot do it
	Body   json.RawMessage
}

// Conversation is the process's side.
type Conversation struct {
	commands *json.Decoder
	answers  *json.Encoder
}

// Hear reads the next command; it returns false where there is none any more.
func (c *Conversation) Hear(command any) bool { return c.commands.Decode(command) == nil }

// Say answers, with an error that the process met or nil.
func (c *Conversation) Say(body any, failed error) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	a := answer{Body: data}
	if failed != nil {
		a.Error, a.Cannot = strings.ReplaceAll(failed.Error(), "\n", "; "), errors.Is(failed, refusal.ErrCannot)
	}
	return c.answers.Encode(a)
}

// Serve is an actor process: it reads its orders and does them, on a locked thread. It
// returns the exit code, and must be the only thing its process does.
func Serve[T any](in io.Reader, out io.Writer, do func(T, *Conversation) error) int {
	runtime.LockOSThread()
	c := &Conversation{json.NewDecoder(in), json.NewEncoder(out)}
	var o orders
	var body T
	err := c.commands.Decode(&o)
	if err == nil {
		err = json.Unmarshal(o.Body, &body)
	}
	if err == nil {
		err = linux.DieWithParent(o.Controller, o.Kind.death())
	}
	if err == nil {
		// The controller decides when to end: a signal to everybody must not take the
		// measurements with it. An external program has to hear that the controller died.
		if linux.IgnoreSignals(); o.Kind != Gentle {
			linux.IgnoreSignals(linux.Terminate)
		}
		// Where memory runs out the controller has to stay: it has what was measured.
		linux.PreferToKill()
		err = do(body, c)
	}
	if err != nil {
		_ = c.Say(nil, err) // there is nobody else to tell
		return 1
	}
	return 0
}

// NoCollections does one garbage collection and has no other follow: it would wait for
// threads that block outside of the Go scheduler's knowledge.
func NoCollections() {
	debug.SetMemoryLimit(math.MaxInt64)
	runtime.GC()
	debug.SetGCPercent(-1)
}

// Collections returns how many garbage collections this process has done. It
// stops the world, so no actor may be running.
func Collections() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.NumGC)
}

// Become gives the calling thread, which it locks, a name, a place and a policy, and returns
// what was granted. An ordinary thread's nice value stays what it is where none is asked for.
func Become(name string, cpus []int, s linux.Sched) (granted linux.Sched, on []int, err error) {
	runtime.LockOSThread()
	linux.NameThread(name) // as ps, top and bpftrace will show it
	if on, err = linux.SetAffinity(cpus); err != nil {
		return granted, on, err
	}
	if granted, err = linux.SetSched(s); err != nil {
		return granted, on, limits.Explain(err, s, cpus)
	}
	return granted, on, nil
}
