package observe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"aossim/internal/linux"
	"aossim/internal/refusal"
	"aossim/internal/result"
	"aossim/internal/uring"
)

// asRings makes the test binary a program with rings.
const asRings = "AOSSIM_TEST_RINGS"

// The counts of ringsMain.
const ringFails, ringWakes, secondFails = 300, 40, 70

// ringsMain arms to a known end, on two rings, and calls itself by a name that is no UTF-8.
func ringsMain() {
	runtime.LockOSThread()
	linux.NameThread("r ng\xff")
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	_, _ = in.ReadString('\n')
	file, err := linux.CreateShared("words", os.Getpagesize())
	must(err)
	mem, _, err := linux.Map(file, os.Getpagesize())
	must(err)
	word := linux.Uint32At(mem, 128)
	first, err := uring.Setup(8, 16, 0)
	must(err)
	second, err := uring.Setup(8, 16, 0)
	must(err)
	arm := func(r *uring.Ring, value uint32, n, submit int) {
		for i := range n {
			word.Store(value + 1 + uint32(i%2))
			r.Push(uring.FutexWait(linux.WordAddress(word), value, linux.MatchAny, uring.FutexU32, 1))
			if e := r.Enter(uint32(submit), uring.GetEvents); e != 0 {
				must(e)
			}
			if c, ok := r.Next(); !ok || c.Errno() != linux.EAGAIN {
				must(fmt.Errorf("%+v", c))
			}
		}
	}
	// In turn, so that both rings take requests of the same number one after the other.
	for range secondFails {
		arm(first, 1<<32-1, 1, 1)
		arm(second, 7, 1, 1)
	}
	arm(first, 1<<32-1, ringFails-secondFails, 1)
	for range ringWakes {
		first.Push(uring.FutexWait(linux.WordAddress(word), word.Load(), linux.MatchAny, uring.FutexU32, 1))
		first.Enter(0, 0)
		first.Push(uring.FutexWake(linux.WordAddress(word), 1, uring.FutexU32, 2))
		first.Enter(1, uring.GetEvents)
		for c, ok := first.Next(); ok; c, ok = first.Next() {
			if c.Res < 0 {
				must(fmt.Errorf("%+v", c))
			}
		}
	}
	fmt.Println("done")
	_, _ = in.ReadString('\n')
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// peer is a program that waits for a line, says what it did, and waits for another one.
type peer struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPeer(t *testing.T, cmd *exec.Cmd) *peer {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		watchdog.Stop()
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	p := &peer{cmd, in, bufio.NewReader(out)}
	p.line(t)
	return p
}

func (p *peer) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// work has the peer do its work, and returns what it says of it.
func (p *peer) work(t *testing.T) string {
	t.Helper()
	fmt.Fprintln(p.in)
	return p.line(t)
}

// futexes is testdata/futexes.c, made.
func futexes(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to make the program with that is observed")
	}
	program := filepath.Join(t.TempDir(), "futexes")
	if out, err := exec.Command(gcc, "-O1", "-Wall", "-pthread", "-o", program, "testdata/futexes.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

func startLive(t *testing.T, f Filter, record bool) *Live {
	t.Helper()
	l, err := StartLive(f, record)
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
	t.Cleanup(l.Close)
	return l
}

func state(t *testing.T, l *Live) State {
	t.Helper()
	s, err := l.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// watched returns what was observed while f ran.
func watched(t *testing.T, l *Live, f func()) result.Run {
	t.Helper()
	first := state(t, l)
	f()
	runs := l.Runs([]State{first, state(t, l)})
	for _, c := range runs[0].Checks {
		if !c.Pass {
			t.Errorf("%s: %s", c.Name, c.Detail)
		}
	}
	return runs[0]
}

func only(t *testing.T, r *result.Run, name string) *result.Group {
	t.Helper()
	var names []string
	for i := range r.Phases[0].Groups {
		g := &r.Phases[0].Groups[i]
		if g.Name == name {
			return g
		}
		names = append(names, g.Name)
	}
	t.Fatalf("no group %q among %q", name, names)
	return nil
}

// TestLiveCalls: every futex system call is counted once, by kind and outcome, of a program that knows what it did.
func TestLiveCalls(t *testing.T) {
	const rounds = 500
	p := startPeer(t, exec.Command(futexes(t), "calls", strconv.Itoa(rounds)))
	l := startLive(t, Filter{PIDs: []int{p.Process.Pid}}, true)
	var said string
	r := watched(t, l, func() { said = p.work(t) })
	var woke, slept, missed int64
	if _, err := fmt.Sscan(said, &woke, &slept, &missed); err != nil {
		t.Fatal(err)
	}
	g := only(t, &r, "futexes")
	calls := map[string]int64{}
	for _, w := range g.Live.Waits {
		calls[w.Call+" "+w.Outcome] = w.Calls
	}
	// The partner's own waits, whose ends it does not tell, are those that woke it, and its mismatches.
	partner := calls["futex mismatch"] - 3*rounds - missed
	for what, want := range map[string]int64{
		"futex woken": woke + slept, "futex mismatch": 3*rounds + missed + partner, "futex timeout": 5, "futex interrupted": 1, "futex other": rounds,
		"futex_wait mismatch": rounds, "futex_wait timeout": 5, "futex_waitv mismatch": rounds,
	} {
		if calls[what] != want {
			t.Errorf("%s: %d calls, want %d", what, calls[what], want)
		}
		delete(calls, what)
	}
	if len(calls) > 0 || partner < 0 || partner > 2*rounds {
		t.Errorf("calls besides: %v; mismatches of the partner: %d", calls, partner)
	}
	wakes := map[string]result.WakeCalls{}
	for _, w := range g.Live.Wakes {
		wakes[w.Call] = w
	}
	for call, want := range map[string]int64{"futex": 3 * rounds, "futex_wake": rounds, "futex requeue": rounds, "futex_requeue": rounds} {
		if wakes[call].Calls != want {
			t.Errorf("%s: %d wakes, want %d", call, wakes[call].Calls, want)
		}
	}
	if got := wakes["futex"].Woken; got != woke+slept {
		t.Errorf("%d were woken, %d waits say so", got, woke+slept)
	}
	var outcomes, inBars int64
	for _, o := range g.Live.Outcomes {
		outcomes, inBars = outcomes+o.Calls, inBars+o.Time.Count()
	}
	if outcomes != inBars {
		t.Errorf("%d calls by outcome, %d in the histograms", outcomes, inBars)
	}
	if n := g.Live.Wake.Count() + g.Live.AwakeReturns; n != woke+slept || g.Live.Wake.Count() == 0 {
		t.Errorf("%d latencies and %d returns without, of %d", g.Live.Wake.Count(), g.Live.AwakeReturns, woke+slept)
	}
	// Moments: as many as calls that wake, in order.
	first := State{}
	last := state(t, l)
	recording := l.Recording(&first, &last)
	moments := 0
	for _, th := range recording.Threads {
		for _, w := range th.Wakes {
			moments += w.Times.Count()
			before := int64(-1)
			for at := range w.Times.All() {
				if at < before {
					t.Fatalf("%d comes after %d", at, before)
				}
				before = at
			}
		}
	}
	if moments != 6*rounds {
		t.Errorf("%d moments of %d wakes", moments, 6*rounds)
	}
	if !slices.ContainsFunc(r.Phases[0].Words, func(w result.Word) bool {
		return strings.HasSuffix(w.Name, "+0x0") && !w.Private && w.Waits == 3*rounds+6 && w.Wakes == 2*rounds
	}) {
		t.Errorf("words: %+v", r.Phases[0].Words)
	}
}

// TestLiveRings: arms on several rings of one thread are counted once each, by the word's file, and a comm that is no UTF-8
// chooses and names.
func TestLiveRings(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asRings+"=1")
	l := startLive(t, Filter{Comms: []string{"r ng\xff"}}, false) // before the program starts
	p := startPeer(t, cmd)
	r := watched(t, l, func() { p.work(t) })
	// Its name is that of a thread, its process may have another one.
	if n := len(r.Phases[0].Groups); n != 1 {
		t.Fatalf("%d groups", n)
	}
	g := &r.Phases[0].Groups[0]
	if g.Live.Comm != `r ng\xff` {
		t.Errorf("%q", g.Live.Comm)
	}
	if g.Arms != ringFails+secondFails+ringWakes || g.EAGAIN != ringFails+secondFails || g.Wakes != ringWakes {
		t.Errorf("%d arms, %d failed, %d woken; want %d, %d, %d", g.Arms, g.EAGAIN, g.Wakes, ringFails+secondFails+ringWakes, ringFails+secondFails, ringWakes)
	}
	// From 0xffffffff on it is 1 or 2, across the end of the word; each of those after in turn.
	two := int64((ringFails - secondFails) / 2)
	if g.Behind[2] != two || g.Behind[1] != ringFails+secondFails-two {
		t.Errorf("behind: %v", g.Behind)
	}
	// The Go runtime wakes besides, on words of its own.
	if !slices.ContainsFunc(g.Live.Wakes, func(w result.WakeCalls) bool {
		return w.Call == "io_uring" && w.Calls == ringWakes && w.Woken == ringWakes
	}) {
		t.Errorf("%+v", g.Live.Wakes)
	}
	if !slices.ContainsFunc(r.Phases[0].Words, func(w result.Word) bool {
		return strings.Contains(w.Name, "words") && strings.HasSuffix(w.Name, "+0x80") && w.Arms == g.Arms && w.EAGAIN == g.EAGAIN && w.Wakes == ringWakes
	}) {
		t.Errorf("%+v", r.Phases[0].Words)
	}
	if g.Kernel.Kfree < g.EAGAIN && g.Kernel.Kmalloc > g.EAGAIN/2 {
		t.Errorf("%d kmalloc and %d kfree for %d failures", g.Kernel.Kmalloc, g.Kernel.Kfree, g.EAGAIN)
	}
}

// TestLiveProcesses: of two programs of one name each has a group of its own, one that started meanwhile and one that
// ended, and a filter keeps others out.
func TestLiveProcesses(t *testing.T) {
	program := futexes(t)
	l := startLive(t, Filter{Comms: []string{"futexes"}}, false)
	r := watched(t, l, func() {
		for _, n := range []string{"11", "12"} {
			p := startPeer(t, exec.Command(program, "wakes", n))
			p.work(t)
			fmt.Fprintln(p.in)
			p.Wait()
		}
		p := startPeer(t, exec.Command(program, "wakes", "13"))
		p.work(t)
	})
	for i, want := range []int64{11, 12, 13} {
		g := only(t, &r, fmt.Sprintf("futexes-%d", i+1))
		if g.Live.Wakes[0].Calls != want || g.Live.Ended != (i < 2) {
			t.Errorf("%s: %+v, ended %t", g.Name, g.Live.Wakes, g.Live.Ended)
		}
	}
	if len(r.Phases[0].Groups) != 3 {
		t.Errorf("%d groups", len(r.Phases[0].Groups))
	}
	// All woke the first word of a file of their own: those are three words, though all are called alike.
	names := map[string]bool{}
	for _, w := range r.Phases[0].Words {
		names[w.Name] = true
	}
	if len(names) != 3 {
		t.Errorf("words: %+v", r.Phases[0].Words)
	}
}

// TestLiveThreads: 5,000 threads that come and go are 5,000 rows.
func TestLiveThreads(t *testing.T) {
	const n = 5000
	l := startLive(t, Filter{Comms: []string{"futexes"}}, false)
	p := startPeer(t, exec.Command(futexes(t), "threads", strconv.Itoa(n)))
	r := watched(t, l, func() {
		if said := p.work(t); said != "done" {
			t.Skip("this user may have no more threads: " + said)
		}
	})
	g := only(t, &r, "futexes")
	once := 0
	for _, th := range g.Live.Threads {
		if th.Mismatch == 1 && th.ThreadID != p.Process.Pid {
			once++
		}
	}
	if once != n {
		t.Errorf("%d threads of %d", once, n)
	}
}

// TestLiveRate: nothing is lost of a program that wakes as fast as it can, its moments neither.
func TestLiveRate(t *testing.T) {
	const n = 500_000
	p := startPeer(t, exec.Command(futexes(t), "wakes", strconv.Itoa(n)))
	l := startLive(t, Filter{PIDs: []int{p.Process.Pid}}, true)
	stop := make(chan struct{})
	polled := make(chan error)
	began := time.Now()
	r := watched(t, l, func() {
		go func() {
			var err error
			for err == nil {
				select {
				case <-stop:
					polled <- nil
					return
				case <-time.After(100 * time.Millisecond):
					err = l.Poll()
				}
			}
			polled <- err
		}()
		p.work(t)
		t.Logf("%.0f wakes/s", n/time.Since(began).Seconds())
		close(stop)
		if err := <-polled; err != nil {
			t.Error(err)
		}
	})
	if g := only(t, &r, "futexes"); g.Live.Wakes[0].Calls != n {
		t.Errorf("%d of %d wakes", g.Live.Wakes[0].Calls, n)
	}
	first, last := State{}, state(t, l)
	if got := l.Recording(&first, &last).Threads[0].Wakes[0].Times.Count(); got != n {
		t.Errorf("%d of %d moments", got, n)
	}
}

// TestPrintable: what cannot be shown can be told apart.
func TestPrintable(t *testing.T) {
	for comm, want := range map[string]string{"a b": "a b", "x\xff": `x\xff`, "x\\xff": `x\\xff`, "t\tb": `t\tb`, "ü": "ü", "": ""} {
		if got := printable(comm); got != want {
			t.Errorf("%q: %q, want %q", comm, got, want)
		}
	}
}

// TestGroups: no two processes have one name, whatever they are called.
func TestGroups(t *testing.T) {
	l := &Live{names: newNames()}
	to := State{}
	for i, comm := range []string{"a", "a", "a-2", "b"} {
		var d programDoing
		d.Process, d.Who.Pid, d.Who.Tid, d.Who.Start = uint32(i), 1<<30, 1<<30, uint64(i)
		for j := range comm {
			d.Who.ProcessComm[j] = int8(comm[j])
		}
		d.Wakes[0].Calls = 1
		l.names.add(&d)
		to.doings, to.threads = append(to.doings, d), append(to.threads, programThread{})
	}
	got := l.groups(&State{}, &to)
	seen := map[string]bool{}
	for _, name := range got {
		if seen[name] {
			t.Errorf("%q is two processes", name)
		}
		seen[name] = true
	}
	if got[3] != "b" || got[0] != "a-1" || got[2] != "a-2" {
		t.Errorf("%v", got)
	}
}

// TestMappings: paths may have blanks.
func TestMappings(t *testing.T) {
	list := parseMappings([]byte("7f00-7f10 rw-s 00001000 00:01 1024                       /memfd:a b (deleted)\nffe0-fff0 rw-p 00000000 00:00 0                          [stack]\n1-2 rw-p 00000000 00:00 0 \n"))
	if len(list) != 3 || list[0].path != "/memfd:a b (deleted)" || list[0].inode != "1024" || list[1].path != "[stack]" || list[2].path != "" {
		t.Errorf("%+v", list)
	}
}
