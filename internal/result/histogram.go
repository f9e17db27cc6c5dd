package result

import (
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// The range of a latency histogram in ns, to three significant digits: a value
// up to Highest is known to 0.1 %, one above it is counted as overflow.
const (
	lowest      = 1
	Highest     = 100_000_000_000
	significant = 3
)

// MillionArms is the largest value of an -EAGAIN rate in ppm.
const MillionArms = 1_000_000

// Histogram counts values of one quantity. Overflow is how many were above the
// range. Missed is how many happened but could not be measured: a reader must
// not take the histogram for all of them.
type Histogram struct {
	hdr      *hdr.Histogram // nil while it is packed
	packed   string         // as it was read: a full one takes 216 KiB, and a result may have thousands
	count    int64          // of a packed one
	highest  int64
	Overflow int64
	Missed   int64
}

// unpacked are the packed histograms that were read last: who asks for one percentile asks for
// more, of a few in turn.
var unpacked struct {
	sync.Mutex
	all   map[*Histogram]*hdr.Histogram
	order []*Histogram
}

// full returns all values, to be read only.
func (h *Histogram) full() *hdr.Histogram {
	if h.hdr != nil {
		return h.hdr
	}
	unpacked.Lock()
	defer unpacked.Unlock()
	if all, ok := unpacked.all[h]; ok {
		return all
	}
	all, err := hdr.Decode([]byte(h.packed))
	if err != nil {
		panic("result: a histogram was read that cannot be read again: " + err.Error())
	}
	const most = 256 // of 216 KiB
	if len(unpacked.order) == most {
		delete(unpacked.all, unpacked.order[0])
		unpacked.order = unpacked.order[1:]
	}
	if unpacked.all == nil {
		unpacked.all = map[*Histogram]*hdr.Histogram{}
	}
	unpacked.all[h], unpacked.order = all, append(unpacked.order, h)
	return all
}

// NewHistogram returns an empty histogram for 1..highest. All its pages have been
// touched, so that Record does not fault them in.
func NewHistogram(highest int64) *Histogram {
	h := &Histogram{hdr: hdr.New(lowest, highest, significant)}
	h.hdr.Reset() // writes every count
	return h
}

// Record counts one value; it does not allocate. A negative value, which no
// clock may give, is counted as missed.
func (h *Histogram) Record(v int64) { h.RecordMany(v, 1) }

// RecordMany counts a value n times, as Record does, in one that NewHistogram made.
func (h *Histogram) RecordMany(v, n int64) {
	switch {
	case v < 0:
		h.Missed += n
	case v > h.hdr.HighestTrackableValue():
		h.Overflow += n
	default:
		// Cannot fail: v is in the range.
		_ = h.hdr.RecordValues(v, n)
	}
}

// Merge adds what from counted. from may be nil.
func (h *Histogram) Merge(from *Histogram) {
	if from == nil || h == nil {
		return
	}
	if h.hdr == nil {
		h.hdr, h.packed = hdr.Import(h.full().Export()), ""
	}
	h.Overflow += from.Overflow + h.hdr.Merge(from.full())
	h.Missed += from.Missed
}

// HDR returns a copy of the histogram for programs that take one of HdrHistogram's.
func (h *Histogram) HDR() *hdr.Histogram { return hdr.Import(h.full().Export()) }

// Count returns how many values the histogram holds, overflow not among them. Like the
// other methods that read, it takes nil for an empty histogram: a file may lack one.
func (h *Histogram) Count() int64 {
	if h == nil {
		return 0
	}
	if h.hdr == nil {
		return h.count
	}
	return h.hdr.TotalCount()
}

// Max returns the largest value, to the histogram's precision.
func (h *Histogram) Max() int64 {
	if h == nil {
		return 0
	}
	if h.hdr == nil {
		return h.highest
	}
	return h.hdr.Max()
}

// CountAbove returns how many values lie above v, to the histogram's precision, overflow
// among them.
func (h *Histogram) CountAbove(v int64) int64 {
	if h == nil {
		return 0
	}
	n := h.Overflow
	for _, bar := range h.full().Distribution() {
		if bar.From > v {
			n += bar.Count
		}
	}
	return n
}

// Beyond is how many values must lie above a percentile for it to mean
// anything.
const Beyond = 10

// Percentile returns the value below which percent of all values lie. ok is false
// where fewer than Beyond values lie above it, so that it rests on chance, or where
// it lies among the overflown.
func (h *Histogram) Percentile(percent float64) (v int64, ok bool) {
	if h == nil {
		return 0, false
	}
	all := h.Count() + h.Overflow
	rank := percent / 100 * float64(all)
	if float64(all)-rank < Beyond-1e-6 || rank > float64(h.Count()) {
		return 0, false
	}
	return h.full().ValueAtPercentile(100 * rank / float64(h.Count())), true
}

type histogramJSON struct {
	HDR      string `json:"hdr"`
	Overflow int64  `json:"overflow"`
	Missed   int64  `json:"missed"`
}

// MarshalJSON writes the histogram as HDR V2, compressed, base64.
func (h *Histogram) MarshalJSON() ([]byte, error) {
	if h.hdr == nil {
		return json.Marshal(histogramJSON{h.packed, h.Overflow, h.Missed})
	}
	text, err := h.hdr.Encode(hdr.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, fmt.Errorf("encoding a histogram: %w", err)
	}
	return json.Marshal(histogramJSON{string(text), h.Overflow, h.Missed})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (h *Histogram) UnmarshalJSON(data []byte) error {
	var j histogramJSON
	err := json.Unmarshal(data, &j)
	if err == nil {
		err = geometry(j.HDR)
	}
	var decoded *hdr.Histogram
	if err == nil {
		if decoded, err = hdr.Decode([]byte(j.HDR)); err != nil {
			err = fmt.Errorf("a histogram that is not HDR V2: %w", err)
		} else if j.Overflow < 0 || j.Missed < 0 {
			err = errors.New("a histogram with a negative count")
		}
	}
	if err != nil {
		return &damagedHistogram{data, err}
	}
	*h = Histogram{packed: j.HDR, count: decoded.TotalCount(), highest: decoded.Max(), Overflow: j.Overflow, Missed: j.Missed}
	return nil
}

// damagedHistogram is an error about what stands in data, a part of a file.
type damagedHistogram struct {
	data []byte
	err  error
}

func (e *damagedHistogram) Error() string { return e.err.Error() }

// geometry refuses histograms that this program does not write, before the decoder
// allocates what their header asks for.
func geometry(text string) error {
	compressed := base64.NewDecoder(base64.StdEncoding, strings.NewReader(text))
	var head [8]byte // cookie, length
	_, err := io.ReadFull(compressed, head[:])
	var body [40]byte // cookie, length, offset, digits, lowest, highest, ratio
	if err == nil {
		var z io.ReadCloser
		if z, err = zlib.NewReader(compressed); err == nil {
			_, err = io.ReadFull(z, body[:])
		}
	}
	if err != nil {
		return fmt.Errorf("a histogram that is not HDR V2: %w", err)
	}
	digits, highest := binary.BigEndian.Uint32(body[12:]), int64(binary.BigEndian.Uint64(body[24:]))
	if digits != significant || highest != Highest && highest != MillionArms {
		return fmt.Errorf("a histogram of %d digits up to %d, which no aossim writes", digits, highest)
	}
	return nil
}

// Histograms are the distributions of one group in one phase, each nil where the
// group has none.
type Histograms struct {
	Rearm           *Histogram `json:"rearm,omitempty"`
	ArmWindow       *Histogram `json:"arm_window,omitempty"`
	ArmWindowEAGAIN *Histogram `json:"arm_window_eagain,omitempty"`
	Delivery        *Histogram `json:"delivery,omitempty"`
	Response        *Histogram `json:"response,omitempty"`
	EAGAINRate      *Histogram `json:"eagain_rate_ppm,omitempty"`
}

// NewHistograms returns a full set of empty histograms.
func NewHistograms() Histograms {
	latency := func() *Histogram { return NewHistogram(Highest) }
	return Histograms{latency(), latency(), latency(), latency(), latency(), NewHistogram(MillionArms)}
}

// HistogramsSize is about what a full set of histograms takes in memory, in bytes.
const HistogramsSize = 6 * 27 * 1024 * 8

// all are the places of the histograms.
func (h *Histograms) all() [6]**Histogram {
	return [...]**Histogram{&h.Rearm, &h.ArmWindow, &h.ArmWindowEAGAIN, &h.Delivery, &h.Response, &h.EAGAINRate}
}

// Merge adds what from counted, histogram by histogram.
func (h *Histograms) Merge(from Histograms) {
	theirs := from.all()
	for i, p := range h.all() {
		if *p == nil {
			*p = *theirs[i]
		} else {
			(*p).Merge(*theirs[i])
		}
	}
}

// Number is a value, or NaN where there is none; JSON has null for that.
type Number float64

// MarshalJSON writes null for what is no number.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}
