package metric

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"aossim/internal/result"
)

// Unit is what a metric's values are counted in. Those of micro-benchmarks are in the
// results: "ns/pair", "ops/s/thread".
type Unit string

// The units of groups' metrics. A latency is shown in us, a fraction and ppm in %.
const (
	Nanoseconds Unit = "ns"
	PerSecond   Unit = "/s"
	Fraction    Unit = "fraction"
	PPM         Unit = "ppm"
	Number      Unit = "number"
	Ratio       Unit = "ratio" // a number of one thing for each of another
)

// None stands where there is no figure.
const None = "-"

// Path joins the names of a phase, a group or a point and a quantity. One that holds a slash
// itself is quoted, so that no two paths are one.
func Path(names ...string) string {
	for i, n := range names {
		if strings.Contains(n, "/") || strings.HasPrefix(n, `"`) {
			names[i] = strconv.Quote(n)
		}
	}
	return strings.Join(names, " / ")
}

// Shown returns a value as tables have it, and its unit there, "" where it needs none.
func (u Unit) Shown(v float64) (shown float64, unit string) {
	switch u {
	case Nanoseconds:
		return v / 1000, "us"
	case Fraction:
		return 100 * v, "%"
	case PPM:
		return v / 1e4, "%"
	case Number, Ratio:
		return v, ""
	}
	return v, string(u)
}

// HigherIsBetter says which way values of the unit get better.
func (u Unit) HigherIsBetter() bool {
	parts := strings.Split(string(u), "/")
	return slices.Contains(parts, "s") || slices.Contains(parts, "virtual s")
}

// Counted says whether the unit is one of instructions.
func (u Unit) Counted() bool { return strings.HasPrefix(string(u), InstructionsPer) }

// InstructionsPer begins the unit of what is counted in instructions; the word for an
// operation follows.
const InstructionsPer = "instructions/"

// Format writes a value as the tables have it, without the unit but for a fraction's %.
func (u Unit) Format(v float64) string {
	shown, _ := u.Shown(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return None
	case u == Fraction:
		return fmt.Sprintf("%.2f %%", shown)
	case u == PerSecond && v < 10 && v > 0:
		return fmt.Sprintf("%.1f", v)
	case u == PerSecond, u == Number:
		return Comma(int64(math.Round(v)))
	}
	return fmt.Sprintf("%.2f", shown)
}

// Limit writes a value as an error or a check has it, with its unit.
func (u Unit) Limit(v float64) string {
	switch u {
	case Nanoseconds:
		if v >= result.Highest {
			return "above " + time.Duration(result.Highest).String()
		}
		return time.Duration(v).String()
	case Fraction:
		return fmt.Sprintf("%.2f %%", 100*v)
	case PPM:
		return fmt.Sprintf("%.2f %%", v/1e4)
	case PerSecond:
		return fmt.Sprintf("%.0f/s", v)
	case Number:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// Parse reads what a person writes for a value: "200us", "5%" or a number. It is an error
// that it is negative, or none.
func (u Unit) Parse(text string) (v float64, err error) {
	switch u {
	case Nanoseconds:
		d, e := time.ParseDuration(text)
		if e != nil {
			return 0, fmt.Errorf("%q is no duration; write one with its unit, such as \"200us\"", text)
		}
		v = float64(d)
	case Fraction, PPM:
		number, ok := strings.CutSuffix(text, "%")
		if v, err = strconv.ParseFloat(strings.TrimSpace(number), 64); !ok || err != nil || v > 100 {
			return 0, fmt.Errorf("%q is no percentage within 0%% and 100%%; write one such as \"5%%\"", text)
		}
		if v /= 100; u == PPM {
			v *= result.MillionArms
		}
	default:
		if v, err = strconv.ParseFloat(text, 64); err != nil {
			return 0, fmt.Errorf("%q is no number", text)
		}
	}
	if !(v >= 0 && v <= math.MaxInt64) {
		return 0, fmt.Errorf("%q is negative or no number", text)
	}
	return v, nil
}

// Comma writes a number with its thousands apart.
func Comma(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
