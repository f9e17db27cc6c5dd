package report

import (
	"errors"
	"fmt"
	"io"

	"aossim/internal/result"
)

// HGRM writes the percentile distribution of every latency, in us, to a file of its own in
// dir, as HdrHistogram's plotter reads it.
func HGRM(dir string, r *result.Result) error {
	var files []file
	for _, d := range distributions(r) {
		name := fileName(".hgrm", append([]string{Word(r.Scenario.Name)}, d.words()...)...)
		files = append(files, file{name, func(w io.Writer) error {
			const ticks, scale = 5, 1000 // per half distance; ns a us
			_, err := d.HDR().PercentilesPrint(w, ticks, scale)
			for _, n := range notes(r) { // at its end, in the form of what stands there
				_, e := fmt.Fprintf(w, "#[%s]\n", Plain(n))
				err = errors.Join(err, e)
			}
			return err
		}})
	}
	return create(dir, files...)
}
