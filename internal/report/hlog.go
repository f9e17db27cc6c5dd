package report

import (
	"errors"
	"fmt"
	"io"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"aossim/internal/result"
)

// HLog writes all latencies of a result as one histogram log to a file in dir, a line a run,
// phase, group and quantity, which its tag names; values are ns.
func HLog(dir string, r *result.Result) error {
	started, err := time.Parse(time.RFC3339, r.Started)
	if err != nil {
		return fmt.Errorf("the result's start, %q, is no time: %w", r.Started, err)
	}
	return create(dir, word(r.Scenario.Name)+".hlog", func(w io.Writer) error {
		log := hdr.NewHistogramLogWriter(w)
		base := started.UnixMilli()
		log.SetBaseTime(base)
		if err := errors.Join(log.OutputLogFormatVersion(), log.OutputComment("[Logged by aossim]"), log.OutputStartTime(base), log.OutputLegend()); err != nil {
			return err
		}
		at, length, last := base, int64(0), ""
		return distributions(r, func(run int, phase, group, quantity string, h *result.Histogram) error {
			if this := fmt.Sprint(run, phase); this != last {
				at, last, length = at+length, this, 1
				for _, p := range r.Runs[run].Phases {
					if p.Name == phase {
						length = max(1, p.DurationNS/1e6)
					}
				}
			}
			out := h.HDR()
			out.SetTag(fmt.Sprintf("run%d/%s/%s/%s", run+1, word(phase), word(group), word(quantity)))
			out.SetStartTimeMs(at)
			out.SetEndTimeMs(at + length)
			return log.OutputIntervalHistogramWithLogOptions(out, hdr.DefaultHistogramLogOptions())
		})
	})
}
