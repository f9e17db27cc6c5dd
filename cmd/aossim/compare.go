package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"aossim/internal/compare"
	"aossim/internal/refusal"
	"aossim/internal/report"
	"aossim/internal/result"
	"aossim/scenarios"
)

type compareCommand struct {
	Results  []string `arg:"" optional:"" name:"result" help:"BEFORE.json AFTER.json [BEFORE2.json]."`
	Before   []string `placeholder:"FILE" sep:"none" help:"A result from before; may be given again, the second half counts as before again."`
	After    []string `placeholder:"FILE" sep:"none" help:"A result from after; may be given again."`
	Gate     string   `help:"The change that matters, unless the scenario's [compare] has one for the metric; 5% unless given, of instructions 0.5%."`
	Bisect   bool     `help:"Exit as git bisect run wants: 0 good, 1 bad, 125 for all else."`
	JSON     bool     `name:"json" help:"Write JSON."`
	Markdown bool     `help:"Write a table for a mail."`
	Null     bool     `help:"Compare each result with itself: the noise floor, and the share of false verdicts."`
	Force    bool     `help:"Go on though a result's checks failed, or it was interrupted."`
}

// exitSkipBisect has git bisect run skip the commit.
const exitSkipBisect = 125

func (c *compareCommand) Run(env *environment) error {
	if c.Bisect {
		env.onSignal = exitSkipBisect
	}
	err := c.run(env)
	if c.Bisect && err != nil {
		env.exit = exitSkipBisect
	}
	return err
}

func (c *compareCommand) run(env *environment) error {
	var o compare.Options
	var err error
	if o.Gate, err = parseGate(c.Gate); err != nil {
		return err
	}
	if c.Null {
		return c.null(env, o)
	}
	var before, after, again []*result.Result
	switch {
	case len(c.Results) > 0 && len(c.Before)+len(c.After) > 0:
		return refusal.Usage("results are given both by place and by --before and --after; use one")
	case len(c.Results) == 2 || len(c.Results) == 3:
		c.Before, c.After = append(c.Results[:1:1], c.Results[2:]...), c.Results[1:2]
	case len(c.Results) > 0 || len(c.Before) == 0 || len(c.After) == 0:
		return refusal.Usage("give BEFORE.json AFTER.json [BEFORE2.json], or --before and --after; for one result there is --null")
	}
	if before, err = c.load(c.Before); err != nil {
		return err
	}
	if after, err = c.load(c.After); err != nil {
		return err
	}
	twice := distinct(slices.Concat(before, after), slices.Concat(c.Before, c.After))
	if twice != nil && !c.Force {
		return twice
	}
	if n := len(before); n > 1 {
		before, again = before[:(n+1)/2], before[(n+1)/2:]
	}
	// The gates are those of the scenario that was run.
	s, unread := scenarios.Parse(before[0].Scenario.Name+".toml", []byte(before[0].Scenario.Text))
	if unread == nil {
		o.Gates = s.Gates
	}
	found, err := compare.Compare(before, after, again, o)
	if err != nil {
		return err
	}
	if unread != nil {
		found.Warnings = append(found.Warnings, fmt.Sprintf("the scenario's own gates, if it has any, are not applied: this program no longer takes it: %s", unread))
	}
	if twice != nil {
		found.Warnings, found.Doubtful = append(found.Warnings, twice.Error()), true
	}
	if env.judge(c.Bisect, found); c.JSON {
		return encode(env, found)
	}
	return showCompared(env, found, c.Markdown)
}

// judge sets the exit code of comparisons. In a bisection what is doubtful is no verdict.
func (env *environment) judge(bisect bool, all ...*compare.Comparison) {
	worse := func(c *compare.Comparison) bool { return len(c.Worse()) > 0 && !(bisect && c.Doubtful) }
	undecided := func(c *compare.Comparison) bool { return !c.Decided() }
	switch {
	case slices.ContainsFunc(all, worse):
		env.exit = exitFailed
	case bisect && slices.ContainsFunc(all, undecided):
		env.exit = exitSkipBisect
	}
}

// showCompared writes a comparison for people, or for a mail.
func showCompared(env *environment, c *compare.Comparison, markdown bool) error {
	if markdown {
		return report.ComparisonMarkdown(env.stdout, c)
	}
	return report.Comparison(env.stdout, c)
}

// distinct refuses a result that is given twice: it would agree with itself.
func distinct(results []*result.Result, paths []string) error {
	for i, a := range results {
		for j, b := range results[:i] {
			if a.Started == b.Started && a.Environment.BootID == b.Environment.BootID && reflect.DeepEqual(a, b) {
				return refusal.Usage("%s and %s are one result, and say nothing of each other; --force compares them all the same", paths[j], paths[i])
			}
		}
	}
	return nil
}

// parseGate reads --gate; it is 0 where none is given.
func parseGate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	var share scenarios.Share
	if err := share.UnmarshalText([]byte(text)); err != nil {
		return 0, refusal.Usage("--gate: %w", err)
	}
	if share == 0 {
		return 0, refusal.Usage("--gate: it must be above 0%%, as no two measurements are the same")
	}
	return float64(share), nil
}

// null compares each result with itself.
func (c *compareCommand) null(env *environment, o compare.Options) error {
	if len(c.Results) == 0 || len(c.Before)+len(c.After) > 0 {
		return refusal.Usage("--null takes RESULT.json..., each compared with itself")
	}
	if bar := progress(env.stderr); bar != nil {
		o.Progress = func(done, all int) {
			bar(time.Duration(done)*time.Second, time.Duration(all)*time.Second, "halves compared")
		}
		defer bar(0, 0, "")
	}
	for _, path := range c.Results {
		loaded, err := c.load([]string{path})
		if err != nil {
			return err
		}
		n, err := compare.CompareNull(loaded, o)
		if err != nil {
			return err
		}
		if c.JSON {
			err = encode(env, n)
		} else {
			err = report.Null(env.stdout, path, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// load reads results that may be compared.
func (c *compareCommand) load(paths []string) (list []*result.Result, err error) {
	for _, path := range paths {
		r, err := loadResult(path)
		if err != nil {
			return nil, err
		}
		var why string
		switch failed := r.Failed(); {
		case r.Broken != "":
			why = "its run broke: " + r.Broken
		case r.Interrupted:
			why = "it was interrupted"
		case len(failed) > 0:
			why = fmt.Sprintf("check %q failed: %s", failed[0].Name, failed[0].Detail)
		case len(r.Runs) == 0:
			return nil, refusal.Usage("no result: %s: it has no runs", path)
		}
		if why != "" && !c.Force {
			return nil, fmt.Errorf("%s: %s; its figures are not to be trusted, --force compares them all the same", path, why)
		}
		list = append(list, r)
	}
	return list, nil
}

// encode writes indented JSON.
func encode(env *environment, v any) error {
	e := json.NewEncoder(env.stdout)
	e.SetIndent("", " ")
	return e.Encode(v)
}
