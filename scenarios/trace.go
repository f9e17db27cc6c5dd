package scenarios

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
)

// Trace is when a publisher is to publish, read from a file, as far as it is needed.
type Trace struct {
	// Gaps are the ns from one scheduled time to the next, uvarints of encoding/binary; the first one is
	// from the start of the phase. A time of day takes some 3 bytes so, where the file has 12.
	Gaps []byte
	// Again is the ns from the last one to the first of the next round, 0 where there is none.
	Again  int64
	Count  int64  // of the whole file
	First  int64  // ns from the start of the phase
	SHA256 string // of the file, in hexadecimal
}

// Limits of a trace: bytes of its gaps, and ns from the start.
const (
	maxTraceGaps = 1 << 30
	maxTraceTime = int64(MaxDuration)
)

// TracePath is where a publisher's trace lies: what a file names is seen from its folder.
func (s *Scenario) TracePath(p *Publisher) string {
	if filepath.IsAbs(p.Trace) {
		return p.Trace
	}
	return filepath.Join(filepath.Dir(s.File), p.Trace)
}

// ReadTraces reads the traces of all publishers that have one, into Times: all is checked, and what is
// due before until, from the start of a phase, is kept. Its error is an *Error
// that names the line of the trace, or the scenario's where the file cannot be read.
func (s *Scenario) ReadTraces(until Duration) error {
	read := map[string]*Trace{}
	for i := range s.Publishers {
		p := &s.Publishers[i]
		if p.Arrival != Traced || p.Times != nil {
			continue
		}
		name := s.TracePath(p)
		key := name + strconv.FormatBool(p.Repeat)
		if read[key] == nil {
			f, err := openTrace(name)
			if err != nil {
				return s.Errorf("publisher", i, "trace", "%s: %s", name, err)
			}
			read[key], err = readTrace(name, f, int64(until), p.Repeat)
			f.Close()
			if err != nil {
				return err
			}
		}
		p.Times = read[key]
	}
	return nil
}

// openTrace opens a file: what may have no end, or blocks, is none.
func openTrace(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("no regular file, so no trace; write its times into one")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	return f, nil
}

// readTrace reads a trace; name stands for it in errors. Times from until on are not kept.
func readTrace(name string, r io.Reader, until int64, repeat bool) (*Trace, error) {
	sum := sha256.New()
	lines := bufio.NewScanner(io.TeeReader(r, sum))
	t := &Trace{}
	var last int64
	var unit string
	number := 0
	wrong := func(format string, args ...any) error {
		return &Error{File: name, Line: number, Column: 1, Text: fmt.Sprintf(format, args...)}
	}
	for lines.Scan() {
		number++
		field := lines.Bytes()
		if number == 1 {
			field = bytes.TrimPrefix(field, []byte("\ufeff"))
		}
		field = bytes.TrimSpace(field)
		if len(field) == 0 || field[0] == '#' {
			continue
		}
		if end := bytes.IndexAny(field, ",;\t #"); end >= 0 {
			field = field[:end]
		}
		at, in, err := traceTime(string(field))
		switch {
		case err != nil:
			return nil, wrong("%s; a line begins with a time from the start, whole ns (1500000) or s with a point (0.0015), and what is none with #", err)
		case unit != "" && in != unit:
			return nil, wrong("%q is in %s, and the times before are in %s: whole numbers are ns, those with a point s", field, in, unit)
		case at < last:
			return nil, wrong("%q goes back: the time before is %s later", field, Duration(last-at))
		case at > maxTraceTime:
			return nil, wrong("%q is later than %s after the start; take the first time off all of them, and count ns or s", field, Duration(maxTraceTime))
		case len(t.Gaps) > maxTraceGaps:
			return nil, wrong("the trace is longer than fits; cut it in two before this line")
		}
		if unit = in; t.Count == 0 {
			t.First = at
		}
		if at < until {
			t.Gaps = binary.AppendUvarint(t.Gaps, uint64(at-last))
		}
		t.Count++
		last = at
	}
	number++
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, wrong("longer than %d KiB, so no line of a trace", bufio.MaxScanTokenSize>>10)
	case err != nil:
		return nil, &Error{File: name, Text: err.Error()}
	}
	number--
	length := last - t.First
	switch {
	case t.Count == 0:
		return nil, &Error{File: name, Text: "no time in it, so nothing would be published"}
	case repeat && length == 0:
		return nil, wrong("repeat: all times are the same, so nothing says when it begins again; leave repeat out, or give it times that differ")
	case float64(t.Count-1) > float64(length)/1e9*maxRate && (repeat || t.Count > maxQueueSize):
		return nil, wrong("%d messages within %s are more than 1 MHz", t.Count, Duration(length))
	case repeat && last < until:
		// As far behind the last one as they are from each other in the mean.
		t.Again = int64(math.Round(float64(length) / float64(t.Count-1)))
		t.Again = max(t.Again, 1)
	}
	t.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return t, nil
}

// traceTime reads a time and says what it was in: a whole number is in ns, one with a point or an exponent in s.
func traceTime(text string) (ns int64, unit string, err error) {
	if ns, err = strconv.ParseInt(text, 10, 64); err == nil {
		if ns < 0 {
			return 0, "ns", fmt.Errorf("%q is before the start", text)
		}
		return ns, "ns", nil
	}
	s, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil, math.IsNaN(s), math.IsInf(s, 0):
		return 0, "s", fmt.Errorf("%q is no time", text)
	case s < 0:
		return 0, "s", fmt.Errorf("%q is before the start", text)
	case s > float64(maxTraceTime)/1e9:
		return maxTraceTime + 1, "s", nil
	}
	return int64(math.Round(s * 1e9)), "s", nil
}
