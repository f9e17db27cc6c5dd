package sim

import (
	"bytes"
	"context"
	"encoding/json"
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

	"aossim/channel"
	"aossim/internal/actors"
	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
	"aossim/internal/observe"
	"aossim/internal/refusal"
	"aossim/internal/result"
	"aossim/scenarios"
)

// faultCollect makes the actor process of the group that it names collect garbage
// all the time. It must have no subscriber: a collection keeps the minder from
// running, and then nobody wakes a subscriber for its end.
const faultCollect = "AOSSIM_TEST_COLLECT"

// TestMain is an actor process too: sim starts its own executable.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == ActorCommand {
		var orders bytes.Buffer
		var first struct{ Body order }
		if group := os.Getenv(faultCollect); group != "" {
			if json.NewDecoder(io.TeeReader(os.Stdin, &orders)).Decode(&first) == nil && first.Body.Plan.Processes[first.Body.Process].Group == group {
				go func() {
					for {
						runtime.GC()
					}
				}()
			}
		}
		os.Exit(ActorMain(io.MultiReader(&orders, os.Stdin), os.Stdout))
	}
	if len(os.Args) == 2 && os.Args[1] == NopCommand {
		os.Exit(0)
	}
	os.Exit(linuxtest.Main(m))
}

const channelC = "[[channel]]\nname = \"/c\"\nqueue_size = 1024\n"

// pair is a real-time publisher and subscriber on /c; the arguments are further keys.
func pair(pub, sub string) string {
	const rt = "channel%s\npolicy = \"fifo\"\npriority = 40\n%s\n"
	return channelC + "[[publisher]]\nrate = \"2kHz\"\ngroup = \"rt\"\n" + fmt.Sprintf(rt, ` = "/c"`, pub) +
		"[[subscriber]]\ngroup = \"rt\"\n" + fmt.Sprintf(rt, `s = ["/c"]`, sub)
}

// simulate runs a scenario for a moment, under a watchdog.
func simulate(t testing.TB, text string, o Options) *result.Result {
	t.Helper()
	s, err := scenarios.Parse("test.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if o.Duration == 0 {
		o.Duration = 300 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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

// pass fails the test where the run is not to be believed.
func pass(t testing.TB, r *result.Result) {
	t.Helper()
	if r.Broken != "" || r.Interrupted {
		t.Fatalf("broken: %s, interrupted: %t", r.Broken, r.Interrupted)
	}
	for _, c := range r.Failed() {
		t.Errorf("check %q: %s", c.Name, c.Detail)
	}
}

// group returns a group of a phase of the first run.
func group(t testing.TB, r *result.Result, phase int, name string) *result.Group {
	t.Helper()
	for i := range r.Runs[0].Phases[phase].Groups {
		if g := &r.Runs[0].Phases[phase].Groups[i]; g.Name == name {
			return g
		}
	}
	t.Fatalf("no group %q in phase %d", name, phase)
	return nil
}

// TestWays runs the pair in every way that a scenario can ask for.
func TestWays(t *testing.T) {
	// Across the wrap: the first message's queue index is just below it.
	wrap := func(text string) string {
		return strings.Replace(text, "queue_size = 1024", "queue_size = 1024\nstart_index = 4294966171", 1)
	}
	for name, text := range map[string]string{
		"wrap":                        wrap(pair("count = 2", "")),
		"wrap combined":               wrap(pair("", `submit = "combined"`)),
		"wrap waitv":                  wrap(pair("", `wait = "io_uring_waitv"`)),
		"wrap futex":                  wrap(pair("", `wait = "futex"`)),
		"wrap eventfd":                wrap(pair("", `wait = "eventfd"`)),
		"plain":                       pair("", ""),
		"private":                     strings.Replace(pair("", ""), "queue_size", "futex = \"private\"\nqueue_size", 1),
		"combined":                    pair("", `submit = "combined"`),
		"waitv":                       pair("", `wait = "io_uring_waitv"`),
		"waitv combined":              pair("", "wait = \"io_uring_waitv\"\nsubmit = \"combined\""),
		"futex":                       pair("", `wait = "futex"`),
		"eventfd":                     pair("", `wait = "eventfd"`),
		"woken by io_uring":           pair(`wake = "io_uring"`, ""),
		"poisson":                     pair(`arrival = "poisson"`, ""),
		"burst":                       pair("arrival = \"burst\"\nburst = 10", ""),
		"single_issuer coop_taskrun":  pair("", `ring_flags = ["single_issuer", "coop_taskrun"]`),
		"single_issuer defer_taskrun": pair("", `ring_flags = ["single_issuer", "defer_taskrun"]`),
		"defer_taskrun combined":      pair("", "ring_flags = [\"single_issuer\", \"defer_taskrun\"]\nsubmit = \"combined\""),
		"three publishers":            pair("count = 3", ""),
		"40 subscribers":              pair("", "count = 40"),
		"processes":                   pair("processes = true", "processes = true\ncount = 2"),
		"rr":                          strings.ReplaceAll(pair("", ""), `"fifo"`, `"rr"`),
		"deadline": strings.ReplaceAll(pair("", ""), "policy = \"fifo\"\npriority = 40",
			"policy = \"deadline\"\nruntime = \"100us\"\ndeadline = \"400us\"\nperiod = \"400us\""),
		"other":                strings.ReplaceAll(pair("", ""), "policy = \"fifo\"\npriority = 40", "nice = 1"),
		"100 channels":         strings.Replace(pair("", ""), "queue_size = 1024", "queue_size = 16\ncount = 100", 1),
		"100 channels waitv":   strings.Replace(pair("", `wait = "io_uring_waitv"`), "queue_size = 1024", "queue_size = 16\ncount = 100", 1),
		"100 channels eventfd": strings.Replace(pair("", `wait = "eventfd"`), "queue_size = 1024", "queue_size = 16\ncount = 100", 1),
		"work":                 pair("", `work = "100us"`),
	} {
		t.Run(name, func(t *testing.T) {
			r := simulate(t, text, Options{Warmup: 50 * time.Millisecond})
			pass(t, r)
			g := group(t, r, 0, "rt")
			if g.Published < 100 || g.Handled != g.Published*int64(g.Subscribers) || g.Overrun != 0 {
				t.Errorf("published %d, handled %d, overrun %d", g.Published, g.Handled, g.Overrun)
			}
			if n := g.Histograms.Delivery.Count(); n != g.Handled {
				t.Errorf("%d delivery latencies of %d messages", n, g.Handled)
			}
			if g.Behind.Total() != g.EAGAIN || g.Histograms.ArmWindowEAGAIN.Count() != g.EAGAIN {
				t.Errorf("%d failed arms, %v behind, %d windows", g.EAGAIN, g.Behind, g.Histograms.ArmWindowEAGAIN.Count())
			}
			succeeded := g.Arms - g.EAGAIN
			switch {
			case g.Wait == "eventfd":
				if g.Arms != 0 || g.Wakes == 0 {
					t.Errorf("arms %d, wakes %d", g.Arms, g.Wakes)
				}
			case g.Wait == "futex" || g.Submit == "combined":
				// The last arm of the warm-up is accounted for in the phase, and that
				// of the phase after it.
				if h := g.Histograms.Rearm; h.Count() != 0 || h.Missed < succeeded-int64(g.Subscribers) || h.Missed > succeeded+int64(g.Subscribers) {
					t.Errorf("%d re-arm latencies and %d missed of %d arms, none of which can be observed", h.Count(), h.Missed, succeeded)
				}
			default:
				if g.Histograms.Rearm.Count() != succeeded || g.Histograms.ArmWindow.Count() != succeeded {
					t.Errorf("%d re-arm latencies, %d windows of %d arms", g.Histograms.Rearm.Count(), g.Histograms.ArmWindow.Count(), succeeded)
				}
			}
		})
	}
}

// TestWrapOfFailures: arms fail across the wrap, and find the word where it is.
func TestWrapOfFailures(t *testing.T) {
	text := strings.Replace(pair("arrival = \"poisson\"\ncount = 4", "work = \"20us\"\ncount = 2"), "queue_size = 1024", "queue_size = 1024\nstart_index = 4294966171", 1)
	r := simulate(t, text, Options{Duration: time.Second})
	pass(t, r)
	if g := group(t, r, 0, "rt"); g.Behind[0] != 0 || g.Behind.Total() != g.EAGAIN {
		t.Errorf("behind %v at %d failed arms", g.Behind, g.EAGAIN)
	}
}

// TestWakes: the loads of wakes.toml look at what they are to.
func TestWakes(t *testing.T) {
	s, err := scenarios.Open("wakes")
	if err != nil {
		t.Fatal(err)
	}
	r := simulate(t, s.Text, Options{Duration: 500 * time.Millisecond})
	pass(t, r)
	found := map[string]result.Observation{}
	for _, o := range r.Runs[0].Observations {
		found[o.What] = o
	}
	if len(found) != 3 {
		t.Errorf("observations: %+v", found)
	}
	for what, o := range found {
		if o.Of == 0 || o.Count > o.Of {
			t.Errorf("%s: %d of %d", what, o.Count, o.Of)
		}
	}
	if g := group(t, r, 0, "private"); g.LostWakes != 0 || g.Handled < 100 {
		t.Errorf("%+v", g.Counts)
	}
}

// TestPhases: groups join and leave, and each phase has its own account.
func TestPhases(t *testing.T) {
	text := "phases = [\"a\", \"b\", \"c\"]\n" + pair("", "") + `
[[publisher]]
group = "b only"
joins = "b"
leaves = "c"
channel = "/c"
rate = "1kHz"
processes = true
count = 2

[[subscriber]]
group = "b only"
joins = "b"
leaves = "c"
channels = ["/c"]
processes = true

[[subscriber]]
group = "c futex"
joins = "c"
channels = ["/c"]
wait = "futex"
`
	r := simulate(t, text, Options{Options: actors.Options{Runs: 2}, Warmup: 100 * time.Millisecond})
	pass(t, r)
	if len(r.Runs) != 2 || len(r.Runs[1].Phases) != 3 {
		t.Fatalf("%d runs, %d phases", len(r.Runs), len(r.Runs[1].Phases))
	}
	for i, groups := range [][]string{{"rt"}, {"rt", "b only"}, {"rt", "c futex"}} {
		var got []string
		for _, g := range r.Runs[1].Phases[i].Groups {
			got = append(got, g.Name)
		}
		if !slices.Equal(got, groups) {
			t.Errorf("phase %d has groups %q, want %q", i, got, groups)
		}
	}
	b := group(t, r, 1, "b only")
	if b.Offered != b.Published+group(t, r, 1, "rt").Published || b.Handled != b.Offered {
		t.Errorf("published %d, offered %d, handled %d", b.Published, b.Offered, b.Handled)
	}
	if w := group(t, r, 0, "rt").Warmup; w.Arms < 50 {
		t.Errorf("%d arms in a warm-up of 200 messages", w.Arms)
	}
	if !group(t, r, 0, "rt").LonePeriodic || group(t, r, 1, "rt").LonePeriodic {
		t.Error("one periodic publisher in the first phase, three in the second")
	}
}

// TestObserved: the kernel's counts are those of the program, in a pass of its own and
// throughout, and each is about what it says.
func TestObserved(t *testing.T) {
	text := pair("arrival = \"poisson\"\ncount = 3", "work = \"20us\"\ncount = 2")
	for _, o := range []observe.Mode{observe.Pass, observe.All} {
		t.Run(string(o), func(t *testing.T) {
			s, err := scenarios.Parse("test.toml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Prepare(s, Options{Options: actors.Options{Observe: o}}); errors.Is(err, refusal.ErrCannot) {
				t.Skip(err)
			}
			r := simulate(t, text, Options{Options: actors.Options{Observe: o}, Duration: 1500 * time.Millisecond, Warmup: 100 * time.Millisecond})
			pass(t, r)
			g := group(t, r, 0, "rt")
			k := g.Kernel
			if k == nil || k.Arms == 0 || k.EAGAIN == 0 || k.Arms != k.ProgramArms || k.EAGAIN != k.ProgramEAGAIN {
				t.Fatalf("kernel: %+v", k)
			}
			if all := o == observe.All; all != (k.Arms == g.Arms) || all != (k.Rearm == nil) || all != (k.Messages == g.Handled) {
				t.Errorf("observed %s: %d arms of %d, %d messages of %d", o, k.Arms, g.Arms, k.Messages, g.Handled)
			}
			var over [2]int64
			stretches := 0
			for _, s := range g.OverTime {
				over[0] += s.Arms
				over[1] += s.EAGAIN
				if s.Arms > 0 {
					stretches++
				}
			}
			if over[0] != g.Arms || over[1] != g.EAGAIN || stretches < 12 || stretches > 16 { // one every 100 ms
				t.Errorf("over time %v in %d stretches, %d arms and %d failed", over, stretches, g.Arms, g.EAGAIN)
			}
			if k.Failure.Count() != k.EAGAIN || k.Behind.Total()+k.BehindUnknown != k.EAGAIN || len(k.Threads) != 2 || k.Threads[0].Arms+k.Threads[1].Arms != k.Arms {
				t.Errorf("%d failures, behind %v, %d unknown, threads %+v of %d", k.Failure.Count(), k.Behind, k.BehindUnknown, k.Threads, k.EAGAIN)
			}
			var kmallocs int64
			for _, s := range k.Sites {
				if s.Operation == "kmalloc" {
					kmallocs += s.Count
				}
			}
			if kmallocs != k.Kmalloc {
				t.Errorf("%d kmallocs, %d at %v", k.Kmalloc, kmallocs, k.Sites)
			}
		})
	}
}

// TestBreakTrace: a latency above the limit stops the trace, leaves a marker and ends the
// run, which says where; phases are marked.
func TestBreakTrace(t *testing.T) {
	const dir = "/sys/kernel/tracing/"
	before, err := os.ReadFile(dir + "tracing_on")
	if err != nil {
		t.Skipf("no tracing here (mount -t tracefs nodev /sys/kernel/tracing): %v", err)
	}
	defer os.WriteFile(dir+"tracing_on", before, 0o644)
	for file, value := range map[string]string{"trace": "", "tracing_on": "1"} {
		if err := os.WriteFile(dir+file, []byte(value), 0o644); err != nil {
			t.Skip(err)
		}
	}
	on := func() string {
		data, err := os.ReadFile(dir + "tracing_on")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	pass(t, simulate(t, pair("", ""), Options{Break: 10 * time.Second, Mark: true}))
	if on() != "1" {
		t.Error("the trace is stopped, and no latency was above 10 s")
	}
	r := simulate(t, pair("", ""), Options{Break: time.Nanosecond, Mark: true, Warmup: 100 * time.Millisecond})
	if !strings.Contains(r.Broken, `breaktrace: a latency of `) || !strings.Contains(r.Broken, `group "rt", all, exceeded 1ns`) || on() != "0" {
		t.Errorf("broken: %q, tracing on: %s", r.Broken, on())
	}
	trace, err := os.ReadFile(dir + "trace")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"aossim: all begins", "aossim: all, warming up begins", "aossim: the run ends"} {
		if !strings.Contains(string(trace), want) {
			t.Errorf("no %q in the trace", want)
		}
	}
	lines := strings.Split(strings.TrimSpace(string(trace)), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "ns, above 1 ns") {
		t.Errorf("the last line of the trace: %s", last)
	}
}

// TestReconcile: a count that differs is a failed check that says whose.
func TestReconcile(t *testing.T) {
	phases := []result.Phase{{Name: "p", Groups: []result.Group{
		{Name: "good", Kernel: &result.Kernel{Arms: 5, EAGAIN: 2, ProgramArms: 5, ProgramEAGAIN: 2}}, {Name: "unobserved"},
		{Name: "bad", Kernel: &result.Kernel{Arms: 5, EAGAIN: 1, ProgramArms: 5, ProgramEAGAIN: 2}},
	}}}
	arms, problems := reconcile(phases)
	if arms != 10 || len(problems) != 1 || !strings.Contains(problems[0], `"bad"`) {
		t.Errorf("%d arms, %q", arms, problems)
	}
}

// TestSlowSubscriber: overrun is counted, and the account balances.
func TestSlowSubscriber(t *testing.T) {
	text := strings.Replace(pair("", "work = \"2ms\""), "queue_size = 1024", "queue_size = 16", 1)
	r := simulate(t, text, Options{})
	pass(t, r)
	g := group(t, r, 0, "rt")
	if g.Overrun == 0 || g.Handled == 0 || g.Handled+g.Overrun != g.Published {
		t.Errorf("published %d = handled %d + overrun %d?", g.Published, g.Handled, g.Overrun)
	}
}

// TestBacklog: a subscriber that has more to do after the phase than the longest
// silence that is taken for a hang is waited for.
func TestBacklog(t *testing.T) {
	r := simulate(t, pair("", "work = \"4ms\""), Options{Duration: time.Second})
	pass(t, r)
	if g := group(t, r, 0, "rt"); g.Overrun == 0 || g.Handled < 1024 {
		t.Errorf("handled %d, overrun %d: there was no backlog of a whole queue", g.Handled, g.Overrun)
	}
}

// TestLoads: every kind of load does what it is for, by what its own process or thread did
// to the kernel, and ends.
func TestLoads(t *testing.T) {
	for kind, did := range map[string]func(l *loadSeen) bool{
		"timer":   func(l *loadSeen) bool { return l.ticks >= 5 && l.switches > 50 }, // most are over before the thread sleeps
		"net":     func(l *loadSeen) bool { return l.switches > 100 && l.datagrams > 100 },
		"fork":    func(l *loadSeen) bool { return l.childFaults > 100 },
		"memory":  func(l *loadSeen) bool { return l.faults > 1000 },
		"slab":    func(l *loadSeen) bool { return l.ticks >= 5 },
		"cpu":     func(l *loadSeen) bool { return l.ticks >= 5 },
		"command": nil, "hash": nil, "rings": nil, // by what they leave or find, here and in TestWakes
	} {
		t.Run(kind, func(t *testing.T) {
			text := "phases = [\"alone\", \"load\"]\n" + pair("", "") + "[[load]]\njoins = \"load\"\nkind = \"" + kind + "\"\n"
			pidfile := filepath.Join(t.TempDir(), "pid")
			switch kind {
			case "command":
				text += "count = 2\ncommand = [\"sh\", \"-c\", \"sleep 1000 & echo $! >> " + pidfile + "; wait\"]"
			case "hash":
				text = strings.Replace(text, "joins = \"load\"\n", "", 1)
				text = strings.Replace(text, "phases = [\"alone\", \"load\"]\n", "", 1)
				text += "group = \"rt\"\npolicy = \"fifo\"\npriority = 40\n"
			case "rings":
				text = strings.Replace(text, "[[load]]", "[[channel]]\nname = \"/own\"\n[[load]]\nchannel = \"/own\"", 1)
			}
			ended := make(chan *result.Result)
			go func() {
				defer close(ended)
				ended <- simulate(t, text, Options{Duration: 500 * time.Millisecond})
			}()
			before := datagrams(t)
			seen := &loadSeen{}
			var r *result.Result
			for r == nil {
				select {
				case r = <-ended:
					if r == nil {
						t.FailNow()
					}
				case <-time.After(10 * time.Millisecond):
					seen.look(t)
				}
			}
			pass(t, r)
			seen.datagrams = datagrams(t) - before
			if did != nil && !did(seen) {
				t.Errorf("all that the load was seen to do: %+v", *seen)
			}
			if kind == "hash" || kind == "rings" {
				for _, o := range r.Runs[0].Observations {
					if o.Of < 5 {
						t.Errorf("%+v", o)
					}
				}
				if len(r.Runs[0].Observations) == 0 {
					t.Error("it found out nothing")
				}
			}
			if kind != "command" {
				return
			}
			pids, err := os.ReadFile(pidfile)
			if err != nil || len(strings.Fields(string(pids))) != 2 {
				t.Fatalf("the command did not run twice: %q, %v", pids, err)
			}
			for _, pid := range strings.Fields(string(pids)) {
				if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
					t.Errorf("a child of the command is left: %s", stat)
				}
			}
		})
	}
	for _, k := range scenarios.LoadKinds {
		if loadKinds[k.Name] == nil {
			t.Errorf("kind = %q has no code", k.Name)
		}
	}
	if len(loadKinds) != len(scenarios.LoadKinds) {
		t.Errorf("%d kinds have code, %d can be asked for", len(loadKinds), len(scenarios.LoadKinds))
	}
}

// loadSeen is the most that a load's thread, and its process, were seen to have done.
type loadSeen struct {
	switches, ticks     int64 // of the thread: voluntary switches, CPU time in 10 ms
	faults, childFaults int64 // of the process: minor faults, and those of children that ended
	datagrams           int64 // on the whole machine
}

func (l *loadSeen) look(t *testing.T) {
	t.Helper()
	for _, pid := range linux.Children(os.Getpid()) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, task := range tasks {
			name, _ := os.ReadFile(task + "/comm")
			if strings.TrimSpace(string(name)) != "loa load" {
				continue
			}
			status, _ := os.ReadFile(task + "/status")
			if _, after, ok := strings.Cut(string(status), "\nvoluntary_ctxt_switches:"); ok {
				n, _ := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
				l.switches = max(l.switches, n)
			}
			stat := func(path string, fields ...int) (sum int64) {
				data, _ := os.ReadFile(path)
				list := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
				for _, f := range fields {
					if f < len(list) {
						n, _ := strconv.ParseInt(list[f], 10, 64)
						sum += n
					}
				}
				return sum
			}
			const minflt, cminflt, utime, stime = 7, 8, 11, 12 // proc_pid_stat(5), from the state on
			l.ticks = max(l.ticks, stat(task+"/stat", utime, stime))
			process := fmt.Sprintf("/proc/%d/stat", pid)
			l.faults, l.childFaults = max(l.faults, stat(process, minflt)), max(l.childFaults, stat(process, cminflt))
		}
	}
}

// datagrams is how many UDP datagrams were received on this machine.
func datagrams(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Udp:" && fields[1] != "InDatagrams" {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n
		}
	}
	t.Fatal("no Udp in /proc/net/snmp")
	return 0
}

// TestFailingCommand: a load that does not work breaks the run, by name.
func TestFailingCommand(t *testing.T) {
	r := simulate(t, pair("", "")+"[[load]]\nkind = \"command\"\ncommand = [\"false\"]\n", Options{})
	if !strings.Contains(r.Broken, `load "command"`) || !strings.Contains(r.Broken, "exit status 1") {
		t.Errorf("broken: %q", r.Broken)
	}
}

// TestCollection: a garbage collection in an actor process fails the run.
func TestCollection(t *testing.T) {
	t.Setenv(faultCollect, "publisher")
	text := strings.Replace(pair("", ""), `group = "rt"`, `group = "publisher"`, 1)
	r := simulate(t, text, Options{})
	for _, c := range r.Failed() {
		if c.Name == "collections" && strings.Contains(c.Detail, `"publisher"`) {
			return
		}
	}
	t.Errorf("no failed check for it: broken %q, %+v", r.Broken, r.Failed())
}

// TestRepeatedRuns starts and stops all processes of a scenario again and again: no
// file or process is left over, and the last runs take no longer than the first. A
// thousand runs take some minutes:
//
//	AOSSIM_CYCLES=1000 go test ./internal/sim -run RepeatedRuns -v -timeout 20m
func TestRepeatedRuns(t *testing.T) {
	cycles := 20
	if n, err := strconv.Atoi(os.Getenv("AOSSIM_CYCLES")); err == nil {
		cycles = n
	}
	text := pair("", "") + "[[subscriber]]\ngroup = \"other\"\nchannels = [\"/c\"]\nprocesses = true\nwait = \"eventfd\"\n"
	var took []float64
	files := 0
	for i := range cycles {
		from := time.Now()
		pass(t, simulate(t, text, Options{Duration: 20 * time.Millisecond}))
		took = append(took, time.Since(from).Seconds())
		list, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			files = len(list)
		}
		if len(list) > files {
			t.Fatalf("run %d: %d files are open, after the first run it were %d", i, len(list), files)
		}
	}
	if pids := linux.Children(os.Getpid()); len(pids) > 0 {
		t.Errorf("processes %d are left", pids)
	}
	if first, last := median(took[:cycles/2]), median(took[cycles/2:]); last > 2*first {
		t.Errorf("a run took %.3f s at first and %.3f s at last", first, last)
	}
}

// TestMessages: messages_per_second is what each subscriber handled, for a threshold as for a
// comparison, whatever was published.
func TestMessages(t *testing.T) {
	text := strings.Replace(pair("", "work = \"2ms\""), "queue_size = 1024", "queue_size = 8", 1)
	text = strings.Replace(text, "2kHz", "20kHz", 1) + "[expect]\n\"rt.messages_per_second\" = \">= 15000\"\n\"rt.published_per_second\" = \">= 15000\"\n"
	r := simulate(t, text, Options{})
	g := group(t, r, 0, "rt")
	if g.Handled*10 > g.Published {
		t.Fatalf("handled %d of %d", g.Handled, g.Published)
	}
	failed := r.Failed()
	if len(failed) != 1 || failed[0].Name != "expect rt.messages_per_second >= 15000" {
		t.Errorf("handled %d of %d published in 300 ms, and these failed: %+v", g.Handled, g.Published, failed)
	}
}

func TestExpect(t *testing.T) {
	r := simulate(t, pair("", "")+`
[expect]
"rt.delivery.p50" = "<= 10s"
"rt.messages_per_second" = ">= 1000"
"rt.delivery.max" = "<= 1ns"
"rt.rearm.p99.9" = "<= 10s"
"rt.overrun" = "<= 0"
"rt.kernel_arms" = ">= 0"
"rt.arm_window_eagain.max" = "<= 10s"
`, Options{})

	failed := map[string]string{}
	for _, c := range r.Failed() {
		failed[c.Name] = c.Detail
	}
	// What was not observed, or did not happen, is no 0.
	nothing := []string{"expect rt.kernel_arms >= 0"}
	if group(t, r, 0, "rt").EAGAIN == 0 {
		nothing = append(nothing, "expect rt.arm_window_eagain.max <= 10s")
	}
	for _, name := range nothing {
		if failed[name] != "all: not enough values" {
			t.Errorf("%s: %q", name, failed[name])
		}
		delete(failed, name)
	}
	if len(failed) != 2 || failed["expect rt.delivery.max <= 1ns"] == "" || failed["expect rt.rearm.p99.9 <= 10s"] != "all: not enough values" {
		t.Errorf("failed: %v; want the impossible one and the one that 600 values cannot support", failed)
	}
}

// TestOptions: what the command line changes shows in what was granted.
func TestOptions(t *testing.T) {
	cpus, err := linux.Affinity()
	if err != nil {
		t.Fatal(err)
	}
	last := cpus[len(cpus)-1]
	r := simulate(t, pair("", ""), Options{Options: actors.Options{Priority: 7, CPUs: []int{last}}})
	pass(t, r)
	for _, a := range r.Runs[0].Processes[0].Actors {
		if a.Policy != "fifo" || a.Priority != 7 || !slices.Equal(a.CPUs, []int{last}) {
			t.Errorf("%+v", a)
		}
	}
	r = simulate(t, pair("", ""), Options{Options: actors.Options{NoRT: true}})
	pass(t, r)
	for _, a := range r.Runs[0].Processes[0].Actors {
		if a.Policy != "other" || a.Priority != 0 {
			t.Errorf("--no-rt: %+v", a)
		}
	}
	options := strings.Join(simulate(t, pair("", ""), Options{Options: actors.Options{Runs: 2, Priority: 7, CPUs: cpus, NoRT: true}, Mark: false, Duration: 50 * time.Millisecond}).Scenario.Options, " ")
	for _, want := range []string{"--runs=2", "--priority=7", "--affinity=" + linux.FormatCPUs(cpus), "--no-rt", "--duration=50ms", "--warmup=0s"} {
		if !strings.Contains(options, want) {
			t.Errorf("no %s among the options that are recorded: %s", want, options)
		}
	}
	if !r.Environment.NotRealTime || r.Runs[0].Processes[0].Locked {
		t.Errorf("--no-rt: %+v", r.Environment)
	}
}

// TestNoRoom: what this machine does not have is an error of the scenario, before
// anything starts.
func TestNoRoom(t *testing.T) {
	for want, text := range map[string]string{
		"test.toml:10:8: cpus: CPU 1023":                      pair("cpus = [1023]", ""),
		"test.toml:3:14: queue_size: the channels would take": strings.Replace(pair("", ""), "queue_size = 1024", "queue_size = 1048576\nmax_size = 65536\ncount = 9", 1),
		"test.toml:19:11: command: exec: \"no-such-program\"": pair("", "") + "[[load]]\nkind = \"command\"\ncommand = [\"no-such-program\"]\n",
	} {
		s, err := scenarios.Parse("test.toml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Prepare(s, Options{})
		var e *scenarios.Error
		if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	s, err := scenarios.Parse("test.toml", []byte(pair("", "")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(s, Options{Options: actors.Options{CPUs: []int{1023}}}); !errors.Is(err, refusal.ErrUsage) {
		t.Errorf("--affinity 1023: %v", err)
	}
}

// TestLimits: what a scenario may ask of a channel is what a channel takes.
func TestLimits(t *testing.T) {
	for key, most := range map[string]int{"queue_size": channel.MaxQueueSize, "max_size": channel.MaxPayload} {
		for value, fits := range map[int]bool{most: true, 2 * most: false} {
			text := strings.Replace(strings.Replace(pair("", ""), "queue_size = 1024\n", "", 1), "[[publisher]]", fmt.Sprintf("%s = %d\n[[publisher]]", key, value), 1)
			if _, err := scenarios.Parse("test.toml", []byte(text)); (err == nil) != fits {
				t.Errorf("%s = %d: %v", key, value, err)
			}
		}
	}
}

func TestHousekeeping(t *testing.T) {
	s, err := scenarios.Parse("test.toml", []byte(pair("", "")))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ cpus, want []int }{{[]int{0}, []int{0}}, {[]int{0, 1}, []int{0}}, {[]int{2, 3, 4, 5}, []int{4, 5}}} {
		p, err := newPlan(s, Options{}, c.cpus, func(int) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.Housekeeping, c.want) {
			t.Errorf("of CPUs %v: %v, want %v", c.cpus, p.Housekeeping, c.want)
		}
	}
}

// TestAlone: on the CPU of a real-time subscriber nothing else of this program may run,
// neither of this process nor of those that measure, the Go runtime's threads included.
func TestAlone(t *testing.T) {
	cpus, err := linux.Affinity()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("there is one CPU for all")
	}
	ended := make(chan *result.Result)
	go func() {
		defer close(ended)
		ended <- simulate(t, pair("", ""), Options{Duration: time.Second})
	}()
	var others, subscribers int
	for end := time.Now().Add(10 * time.Second); subscribers == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		others = 0
		for _, pid := range append(linux.Children(os.Getpid()), os.Getpid()) {
			for _, th := range threads(t, pid) {
				switch {
				case th.name == "sub rt":
					subscribers++
				case slices.Contains(th.cpus, cpus[1]):
					others++
				}
			}
		}
	}
	if r := <-ended; r != nil {
		pass(t, r)
	}
	if subscribers != 1 || others != 0 {
		t.Errorf("%d subscribers, and %d other threads that may run on its CPU", subscribers, others)
	}
	if now, err := linux.Affinity(); err != nil || !slices.Equal(now, cpus) {
		t.Errorf("afterwards this process has CPUs %v of %v, %v", now, cpus, err)
	}
}

// thread is one of a process: its name, and the CPUs that it may use.
type thread struct {
	name string
	cpus []int
}

func threads(t *testing.T, pid int) (list []thread) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		status, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(string(status), "Name:\t"), "\n")
		_, rest, _ := strings.Cut(string(status), "\nCpus_allowed_list:\t")
		allowed, _, _ := strings.Cut(rest, "\n")
		cpus, err := linux.ParseCPUs(allowed)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, thread{name, cpus})
	}
	return list
}

// BenchmarkChannels shows what re-arming costs with many channels on one
// subscriber, at the same total message rate, the numbers of channels in turn:
//
//	go test ./internal/sim -run '^$' -bench Channels -benchtime 7x
func BenchmarkChannels(b *testing.B) {
	counts := []int{1, 8, 64, 512, 4096}
	p50, growth := map[int][]float64{}, map[int][]float64{}
	for range b.N {
		for _, n := range counts {
			text := strings.Replace(pair("", ""), "queue_size = 1024", fmt.Sprintf("queue_size = 16\ncount = %d", n), 1)
			r := simulate(b, text, Options{Duration: 2 * time.Second, Warmup: 500 * time.Millisecond})
			pass(b, r)
			v := percentile(b, group(b, r, 0, "rt").Histograms.Rearm, 50)
			p50[n] = append(p50[n], v)
			growth[n] = append(growth[n], v/p50[1][len(p50[n])-1])
		}
	}
	for _, n := range counts {
		b.ReportMetric(median(p50[n]), fmt.Sprintf("ns@%d", n))
		b.ReportMetric(median(growth[n]), fmt.Sprintf("x@%d", n))
	}
	b.ReportMetric(0, "ns/op")
}

func percentile(t testing.TB, h *result.Histogram, percent float64) float64 {
	v, ok := h.Percentile(percent)
	if !ok {
		t.Fatalf("too few values for p%g: %d", percent, h.Count())
	}
	return float64(v)
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// BenchmarkPeer runs the built-in scenario private in turn with the same work in
// plain C, and reports the median ratios aossim / C. aossim holds /dev/cpu_dma_latency
// at 0 while it runs and the C program does not: its CPUs may idle deeply, or halt, and
// its wakes come late, but to an idle machine. With "awake" it is held for both, so that
// the programs differ and nothing else. AOSSIM_PEERS is the directory of the C program
// pubsub:
//
//	AOSSIM_PEERS=dir go test ./internal/sim -run '^$' -bench Peer -benchtime 10x
func BenchmarkPeer(b *testing.B) {
	dir := os.Getenv("AOSSIM_PEERS")
	if dir == "" {
		b.Skip("AOSSIM_PEERS does not name the directory of the C program pubsub")
	}
	s, err := scenarios.Open("private")
	if err != nil {
		b.Fatal(err)
	}
	type figures struct{ rearm50, rearm99, delivery50, delivery99 float64 }
	ours := func(b *testing.B) figures {
		r := simulate(b, s.Text, Options{Duration: 5 * time.Second, Warmup: time.Second})
		pass(b, r)
		h := group(b, r, 0, "real-time").Histograms
		return figures{percentile(b, h.Rearm, 50), percentile(b, h.Rearm, 99), percentile(b, h.Delivery, 50), percentile(b, h.Delivery, 99)}
	}
	theirs := func(b *testing.B, awake bool) figures {
		if awake {
			dma, err := linux.HoldDMALatency()
			if err != nil {
				b.Skip(err)
			}
			defer dma.Close()
		}
		out, err := exec.Command(filepath.Join(dir, "pubsub"), "--rate", "2000", "--seconds", "5", "--prio", "40").Output()
		if err != nil {
			b.Fatal(err)
		}
		var j struct {
			Delivery, Rearm struct{ P50, P99 float64 }
		}
		text := strings.NewReplacer("delivery_ns", "delivery", "rearm_ns", "rearm").Replace(string(out))
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			b.Fatal(err)
		}
		return figures{j.Rearm.P50, j.Rearm.P99, j.Delivery.P50, j.Delivery.P99}
	}
	for name, awake := range map[string]bool{"as it is": false, "awake": true} {
		b.Run(name, func(b *testing.B) {
			var ratios [4][]float64
			for i := range b.N {
				var a, c figures
				if i%2 == 0 {
					a, c = ours(b), theirs(b, awake)
				} else {
					c, a = theirs(b, awake), ours(b)
				}
				b.Logf("pair %d: aossim %.0f, C %.0f (ns: re-arm p50, p99, delivery p50, p99)", i+1, a, c)
				for n, v := range []float64{a.rearm50 / c.rearm50, a.rearm99 / c.rearm99, a.delivery50 / c.delivery50, a.delivery99 / c.delivery99} {
					ratios[n] = append(ratios[n], v)
				}
			}
			for n, unit := range []string{"re-arm-p50/C", "re-arm-p99/C", "delivery-p50/C", "delivery-p99/C"} {
				b.ReportMetric(median(ratios[n]), unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
