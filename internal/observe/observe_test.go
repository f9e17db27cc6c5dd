package observe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
	"aossim/internal/refusal"
	"aossim/internal/result"
	"aossim/internal/uring"
)

func TestMain(m *testing.M) {
	if os.Getenv(asRings) != "" {
		ringsMain()
		return
	}
	os.Exit(linuxtest.Main(m))
}

// started is Start. It skips the test where this user may not observe, or where the
// kernel is too old; what this program needs is there since Linux 6.7, which has futex waits on
// rings. A program that is rejected fails the test.
func started(t *testing.T, threads ...Watched) *Observer {
	t.Helper()
	o, err := Start(threads)
	switch {
	case errors.Is(err, refusal.ErrForbidden):
		t.Skip(err)
	case errors.Is(err, refusal.ErrLacking):
		if e := uring.Probe(uring.OpFutexWait); e != nil {
			t.Skipf("%v, and %v", err, e)
		}
		t.Fatalf("this kernel is new enough: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
}

// observed watches the test's own thread.
func observed(t *testing.T) *Observer {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	return started(t, Watched{ThreadID: linux.ThreadID(), Wrap: 1<<32 - 16})
}

// TestRefusals: four things that went wrong are four things that are said. The verifier
// rejects a real program.
func TestRefusals(t *testing.T) {
	bad := &ebpf.ProgramSpec{Name: "bad", Type: ebpf.SocketFilter, License: "MIT", Instructions: asm.Instructions{
		asm.LoadMem(asm.R0, asm.R1, 1<<14, asm.DWord), // beyond its context
		asm.Return(),
	}}
	_, err := ebpf.NewProgram(bad)
	if errors.Is(err, os.ErrPermission) && !errors.As(err, new(*ebpf.VerifierError)) {
		t.Skip(err)
	}
	if err == nil {
		t.Fatal("the verifier takes anything")
	}
	if got := refused("loading", err); errors.Is(got, refusal.ErrCannot) || !strings.Contains(got.Error(), "a fault of aossim") {
		t.Errorf("a rejected program: %v", got)
	}
	for reason, errs := range map[error][]error{
		refusal.ErrLacking:   {ebpf.ErrNotSupported, btf.ErrNotFound, linux.ENOTSUPP, &ebpf.VerifierError{Cause: linux.ENOTSUPP}},
		refusal.ErrForbidden: {syscall.EPERM, &ebpf.VerifierError{Cause: syscall.EPERM}, syscall.EACCES},
		refusal.ErrUntried:   {syscall.ENOMEM, syscall.EMFILE, syscall.EBUSY},
	} {
		for _, err := range errs {
			if got := refused("loading", fmt.Errorf("program x: %w", err)); !errors.Is(got, reason) {
				t.Errorf("%v: %v, want %v", err, got, reason)
			}
		}
	}
}

// TestMethods: where fentry and fexit cannot be had it is for a reason of the kernel's, and no
// fault of this program's.
func TestMethods(t *testing.T) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Skip(refused("reading the kernel's BTF", err))
	}
	for _, m := range []method{byExit, byTracepoints} {
		o, err := program{}.load(types, m)
		if err == nil {
			o.Close()
		} else if t.Log(err); !errors.Is(err, refusal.ErrCannot) {
			t.Errorf("by exit %t: %v", m, err)
		}
	}
}

// TestPlan: where observing need not be possible a run goes on without, and says why.
func TestPlan(t *testing.T) {
	why := errors.New("why")
	for mode, goesOn := range map[Mode]bool{IfPossible: true, Pass: false, All: false, Never: false} {
		p := Plan{Mode: mode}
		if p.GoesOnWithout(why) != goesOn {
			t.Errorf("%s: goes on without: %t", mode, !goesOn)
		}
		if r := p.Result(); goesOn && (r.Mode != result.ObservedNot || r.Missing != "why") {
			t.Errorf("%s: %+v", mode, r)
		}
	}
}

func since(t *testing.T, o *Observer, before Snapshot) (Thread, []Site) {
	t.Helper()
	after, err := o.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	threads, sites := after.Since(before)
	return threads[0], sites
}

// TestCounts: every arm and failure is counted, with what was allocated for it, and
// nothing of another thread.
func TestCounts(t *testing.T) {
	o := observed(t)
	r, err := uring.Setup(64, 128, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	mem := linuxtest.Map(t, os.Getpagesize())
	word := linux.Uint32At(mem, 0)
	other := make(chan struct{})
	go func() {
		defer close(other)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		r, err := uring.Setup(8, 8, 0)
		if err != nil {
			return
		}
		defer r.Close()
		for range 100 {
			r.Push(uring.FutexWait(linux.WordAddress(linux.Uint32At(mem, 64)), 1, linux.MatchAny, uring.FutexU32, 1))
			r.Enter(1, uring.GetEvents)
			r.Next()
		}
	}()
	<-other
	before, err := o.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if before.Threads[0].Arms != 0 {
		t.Errorf("%d arms of another thread", before.Threads[0].Arms)
	}
	// The word is 3 past the first half's values, and 2 past the others', across the wrap.
	const waits = 1000
	for i := range waits {
		value := uint32(1<<32 - 17)
		if word.Store(1); i < waits/2 {
			value, _ = 4, word
			word.Store(7)
		}
		r.Push(uring.FutexWait(linux.WordAddress(word), value, linux.MatchAny, uring.FutexU32, 1))
		if e := r.Enter(1, uring.GetEvents); e != 0 {
			t.Fatal(e)
		}
		if c, _ := r.Next(); c.Errno() != linux.EAGAIN {
			t.Fatalf("%+v", c)
		}
	}
	const wakes = 50
	for range wakes {
		r.Push(uring.FutexWait(linux.WordAddress(word), word.Load(), linux.MatchAny, uring.FutexU32, 1))
		r.Enter(0, 0)
		r.Push(uring.FutexWake(linux.WordAddress(word), 1, uring.FutexU32, 2))
		r.Enter(1, uring.GetEvents)
		for c, ok := r.Next(); ok; c, ok = r.Next() {
			if c.Res < 0 {
				t.Fatalf("%+v", c)
			}
		}
	}
	d, sites := since(t, o, before)
	if d.Arms != waits+wakes || d.Failed != waits || d.Unread != 0 || d.Unplaced != 0 {
		t.Errorf("%d arms, %d failed, %d unread, %d unplaced; want %d, %d, 0, 0", d.Arms, d.Failed, d.Unread, d.Unplaced, waits+wakes, waits)
	}
	if d.Behind[3] != waits/2 || d.Behind[2] != waits/2 {
		t.Errorf("behind: %v", d.Behind)
	}
	latencies := int64(0)
	for _, n := range d.Latency {
		latencies += n
	}
	if latencies != waits || d.Within6us+d.Over40us > waits || d.Within6us == 0 {
		t.Errorf("%d latencies, %d within 6 us, %d over 40 us", latencies, d.Within6us, d.Over40us)
	}
	// With the cache patch an arm hardly ever allocates, without it each failed one does.
	kmallocs := int64(0)
	for _, s := range sites {
		if s.Operation == Kmalloc {
			kmallocs += s.Count
		}
		t.Logf("%d %s of %d in %d bytes, flags %#x, at %s", s.Count, s.Operation, s.Size, s.Room, s.GFP, s.Function)
	}
	if kmallocs != d.Kmalloc {
		t.Errorf("%d kmallocs by site, %d in all", kmallocs, d.Kmalloc)
	}
	if d.Kmalloc > 2 && (d.Kmalloc < waits || d.Kfree < waits) {
		t.Errorf("%d kmallocs and %d kfrees of %d failed arms: neither about 1 nor about all", d.Kmalloc, d.Kfree, waits)
	}
	t.Logf("timing by %s: %d kmalloc, %d kfree, flags %#x", o.Timing, d.Kmalloc, d.Kfree, d.Flags)
}

// TestNamespace: in a pid namespace threads have other numbers than eBPF programs see by
// default, and are counted all the same.
func TestNamespace(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("unshare is not installed (util-linux)")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(unshare, "--pid", "--fork", "--mount-proc", self, "-test.run", "^TestCounts$", "-test.v")
	c.Env = append(os.Environ(), linuxtest.HasMachine+"=1")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestCounts") && !strings.Contains(string(out), "--- SKIP: TestCounts") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestVariables: what is set before loading is what the programs see.
func TestVariables(t *testing.T) {
	spec := mustProgram(t)
	for name, value := range map[string]any{"exact": uint32(1), "pidns_device": uint64(0x1122334455667788), "pidns_inode": uint64(9)} {
		if err := bake(spec, name, value); err != nil {
			t.Fatal(err)
		}
	}
	v := spec.Variables["pidns_device"]
	data := spec.Maps[v.SectionName].Contents[0].Value.([]byte)
	if got := binary.NativeEndian.Uint64(data[v.Offset:]); got != 0x1122334455667788 {
		t.Errorf("%#x", got)
	}
	if v := spec.Variables["exact"]; data[v.Offset] != 1 {
		t.Errorf("exact is %d", data[v.Offset])
	}
}

// TestNothingLeft: no program, map or link outlives Close.
func TestNothingLeft(t *testing.T) {
	there := func() map[string]bool {
		all := map[string]bool{}
		for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
			all[fmt.Sprint("program ", id)] = true
		}
		for id, err := ebpf.MapGetNextID(0); err == nil; id, err = ebpf.MapGetNextID(id) {
			all[fmt.Sprint("map ", id)] = true
		}
		links := new(link.Iterator)
		defer links.Close()
		for links.Next() {
			all[fmt.Sprint("link ", links.ID)] = true
		}
		return all
	}
	before := there()
	o := started(t, Watched{ThreadID: linux.ThreadID()})
	ours := there()
	maps.DeleteFunc(ours, func(id string, _ bool) bool { return before[id] })
	if len(ours) < 2*len(o.links)+len(o.collection.Maps) {
		t.Fatalf("while observing only these are new: %v", ours)
	}
	o.Close()
	// The kernel frees programs after a grace period of RCU.
	for range 200 {
		now := there()
		if maps.DeleteFunc(ours, func(id string, _ bool) bool { return !now[id] }); len(ours) == 0 {
			return
		}
		linux.SleepFor(10_000_000)
	}
	t.Errorf("left behind: %v", ours)
}

// TestMissing: what a kernel may lack is said, with the way out.
func TestMissing(t *testing.T) {
	if err := refused("reading the kernel's BTF", btf.ErrNotFound); !errors.Is(err, refusal.ErrLacking) || !strings.Contains(err.Error(), "CONFIG_DEBUG_INFO_BTF") {
		t.Errorf("without BTF: %v", err)
	}
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Skip(err)
	}
	t.Run("tracepoint", func(t *testing.T) {
		for name, p := range mustProgram(t).Programs {
			if p.AttachType != ebpf.AttachTraceRawTp || strings.HasPrefix(name, "on_complete") {
				continue
			}
			spec := mustProgram(t)
			spec.Programs[name].AttachTo = "no_such_tracepoint"
			err := program{live: &Filter{}}.choose(spec, types, byTracepoints)
			if needed := err != nil; needed == isOptional(name) {
				t.Errorf("%s without its tracepoint: %v", name, err)
			} else if needed && (!errors.Is(err, refusal.ErrLacking) || !strings.Contains(err.Error(), "no_such_tracepoint")) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("capabilities", func(t *testing.T) {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with its lack
			err := linuxtest.DropCapabilities()
			if err == nil {
				_, err = Start(nil)
			}
			done <- err
		}()
		if err := <-done; !errors.Is(err, refusal.ErrForbidden) || !strings.Contains(err.Error(), "CAP_BPF") {
			t.Errorf("without capabilities: %v", err)
		}
	})
}

func isOptional(name string) bool {
	for _, o := range optional {
		if o == name {
			return true
		}
	}
	return false
}

func mustProgram(t *testing.T) *ebpf.CollectionSpec {
	spec, err := loadProgram()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestDecode: a thread's state as the kernel holds it, field by field.
func TestDecode(t *testing.T) {
	raw := programThread{Arms: 10, Failed: 4, Kmalloc: 3, Kfree: 2, CacheAlloc: 1, Within6us: 3, Over40us: 1, Unread: 1, Unplaced: 7}
	raw.Behind[1], raw.Behind[16], raw.Latency[0], raw.Latency[40], raw.Flags[2] = 2, 1, 1, 3, 0x10
	d := decode(&raw)
	want := Thread{Arms: 10, Failed: 4, Kmalloc: 3, Kfree: 2, CacheAlloc: 1, Within6us: 3, Over40us: 1, Unread: 1, Unplaced: 7}
	want.Behind[1], want.Behind[16], want.Latency[0], want.Latency[40], want.Flags[2] = 2, 1, 1, 3, 0x10
	if d != want {
		t.Errorf("got %+v, want %+v", d, want)
	}
	earlier := want
	earlier.Arms, earlier.Behind[1], earlier.Latency[40] = 7, 1, 2
	if got := want.sub(earlier); got.Arms != 3 || got.Behind[1] != 1 || got.Latency[40] != 1 || got.Failed != 0 {
		t.Errorf("difference: %+v", got)
	}
	for bucket, ns := range map[int]int64{0: 0, 31: 31, 32: 32, 33: 33, 64: 65, 95: 127, 1055: 63<<31 + 1<<30} {
		if got := Middle(bucket); got != ns {
			t.Errorf("middle of bucket %d: %d, want %d", bucket, got, ns)
		}
	}
}
