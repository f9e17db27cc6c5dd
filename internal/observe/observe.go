// Package observe counts what the kernel does when the program's threads arm futex
// waits, by eBPF: requests, failures, and what is allocated and freed within the arming.
// It is the only place that loads eBPF programs.
//
// Start returns an error that wraps a reason of package refusal, says what is missing and how
// to get it, where this kernel or this user cannot observe; any other error of it is a fault
// of this program. Methods may be called from any thread,
// one at a time. Observing needs the kernel's BTF (CONFIG_DEBUG_INFO_BTF), CAP_BPF and
// CAP_PERFMON, and the tracepoints in observe.c; where the kernel also has fentry and
// fexit (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, and not refused), io_futex_wait() is
// bounded and timed exactly.
package observe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"aossim/internal/linux"
	"aossim/internal/refusal"
	"aossim/internal/result"
)

//go:generate go tool bpf2go -target bpfel -type thread -type site -type doing -type word_key -type word -type bar -type tally -cflags "-O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" program observe.c

// Share is which part of a run's time, or of its rounds, is observed after it.
const Share = 4

// Mode says whether and when the kernel is to be observed: after each run in a shorter
// pass of its own, if this kernel and user can; the same, and it must be possible;
// throughout, which must be possible too; not at all.
type Mode string

// See Mode.
const (
	IfPossible Mode = "if-possible"
	Pass       Mode = "pass"
	All        Mode = "all"
	Never      Mode = "no"
)

// Plan is whether the kernel will be observed: the mode that was asked for, and why it cannot
// be followed, nil where it can.
type Plan struct {
	Mode    Mode
	Missing error
}

// NewPlan finds out by doing whether the kernel can be observed, where it is to be. The
// error is Start's where it must be possible and is not.
func NewPlan(m Mode) (Plan, error) {
	p := Plan{Mode: m}
	if m != IfPossible && m != Pass && m != All {
		return p, nil
	}
	o, err := Start(nil)
	if err == nil {
		o.Close()
		return p, nil
	}
	if !p.GoesOnWithout(err) {
		return p, err
	}
	return p, nil
}

// GoesOnWithout says whether a run goes on after an error of observing, and remembers it: it
// does where observing need not be possible, so that what was measured does not suffer.
func (p *Plan) GoesOnWithout(err error) bool {
	if err == nil || p.Mode != IfPossible {
		return false
	}
	p.Missing = err
	return true
}

// Result is what a result says of the plan.
func (p *Plan) Result() result.Observer {
	switch {
	case p.Missing != nil:
		return result.Observer{Mode: result.ObservedNot, Missing: p.Missing.Error()}
	case p.Mode == All:
		return result.Observer{Mode: result.ObservedAll}
	case p.Mode == IfPossible, p.Mode == Pass:
		return result.Observer{Mode: result.ObservedPass}
	}
	return result.Observer{Mode: result.ObservedNot}
}

// Timing is how the moment of a failure is known.
type Timing string

// By io_futex_wait()'s own return; or by the tracepoint of its CQE, which comes after
// it, and for several waits of one io_uring_enter after the last.
const (
	Fexit       Timing = "fexit"
	Tracepoints Timing = "tracepoints"
)

// Operation is what happened at a Site.
type Operation uint32

// kmalloc(), kfree() and kmem_cache_alloc(), as the kernel's kmem trace events have them.
const (
	Kmalloc Operation = iota
	Kfree
	CacheAlloc
	operations = iota // OPERATIONS of observe.c
)

func (o Operation) String() string { return [...]string{"kmalloc", "kfree", "kmem_cache_alloc"}[o] }

// Site is a place in the kernel that allocated or freed while a thread armed.
type Site struct {
	Thread    int // number of the watched thread
	Operation Operation
	Waking    bool   // within a call that wakes, rather than while it armed; of a live observation only
	Function  string // with offset
	Size      int64  // bytes asked for; 0 for a kfree of what was not allocated by an arming
	Room      int64  // bytes given
	GFP       uint64
	Count     int64
}

// Buckets of a latency histogram, by their middle (ns).
const buckets = 33 * subBuckets
const subBuckets = 32

// Thread is what one thread did since it was watched.
type Thread struct {
	Arms, Failed, Kmalloc, Kfree, CacheAlloc int64
	Within6us, Over40us                      int64 // of the failures, from syscall entry
	// Behind counts failures by how far the word was past the armed value; the last
	// element counts all from there on; Unread those where it could not be told.
	Behind      [17]int64
	Unread      int64
	BucketLocks int64 // entries of futex_q_lock(), which takes a hash bucket's lock; see Observer.CountsBucketLocks
	// Unplaced is how many allocations and frees are missing among the sites.
	Unplaced int64
	// Latency counts failures by the time from syscall entry, by bucket.
	Latency [buckets]int64
	// Flags of all completed requests by opcode: FUTEX_WAIT, FUTEX_WAKE, FUTEX_WAITV, by OR.
	Flags [3]uint64
}

// Middle returns the middle of a bucket of Latency in ns, right to 1.6 %.
func Middle(bucket int) int64 {
	if bucket < subBuckets {
		return int64(bucket)
	}
	shift := bucket/subBuckets - 1
	low := int64(subBuckets+bucket%subBuckets) << shift
	return low + int64(1)<<shift/2
}

// sub subtracts an earlier state.
func (t Thread) sub(o Thread) Thread {
	for _, p := range [...]struct {
		to   *int64
		from int64
	}{
		{&t.Arms, o.Arms}, {&t.Failed, o.Failed}, {&t.Kmalloc, o.Kmalloc}, {&t.Kfree, o.Kfree}, {&t.CacheAlloc, o.CacheAlloc},
		{&t.BucketLocks, o.BucketLocks}, {&t.Within6us, o.Within6us}, {&t.Over40us, o.Over40us}, {&t.Unread, o.Unread}, {&t.Unplaced, o.Unplaced},
	} {
		*p.to -= p.from
	}
	for i := range t.Behind {
		t.Behind[i] -= o.Behind[i]
	}
	for i := range t.Latency {
		t.Latency[i] -= o.Latency[i]
	}
	return t
}

// Snapshot is a state of all watched threads.
type Snapshot struct {
	Threads []Thread
	// Missed is how many events the kernel did not give to a program, of any thread on
	// the machine, since it was busy with one: none of those can be an arm or a failure, of
	// which several programs take care, unless all of them were.
	Missed int64
	sites  map[programSite]int64
}

// Since returns what happened after an earlier snapshot of the same threads, and the
// sites where, most first. Flags are those of all time.
func (s Snapshot) Since(before Snapshot) ([]Thread, []Site) {
	threads := slices.Clone(s.Threads)
	for i := range threads {
		threads[i] = threads[i].sub(before.Threads[i])
	}
	symbols := kernelSymbols()
	var sites []Site
	for key, n := range s.sites {
		if n -= before.sites[key]; n > 0 {
			sites = append(sites, Site{
				Thread: int(key.Slot), Operation: Operation(key.Operation % operations), Waking: key.Operation >= operations, Function: symbols.name(key.CallSite),
				Size: int64(key.Size), Room: int64(key.Room), GFP: key.Gfp, Count: n,
			})
		}
	}
	slices.SortFunc(sites, func(a, b Site) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Thread, b.Thread), cmp.Compare(a.Function, b.Function), cmp.Compare(a.Size, b.Size))
	})
	return threads, sites
}

// Watched is a thread to be watched: its number (gettid(2)), and where the queue indexes
// of all channels that it arms on start again, 0 if they differ.
type Watched struct {
	ThreadID int
	Wrap     uint32
}

// Observer observes until Close.
type Observer struct {
	collection *ebpf.Collection
	links      []link.Link
	threads    int
	// Timing says which of the two was used.
	Timing Timing
}

// Start watches threads from now on, with fentry and fexit where the kernel takes them.
func Start(threads []Watched) (*Observer, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, refused("reading the kernel's BTF", err)
	}
	return start(program{watched: threads}, types)
}

// start loads p, with fentry and fexit where the kernel takes them.
func start(p program, types *btf.Spec) (*Observer, error) {
	if o, err := p.load(types, byExit); err == nil {
		return o, nil
	}
	return p.load(types, byTracepoints)
}

// program is what is to be loaded: for threads that are given, or live.
type program struct {
	watched []Watched
	live    *Filter
	record  bool
}

// method says what load attaches.
type method bool

const (
	byExit        method = true // fentry and fexit of io_futex_wait(), too
	byTracepoints method = false
)

// load loads and attaches everything.
func (p program) load(types *btf.Spec, exact method) (o *Observer, err error) {
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	if err := p.choose(spec, types, exact); err != nil {
		return nil, err
	}
	device, inode, err := pidNamespace()
	if err != nil {
		return nil, err
	}
	values := map[string]any{"exact": boolean(bool(exact)), "pidns_device": device, "pidns_inode": inode}
	n := uint32(max(1, len(p.watched)))
	sizes := map[string]uint32{"threads": n, "slots": n, "sites": 512 + 64*n}
	if p.live != nil {
		p.live.values(values, p.record)
		p.live.sizes(sizes, p.record)
	}
	for name, value := range values {
		if err := bake(spec, name, value); err != nil {
			return nil, err
		}
	}
	// As variables their memory would stay mapped until a garbage collection.
	clear(spec.Variables)
	for name, n := range sizes {
		spec.Maps[name].MaxEntries = n
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: types}})
	if err != nil {
		return nil, refused("loading eBPF programs", err)
	}
	o = &Observer{collection: collection, threads: len(p.watched), Timing: Tracepoints}
	defer func() {
		if err != nil {
			o.Close()
			o = nil
		}
	}()
	if exact {
		o.Timing = Fexit
	}
	if p.live != nil {
		if err := p.live.put(collection); err != nil {
			return o, err
		}
	}
	for i, t := range p.watched {
		if t.Wrap != 0 {
			if err := collection.Maps["threads"].Put(uint32(i), &programThread{Wrap: uint64(t.Wrap)}); err != nil {
				return o, err
			}
		}
	}
	// What begins a call comes last, so that no call is seen to begin that is not seen to end.
	names := slices.SortedFunc(maps.Keys(collection.Programs), func(a, b string) int {
		return cmp.Or(int(boolean(a == beginsCalls))-int(boolean(b == beginsCalls)), cmp.Compare(a, b))
	})
	for _, name := range names {
		l, err := link.AttachTracing(link.TracingOptions{Program: collection.Programs[name]})
		if err != nil {
			return o, refused("attaching "+name+" to "+spec.Programs[name].AttachTo, err)
		}
		o.links = append(o.links, l)
	}
	// Only now, so that no thread is seen to enter what it is not seen to leave.
	for i, t := range p.watched {
		if err := collection.Maps["slots"].Put(uint32(t.ThreadID), uint32(i)); err != nil {
			return o, err
		}
	}
	return o, nil
}

// bake sets a variable in the section that has it.
func bake(spec *ebpf.CollectionSpec, name string, value any) error {
	v := spec.Variables[name]
	if err := v.Set(value); err != nil {
		return err
	}
	section := spec.Maps[v.SectionName]
	data, ok := section.Contents[0].Value.([]byte)
	if !ok || len(data) < int(v.Offset)+len(v.Value) {
		return fmt.Errorf("variable %s has no place in %s", name, v.SectionName)
	}
	copy(data[v.Offset:], v.Value)
	return nil
}

// optional are the tracepoints without which the counts still hold: they are about what
// must not be taken for an arming's own.
var optional = []string{"on_cqring_wait", "on_softirq_entry", "on_softirq_exit", "on_bucket_lock", "live_locked"}

// beginsCalls is the program at the entry of system calls.
const beginsCalls = "on_sys_enter"

// livePrefix begins the names of programs that live.h alone needs.
const livePrefix = "live_"

// choose leaves in spec the programs that this kernel can take.
func (p program) choose(spec *ebpf.CollectionSpec, types *btf.Spec, exact method) error {
	live, other := p.live != nil, "on_complete_res"
	if n, err := arguments(types, "io_uring_complete"); err == nil && n > 4 {
		other = "on_complete_cqe"
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return strings.HasPrefix(name, other) })
	for name, p := range spec.Programs {
		switch {
		case strings.HasPrefix(name, livePrefix) && !live:
			delete(spec.Programs, name)
		case p.AttachType != ebpf.AttachTraceRawTp: // fentry or fexit
			if !exact {
				delete(spec.Programs, name)
				continue
			}
			var f *btf.Func
			if err := types.TypeByName(p.AttachTo, &f); err != nil && slices.Contains(optional, name) {
				delete(spec.Programs, name)
			} else if err != nil {
				return fmt.Errorf("%s: %w: it has no function %s", cannot, refusal.ErrLacking, p.AttachTo)
			}
		default:
			if _, err := arguments(types, p.AttachTo); err == nil {
				continue
			} else if slices.Contains(optional, name) {
				delete(spec.Programs, name)
			} else {
				return fmt.Errorf("%s: %w: it has no tracepoint %s (%w); it needs CONFIG_TRACEPOINTS, CONFIG_FTRACE_SYSCALLS and CONFIG_BPF_EVENTS", cannot, refusal.ErrLacking, p.AttachTo, err)
			}
		}
	}
	return nil
}

// arguments returns how many arguments a tracepoint's probes get, the first, their own
// data, among them (include/linux/tracepoint.h, btf_trace_NAME).
func arguments(types *btf.Spec, tracepoint string) (int, error) {
	var def *btf.Typedef
	if err := types.TypeByName("btf_trace_"+tracepoint, &def); err != nil {
		return 0, err
	}
	pointer, ok := def.Type.(*btf.Pointer)
	if !ok {
		return 0, fmt.Errorf("%s is no pointer", def.Name)
	}
	proto, ok := pointer.Target.(*btf.FuncProto)
	if !ok {
		return 0, fmt.Errorf("%s points to no function", def.Name)
	}
	return len(proto.Params), nil
}

// cannot stands in front of a refusal.
const cannot = "cannot observe the kernel here"

// refused says why the kernel did not take a program: that it lacks something, that this
// user may not, or that it could not be tried. A program that the verifier rejects is none of
// these, and no refusal: it is this program's fault.
func refused(doing string, err error) error {
	var rejected *ebpf.VerifierError
	lacks := errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, btf.ErrNotFound) || errors.Is(err, os.ErrNotExist) || errors.Is(err, linux.ENOTSUPP)
	fault := errors.Is(err, linux.EACCES) || errors.Is(err, linux.ErrInvalid) || errors.Is(err, linux.E2BIG) || errors.Is(err, linux.EFAULT)
	switch {
	case errors.As(err, &rejected) && fault && !lacks:
		return fmt.Errorf("%s: the kernel's verifier rejects a program of aossim, which is a fault of aossim and worth a report: %w", doing, err)
	case lacks:
		return fmt.Errorf("%s: %w: %s: %w; it needs CONFIG_BPF_SYSCALL, CONFIG_BPF_EVENTS and CONFIG_DEBUG_INFO_BTF", cannot, refusal.ErrLacking, doing, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: %w: %s: %w; run as root, or with CAP_BPF and CAP_PERFMON (setcap cap_bpf,cap_perfmon+ep), on a kernel that is not locked down", cannot, refusal.ErrForbidden, doing, err)
	}
	return fmt.Errorf("%s: %w: %s: %w", cannot, refusal.ErrUntried, doing, err)
}

func boolean(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Snapshot reads the state of all watched threads.
func (o *Observer) Snapshot() (Snapshot, error) {
	s := Snapshot{Threads: make([]Thread, o.threads), sites: map[programSite]int64{}}
	for i := range s.Threads {
		var t programThread
		if err := o.collection.Maps["threads"].Lookup(uint32(i), &t); err != nil {
			return s, fmt.Errorf("reading what was observed: %w", err)
		}
		s.Threads[i] = decode(&t)
	}
	for name, p := range o.collection.Programs {
		if st, err := p.Stats(); err == nil && !strings.HasPrefix(name, "on_submit") && !strings.HasPrefix(name, "on_complete") {
			s.Missed += int64(st.RecursionMisses)
		}
	}
	var key programSite
	var n uint64
	for all := o.collection.Maps["sites"].Iterate(); ; {
		if !all.Next(&key, &n) {
			if err := all.Err(); err != nil {
				return s, fmt.Errorf("reading what was observed: %w", err)
			}
			return s, nil
		}
		s.sites[key] = int64(n)
	}
}

func decode(t *programThread) Thread {
	d := Thread{
		Arms: int64(t.Arms), Failed: int64(t.Failed), Kmalloc: int64(t.Kmalloc), Kfree: int64(t.Kfree), CacheAlloc: int64(t.CacheAlloc),
		Within6us: int64(t.Within6us), Over40us: int64(t.Over40us), BucketLocks: int64(t.BucketLocks), Unread: int64(t.Unread), Unplaced: int64(t.Unplaced), Flags: t.Flags,
	}
	for i, n := range t.Behind {
		d.Behind[i] = int64(n)
	}
	for i, n := range t.Latency {
		d.Latency[i] = int64(n)
	}
	return d
}

// CountsBucketLocks says whether Thread.BucketLocks counts: the kernel has fentry and a
// function futex_q_lock.
func (o *Observer) CountsBucketLocks() bool { return o.collection.Programs["on_bucket_lock"] != nil }

// Close detaches and unloads everything.
func (o *Observer) Close() {
	for _, l := range o.links {
		l.Close()
	}
	o.collection.Close()
}
