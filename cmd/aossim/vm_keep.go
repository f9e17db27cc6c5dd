package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"aossim/internal/check"
	"aossim/internal/output"
	"aossim/internal/profile"
	"aossim/internal/refusal"
	"aossim/internal/report"
	"aossim/internal/result"
	"aossim/internal/vm"
	"aossim/scenarios"
)

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
// results. It returns the results, by scenario, or the check, and an error where a command did
// not end as it should.
func (c *vmCommand) keep(env *environment, i int, b boot, done *vm.Boot) (results map[int]*result.Result, found *check.Check, err error) {
	if done.ID == "" {
		return nil, nil, nil // it did not begin
	}
	base := fileWord(strings.TrimSuffix(filepath.Base(b.kernel), filepath.Ext(b.kernel)))
	if b.side != "" {
		base = b.side + "-" + base
	}
	base = fmt.Sprintf("vm-%s-%d-%s", time.Now().Format("20060102T150405"), i+1, base)
	_, err = c.save(base, ".log", func(w io.Writer) error { _, err := io.WriteString(w, done.Console); return err })
	// What the kernel is the reason of is told from what this machine could not do.
	blame := func(e error) { err = errors.Join(err, &vm.KernelError{Name: b.kernel, Err: e}) }
	results = map[int]*result.Result{}
	for n, out := range done.Outputs {
		failed := ""
		switch {
		case out.Exit == exitSkipped:
			failed = "cannot run there"
		case out.Exit != exitPass:
			failed = fmt.Sprintf("ended with exit code %d", out.Exit)
		}
		if c.Check {
			var e error
			if found, e = check.Decode(out.Data); e != nil {
				blame(fmt.Errorf("%s: the check in the guest: %s %w: %s", b.kernel, failed, e, done.LastLines()))
				return nil, nil, err
			}
			mark(&found.Environment, done)
			env.ended(guestExit(out.Exit))
			continue
		}
		scenario, last := b.run[n], done.LastLines()
		if len(out.Data) > 0 {
			r, e := result.Decode(b.kernel, out.Data)
			if e == nil && r.Environment.Virtual() != done.Virtual {
				e = fmt.Errorf("%s: the guest does not know what its clock is, so its units are wrong: the kernel has a command line of its own (CONFIG_CMDLINE_OVERRIDE or CMDLINE_FORCE), or --cmdline changes it", b.kernel)
			}
			if e != nil {
				blame(e)
			} else {
				mark(&r.Environment, done)
				later(r, done.Ahead)
				if broken := c.tasks[scenario].profile(r, done.Traces); broken != "" {
					failed, last = "has no profile that holds", broken
				}
				// What a guest says is not trusted with the names of files.
				var path string
				path, e = c.save(fmt.Sprintf("%s-%d-%s-%.8s", base, n+1, fileWord(r.Scenario.Name), report.Word(r.Environment.BootID)), ".json", r.Encode)
				if path != "" {
					fmt.Fprintf(env.stderr, "aossim: the result is in %s\n", oneLine(path))
				} else {
					e = errors.Join(e, r.Encode(env.stdout)) // it has no other place left
				}
				err = errors.Join(err, e)
				results[scenario] = r
				if broken := r.Failed(); len(broken) > 0 && out.Exit != exitPass {
					last = fmt.Sprintf("check %q failed: %s", broken[0].Name, broken[0].Detail)
				}
			}
		}
		if len(out.Data) == 0 && failed == "" {
			failed = "sent no result"
		}
		if failed != "" {
			env.ended(cmp.Or(guestExit(out.Exit), exitFailed))
			blame(fmt.Errorf("%s in the guest on %s %s: %s", c.tasks[scenario].path, b.kernel, failed, last))
		}
	}
	return results, found, err
}

// checkProfile is the name of the check of a point that its functions are its figure.
const checkProfile = "profile"

// profile adds the profiles of a result's points, made of what was traced in its boot, with a check
// each, and says what is wrong with the first that is not right.
func (t *task) profile(r *result.Result, traces *vm.Traces) (broken string) {
	if traces == nil || len(r.Runs) == 0 || t.Micro == nil {
		return ""
	}
	for i := range r.Runs[0].Micro {
		m := &r.Runs[0].Micro[i]
		point := slices.IndexFunc(t.Micro.Points, func(p scenarios.Point) bool { return p.Name == m.Name })
		at := slices.IndexFunc(traces.Rounds, func(t vm.Traced) bool { return t.Scenario == r.Scenario.Name && t.Point == m.Name })
		if point < 0 || at < 0 {
			continue
		}
		trace := traces.Rounds[at].Trace
		traces.Rounds = slices.Delete(traces.Rounds, at, at+1) // the next one is of a scenario of the same name
		c := result.Check{Name: checkProfile}
		p, err := profile.Follow(trace, traces.Code, traces.Symbols, t.Micro.Points[point].SystemCall(), t.Micro.Points[point].PerCall())
		if err != nil || m.Traced == nil {
			c.Detail = fmt.Sprintf("there is none: %v", err)
		} else {
			m.Profile = p
			c.Pass, c.Detail = holds(p, m)
		}
		if m.Checks = append(m.Checks, c); !c.Pass && broken == "" {
			broken = fmt.Sprintf("check %q of %s failed: %s", c.Name, m.Name, c.Detail)
		}
	}
	return broken
}

// holds says whether the functions of a point's profile are what the clock has of the round.
func holds(p *result.Profile, m *result.Micro) (bool, string) {
	const most = 0.005
	sum, t := p.PerOperation(p.Instructions), m.Traced
	if !scenarios.WorkloadNamed(m.Workload).Ring {
		return true, fmt.Sprintf("the functions have %.3f instructions for an operation; the thread sleeps, and the kernel's account of its time, %.3f, is divided elsewhere in a switch: not held against each other", sum, t.Figure)
	}
	off := p.PerOperation(p.Instructions+p.InterruptInstructions+p.OtherInstructions)/t.Figure - 1
	all := sum / (1 - min(max(t.Interrupts, 0), 0.9)) // as rounds have it, which are longer
	return math.Abs(off) <= most, fmt.Sprintf("the functions have %.3f instructions for an operation, and by the clock the round has %.3f (%+.2f %%); with interrupts, which take %.2f %%, that is %.3f, and the median of the rounds is %.3f (%+.2f %%)",
		sum, t.Figure, 100*off, 100*t.Interrupts, all, m.Median, 100*(all/m.Median-1))
}

// mark adds what the host knows of a boot.
func mark(e *result.Environment, done *vm.Boot) {
	e.Image, e.BootID, e.Emulator = done.Image, done.ID, done.Emulator
	e.Emulated = e.Emulated || done.Emulated
}

// later moves a result's dates by what the guest's clock was behind.
func later(r *result.Result, by time.Duration) {
	if t, err := time.Parse(time.RFC3339, r.Started); err == nil {
		r.Started = t.Add(by).Local().Format(time.RFC3339)
	}
	for i := range r.Runs {
		for j := range r.Runs[i].Phases {
			r.Runs[i].Phases[j].BeganNS += int64(by)
		}
		for j := range r.Runs[i].Micro {
			r.Runs[i].Micro[j].BeganNS += int64(by)
		}
	}
}

// fileWord is a part of a file's name.
func fileWord(text string) string {
	const most = 80 // bytes
	word := report.Word(text)
	return strings.ToValidUTF8(word[:min(len(word), most)], "")
}

// save writes a new file in the directory of the results. Whatever cannot be written must not take
// the results with it.
func (c *vmCommand) save(name, ext string, write func(w io.Writer) error) (string, error) {
	place, err := output.OpenNew(c.Output, func(n int) string {
		if n > 1 {
			return fmt.Sprintf("%s-%d%s", name, n, ext)
		}
		return name + ext
	})
	if err != nil {
		return output.Elsewhere(write), errors.New(refusal.Reason(err))
	}
	return place.Save(write)
}
