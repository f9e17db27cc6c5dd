package micro

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"aossim/internal/actors"
	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
	"aossim/internal/metric"
	"aossim/internal/observe"
	"aossim/internal/refusal"
	"aossim/internal/result"
	"aossim/internal/uring"
	"aossim/scenarios"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == ActorCommand {
		os.Exit(ActorMain(os.Stdin, os.Stdout))
	}
	os.Exit(linuxtest.Main(m))
}

func scenario(t testing.TB, text string) *scenarios.Scenario {
	t.Helper()
	s, err := scenarios.Parse("test.toml", []byte("kind = \"micro\"\nrounds = 3\nwarmup_rounds = 1\nspread = \"1ms\"\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func runs(t testing.TB, s *scenarios.Scenario, o Options) *result.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := Prepare(s, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// points are small ones of each workload.
var points = map[string]string{
	"scalar":        "workload = \"scalar\"\ncycles = 20",
	"scalar shared": "workload = \"scalar\"\nfutex = \"shared\"\ncycles = 20\nwords = 5\nentries = 16\nring_flags = [\"single_issuer\", \"defer_taskrun\"]",
	"waitv":         "workload = \"waitv\"\ncycles = 20",
	"waitv shared":  "workload = \"waitv\"\nfutex = \"shared\"\ncycles = 20\nvectors = 3\nwidth = 128\nelement = 127",
	"eagain":        "workload = \"eagain\"\nwaits = 500\nbatch = 7",
	"timeout":       "workload = \"timeout\"\nwaits = 200",
	"hash":          "workload = \"hash\"\nthreads = 2\nwords = 64\nruntime = \"20ms\"",
	"hash shared":   "workload = \"hash\"\nfutex = \"shared\"\nthreads = 2\nwords = 64\nruntime = \"20ms\"",
	"mismatch":      "workload = \"mismatch\"\nthreads = 2\nwords = 3\nruntime = \"20ms\"\nmismatching = \"30%\"",
}

// TestWorkloads runs each of them, all in one scenario, round by round.
func TestWorkloads(t *testing.T) {
	text := ""
	for name, p := range points {
		text += fmt.Sprintf("[[point]]\nname = %q\n%s\n", name, p)
	}
	r := runs(t, scenario(t, text), Options{})
	if r.Broken != "" || len(r.Failed()) > 0 {
		t.Fatalf("broken %q, failed %+v", r.Broken, r.Failed())
	}
	if len(r.Runs[0].Micro) != len(points) {
		t.Fatalf("%d points", len(r.Runs[0].Micro))
	}
	for _, m := range r.Runs[0].Micro {
		if len(m.Rounds) != 3 || !(m.Mean > 0) || m.Median == 0 || m.Operations == 0 || slices.Min(m.Rounds) <= 0 || len(m.Checks) != len(checkNames) {
			t.Errorf("%s: %+v", m.Name, m)
		}
		switch m.Workload {
		case "timeout":
			if switches := result.SpreadOf(m.Figures[1].Rounds).Median; m.Figures[1].Name != "voluntary switches/wait" || switches < 0.99 || switches > 1.01 {
				t.Errorf("figures: %+v; a wait that times out sleeps once", m.Figures)
			}
			if m.Median < 100_000 {
				t.Errorf("%.0f ns for a timeout of 100 us", m.Median)
			}
		case "mismatch":
			mismatched, matched := m.Latencies[0].Histogram.Count(), m.Latencies[1].Histogram.Count()
			if share := float64(mismatched) / float64(mismatched+matched); share < 0.15 || share > 0.45 {
				t.Errorf("%d of %d waits mismatched, to be 30 %%", mismatched, mismatched+matched)
			}
		}
	}
}

// aPoint sets up a point on the calling thread, which must be locked, as its process does.
func aPoint(t *testing.T, name string) *actor {
	t.Helper()
	cpus, err := linux.Affinity()
	if err != nil {
		t.Fatal(err)
	}
	a := &actor{order: order{Point: &scenario(t, "[[point]]\n"+points[name]).Micro.Points[0], CPUs: cpus}, found: problems{}}
	if _, err := a.do(command{Do: doSetup}); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestFaults: each check fails at what it is for, by its name, and no other does: the thing
// itself is done to a point where that is possible.
func TestFaults(t *testing.T) {
	fault := func(point, check string, meddle func(a *actor)) {
		t.Run(point+", "+check, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread() // never unlocked: it is what the process's thread is
				a := aPoint(t, point)
				defer debug.SetGCPercent(debug.SetGCPercent(100))
				meddle(a)
				_, _ = a.do(command{Do: doRound, Count: true})
				for _, c := range a.found.checks() {
					// A request with another result did not complete as it must, either.
					also := c.Name == checkCompletions && check == checkResults
					if c.Pass == (c.Name == check) && !also || c.Detail == "" {
						t.Errorf("%+v", c)
					}
				}
			}()
			<-done
		})
	}
	for _, point := range []string{"scalar", "waitv", "eagain"} {
		fault(point, checkResults, func(a *actor) { a.work.(*rings).want[0]++ }) // something else is wanted than the kernel does
	}
	fault("eagain", checkOutstanding, func(a *actor) {
		w := a.work.(*rings) // on a word that no wake reaches
		w.ring.Push(uring.FutexWait(linux.WordAddress(linux.Uint32At(linuxtest.Map(t, os.Getpagesize()), 0)), 0, linux.MatchAny, uring.WordFlags(scope(w.Point)), 1<<32))
		w.ring.Enter(0, 0)
	})
	fault("waitv", checkLeftover, func(a *actor) { // somebody else waits on a word that no wake of the workload reaches
		w := a.work.(*rings)
		thread := make(chan int)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			thread <- linux.ThreadID()
			linux.FutexWait(w.words[len(w.words)-1], 0, linux.MatchAny, scope(w.Point))
		}()
		for id := <-thread; !linux.Asleep(id); {
			time.Sleep(time.Millisecond)
		}
	})
	fault("scalar", checkCPU, func(a *actor) {
		if len(a.CPUs) < 2 {
			t.Skip("there is one CPU")
		}
		if _, err := linux.SetAffinity(a.CPUs[1:2]); err != nil {
			t.Error(err)
		}
	})
	toWorker := func(change func(thread int) error) func(a *actor) { // to the first worker's thread, from outside
		return func(a *actor) {
			w := a.work.(*threads).workers[0]
			var thread atomic.Int64
			do := w.do
			w.do = func(end int64) error { thread.Store(int64(linux.ThreadID())); return do(end) }
			if _, err := a.do(command{Do: doRound}); err != nil {
				t.Error(err)
			}
			if err := change(int(thread.Load())); err != nil {
				t.Error(err)
			}
		}
	}
	cpus, err := linux.Affinity()
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 4)) // as its process has it: pinned threads keep theirs
	fault("hash", checkGranted, toWorker(func(thread int) error {
		return unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH}, 0)
	}))
	if len(cpus) > 1 {
		fault("hash", checkCPU, toWorker(func(thread int) error {
			was, err := linux.AffinityOf(thread)
			var set unix.CPUSet
			for _, c := range cpus {
				if !slices.Contains(was, c) {
					set.Set(c)
				}
			}
			return errors.Join(err, unix.SchedSetaffinity(thread, &set))
		}))
	}
	fault("timeout", checkResults, func(a *actor) { a.work.(*timeouts).word.Store(1) }) // each wait mismatches
	unaligned := func(words []*atomic.Uint32) {                                         // a wait on it is refused
		words[0] = (*atomic.Uint32)(unsafe.Add(unsafe.Pointer(words[0]), 1))
	}
	fault("hash", checkResults, func(a *actor) { unaligned(a.work.(*threads).workers[0].words) })
}

// TestCompletions: what the kernel must not do, and cannot be made to, is seen.
func TestCompletions(t *testing.T) {
	good := []uring.CQE{{UserData: 0, Res: 0}, {UserData: 1, Res: 1}}
	for _, c := range []struct {
		name     string
		cqes     []uring.CQE
		overflow uint32
		check    string
	}{
		{"as it should be", good, 0, ""},
		{"missing", good[:1], 0, checkCompletions},
		{"twice", append(good[:2:2], good[1]), 0, checkCompletions},
		{"of no request", append(good[:2:2], uring.CQE{UserData: 7}), 0, checkCompletions},
		{"a flag", []uring.CQE{good[0], {UserData: 1, Res: 1, Flags: uring.CQEMore}}, 0, checkCompletions},
		{"another result", []uring.CQE{good[0], {UserData: 1, Res: 0}}, 0, checkResults},
		{"overflow", good, 1, checkOverflow},
	} {
		w, p := completions{want: []int32{0, 1}, seen: make([]uint32, 2)}, problems{}
		w.begin()
		for _, cqe := range c.cqes {
			w.completed(cqe, p)
		}
		err := w.end(p)
		w.lost(c.overflow, p)
		if (p[c.check] == nil) != (c.check == "") || c.check == "" && len(p) > 0 || (err != nil) != (w.left > 0) {
			t.Errorf("%s: %v, %+v", c.name, err, p)
		}
	}
}

// TestHang: a point that is stopped fails the check by which each round ends in time.
func TestHang(t *testing.T) {
	p, err := Prepare(scenario(t, "[[point]]\n"+strings.Replace(points["scalar"], "20", "200000", 1)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.roundLimit = 2 * time.Second
	go func() {
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			for _, pid := range linux.Children(os.Getpid()) {
				time.Sleep(100 * time.Millisecond) // its first rounds
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				return
			}
		}
	}()
	r, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Failed() {
		if strings.HasSuffix(f.Name, ": "+checkTimeout) && f.Detail != "" && strings.Contains(r.Broken, `point "scalar"`) {
			return
		}
	}
	t.Errorf("broken %q, %+v", r.Broken, r.Failed())
}

// unread fails the test when it is formatted.
type unread struct{ *testing.T }

func (u unread) String() string {
	u.Error("formatted where it was found, which takes a lock that a pinned thread must not wait for")
	return ""
}

// TestPinned: what a pinned thread finds is formatted when the checks are asked for.
func TestPinned(t *testing.T) {
	p := problems{}
	p.add(checkResults, "%s", unread{t})
	p.add(checkCPU, "from CPU %d to %d", 1, 2)
	p.add(checkCPU, "from CPU %d to %d", 2, 1)
	delete(p, checkResults)
	for _, c := range p.checks() {
		if want := "2 times, the first: from CPU 1 to 2"; c.Name == checkCPU && (c.Pass || c.Detail != want) {
			t.Errorf("%+v, to say %q", c, want)
		}
	}
}

// TestObserved: the kernel counts each wait, in rounds of its own or in all.
func TestObserved(t *testing.T) {
	for _, mode := range []observe.Mode{observe.Pass, observe.All} {
		s := scenario(t, "[[point]]\n"+points["eagain"])
		if _, err := Prepare(s, Options{Options: actors.Options{Observe: mode}}); errors.Is(err, refusal.ErrCannot) {
			t.Skip(err)
		}
		r := runs(t, s, Options{Options: actors.Options{Observe: mode}})
		if r.Broken != "" || len(r.Failed()) > 0 {
			t.Fatalf("broken %q, failed %+v", r.Broken, r.Failed())
		}
		k := r.Runs[0].Micro[0].Kernel
		if k == nil || k.Arms != 497 || k.EAGAIN != 497 { // 71 batches of 7
			t.Errorf("observed %s: %+v", mode, k)
		}
	}
}

// TestNoAllocation: nothing is allocated between the two clock reads of a round.
func TestNoAllocation(t *testing.T) {
	found := problems{}
	for _, name := range []string{"scalar", "waitv", "eagain"} {
		s := scenario(t, "[[point]]\n"+points[name])
		if err := linux.OnThread(func() error {
			w, err := workloads[name](place{Point: &s.Micro.Points[0]})
			if err != nil {
				return err
			}
			if n := testing.AllocsPerRun(5, func() {
				if _, e := w.round(found, 0); e != nil {
					err = e
				}
			}); n != 0 {
				t.Errorf("%s: %v allocations a round", name, n)
			}
			return errors.Join(err, w.release())
		}); err != nil || len(found) > 0 {
			t.Fatalf("%s: %v, %v", name, err, found)
		}
	}
	word := linux.Uint32At(linuxtest.Map(t, os.Getpagesize()), 0)
	if n := testing.AllocsPerRun(100, func() {
		linux.FutexMismatches(word, 8, mismatched, linux.Private)
		linux.FutexWaitFor(word, 0, 1000, linux.Private)
	}); n != 0 {
		t.Errorf("futex(2): %v allocations", n)
	}
}

// TestOptions: what the command line changes, and what does not fit.
func TestOptions(t *testing.T) {
	s := scenario(t, "[[point]]\n"+points["scalar"])
	r := runs(t, s, Options{Options: actors.Options{NoRT: true, Runs: 2}, Rounds: 2, Cycles: 3, RingFlags: []string{"single_issuer"}})
	m := r.Runs[0].Micro[0]
	if len(m.Rounds) != 2 || m.Operations != 3*32 || !strings.Contains(strings.Join(r.Scenario.Options, " "), "--ring-flags=single_issuer") || !r.Environment.NotRealTime {
		t.Errorf("%+v, options %q", m, r.Scenario.Options)
	}
	for _, o := range []Options{{RingFlags: []string{"defer_taskrun"}}, {RingFlags: []string{"x"}}, {Cycles: 1 << 40}, {Rounds: 1 << 40}} {
		if _, err := Prepare(scenario(t, "[[point]]\n"+points["scalar"]), o); !errors.Is(err, refusal.ErrUsage) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// BenchmarkPeers runs the micro-benchmarks in turn with the same ones in plain C and with
// perf bench futex hash, and reports the median ratios: ns/pair of aossim over C, and
// operations/s over perf's. AOSSIM_PEERS is the directory of the C programs:
//
//	AOSSIM_PEERS=dir go test ./internal/micro -run '^$' -bench Peers -benchtime 10x
func BenchmarkPeers(b *testing.B) {
	dir := os.Getenv("AOSSIM_PEERS")
	if dir == "" {
		b.Skip("AOSSIM_PEERS does not name the directory of the C programs scalar and waitv")
	}
	output := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			b.Fatalf("%s %q: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	peer := func(name string, args ...string) func() float64 {
		return func() float64 {
			var rounds []float64
			for _, f := range strings.Fields(output(filepath.Join(dir, name), args...)) {
				v, err := strconv.ParseFloat(f, 64)
				if err != nil {
					b.Fatal(err)
				}
				rounds = append(rounds, v)
			}
			return result.SpreadOf(rounds).Median
		}
	}
	average := regexp.MustCompile(`Averaged (\d+) operations/sec`)
	perf := func(args ...string) func() float64 {
		return func() float64 {
			m := average.FindStringSubmatch(output("perf", append(strings.Fields("bench futex hash -t 2 -f 1024 -r 3 -s"), args...)...))
			if m == nil {
				b.Fatal("perf bench futex hash said nothing of operations")
			}
			v, _ := strconv.ParseFloat(m[1], 64)
			return v
		}
	}
	builtin := func(name string) *scenarios.Scenario {
		s, err := scenarios.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	hash := func(futex string) *scenarios.Scenario {
		return scenario(b, fmt.Sprintf("[[point]]\nworkload = \"hash\"\nthreads = 2\nruntime = \"1s\"\nfutex = %q\n", futex))
	}
	pairs := []struct {
		name string
		ours *scenarios.Scenario
		peer func() float64
	}{
		{"scalar", builtin("scalar"), peer("scalar")}, {"scalar-shared", builtin("scalar-shared"), peer("scalar", "--shared")}, {"waitv", builtin("waitv"), peer("waitv")},
	}
	if _, err := exec.LookPath("perf"); err == nil {
		pairs = append(pairs, []struct {
			name string
			ours *scenarios.Scenario
			peer func() float64
		}{{"hash", hash("private"), perf()}, {"hash-shared", hash("shared"), perf("-S")}}...)
	}
	ratios := make([][]float64, len(pairs))
	for i := range b.N {
		for n, p := range pairs {
			ours := func() float64 {
				r := runs(b, p.ours, Options{})
				if r.Broken != "" || len(r.Failed()) > 0 {
					b.Fatalf("%s: %q %+v", p.name, r.Broken, r.Failed())
				}
				return r.Runs[0].Micro[0].Median
			}
			var a, c float64
			if i%2 == 0 {
				a = ours()
				c = p.peer()
			} else {
				c = p.peer()
				a = ours()
			}
			ratios[n] = append(ratios[n], a/c)
		}
	}
	for n, p := range pairs {
		b.ReportMetric(result.SpreadOf(ratios[n]).Median, p.name+"/peer")
	}
	b.ReportMetric(0, "ns/op")
}

// TestUnits: virtual time is instructions only where one thread is alone on one CPU.
func TestUnits(t *testing.T) {
	for name, c := range map[string]struct {
		plan  Plan
		point scenarios.Point
		want  string
	}{
		"real":            {Plan{alone: true}, scenarios.Point{Workload: "scalar"}, "ns/pair"},
		"virtual":         {Plan{virtual: true, alone: true}, scenarios.Point{Workload: "scalar"}, "instructions/pair"},
		"several CPUs":    {Plan{virtual: true}, scenarios.Point{Workload: "eagain"}, "virtual ns/wait"},
		"hash":            {Plan{virtual: true, alone: true}, scenarios.Point{Workload: "hash", Threads: 1}, "instructions/wait"},
		"several threads": {Plan{virtual: true, alone: true}, scenarios.Point{Workload: "hash", Threads: 2}, "ops/virtual s/thread"},
		"partners":        {Plan{virtual: true, alone: true}, scenarios.Point{Workload: "mismatch", Threads: 1}, "ops/virtual s/thread"},
	} {
		if got := c.plan.unit(&c.point); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		judged := metric.OfPoint(&result.Micro{Unit: c.plan.unit(&c.point)}).Judged
		if (judged == metric.Instructions) != strings.HasPrefix(c.want, "instructions/") {
			t.Errorf("%s: %s is judged as %s", name, c.want, judged)
		}
	}
	pt := &point{Point: &scenarios.Point{Workload: "hash"}, out: result.Micro{Unit: "instructions/wait"}}
	if v := pt.figure(answer{Value: 2e6}); v != 500 {
		t.Errorf("2 million a second are %v ns each", v)
	}
}
