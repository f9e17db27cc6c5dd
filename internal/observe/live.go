package observe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// Room of the maps of a live observation. What they have no room for is counted as lost.
const (
	mostThreads = 8192
	mostWords   = 32768
	mostBars    = 131072 // of histograms of all processes
	momentBytes = 32 << 20
)

// CommLength is how many bytes of a process's comm there are at most (TASK_COMM_LEN without its end).
const CommLength = 15

// Filter says which processes a live observation is of: those of a number or a comm, or with a
// thread of that comm; all where it is empty, but the observer's own.
type Filter struct {
	PIDs  []int
	Comms []string // as prctl(2) PR_SET_NAME keeps them, CommLength bytes at most
}

func (f *Filter) empty() bool { return len(f.PIDs)+len(f.Comms) == 0 }

// values are the variables of live.h.
func (f *Filter) values(v map[string]any, record bool) {
	nrFutex, nrRestart := linux.FutexCalls()
	for name, value := range map[string]uint32{
		"live": 1, "nr_futex": nrFutex, "nr_restart": nrRestart, "filtered": boolean(!f.empty()), "own": uint32(os.Getpid()), "record": boolean(record), "most_threads": mostThreads,
		"page_shift": uint32(bits.TrailingZeros(uint(os.Getpagesize()))),
	} {
		v[name] = value
	}
}

func (f *Filter) sizes(s map[string]uint32, record bool) {
	maps.Copy(s, map[string]uint32{
		"threads": mostThreads, "doings": mostThreads, "slots": mostThreads, "leaders": mostThreads, "sites": 16384, "words": mostWords, "bars": mostBars,
		"pids": uint32(max(1, len(f.PIDs))), "comms": uint32(max(1, len(f.Comms))),
	})
	if record {
		s["moments"] = momentBytes
	}
}

// put fills the maps that choose.
func (f *Filter) put(c *ebpf.Collection) error {
	for _, pid := range f.PIDs {
		if err := c.Maps["pids"].Put(uint32(pid), uint32(1)); err != nil {
			return err
		}
	}
	for _, comm := range f.Comms {
		var key [CommLength + 1]byte
		copy(key[:], comm)
		if err := c.Maps["comms"].Put(key, uint32(1)); err != nil {
			return err
		}
	}
	return nil
}

// Live observes what any thread of the machine does with futexes, until Close. Its methods may be
// called from one thread at a time.
type Live struct {
	*Observer
	stats   io.Closer // has the kernel count what programs cost
	names   names
	moments *ringbuf.Reader
	streams map[stream]*Times
	began   int64 // ns of CLOCK_MONOTONIC, when moments begin
}

// stream is whose moments belong together: a thread's with a word.
type stream struct {
	slot, shared uint32
	address      uint64
}

// StartLive watches the processes of a filter from now on; record has it keep the moments of wakes. Its
// errors are Start's.
func StartLive(f Filter, record bool) (*Live, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, refused("reading the kernel's BTF", err)
	}
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" && runtime.GOARCH != "riscv64" {
		return nil, fmt.Errorf("%s: %w: the arguments of system calls are known on amd64, arm64 and riscv64", cannot, refusal.ErrLacking)
	}
	l := &Live{names: newNames(), streams: map[stream]*Times{}}
	// Programs that ran before are counted as well, so the counts are those of this observation.
	if l.stats, err = ebpf.EnableStats(0); err != nil { // BPF_STATS_RUN_TIME
		return nil, refused("having the kernel count what programs cost", err)
	}
	if l.Observer, err = start(program{live: &f, record: record}, types); err != nil {
		l.stats.Close()
		return nil, err
	}
	if record {
		if l.moments, err = ringbuf.NewReader(l.collection.Maps["moments"]); err != nil {
			l.Close()
			return nil, fmt.Errorf("reading the moments of wakes: %w", err)
		}
		l.moments.SetDeadline(time.Unix(1, 0)) // never wait
	}
	return l, nil
}

// Close detaches and unloads everything.
func (l *Live) Close() {
	if l.moments != nil {
		l.moments.Close()
	}
	l.Observer.Close()
	l.stats.Close()
}

// Poll looks at what is new: to be called now and then, so that a process that ends is known by more than its number,
// and no moment is lost.
func (l *Live) Poll() error {
	if err := l.drain(); err != nil {
		return err
	}
	t, err := l.tally()
	if err != nil {
		return err
	}
	for slot := uint32(l.names.seen()); slot < uint32(min(t.Threads, mostThreads)); slot++ {
		var d programDoing
		if err := l.collection.Maps["doings"].Lookup(slot, &d); err != nil {
			return fmt.Errorf("reading what was observed: %w", err)
		}
		if d.Who.Tid == 0 { // its slot is given out, and it is still written
			break
		}
		l.names.add(&d)
	}
	l.names.poll()
	return nil
}

func (l *Live) drain() error {
	if l.moments == nil {
		return nil
	}
	var r ringbuf.Record
	for {
		switch err := l.moments.ReadInto(&r); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("reading the moments of wakes: %w", err)
		}
		// struct moment of live.h
		b := r.RawSample
		key := stream{binary.NativeEndian.Uint32(b[16:]), binary.NativeEndian.Uint32(b[20:]), binary.NativeEndian.Uint64(b[8:])}
		if l.streams[key] == nil {
			l.streams[key] = &Times{}
		}
		if at := int64(binary.NativeEndian.Uint64(b)) - l.began; at >= 0 {
			l.streams[key].add(at)
		}
	}
}

func (l *Live) tally() (t programTally, err error) {
	if err := l.collection.Maps["totals"].Lookup(uint32(0), &t); err != nil {
		return t, fmt.Errorf("reading what was observed: %w", err)
	}
	return t, nil
}

// State is all that was counted from the start on.
type State struct {
	at      time.Time
	cpu     time.Duration // of this process
	threads []programThread
	doings  []programDoing
	words   map[programWordKey]programWord
	bars    map[programBar]uint64
	sites   map[programSite]uint64
	tally   programTally
	costs   map[string]ebpf.ProgramStats
}

// State reads it.
func (l *Live) State() (s State, err error) {
	if l.began == 0 {
		l.began = linux.Now()
	}
	if err := l.Poll(); err != nil {
		return s, err
	}
	s = State{at: time.Now(), cpu: linux.ProcessTime(), costs: map[string]ebpf.ProgramStats{}}
	if s.tally, err = l.tally(); err != nil {
		return s, err
	}
	n := l.names.seen() // one that is new since is of the next state
	s.threads, s.doings = make([]programThread, n), make([]programDoing, n)
	for i := range n {
		err := errors.Join(l.collection.Maps["threads"].Lookup(uint32(i), &s.threads[i]), l.collection.Maps["doings"].Lookup(uint32(i), &s.doings[i]))
		if err != nil {
			return s, fmt.Errorf("reading what was observed: %w", err)
		}
	}
	if s.words, err = read[programWordKey, programWord](l.collection.Maps["words"]); err != nil {
		return s, err
	}
	if s.bars, err = read[programBar, uint64](l.collection.Maps["bars"]); err != nil {
		return s, err
	}
	if s.sites, err = read[programSite, uint64](l.collection.Maps["sites"]); err != nil {
		return s, err
	}
	for name, p := range l.collection.Programs {
		st, err := p.Stats()
		if err != nil {
			return s, fmt.Errorf("reading what observing costs: %w", err)
		}
		s.costs[name] = *st
	}
	return s, nil
}

// read returns a map's entries. Those that come or go meanwhile may be missed, and are there the next time.
func read[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
	all := map[K]V{}
	var key K
	var value V
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		all[key] = value
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("reading what was observed: %w", err)
	}
	return all, nil
}

// text is a comm as the kernel has it.
func text(c [CommLength + 1]int8) string {
	b := make([]byte, len(c))
	for i, v := range c {
		b[i] = byte(v)
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// skipped is how many events the kernel did not give to the observer's programs between two states, of any thread of the machine;
// of an event for which several programs stand by, those that none of them was given.
func skipped(from, to map[string]ebpf.ProgramStats) (n int64) {
	least := map[string]int64{}
	for name, s := range to {
		missed := int64(s.RecursionMisses - from[name].RecursionMisses)
		stem := strings.TrimRight(name, "_1234")
		if had, ok := least[stem]; !ok || missed < had {
			least[stem] = missed
		}
	}
	for _, m := range least {
		n += m
	}
	return n
}

// slots returns those of each process, by the slot of the first thread seen of it.
func (s *State) slots() (order []uint32, of map[uint32][]int) {
	of = map[uint32][]int{}
	for i := range s.doings {
		p := s.doings[i].Process
		if of[p] == nil {
			order = append(order, p)
		}
		of[p] = append(of[p], i)
	}
	slices.Sort(order)
	return order, of
}
