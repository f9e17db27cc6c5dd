package report

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"aossim/internal/result"
)

// HLog writes all latencies of a result as one histogram log to a file in dir, a line a run,
// phase, group and quantity, which its tag names; values are ns, and times when it happened.
func HLog(dir string, r *result.Result) error {
	started, err := time.Parse(time.RFC3339, r.Started)
	if err != nil {
		return fmt.Errorf("the result's start, %q, is no time: %w", r.Started, err)
	}
	return create(dir, file{fileName(".hlog", Word(r.Scenario.Name)), func(w io.Writer) error {
		log := hdr.NewHistogramLogWriter(w)
		base := started.UnixMilli()
		log.SetBaseTime(base)
		all := distributions(r)
		timed := !slices.ContainsFunc(all, func(d distribution) bool { return d.began == 0 })
		err := errors.Join(log.OutputLogFormatVersion(), log.OutputComment("[Logged by aossim]"))
		for _, n := range notes(r) {
			err = errors.Join(err, log.OutputComment("["+Plain(n)+"]"))
		}
		if !timed {
			err = errors.Join(err, log.OutputComment("[The result does not say when its phases began: all are given its own start]"))
		}
		if err = errors.Join(err, log.OutputStartTime(base), log.OutputLegend()); err != nil {
			return err
		}
		for _, d := range all {
			at := base
			if timed {
				at = d.began / 1e6
			}
			out := d.HDR()
			out.SetTag(strings.Join(d.words(), "/"))
			out.SetStartTimeMs(at)
			out.SetEndTimeMs(at + max(1, d.length/1e6))
			if err := log.OutputIntervalHistogramWithLogOptions(out, hdr.DefaultHistogramLogOptions()); err != nil {
				return err
			}
		}
		return nil
	}})
}
