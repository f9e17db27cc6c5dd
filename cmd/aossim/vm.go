package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"aossim/internal/check"
	"aossim/internal/compare"
	"aossim/internal/linux"
	"aossim/internal/output"
	"aossim/internal/refusal"
	"aossim/internal/report"
	"aossim/internal/result"
	"aossim/internal/vm"
	"aossim/scenarios"
)

type vmCommand struct {
	Scenarios []string       `arg:"" optional:"" name:"scenario" help:"A .toml file, or the name of a built-in scenario."`
	Kernel    []string       `placeholder:"IMAGE" sep:"none" help:"A kernel to boot: a bzImage, vmlinux, arm64 Image (also Image.gz and EFI zboot), or Debian package of one. Of several, a table."`
	Before    []string       `placeholder:"IMAGE" sep:"none" help:"The kernel without the change; or a result of it, and again for each further one."`
	After     string         `placeholder:"IMAGE" help:"The kernel with the change."`
	Order     string         `default:"ABA" help:"Order of the boots: A is before, B after. Only B where --before is results."`
	Repeat    int            `default:"1" help:"Times that the order is gone through."`
	Bisect    bool           `help:"Exit as git bisect run wants: 0 good, 1 bad, 125 for a kernel without an image, that does not boot or of which nothing can be said; 129 where the bisection should stop."`
	Check     bool           `help:"Run aossim check in the guest."`
	Jobs      int            `placeholder:"N" help:"Boots at once; unless given, one for each CPU where instructions are counted, else one."`
	CPUs      int            `name:"cpus" default:"2" help:"CPUs of the guest. Where instructions are counted, points of one thread have one."`
	Memory    string         `default:"1G" help:"Memory of the guest."`
	Cmdline   string         `help:"Added to the guest kernel's command line."`
	Clock     string         `enum:",instructions,host" default:"" help:"The guest's: instructions, as if each took 1 ns, unless KVM runs it; or host."`
	Timeout   *time.Duration `help:"Limit of a boot, to its end, on the host's clock; 5m unless given, 1h where instructions are counted."`
	QEMU      string         `name:"qemu" placeholder:"PROGRAM" help:"QEMU to use."`
	Program   string         `placeholder:"FILE" help:"A build of aossim for kernels of another architecture; aossim-ARCH beside this one unless given."`
	Output    string         `short:"o" default:"results" placeholder:"DIR" help:"Where results and console logs go."`
	Profile   bool           `help:"Show where the instructions of each point went, function by function."`
	Folded    string         `placeholder:"FILE" help:"Write the profile's stacks for flame graph tools; of two kernels those of both, as difffolded.pl does. Needs --profile."`
	Gate      string         `help:"As of aossim compare."`
	Force     bool           `help:"Compare though both kernels are one image."`
	Markdown  bool           `help:"Write the comparison as a table for a mail."`
	JSON      bool           `name:"json" help:"Write JSON: the comparison, or the table of checks or of several kernels."`
	Duration  *time.Duration `short:"D" help:"As of aossim run, in the guest."`
	Warmup    time.Duration  `default:"1s" help:"As of aossim run, in the guest."`
	Runs      int            `short:"r" default:"1" help:"As of aossim run, in the guest."`
	Rounds    *int           `help:"As of aossim run, in the guest; 6 unless given where instructions are counted, 1 where the guest is emulated by the host's clock: only counts are judged."`
	Cycles    *int           `help:"As of aossim run, in the guest."`

	tasks []*task
	gate  float64
}

// task is a scenario, or some points of one: what one command of the guest does.
type task struct {
	*scenarios.Scenario
	path   string            // as it was given
	points []string          // only these; none are all
	alone  bool              // one thread does each point
	had    []*result.Result  // results of before that were given
	traces map[string][]byte // files that its publishers play, by their names
}

// boot is one boot of the plan.
type boot struct {
	kernel string
	side   string // A, B, or "" for none
	cpus   int
	run    []int // the places of its tasks; none for a check
}

// validate refuses what can be refused without a look at any file.
func (c *vmCommand) validate() (err error) {
	compares := len(c.Before) > 0 || c.After != ""
	switch {
	case compares && len(c.Kernel) > 0:
		return refusal.Usage("--kernel only runs, --before and --after compare; use one")
	case c.Bisect && len(c.Before) == 0:
		return refusal.Usage("--bisect needs a --before, an image or a result of one, to hold --after IMAGE against")
	case compares && (len(c.Before) == 0 || c.After == ""):
		return refusal.Usage("--before and --after go together")
	case !compares && len(c.Kernel) == 0:
		return refusal.Usage("which kernel? --kernel IMAGE, or --before IMAGE --after IMAGE")
	case c.Check && len(c.Scenarios) > 0, !c.Check && len(c.Scenarios) == 0:
		return refusal.Usage("give scenarios to run, or --check")
	case c.Check && compares:
		return refusal.Usage("--check answers questions and judges nothing; use --kernel IMAGE --kernel IMAGE for a table")
	case c.Folded != "" && !c.Profile:
		return refusal.Usage("--folded FILE is of a profile; add --profile")
	case c.Profile && (c.Check || c.Clock == string(vm.Host)):
		return refusal.Usage("--profile is of micro-benchmarks in a guest whose clock counts instructions; leave out --check and --clock host")
	case c.Folded != "" && (len(c.Kernel) > 1 || len(c.Scenarios) != 1):
		return refusal.Usage("--folded FILE is of one scenario on one --kernel, or before and after; aossim report --folded takes results")
	case c.Markdown && c.JSON:
		return refusal.Usage("--markdown and --json both write to standard output; use one")
	case c.Markdown && !compares:
		return refusal.Usage("--markdown is of a comparison, by --before and --after")
	case c.JSON && !compares && !c.Check && len(c.Kernel) == 1:
		return refusal.Usage("--json: of one kernel the result is in a file already; give a second --kernel for a table")
	case c.Repeat < 1 || c.Repeat > 100:
		return refusal.Usage("--repeat %d is not within 1..100", c.Repeat)
	case c.Jobs < 0 || c.Jobs > 256:
		return refusal.Usage("--jobs %d is not within 1..256", c.Jobs)
	case c.CPUs < 1 || c.CPUs > 512:
		return refusal.Usage("--cpus %d is not within 1..512", c.CPUs)
	case given(c.Timeout, 1):
		return refusal.Usage("--timeout %s is not above 0", *c.Timeout)
	case given(c.Rounds, 1) || given(c.Cycles, 1) || c.Runs < 1 || given(c.Duration, 1) || c.Warmup < 0:
		return refusal.Usage("--rounds, --cycles, --runs and --duration must be above 0, and --warmup not below")
	}
	c.Order = strings.ToUpper(c.Order)
	if strings.Trim(c.Order, "AB") != "" {
		return refusal.Usage("--order %q: write A for before and B for after, such as ABA", c.Order)
	}
	if !strings.Contains(c.Order, "B") {
		return refusal.Usage("--order %q: the kernel with the change, B, must be in it", c.Order)
	}
	c.gate, err = parseGate(c.Gate)
	return err
}

// open reads the scenarios, and the results that stand for before.
func (c *vmCommand) open() error {
	for _, name := range c.Scenarios {
		s, err := scenarios.Open(name)
		if err != nil {
			return err
		}
		t := &task{Scenario: s, path: name}
		if err := t.readTraces(); err != nil {
			return err
		}
		c.tasks = append(c.tasks, t)
	}
	results := 0
	for _, path := range c.Before {
		if isResult(path) {
			results++
		}
	}
	switch {
	case results == 0 && c.After != "" && !strings.Contains(c.Order, "A"):
		return refusal.Usage("--order %q: the kernel without the change, A, must be in it, unless --before is a result", c.Order)
	case results == 0 && len(c.Before) > 1:
		return refusal.Usage("--before is given %d times, and none is a result; there is one image of before, --repeat boots it again", len(c.Before))
	case results == 0:
		return nil
	case results < len(c.Before):
		return refusal.Usage("--before is both results and images; use one")
	}
	loaded, err := (&compareCommand{Force: c.Force}).load(c.Before)
	if err != nil {
		return err
	}
	if err := distinct(loaded, c.Before); err != nil {
		return err
	}
	for i, r := range loaded {
		at := slices.IndexFunc(c.tasks, func(t *task) bool { return t.Name == r.Scenario.Name && t.SHA256() == r.Scenario.SHA256 })
		if at < 0 {
			return refusal.Usage("--before %s is of scenario %s (sha256 %.12s), which is none of those to run; give the same file", c.Before[i], r.Scenario.Name, r.Scenario.SHA256)
		}
		c.tasks[at].had = append(c.tasks[at].had, r)
	}
	for _, t := range c.tasks {
		if len(t.had) == 0 {
			return refusal.Usage("no --before is a result of %s", t.Name)
		}
	}
	return nil
}

// split makes two tasks of a scenario that has points of one thread and others, where
// instructions are counted: those of one thread only where no other CPU executes any.
func (c *vmCommand) split(m *vm.Machine) error {
	virtual := slices.ContainsFunc(c.kernels(), func(b boot) bool { return m.Virtual(b.kernel) })
	var all []*task
	for _, t := range c.tasks {
		var alone, others []string
		if t.Micro != nil {
			for i := range t.Micro.Points {
				if p := &t.Micro.Points[i]; p.OneThread() {
					alone = append(alone, p.Name)
				} else {
					others = append(others, p.Name)
				}
			}
		}
		if t.alone = len(alone) > 0 && len(others) == 0; !virtual || len(alone) == 0 || t.alone {
			all = append(all, t)
			continue
		}
		parts := []*task{{Scenario: t.Scenario, path: t.path, points: alone, alone: true}, {Scenario: t.Scenario, path: t.path, points: others}}
		for _, r := range t.had {
			at := slices.IndexFunc(parts, func(p *task) bool { return len(r.Runs) > 0 && samePoints(p.points, r.Runs[0].Micro) })
			if at < 0 {
				return refusal.Usage("--before has a result of %s whose points are neither those of one thread (%q) nor the others (%q); make them anew by aossim vm --kernel", t.Name, alone, others)
			}
			parts[at].had = append(parts[at].had, r)
		}
		for _, p := range parts {
			if len(t.had) > 0 && len(p.had) == 0 {
				return refusal.Usage("no --before is a result of %s with the points %q", t.Name, p.points)
			}
		}
		all = append(all, parts...)
	}
	c.tasks = all
	return nil
}

// profiles refuses a profile of what has none.
func (c *vmCommand) profiles(m *vm.Machine) error {
	if !c.Profile {
		return nil
	}
	for _, t := range c.tasks {
		if t.Micro == nil {
			return refusal.Usage("--profile: %s is no micro-benchmark, of which one thread does the same again and again", t.Name)
		}
		for _, p := range t.Micro.Points {
			if scenarios.WorkloadNamed(p.Workload).Threads {
				return refusal.Usage("--profile: the point %q of %s has threads of its own for its rounds; it is for the workloads scalar, waitv, eagain and timeout", p.Name, t.Name)
			}
		}
	}
	for _, b := range c.kernels() {
		if !m.Virtual(b.kernel) {
			return refusal.Usage("--profile: the guest on %s would run by KVM, which logs no instruction; add --clock instructions", b.kernel)
		}
	}
	return nil
}

// samePoints says whether a run has just the points of these names.
func samePoints(names []string, run []result.Micro) bool {
	return len(names) == len(run) && !slices.ContainsFunc(run, func(m result.Micro) bool { return !slices.Contains(names, m.Name) })
}

// resumes says whether results stand for before.
func (c *vmCommand) resumes() bool { return len(c.tasks) > 0 && len(c.tasks[0].had) > 0 }

// isResult says whether a file is one of JSON, as no kernel is.
func isResult(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head, _ := bufio.NewReader(f).Peek(64)
	return strings.HasPrefix(strings.TrimSpace(string(head)), "{")
}

// kernels are those to boot, in order.
func (c *vmCommand) kernels() (list []boot) {
	for _, k := range c.Kernel {
		list = append(list, boot{kernel: k})
	}
	if c.After == "" {
		return list
	}
	for range c.Repeat {
		for _, side := range c.Order {
			switch {
			case side == 'B':
				list = append(list, boot{kernel: c.After, side: "B"})
			case !c.resumes():
				list = append(list, boot{kernel: c.Before[0], side: "A"})
			}
		}
	}
	return list
}

// plan are the boots: where instructions are counted, what one thread does runs on one CPU, and
// what is left in a boot of its own.
func (c *vmCommand) plan(m *vm.Machine) (list []boot) {
	for _, b := range c.kernels() {
		var alone, others []int
		for i, t := range c.tasks {
			if t.alone && m.Virtual(b.kernel) {
				alone = append(alone, i)
			} else {
				others = append(others, i)
			}
		}
		if len(alone) > 0 {
			list = append(list, boot{b.kernel, b.side, 1, alone})
		}
		if len(others) > 0 || c.Check {
			list = append(list, boot{b.kernel, b.side, c.CPUs, others})
		}
	}
	return list
}

// commands are those that the guest runs, and the files that it needs.
func (c *vmCommand) commands(m *vm.Machine, b boot) (list [][]string, files map[string][]byte) {
	if c.Check {
		return [][]string{{"check", "--json"}}, nil
	}
	files = map[string][]byte{}
	for _, i := range b.run {
		s := c.tasks[i]
		// In a folder of its own, and by its name, which is the scenario's where that has none.
		file := fmt.Sprintf("%d/%s.toml", i, strings.TrimSuffix(filepath.Base(s.path), ".toml"))
		files[file] = []byte(s.Text)
		for name, data := range s.traces {
			files[fmt.Sprintf("%d/%s", i, name)] = data
		}
		args := []string{"run", "-q", "-o", "OUTPUT", "-r", strconv.Itoa(c.Runs)}
		for _, name := range s.points {
			args = append(args, "--point="+name)
		}
		if s.Micro != nil {
			switch {
			case c.Rounds != nil:
				args = append(args, "--rounds", strconv.Itoa(*c.Rounds))
			case m.Virtual(b.kernel):
				args = append(args, "--rounds", "6") // with fewer there is no verdict on many metrics
			case m.Emulated(b.kernel):
				args = append(args, "--rounds", "1")
			}
			if c.Cycles != nil {
				args = append(args, "--cycles", strconv.Itoa(*c.Cycles))
			}
			if c.Profile {
				args = append(args, "--profile")
			}
		} else {
			args = append(args, "--warmup", c.Warmup.String())
			if c.Duration != nil {
				args = append(args, "--duration", c.Duration.String())
			}
		}
		list = append(list, append(args, vm.Files+file))
	}
	return list, files
}

func (c *vmCommand) Run(env *environment) error {
	if c.Bisect {
		env.onSignal = exitUsage
	}
	err := c.run(env)
	if !c.Bisect || err == nil {
		return err
	}
	// Codes up to 127 but 125 would be taken for a verdict, and those above end the bisection, as
	// what is not this commit's must.
	env.exit = exitUsage
	var kernel *vm.KernelError
	if errors.As(err, &kernel) && kernel.Name == c.After {
		env.exit = exitSkipBisect
	}
	return err
}

func (c *vmCommand) run(env *environment) error {
	if err := c.validate(); err != nil {
		return err
	}
	if err := c.open(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), linux.EndingSignals()...)
	defer stop()
	env.heed()
	var kernels []string
	for _, b := range c.kernels() {
		kernels = append(kernels, b.kernel)
	}
	m, err := vm.New(ctx, vm.Options{QEMU: c.QEMU, Program: c.Program, Memory: c.Memory, CPUs: c.CPUs, Cmdline: c.Cmdline, Timeout: or(c.Timeout, 0), Profile: c.Profile, Clock: vm.Clock(c.Clock)}, kernels)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.split(m); err != nil {
		return err
	}
	if err := c.profiles(m); err != nil {
		return err
	}
	if err := c.distinctImages(m); err != nil && !c.Force {
		if c.Bisect { // a commit that changes nothing of the image is as good as before
			fmt.Fprintf(env.stderr, "aossim: good: %s\n", oneLine(refusal.Reason(err)))
			return nil
		}
		return err
	}
	if err := c.comparable(m); err != nil {
		return err
	}
	// Where the results go is tried before anything boots.
	place, err := output.OpenNew(c.Output, func(int) string { return fmt.Sprintf("vm-%d", os.Getpid()) })
	if err != nil {
		return err
	}
	place.Discard()
	for _, w := range m.Warnings() {
		fmt.Fprintf(env.stderr, "aossim: warning: %s\n", oneLine(w))
	}
	switch kernel := kernels[0]; {
	case m.Virtual(kernel):
		fmt.Fprintf(env.stderr, "aossim: the guest is emulated, and its clock counts instructions, 1 ns each: those and counts hold, times do not\n")
	case m.Emulated(kernel):
		fmt.Fprintf(env.stderr, "aossim: the guest is emulated, by the host's clock: counts hold, and times do not\n")
	}
	return c.boots(ctx, env, m)
}

// distinctImages refuses one image on both sides.
func (c *vmCommand) distinctImages(m *vm.Machine) error {
	same := func(before, image string) error {
		if image != m.Image(c.After) {
			return nil
		}
		return refusal.Usage("--before %s and --after %s are one image (sha256 %.12s), so nothing would differ; --force boots it all the same", before, c.After, image)
	}
	switch {
	case c.After == "":
		return nil
	case !c.resumes():
		return same(c.Before[0], m.Image(c.Before[0]))
	}
	for _, t := range c.tasks {
		for _, r := range t.had {
			if err := same("(a result)", r.Environment.Image); err != nil {
				return err
			}
		}
	}
	return nil
}

// comparable refuses results of before whose time is another than that of the guest will be.
func (c *vmCommand) comparable(m *vm.Machine) error {
	for _, t := range c.tasks {
		for _, r := range t.had {
			if t.Micro != nil && r.Environment.Virtual() != m.Virtual(c.After) {
				return refusal.Usage("--before has a result of %s by another clock (%s) than %s will have; make it anew by aossim vm --kernel, or see --clock", t.Name, cmp.Or(r.Environment.Clock, "real time"), c.After)
			}
		}
	}
	return nil
}

// booted is what came of a boot.
type booted struct {
	at   int // in the plan
	boot *vm.Boot
	err  error
}

// boots does those of the plan, several at once, and shows what came of them. Where kernels are
// compared the first that fails ends it; else the others go on.
func (c *vmCommand) boots(ctx context.Context, env *environment, m *vm.Machine) error {
	plan := c.plan(m)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	jobs := cmp.Or(c.Jobs, runtime.NumCPU())
	if c.Jobs == 0 && slices.ContainsFunc(plan, func(b boot) bool { return !m.Virtual(b.kernel) }) {
		jobs = 1 // boots at once disturb each other's times
	}
	free, done := make(chan struct{}, jobs), make(chan booted)
	go func() {
		for i, b := range plan {
			free <- struct{}{}
			go func() {
				boot, err := c.boot(ctx, m, b)
				<-free
				done <- booted{i, boot, err}
			}()
		}
	}()
	results, checks := make([]map[int]*result.Result, len(plan)), make([]*check.Check, len(plan))
	failures := make([]error, len(plan))
	for n := range plan {
		d := <-done
		b := plan[d.at]
		if d.boot.Took > 0 {
			fmt.Fprintf(env.stderr, "aossim: boot %d of %d: %s, %.1f s\n", n+1, len(plan), oneLine(strings.TrimSpace(b.side+" "+b.kernel)), d.boot.Took.Seconds())
		}
		var kept error
		results[d.at], checks[d.at], kept = c.keep(env, d.at, b, d.boot)
		err := cmp.Or(d.err, kept)
		if err != nil && ctx.Err() == nil {
			env.ended(exitCode(err))
		}
		if failures[d.at] = err; err != nil && c.After != "" {
			cancel()
			for range len(plan) - n - 1 { // what they have is kept
				d := <-done
				code := env.exit
				_, _, _ = c.keep(env, d.at, plan[d.at], d.boot)
				env.exit = code // that it was ended says nothing
			}
			return err
		}
	}
	var err error
	switch {
	case c.Check:
		err = c.showChecks(env, plan, checks)
	case c.After != "":
		return c.showComparison(env, plan, results)
	default:
		err = c.showResults(env, results)
	}
	return errors.Join(append(failures, err)...)
}

// boot does one, unless ctx has ended.
func (c *vmCommand) boot(ctx context.Context, m *vm.Machine, b boot) (done *vm.Boot, err error) {
	defer func() {
		if v := recover(); v != nil { // what a guest sent is parsed there, and run recovers on its own goroutine only
			done, err = &vm.Boot{}, fmt.Errorf("a fault of aossim: %v (%s); please report it with the command and its files", v, fault())
		}
	}()
	if ctx.Err() != nil {
		return &vm.Boot{}, ctx.Err()
	}
	commands, files := c.commands(m, b)
	return m.Run(ctx, b.kernel, b.cpus, commands, files)
}

// showChecks shows those of one kernel whole, those of several as a table.
func (c *vmCommand) showChecks(env *environment, plan []boot, checks []*check.Check) error {
	var found []*check.Check
	for i, f := range checks {
		if f == nil {
			continue
		}
		if found = append(found, f); len(plan) == 1 && !c.JSON {
			fmt.Fprintf(env.stdout, "== %s\n\n", oneLine(plan[i].kernel))
			return f.Text(env.stdout)
		}
	}
	slices.SortStableFunc(found, func(a, b *check.Check) int { return report.CompareKernels(&a.Environment, &b.Environment) })
	switch {
	case len(found) == 0:
		return nil // what failed is said
	case c.JSON && len(plan) == 1:
		return found[0].Encode(env.stdout)
	case c.JSON:
		return encode(env, found)
	}
	return check.Table(env.stdout, found)
}

// showResults shows one result whole, those of a scenario on several kernels as a table.
func (c *vmCommand) showResults(env *environment, results []map[int]*result.Result) error {
	var tables []*report.Kernels
	for i := range c.tasks {
		var list []*result.Result
		for _, of := range results {
			if r := of[i]; r != nil {
				list = append(list, r)
			}
		}
		switch {
		case len(list) == 0:
		case len(c.Kernel) == 1:
			if c.Folded != "" {
				if err := writeFolded(c.Folded, list[0]); err != nil {
					return err
				}
			}
			if err := report.Text(env.stdout, list[0]); err != nil {
				return err
			}
		case c.JSON:
			tables = append(tables, report.NewKernels(list))
		default:
			if err := report.NewKernels(list).Text(env.stdout); err != nil {
				return err
			}
		}
	}
	if c.JSON {
		return encode(env, tables)
	}
	return nil
}

// showComparison compares, and sets the exit code.
func (c *vmCommand) showComparison(env *environment, plan []boot, results []map[int]*result.Result) error {
	var all []*compare.Comparison
	for i, t := range c.tasks {
		before, after := t.had, []*result.Result(nil)
		for n, of := range results {
			switch r := of[i]; {
			case r == nil:
			case plan[n].side == "A":
				before = append(before, r)
			default:
				after = append(after, r)
			}
		}
		half := (len(before) + 1) / 2
		found, err := compare.Compare(before[:half], after, before[half:], compare.Options{Gate: c.gate, Gates: t.Gates})
		if err != nil {
			return err
		}
		if c.Folded != "" && len(before) > 0 && len(after) > 0 {
			if err := writeFolded(c.Folded, before[0], after[0]); err != nil {
				return err
			}
		}
		if all = append(all, found); c.JSON {
			continue
		}
		if err := showCompared(env, found, c.Markdown); err != nil {
			return err
		}
	}
	env.judge(c.Bisect, all...)
	if c.JSON {
		return encode(env, all)
	}
	return nil
}
