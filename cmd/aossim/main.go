// Command aossim runs real-time pub/sub event loops on the running kernel and
// measures what re-arming an IORING_OP_FUTEX_WAIT costs them.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"aossim/internal/actors"
	"aossim/internal/check"
	"aossim/internal/linux"
	"aossim/internal/micro"
	"aossim/internal/observe"
	"aossim/internal/output"
	"aossim/internal/refusal"
	"aossim/internal/report"
	"aossim/internal/result"
	"aossim/internal/sim"
	"aossim/internal/vm"
	"aossim/scenarios"
)

// Exit codes.
const (
	exitPass    = 0
	exitFailed  = 1   // a threshold or a check failed, or the run broke
	exitSkipped = 4   // this kernel or this user cannot run it
	exitUsage   = 129 // wrong usage or an invalid file
)

type commands struct {
	Run     runCommand     `cmd:"" default:"withargs" help:"Run scenarios (the default command)."`
	Check   checkCommand   `cmd:"" help:"Say whether this machine is fit to measure on, and how its kernel behaves."`
	Compare compareCommand `cmd:"" help:"Compare results from before and after a change, and before again."`
	List    listCommand    `cmd:"" help:"List the built-in scenarios."`
	Observe observeCommand `cmd:"" help:"Observe what programs that run do with futexes, without touching them."`
	VM      vmCommand      `cmd:"" name:"vm" help:"Boot kernels under QEMU and run scenarios there, a fresh boot each."`
	Report  reportCommand  `cmd:"" help:"Show a result as text, or write it as a page, histograms, Go benchmarks or KTAP."`
}

type runCommand struct {
	Scenarios []string       `arg:"" name:"scenario" help:"A .toml file, or the name of a built-in scenario (aossim list)."`
	Duration  *time.Duration `short:"D" help:"Duration of each phase, instead of the scenario's."`
	Warmup    time.Duration  `default:"1s" help:"Time before each phase that is not counted; 0s for none."`
	Runs      int            `short:"r" default:"1" help:"Passes through all phases."`
	Priority  *int           `short:"p" help:"Priority (1..99) of all fifo and rr actors, instead of the scenario's."`
	Affinity  *string        `short:"a" placeholder:"CPUS" help:"CPUs (0-2,5) for real-time actors that the scenario gives none."`
	Output    string         `short:"o" placeholder:"FILE" help:"Write the result here, instead of a new file in results/."`
	JSON      bool           `name:"json" help:"Write the result to standard output, instead of the text."`
	Quiet     bool           `short:"q" help:"No progress, and of the text the first table only."`
	Break     *int           `name:"breaktrace" short:"b" placeholder:"US" help:"Stop tracing, with a marker, and end the run where a re-arm or delivery takes longer than this many us."`
	Mark      bool           `name:"tracemark" help:"Write a marker into the trace at the begin of each phase."`
	Rounds    *int           `help:"Measured rounds of a micro-benchmark, instead of the scenario's."`
	Cycles    *int           `help:"Cycles of a round of the workloads scalar and waitv, instead of the scenario's."`
	RingFlags []string       `placeholder:"FLAG,..." help:"Flags of a micro-benchmark's ring, as ring_flags of a scenario."`
	Points    []string       `name:"point" sep:"none" placeholder:"NAME" help:"Only this point of a micro-benchmark; again for another one."`
	Profile   bool           `hidden:"" help:"As aossim vm --profile asks a guest for."`
	NoRT      bool           `name:"no-rt" help:"Run everything under plain SCHED_OTHER."`
	Observe   observed       `help:"After each run, observe the kernel in a shorter pass, or fail with exit code 4 where that is not possible; =all observes throughout, =no never. Without the flag it is done where it is possible."`
}

// observed is the value of --observe, which may be left out.
type observed observe.Mode

// IsBool has the parser take the flag without a value.
func (*observed) IsBool() bool { return true }

// Decode reads =VALUE, where there is one.
func (o *observed) Decode(ctx *kong.DecodeContext) error {
	*o = observed(observe.Pass)
	if t := ctx.Scan.Peek(); t.Type == kong.FlagValueToken {
		*o = observed(fmt.Sprint(ctx.Scan.Pop().Value))
	}
	switch observe.Mode(*o) {
	case observe.Pass, observe.All, observe.Never:
		return nil
	}
	return fmt.Errorf("%q is none of %s, %s and %s", string(*o), observe.Pass, observe.All, observe.Never)
}

type checkCommand struct {
	Priority int  `short:"p" default:"40" help:"Priority (1..99) of SCHED_FIFO to try."`
	JSON     bool `name:"json" help:"Write JSON, instead of the text."`
}

type listCommand struct{}

type reportCommand struct {
	Results []string `arg:"" name:"result" help:"A result file; of two, --html shows them side by side, and --folded what differs."`
	HTML    string   `name:"html" placeholder:"FILE" help:"Write one page with plots that needs nothing else."`
	HGRM    string   `name:"hgrm" placeholder:"DIR" help:"Write percentile distributions for HdrHistogram's plotter."`
	HLog    string   `name:"hlog" placeholder:"DIR" help:"Write a histogram log for HdrHistogram's log processor."`
	GoBench bool     `name:"gobench" help:"Write Go benchmark lines, one a run, for benchstat."`
	KTAP    bool     `name:"ktap" help:"Write KTAP."`
	Folded  string   `placeholder:"FILE" help:"Write the stacks of a profile for flame graph tools; of two results those of both, as difffolded.pl does."`
}

// environment is where a command reads and writes.
type environment struct {
	stdout, stderr io.Writer
	exit           int
	onSignal       int    // exit code of what a signal ends
	heed           func() // called by who has something to keep, and ends by signals itself from now
}

func main() {
	if vm.IsGuest() {
		vm.GuestMain()
	}
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case sim.ActorCommand:
			os.Exit(sim.ActorMain(os.Stdin, os.Stdout))
		case micro.ActorCommand:
			os.Exit(micro.ActorMain(os.Stdin, os.Stdout))
		case sim.NopCommand:
			return
		}
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program but for its process: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) (code int) {
	signal.Ignore(linux.FileTooLarge)
	env := &environment{stdout: stdout, stderr: stderr, onSignal: exitFailed}
	env.heed = env.endOnSignal()
	defer env.heed()
	defer func() {
		// The Go runtime would exit with 2, which a bisection takes for bad.
		if v := recover(); v != nil {
			fmt.Fprintf(stderr, "aossim: a fault of aossim: %s (%s); please report it with the command and its files\n", oneLine(fmt.Sprint(v)), fault())
			code = env.onSignal
		}
	}()
	var cli commands
	exited := -1
	parser, err := kong.New(&cli, kong.Name("aossim"), kong.Writers(stdout, stderr), kong.UsageOnError(),
		kong.Description("Measures what re-arming an IORING_OP_FUTEX_WAIT costs real-time event loops on this kernel."),
		kong.Exit(func(code int) { exited = code; panic(exiting{}) }))
	if err != nil {
		panic(err) // the command structs are wrong
	}
	ctx, err := parse(parser, args)
	switch {
	case exited >= 0: // --help
		return exited
	case err != nil:
		fmt.Fprintf(stderr, "aossim: %s; see aossim --help\n", oneLine(err.Error()))
		return exitUsage
	}
	if err := ctx.Run(env); err != nil {
		fmt.Fprintf(stderr, "aossim: %s\n", oneLine(err.Error()))
		return cmp.Or(env.exit, exitCode(err)) // a failure stays one, whatever came after it
	}
	return env.exit
}

// endOnSignal has the signals that end a program end this one, without a word: the Go runtime
// would write out its stacks for some of them. It returns what ends that.
func (env *environment) endOnSignal() func() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, linux.EndingSignals()...)
	go func() {
		if _, ok := <-signals; ok {
			os.Exit(env.onSignal)
		}
	}()
	return sync.OnceFunc(func() {
		signal.Stop(signals)
		close(signals)
	})
}

// oneLine makes one of a message, which may name what a file or a guest holds.
func oneLine(message string) string {
	return report.Plain(strings.ReplaceAll(strings.TrimSpace(message), "\n", "; "))
}

// exiting is how kong's exit hook leaves the parser.
type exiting struct{}

func parse(parser *kong.Kong, args []string) (ctx *kong.Context, err error) {
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(exiting); !ok {
				panic(v)
			}
		}
	}()
	return parser.Parse(args)
}

// fault is where the program panicked, to be called by who recovers.
func fault() string {
	frames := runtime.CallersFrames(func() []uintptr { pc := make([]uintptr, 32); return pc[:runtime.Callers(3, pc)] }())
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return "unknown place"
		}
	}
}

// exitCode is the exit code of an error.
func exitCode(err error) int {
	switch {
	case errors.Is(err, refusal.ErrUsage):
		return exitUsage
	case errors.Is(err, refusal.ErrCannot):
		return exitSkipped
	}
	return exitFailed
}

// loadResult reads a result file.
func loadResult(path string) (*result.Result, error) {
	r, err := result.Load(path)
	if err != nil {
		return nil, refusal.Usage("no result: %w", err)
	}
	return r, nil
}

func (c *listCommand) Run(env *environment) error {
	list, err := scenarios.List()
	if err != nil {
		return err
	}
	for _, s := range list {
		if _, err := fmt.Fprintf(env.stdout, "%-14s %s\n", s.Name, s.Description); err != nil {
			return err
		}
	}
	return nil
}

func (c *checkCommand) Run(env *environment) error {
	if c.Priority < 1 || c.Priority > 99 {
		return refusal.Usage("--priority %d is not within 1..99", c.Priority)
	}
	found := check.Run(c.Priority)
	switch {
	case !found.Log.Pass:
		env.exit = exitFailed
	case !found.Fit():
		env.exit = exitSkipped
	}
	if c.JSON {
		return found.Encode(env.stdout)
	}
	return found.Text(env.stdout)
}

func (c *reportCommand) Run(env *environment) error {
	var results []*result.Result
	for _, path := range c.Results {
		r, err := loadResult(path)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	if len(results) > 2 || len(results) == 2 && c.HTML == "" && c.Folded == "" {
		return refusal.Usage("a report is of one result, --html and --folded of one or two; aossim compare judges several")
	}
	r := results[0]
	if c.HTML != "" {
		// Whole or not at all: a page that ends in the middle looks like one.
		var page bytes.Buffer
		if err := report.HTML(&page, results...); err != nil {
			return err
		}
		err := output.Write(c.HTML, func(w io.Writer) error { _, err := w.Write(page.Bytes()); return err })
		if err != nil {
			return err
		}
	}
	if c.Folded != "" {
		if err := writeFolded(c.Folded, results...); err != nil {
			return err
		}
	}
	if c.HGRM != "" {
		if err := report.HGRM(c.HGRM, r); err != nil {
			return err
		}
	}
	if c.HLog != "" {
		if err := report.HLog(c.HLog, r); err != nil {
			return err
		}
	}
	switch {
	case c.GoBench && c.KTAP:
		return refusal.Usage("--gobench and --ktap both write to standard output; use one")
	case c.GoBench:
		return report.GoBench(env.stdout, r)
	case c.KTAP:
		return report.KTAP(env.stdout, r)
	case c.HTML+c.HGRM+c.HLog+c.Folded != "":
		return nil
	}
	return report.Text(env.stdout, r)
}

// writeFolded writes the stacks of profiles to a file, whole or not at all.
func writeFolded(path string, results ...*result.Result) error {
	var stacks bytes.Buffer
	if err := report.Folded(&stacks, results...); err != nil {
		return err
	}
	return output.Write(path, func(w io.Writer) error { _, err := w.Write(stacks.Bytes()); return err })
}

// plan is a scenario that can run.
type plan interface {
	Run(ctx context.Context) (*result.Result, error)
}

// given says that a flag with a number was used and is below its least value.
func given[T cmp.Ordered](flag *T, least T) bool { return flag != nil && *flag < least }

// or is a flag's value, or what stands for none.
func or[T any](flag *T, none T) T {
	if flag == nil {
		return none
	}
	return *flag
}

func (c *runCommand) check() error {
	switch {
	case given(c.Duration, 1) || or(c.Duration, 0) > scenarios.MaxDuration:
		return refusal.Usage("--duration %s is not above 0 and up to %s", *c.Duration, scenarios.MaxDuration)
	case c.Warmup < 0 || c.Warmup > scenarios.MaxDuration:
		return refusal.Usage("--warmup %s is not within 0..%s", c.Warmup, scenarios.MaxDuration)
	case c.Runs < 1:
		return refusal.Usage("--runs %d: there must be one at least", c.Runs)
	case given(c.Priority, 1) || or(c.Priority, 0) > 99:
		return refusal.Usage("--priority %d is not within 1..99", *c.Priority)
	case given(c.Break, 1):
		return refusal.Usage("--breaktrace %d: it is a latency in us, above 0", *c.Break)
	case given(c.Rounds, 1):
		return refusal.Usage("--rounds %d: there must be one at least", *c.Rounds)
	case given(c.Cycles, 1):
		return refusal.Usage("--cycles %d: there must be one at least", *c.Cycles)
	case len(c.Scenarios) > 1 && (c.Output != "" || c.JSON):
		return refusal.Usage("--output and --json take one scenario, and %d are given; each has a result of its own", len(c.Scenarios))
	}
	return nil
}

// options are those that both kinds of scenario take.
func (c *runCommand) options(progress func(done, all time.Duration, doing string)) (o actors.Options, err error) {
	o = actors.Options{Runs: c.Runs, Priority: or(c.Priority, 0), NoRT: c.NoRT, Observe: cmp.Or(observe.Mode(c.Observe), observe.IfPossible), Progress: progress}
	if c.Affinity != nil {
		if o.CPUs, err = linux.ParseCPUs(*c.Affinity); err != nil {
			return o, refusal.Usage("--affinity: %w", err)
		}
	}
	return o, nil
}

// prepare finds out whether a scenario can run here, under the flags.
func (c *runCommand) prepare(s *scenarios.Scenario, o actors.Options) (plan, error) {
	if s.Micro != nil {
		if c.Break != nil || c.Mark {
			return nil, refusal.Usage("--breaktrace and --tracemark: %s is a micro-benchmark, which has no event loop", s.Name)
		}
		if c.Duration != nil {
			return nil, refusal.Usage("--duration: %s is a micro-benchmark, which has no phases; use --rounds or --cycles", s.Name)
		}
		return micro.Prepare(s, micro.Options{Options: o, Rounds: or(c.Rounds, 0), Cycles: or(c.Cycles, 0), RingFlags: c.RingFlags, Points: c.Points, Profile: c.Profile})
	}
	if c.Rounds != nil || c.Cycles != nil || len(c.RingFlags) > 0 || len(c.Points) > 0 {
		return nil, refusal.Usage("--rounds, --cycles, --ring-flags and --point are for micro-benchmarks, and %s is none", s.Name)
	}
	return sim.Prepare(s, sim.Options{Options: o, Duration: or(c.Duration, 0), Warmup: c.Warmup, Break: time.Duration(or(c.Break, 0)) * time.Microsecond, Mark: c.Mark})
}

func (c *runCommand) Run(env *environment) error {
	if err := c.check(); err != nil {
		return err
	}
	var opened []*scenarios.Scenario
	for _, name := range c.Scenarios {
		s, err := scenarios.Open(name)
		if err != nil {
			return err
		}
		opened = append(opened, s)
	}
	ctx, stop := signal.NotifyContext(context.Background(), linux.EndingSignals()...)
	defer stop()
	env.heed()
	var bar func(done, all time.Duration, doing string)
	if !c.Quiet {
		bar = progress(env.stderr)
	}
	o, err := c.options(bar)
	if err != nil {
		return err
	}
	// Everything is read and tried before anything runs.
	var plans []plan
	var places []*output.File
	defer func() {
		for _, p := range places {
			if p != nil {
				p.Discard()
			}
		}
	}()
	for _, s := range opened {
		p, err := c.prepare(s, o)
		if err != nil {
			return err
		}
		to, err := c.place(s)
		if err != nil {
			return err
		}
		plans, places = append(plans, p), append(places, to)
	}
	for i, p := range plans {
		r, err := p.Run(ctx)
		if bar != nil {
			bar(0, 0, "")
		}
		if err == nil {
			err = c.show(env, r, places[i])
			places[i] = nil
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil
}

// show writes a result and shows it.
func (c *runCommand) show(env *environment, r *result.Result, to *output.File) (err error) {
	if r.Interrupted || r.Broken != "" || len(r.Failed()) > 0 {
		env.exit = exitFailed
	}
	var saved error
	lost := false
	if to != nil {
		var path string
		path, saved = to.Save(r.Encode)
		if lost = path == ""; !lost && (!c.Quiet || saved != nil) {
			fmt.Fprintf(env.stderr, "aossim: the result is in %s\n", oneLine(path))
		}
	}
	switch {
	case to != nil && to.Standard() && saved == nil: // it is there, and nothing else may be
	case c.JSON, lost: // it has no other place left
		if err = r.Encode(env.stdout); err != nil && to == nil {
			if path := output.Elsewhere(r.Encode); path != "" {
				fmt.Fprintf(env.stderr, "aossim: the result is in %s\n", path)
			}
		}
	case c.Quiet:
		err = report.Summary(env.stdout, r)
	default:
		err = report.Text(env.stdout, r)
	}
	if r.Broken != "" {
		fmt.Fprintf(env.stderr, "aossim: %s: %s\n", oneLine(r.Scenario.Name), oneLine(r.Broken))
	}
	for _, f := range r.Failed() {
		fmt.Fprintf(env.stderr, "aossim: %s: check %q failed: %s\n", oneLine(r.Scenario.Name), f.Name, oneLine(f.Detail))
	}
	return errors.Join(saved, err)
}

// place tries where the result of a scenario is to go; it is nil where no file is wanted.
func (c *runCommand) place(s *scenarios.Scenario) (*output.File, error) {
	if c.Output != "" {
		return output.Open(c.Output)
	}
	if c.JSON {
		return nil, nil
	}
	release, _, _ := linux.Uname()
	name := fmt.Sprintf("%s-%s-%s", report.Word(s.Name), report.Word(release), time.Now().Format("20060102T150405"))
	return output.OpenNew("results", func(n int) string {
		if n == 1 {
			return name + ".json"
		}
		return fmt.Sprintf("%s-%d.json", name, n)
	})
}

// progress returns a progress bar on w, or nil where w is no terminal. Called with
// nothing to do it clears the bar.
func progress(w io.Writer) func(done, all time.Duration, doing string) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	var bar *progressbar.ProgressBar
	return func(done, all time.Duration, doing string) {
		if all == 0 {
			if bar != nil {
				_ = bar.Clear()
			}
			bar = nil
			return
		}
		if bar == nil {
			bar = progressbar.NewOptions64(all.Milliseconds(), progressbar.OptionSetWriter(w), progressbar.OptionFullWidth(),
				progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(false))
		}
		bar.Describe(report.Plain(doing))
		_ = bar.Set64(done.Milliseconds())
	}
}
