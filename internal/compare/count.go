package compare

import (
	"math"

	"github.com/aclements/go-moremath/stats"
)

// poisson returns the two-sided p that two counts come from one rate: given their sum, the
// first is binomial.
func poisson(count1, events1, count2, events2 int64) float64 {
	n := count1 + count2
	if n == 0 {
		return 1
	}
	p := float64(events1) / float64(events1+events2)
	mean, sd := float64(n)*p, math.Sqrt(float64(n)*p*(1-p))
	if sd == 0 {
		return 1
	}
	// With the continuity correction; the counts that matter here are large.
	z := max(0, math.Abs(float64(count1)-mean)-0.5) / sd
	return 2 * stats.StdNormal.CDF(-z)
}

// poissonInterval returns the 95 % interval of a count's rate, by its square root.
func poissonInterval(count, events int64) (lo, hi float64) {
	const z = 1.96
	root := math.Sqrt(float64(count) + 0.375)
	lo = max(0, root-z/2)
	return max(0, lo*lo-0.375) / float64(events), (root + z/2) * (root + z/2) / float64(events)
}
