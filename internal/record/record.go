// Package record writes what was observed as a scenario, with a trace for each publisher beside
// it, that runs again without the programs. What could not be known is a comment in the file.
package record

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"aossim/internal/linux"
	"aossim/internal/observe"
	"aossim/internal/output"
	"aossim/scenarios"
)

// More channels and actors than these are left out, the ones with the least to do: so that the file can be read.
const (
	mostChannels = 256
	mostActors   = 512
)

// ext is that of scenario files.
const ext = ".toml"

// File is where a scenario is to go.
type File struct {
	path string
	to   *output.File
}

// Open tries the place of a scenario; it is a refusal.ErrUsage that nothing can be written there, or is
// named otherwise.
func Open(path string) (*File, error) {
	to, err := output.Open(path)
	if err != nil {
		return nil, err
	}
	return &File{path, to}, nil
}

// Discard gives the place up.
func (f *File) Discard() { f.to.Discard() }

// Save writes the traces and then the scenario, and returns the files. It is an error that there is nothing to write.
func (f *File) Save(r *observe.Recording) (files []string, err error) {
	s, traces := build(f.path, r)
	if len(traces) == 0 {
		f.to.Discard()
		return nil, errors.New("no scenario was written: no word was seen that one thread woke and another, or itself, waited on; observe for longer, or more processes")
	}
	if _, err := scenarios.Parse(f.path, []byte(s)); err != nil {
		f.to.Discard()
		return nil, fmt.Errorf("a fault of aossim: the scenario of what was observed is none: %w", err)
	}
	for _, t := range traces {
		if err := output.Write(t.path, t.write); err != nil {
			f.to.Discard()
			return files, err
		}
		files = append(files, t.path)
	}
	path, err := f.to.Save(func(w io.Writer) error { _, err := io.WriteString(w, s); return err })
	if path != "" {
		files = append([]string{path}, files...)
	}
	return files, err
}

// trace is one to be written.
type trace struct {
	path, of string
	times    *observe.Times
	until    int64
}

func (t *trace) write(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# ns from the start: %s\n", t.of)
	for at := range t.times.All() {
		if at >= t.until {
			break
		}
		b.WriteString(strconv.FormatInt(at, 10))
		b.WriteByte('\n')
	}
	return b.Flush()
}

// channel is a word that becomes one.
type channel struct {
	name  string
	of    *observe.RecordedWord
	users []string // groups
}

// private says whether one process uses the word, and its programs do it privately.
func (c *channel) private() bool { return c.of.Private && len(c.users) == 1 }

// actor is a thread as a publisher or a subscriber.
type actor struct {
	thread   *observe.RecordedThread
	group    string
	channels []*channel
	wait     string         // of a subscriber
	times    *observe.Times // of a publisher
	ring     bool           // it wakes by requests
}

// build returns the text of a scenario and its traces.
func build(path string, r *observe.Recording) (text string, traces []trace) {
	length := r.Length.Truncate(time.Millisecond)
	channels, left := choose(r)
	actors, more := cast(r, channels)
	left = append(left, more...)
	var out strings.Builder
	print := func(format string, args ...any) { fmt.Fprintf(&out, format, args...) }
	base := strings.TrimSuffix(path, ext)
	print("# Recorded by aossim observe: what programs did with futexes in %s.\n# Read it before you trust it. Not known, and so not here: the size of messages and of queues (a wake is\n", length)
	print("# taken for one message), flags of rings, and what else kept the CPUs busy: add a [[load]] for that.\n")
	print("# work is the median from a return from a wake to the next wait: all messages of the wake, the program's own way\n# there and the observer's share are in it.\n")
	if r.Lost {
		print("# LOST: the observer lost events, so moments are missing.\n")
	}
	for _, l := range left {
		print("# Left out: %s.\n", l)
	}
	print("name = %s\ndescription = \"recorded from programs that ran\"\nduration = %q\n", quote(cmp.Or(filepath.Base(base), "recorded")), length)
	for _, c := range channels {
		if len(c.users) == 0 {
			continue
		}
		print("\n[[channel]]             # the word %s\nname = %s\nmax_size = 64           # not known\nqueue_size = 4096       # not known\n", oneLine(c.of.Name), quote(c.name))
		switch {
		case c.private():
			print("futex = \"private\"\n")
		case c.of.Private:
			print("futex = \"shared\"        # private in the program, where threads of several policies or kinds of wait use it\n")
		}
	}
	for _, a := range actors {
		t := a.thread
		if a.times != nil {
			file := fmt.Sprintf("%s.%d.trace", base, len(traces)+1)
			traces = append(traces, trace{file, fmt.Sprintf("thread %d, %s, of %s wakes %s", t.ID, oneLine(t.Comm), oneLine(a.group), oneLine(a.channels[0].of.Name)), a.times, int64(length)})
			print("\n[[publisher]]           # thread %d, %s\ngroup = %s\nchannel = %s\narrival = \"trace\"\ntrace = %s # %d wakes\n",
				t.ID, oneLine(t.Comm), quote(a.group), quote(a.channels[0].name), quote(filepath.Base(file)), a.times.Count())
			if a.ring {
				print("wake = \"io_uring\"\n")
			}
			writeSched(&out, t)
			continue
		}
		var names []string
		for _, c := range a.channels {
			names = append(names, quote(c.name))
		}
		print("\n[[subscriber]]          # thread %d, %s\ngroup = %s\nchannels = [%s]\nwait = %q\n", t.ID, oneLine(t.Comm), quote(a.group), strings.Join(names, ", "), a.wait)
		if a.wait == waitVector {
			print("# of the words of its vectors only the first is known\n")
		}
		if a.wait != waitFutex && t.Combined {
			print("submit = \"combined\"\n")
		}
		if t.Work > 0 && t.Work < int64(time.Minute) {
			print("work = %q\n", strings.ReplaceAll(time.Duration(t.Work).String(), "µ", "u"))
		} else {
			print("# work: not known, no wait followed a wake within a minute\n")
		}
		writeSched(&out, t)
	}
	return out.String(), traces
}

func writeSched(out *strings.Builder, t *observe.RecordedThread) {
	s := t.Sched
	if s.Policy != linux.Other {
		fmt.Fprintf(out, "policy = %q\n", s.Policy)
	}
	switch {
	case s.Policy == linux.FIFO || s.Policy == linux.RR:
		fmt.Fprintf(out, "priority = %d\n", s.Priority)
	case s.Policy == linux.Deadline:
		fmt.Fprintf(out, "runtime = %q\ndeadline = %q\nperiod = %q\n", time.Duration(s.Runtime), time.Duration(s.Deadline), time.Duration(s.Period))
	case s.Nice != 0:
		fmt.Fprintf(out, "nice = %d\n", s.Nice)
	}
	if t.CPUs != nil && s.Policy != linux.Deadline {
		fmt.Fprintf(out, "cpus = %s\n", strings.ReplaceAll(fmt.Sprint(t.CPUs), " ", ", "))
	}
	if !t.Known {
		fmt.Fprintf(out, "# nice and CPUs: not known, it ended before they could be asked for\n")
	}
}

// waitFutex and the others are kinds of wait (internal/wait).
const (
	waitFutex  = "futex"
	waitRing   = "io_uring"
	waitVector = "io_uring_waitv"
)

// choose makes channels of the words that were both woken and waited on, the busiest first. left says what is none.
func choose(r *observe.Recording) (channels []*channel, left []string) {
	waited, woken := make([]int64, len(r.Words)), make([]int64, len(r.Words))
	for i := range r.Threads {
		for _, w := range r.Threads[i].Waits {
			waited[w.Word] += w.Arms + w.Calls
		}
		for _, w := range r.Threads[i].Wakes {
			woken[w.Word] += int64(w.Times.Count())
		}
	}
	var order []int
	var alone, unheard int
	for i := range r.Words {
		switch {
		case waited[i] > 0 && woken[i] > 0:
			order = append(order, i)
		case waited[i] > 0:
			alone++
		default:
			unheard++
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(waited[b]+woken[b], waited[a]+woken[a]) })
	for _, l := range []struct {
		n   int
		why string
	}{{alone, "that nobody who was observed woke"}, {unheard, "that nobody who was observed waited on"}, {len(order) - mostChannels, fmt.Sprintf("beyond the %d busiest", mostChannels)}} {
		if l.n > 0 {
			left = append(left, fmt.Sprintf("%d words %s", l.n, l.why))
		}
	}
	names := map[string]bool{}
	for _, i := range order[:min(len(order), mostChannels)] {
		base := fileWord(r.Words[i].Name)
		name := "/" + base
		for n := 2; names[name]; n++ {
			name = fmt.Sprintf("/%s %d", base, n)
		}
		names[name] = true
		channels = append(channels, &channel{name: name, of: &r.Words[i]})
	}
	return channels, left
}

// fileWord makes a channel's name of a word's: its file's, without its folder.
func fileWord(name string) string {
	if strings.HasPrefix(name, "/") {
		name = filepath.Base(name)
	}
	name = strings.ReplaceAll(strings.ReplaceAll(oneLine(name), " (deleted)", ""), "/", "_")
	const most = 100 // bytes
	return strings.ToValidUTF8(name[:min(len(name), most)], "")
}

// shape is what subscribers of one group have in common, and all its members.
type shape struct {
	name     string
	policy   linux.Policy
	priority int
	wait     string // "" until it has a subscriber
	combined bool
	width    int
}

// cast makes actors of threads that use channels.
func cast(r *observe.Recording, channels []*channel) (actors []actor, left []string) {
	byWord := map[int]*channel{}
	for i := range r.Words {
		for _, c := range channels {
			if c.of == &r.Words[i] {
				byWord[i] = c
			}
		}
	}
	used, shapes := map[string]bool{}, map[string][]*shape{}
	for i := range r.Threads {
		used[r.Threads[i].Process] = true
	}
	add := func(a actor) {
		if len(actors) == mostActors {
			left = []string{fmt.Sprintf("actors beyond the first %d", mostActors)}
			return
		}
		a.group = groupOf(shapes, used, a)
		for _, c := range a.channels {
			if !slices.Contains(c.users, a.group) {
				c.users = append(c.users, a.group)
			}
		}
		actors = append(actors, a)
	}
	for i := range r.Threads {
		t := &r.Threads[i]
		var ring, vector []*channel
		for _, w := range t.Waits {
			switch c := byWord[w.Word]; {
			case c == nil:
			case w.Arms == 0:
				add(actor{thread: t, channels: []*channel{c}, wait: waitFutex})
			case w.Vectors:
				vector = append(vector, c)
			default:
				ring = append(ring, c)
			}
		}
		if len(ring) > 0 {
			add(actor{thread: t, channels: ring, wait: waitRing})
		}
		if len(vector) > 0 {
			add(actor{thread: t, channels: vector[:1], wait: waitVector})
		}
		for _, w := range t.Wakes {
			if c := byWord[w.Word]; c != nil {
				add(actor{thread: t, channels: []*channel{c}, times: w.Times, ring: w.Ring})
			}
		}
	}
	return actors, left
}

// groupOf is the group of an actor: its process, whose threads of another policy, priority or
// kind of wait are a group of their own, as a group has one of each.
func groupOf(shapes map[string][]*shape, used map[string]bool, a actor) string {
	t := a.thread
	want := shape{policy: t.Sched.Policy, priority: t.Sched.Priority, wait: a.wait, combined: t.Combined && a.wait != waitFutex && a.wait != "", width: len(a.channels)}
	for _, s := range shapes[t.Process] {
		if s.policy != want.policy || s.priority != want.priority {
			continue
		}
		if a.wait == "" {
			return s.name
		}
		want.name = s.name
		if s.wait == "" || *s == want {
			*s = want
			return s.name
		}
	}
	want.name = t.Process
	for n := 2; len(shapes[t.Process]) > 0 && used[want.name]; n++ {
		want.name = fmt.Sprintf("%s %d", t.Process, n)
	}
	used[want.name] = true
	shapes[t.Process] = append(shapes[t.Process], &want)
	return want.name
}

// quote writes a TOML string: names have nothing left that Go and TOML escape differently.
func quote(text string) string { return strconv.Quote(oneLine(text)) }

// oneLine leaves out what would end a comment or a string.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
