package report

import (
	"fmt"
	"io"

	"aossim/internal/result"
)

// HGRM writes the percentile distribution of every latency, in us, to a file of its own in
// dir, as HdrHistogram's plotter reads it.
func HGRM(dir string, r *result.Result) error {
	return distributions(r, func(run int, phase, group, quantity string, h *result.Histogram) error {
		name := fmt.Sprintf("%s-run%d-%s-%s-%s.hgrm", word(r.Scenario.Name), run+1, word(phase), word(group), word(quantity))
		return create(dir, name, func(w io.Writer) error {
			const ticks, scale = 5, 1000 // per half distance; ns a us
			_, err := h.HDR().PercentilesPrint(w, ticks, scale)
			return err
		})
	})
}
