package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
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
	Kernel    []string       `placeholder:"IMAGE" sep:"none" help:"A kernel to boot: a bzImage, vmlinux, arm64 Image, or Debian package of one. May be given again."`
	Before    string         `placeholder:"IMAGE" help:"The kernel without the change."`
	After     string         `placeholder:"IMAGE" help:"The kernel with the change."`
	Order     string         `default:"ABA" help:"Order of the boots: A is before, B after."`
	Repeat    int            `default:"1" help:"Times that the order is gone through."`
	Check     bool           `help:"Run aossim check in the guest."`
	CPUs      int            `name:"cpus" default:"2" help:"CPUs of the guest."`
	Memory    string         `default:"1G" help:"Memory of the guest."`
	Cmdline   string         `help:"Added to the guest kernel's command line."`
	Timeout   time.Duration  `default:"5m" help:"Limit of a boot, to its end."`
	QEMU      string         `name:"qemu" placeholder:"PROGRAM" help:"QEMU to use."`
	Output    string         `short:"o" default:"results" placeholder:"DIR" help:"Where results and console logs go."`
	Gate      string         `default:"5%" help:"As of aossim compare."`
	Force     bool           `help:"Compare though both kernels are one image."`
	Markdown  bool           `help:"Write the comparison as a table for a mail."`
	Duration  *time.Duration `short:"D" help:"As of aossim run, in the guest."`
	Warmup    time.Duration  `default:"1s" help:"As of aossim run, in the guest."`
	Runs      int            `short:"r" default:"1" help:"As of aossim run, in the guest."`
	Rounds    *int           `help:"As of aossim run, in the guest; emulated, it is 1 unless given: only counts are judged."`
	Cycles    *int           `help:"As of aossim run, in the guest."`
}

// boot is one boot of the plan.
type boot struct {
	kernel string
	side   string // A, B, or "" for none
}

func (c *vmCommand) plan() (boots []boot, err error) {
	switch compares := c.Before != "" || c.After != ""; {
	case compares && len(c.Kernel) > 0:
		return nil, refusal.Usage("--kernel only runs, --before and --after compare; use one")
	case compares && (c.Before == "" || c.After == ""):
		return nil, refusal.Usage("--before and --after go together")
	case !compares && len(c.Kernel) == 0:
		return nil, refusal.Usage("which kernel? --kernel IMAGE, or --before IMAGE --after IMAGE")
	case c.Check && len(c.Scenarios) > 0, !c.Check && len(c.Scenarios) == 0:
		return nil, refusal.Usage("give scenarios to run, or --check")
	case c.Repeat < 1 || c.Repeat > 100:
		return nil, refusal.Usage("--repeat %d is not within 1..100", c.Repeat)
	case c.CPUs < 1 || c.CPUs > 512:
		return nil, refusal.Usage("--cpus %d is not within 1..512", c.CPUs)
	case c.Timeout <= 0:
		return nil, refusal.Usage("--timeout %s is not above 0", c.Timeout)
	case given(c.Rounds, 1) || given(c.Cycles, 1) || c.Runs < 1 || given(c.Duration, 1) || c.Warmup < 0:
		return nil, refusal.Usage("--rounds, --cycles, --runs and --duration must be above 0, and --warmup not below")
	case !compares:
		for _, k := range c.Kernel {
			boots = append(boots, boot{kernel: k})
		}
		return boots, nil
	}
	for range c.Repeat {
		for _, side := range strings.ToUpper(c.Order) {
			k, ok := map[rune]string{'A': c.Before, 'B': c.After}[side]
			if !ok {
				return nil, refusal.Usage("--order %q: write A for before and B for after, such as ABA", c.Order)
			}
			boots = append(boots, boot{k, string(side)})
		}
	}
	if order := strings.ToUpper(c.Order); !strings.Contains(order, "A") || !strings.Contains(order, "B") {
		return nil, refusal.Usage("--order %q: both kernels must be in it", c.Order)
	}
	return boots, nil
}

// commands are those that the guest runs, and the files that it needs.
func (c *vmCommand) commands(emulated bool) (list [][]string, files map[string][]byte, opened []*scenarios.Scenario, err error) {
	if c.Check {
		return [][]string{{"check", "--json"}}, nil, nil, nil
	}
	files = map[string][]byte{}
	for i, name := range c.Scenarios {
		s, err := scenarios.Open(name)
		if err != nil {
			return nil, nil, nil, err
		}
		opened = append(opened, s)
		// In a folder of its own, and by its name, which is the scenario's where that has none.
		file := fmt.Sprintf("%d/%s.toml", i, strings.TrimSuffix(filepath.Base(name), ".toml"))
		files[file] = []byte(s.Text)
		args := []string{"run", "-q", "-o", "OUTPUT", "-r", strconv.Itoa(c.Runs)}
		if s.Micro != nil {
			if c.Rounds != nil || emulated {
				args = append(args, "--rounds", strconv.Itoa(or(c.Rounds, 1)))
			}
			if c.Cycles != nil {
				args = append(args, "--cycles", strconv.Itoa(*c.Cycles))
			}
		} else {
			args = append(args, "--warmup", c.Warmup.String())
			if c.Duration != nil {
				args = append(args, "--duration", c.Duration.String())
			}
		}
		list = append(list, append(args, vm.Files+file))
	}
	return list, files, opened, nil
}

func (c *vmCommand) Run(env *environment) error {
	boots, err := c.plan()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), linux.EndingSignals()...)
	defer stop()
	env.heed()
	gate, err := parseGate(c.Gate)
	if err != nil {
		return err
	}
	var kernels []string
	for _, b := range boots {
		kernels = append(kernels, b.kernel)
	}
	m, err := vm.New(ctx, vm.Options{QEMU: c.QEMU, CPUs: c.CPUs, Memory: c.Memory, Cmdline: c.Cmdline, Timeout: c.Timeout}, kernels)
	if err != nil {
		return err
	}
	defer m.Close()
	if c.Before != "" && m.Image(c.Before) == m.Image(c.After) && !c.Force {
		return refusal.Usage("--before %s and --after %s are one image (sha256 %.12s), so nothing would differ; --force boots it all the same", c.Before, c.After, m.Image(c.After))
	}
	commands, files, opened, err := c.commands(m.Emulated())
	if err != nil {
		return err
	}
	// Where the results go is tried before anything boots.
	place, err := output.OpenNew(c.Output, func(int) string { return fmt.Sprintf("vm-%d", os.Getpid()) })
	if err != nil {
		return err
	}
	place.Discard()
	if m.Emulated() {
		fmt.Fprintf(env.stderr, "aossim: no KVM here: the guest is emulated, so counts hold and times do not\n")
	}
	before, after := make([][]*result.Result, len(commands)), make([][]*result.Result, len(commands))
	for i, b := range boots {
		done, err := m.Run(ctx, b.kernel, commands, files)
		if done != nil {
			name := b.side + " "
			if b.side == "" {
				name = ""
			}
			fmt.Fprintf(env.stderr, "aossim: boot %d of %d: %s%s, %.1f s\n", i+1, len(boots), name, oneLine(b.kernel), done.Took.Seconds())
		}
		results, e := c.keep(env, i, b, done)
		if err == nil {
			err = e
		}
		if err != nil {
			return err
		}
		for n, r := range results {
			switch b.side {
			case "A":
				before[n] = append(before[n], r)
			case "B":
				after[n] = append(after[n], r)
			default:
				if err := report.Text(env.stdout, r); err != nil {
					return err
				}
			}
		}
	}
	if c.Check || c.Before == "" {
		return nil
	}
	for n, s := range opened {
		a := before[n]
		found, err := compare.Compare(a[:(len(a)+1)/2], after[n], a[(len(a)+1)/2:], compare.Options{Gate: gate, Gates: s.Gates})
		if err != nil {
			return err
		}
		if len(found.Worse()) > 0 {
			env.exit = exitFailed
		}
		show := report.Comparison
		if c.Markdown {
			show = report.ComparisonMarkdown
		}
		if err := show(env.stdout, found); err != nil {
			return err
		}
	}
	return nil
}

// ended notes an exit code of several: a failure is one, whatever else could not be done.
func (env *environment) ended(code int) {
	if env.exit != exitFailed && code != exitPass {
		env.exit = code
	}
}

// guestExit is the exit code that a guest's stands for: it may be any.
func guestExit(code int) int {
	if code == exitPass || code == exitSkipped || code == exitUsage {
		return code
	}
	return exitFailed
}

// keep writes what came of a boot to files: the console's log whatever happened, and the
// results, each with its boot id. It returns the results, of all commands, and an error
// where one did not end as it should.
func (c *vmCommand) keep(env *environment, i int, b boot, done *vm.Boot) (results []*result.Result, err error) {
	if done == nil {
		return nil, nil
	}
	const most = 80 // bytes of a file's name
	base := report.Word(strings.TrimSuffix(filepath.Base(b.kernel), filepath.Ext(b.kernel)))
	base = strings.ToValidUTF8(base[:min(len(base), most)], "")
	if b.side != "" {
		base = b.side + "-" + base
	}
	base = fmt.Sprintf("vm-%s-%d-%s", time.Now().Format("20060102T150405"), i+1, base)
	// Whatever cannot be written must not take the results with it.
	save := func(name, ext string, write func(w io.Writer) error) (string, error) {
		place, err := output.OpenNew(c.Output, func(n int) string {
			if n > 1 {
				return fmt.Sprintf("%s-%d%s", name, n, ext)
			}
			return name + ext
		})
		if err != nil {
			return output.Elsewhere(write), errors.New(strings.TrimPrefix(err.Error(), refusal.ErrUsage.Error()+": "))
		}
		return place.Save(write)
	}
	_, err = save(base, ".log", func(w io.Writer) error { _, err := io.WriteString(w, done.Console); return err })
	for n, out := range done.Outputs {
		failed := ""
		switch {
		case out.Exit == exitSkipped:
			failed = "cannot run there"
		case out.Exit != exitPass:
			failed = fmt.Sprintf("ended with exit code %d", out.Exit)
		}
		if c.Check {
			found, e := check.Decode(out.Data)
			if e != nil {
				return nil, fmt.Errorf("%s: the check in the guest: %s %w: %s", b.kernel, failed, e, done.LastLines())
			}
			fmt.Fprintf(env.stdout, "== %s\n\n", b.kernel)
			if err := found.Text(env.stdout); err != nil {
				return nil, err
			}
			fmt.Fprintln(env.stdout)
			env.ended(guestExit(out.Exit))
			continue
		}
		if len(out.Data) > 0 {
			r, e := result.Decode(b.kernel, out.Data)
			if e == nil {
				r.Environment.Image = done.Image
				// What a guest says is not trusted with the names of files.
				name := report.Word(r.Scenario.Name)
				var path string
				path, e = save(fmt.Sprintf("%s-%d-%s-%.8s", base, n+1, strings.ToValidUTF8(name[:min(len(name), most)], ""), report.Word(r.Environment.BootID)), ".json", r.Encode)
				if path != "" {
					fmt.Fprintf(env.stderr, "aossim: the result is in %s\n", oneLine(path))
				} else {
					e = errors.Join(e, r.Encode(env.stdout)) // it has no other place left
				}
				results = append(results, r)
			}
			err = errors.Join(err, e)
		}
		if len(out.Data) == 0 && failed == "" {
			failed = "sent no result"
		}
		if failed != "" {
			env.ended(cmp.Or(guestExit(out.Exit), exitFailed))
			err = errors.Join(err, fmt.Errorf("%s in the guest on %s %s: %s", c.Scenarios[n], b.kernel, failed, done.LastLines()))
		}
	}
	return results, err
}
