package compare

import (
	"math"
	"slices"
	"sync"

	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"

	"aossim/internal/result"
)

// ratio is v as a fraction of base; where base is 0 any v but 0 is infinitely much.
func ratio(v, base float64) float64 {
	switch {
	case v == 0:
		return 0
	case base == 0:
		return math.Inf(int(math.Copysign(1, v)))
	}
	return v / base
}

func sideOf(values []float64) Side {
	s := result.SpreadOf(values)
	out := Side{N: len(values), Median: s.Median, Lo: s.Median, Hi: s.Median, CV: s.CV}
	if len(values) > 1 {
		summary := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), 1-alpha)
		if !math.IsInf(summary.Lo, 0) && !math.IsInf(summary.Hi, 0) {
			out.Lo, out.Hi = summary.Lo, summary.Hi
		}
	}
	return out
}

// The exact distribution with ties takes a quarter of a second at 20 values a side, and the
// normal one hardly differs from 12 on.
func init() { stats.MannWhitneyTiesExactLimit = 12 }

// mannWhitney returns the two-sided p of the U test.
func mannWhitney(a, b []float64) float64 {
	sample := func(v []float64) *benchmath.Sample {
		return benchmath.NewSample(slices.Clone(v), &benchmath.DefaultThresholds)
	}
	// With ties on one side only the library's exact distribution is right in one direction.
	return max(benchmath.AssumeNothing.Compare(sample(a), sample(b)).P, benchmath.AssumeNothing.Compare(sample(b), sample(a)).P)
}

// shift returns the 95 % interval of the shift from a to b as fractions of mid, by the
// order statistics of all pairwise differences (Hodges and Lehmann); infinite where there
// are too few values for one.
func shift(a, b []float64, mid float64) (lo, hi float64) {
	k := critical(len(a), len(b))
	if k < 0 {
		return math.Inf(-1), math.Inf(1)
	}
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return ratio(difference(a, b, k), mid), ratio(difference(a, b, len(a)*len(b)-1-k), mid)
}

// difference returns the k-th smallest, from 0, of all differences of a value of b and one
// of a, both sorted, by bisection of the numbers themselves: none of the differences is kept.
func difference(a, b []float64, k int) float64 {
	// The order of floating-point numbers is that of these integers.
	order := func(v float64) int64 {
		i := int64(math.Float64bits(v))
		return i ^ (i>>63)&math.MaxInt64
	}
	number := func(i int64) float64 { return math.Float64frombits(uint64(i ^ (i>>63)&math.MaxInt64)) }
	upTo := func(d float64) (n int) { // how many are no larger
		at := 0
		for i := range a {
			for at < len(b) && b[at]-a[i] <= d {
				at++
			}
			n += at
		}
		return n
	}
	lo, hi := order(b[0]-a[len(a)-1]), order(b[len(b)-1]-a[0])
	for lo < hi {
		if mid := lo>>1 + hi>>1 + lo&hi&1; upTo(number(mid)) > k {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return number(lo)
}

// critical returns the largest k for which the chance that U is at most k is no more than
// alpha/2, or -1 where there is none.
func critical(n, m int) int {
	if k, ok := criticals.Load([2]int{n, m}); ok {
		return k.(int)
	}
	k := findCritical(n, m)
	criticals.Store([2]int{n, m}, k)
	return k
}

// criticals are those that were found.
var criticals sync.Map

func findCritical(n, m int) int {
	if n*m > 2500 { // by the normal distribution
		mean, sd := float64(n*m)/2, math.Sqrt(float64(n*m*(n+m+1))/12)
		return int(mean-1.96*sd) - 1
	}
	u := stats.UDist{N1: n, N2: m}
	k := -1
	for float64(k+1) < float64(n*m)/2 && u.CDF(float64(k+1)) <= alpha/2 {
		k++
	}
	return k
}

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
