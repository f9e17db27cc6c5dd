package scenarios

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time in ns, written "5us", "10s" or "1m30s".
type Duration int64

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration; write one with its unit, such as \"10s\" or \"5us\"", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is the duration with its unit.
func (d Duration) String() string { return time.Duration(d).String() }

// Rate is in Hz, written "500Hz", "2kHz" or "1MHz".
type Rate float64

// rateUnits are tried in order: the last is an ending of the others.
var rateUnits = []struct {
	unit   string
	factor float64
}{{"MHz", 1e6}, {"kHz", 1e3}, {"Hz", 1}}

// UnmarshalText reads a number and its unit.
func (r *Rate) UnmarshalText(text []byte) error {
	for _, u := range rateUnits {
		if number, ok := strings.CutSuffix(string(text), u.unit); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err != nil {
				break
			}
			*r = Rate(v * u.factor)
			return nil
		}
	}
	return fmt.Errorf("%q is no rate; write one with its unit, such as \"2kHz\"", text)
}

// MarshalText writes what UnmarshalText reads.
func (r Rate) MarshalText() ([]byte, error) {
	return []byte(strconv.FormatFloat(float64(r), 'g', -1, 64) + "Hz"), nil
}

// Share is a fraction, written "30%".
type Share float64

// UnmarshalText reads a percentage of 0 to 100.
func (s *Share) UnmarshalText(text []byte) error {
	number, ok := strings.CutSuffix(string(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || err != nil || !(v >= 0 && v <= 100) {
		return fmt.Errorf("%q is no percentage within 0%% and 100%%; write one such as \"30%%\"", text)
	}
	*s = Share(v / 100)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (s Share) MarshalText() ([]byte, error) {
	return []byte(strconv.FormatFloat(100*float64(s), 'g', -1, 64) + "%"), nil
}

// Buckets is a size of the process-private futex hash: 0 is the global hash, else a power of
// two (prctl(2), PR_FUTEX_HASH), DefaultBuckets what the kernel gives the process.
type Buckets int

// DefaultBuckets is written "default".
const DefaultBuckets Buckets = math.MinInt32 // no number that a file could mean

// UnmarshalText reads "default" or a number.
func (b *Buckets) UnmarshalText(text []byte) error {
	if string(text) == "default" {
		*b = DefaultBuckets
		return nil
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 0 {
		return fmt.Errorf("%q is none of \"default\", 0 (the global hash) and a power of two from 2", text)
	}
	*b = Buckets(n)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (b Buckets) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String is what a file says for it.
func (b Buckets) String() string {
	if b == DefaultBuckets {
		return "default"
	}
	return strconv.Itoa(int(b))
}

// valid says whether there can be a hash of this size.
func (b Buckets) valid() bool {
	return b == DefaultBuckets || b == 0 || b > 1 && b <= 1<<20 && b&(b-1) == 0
}
