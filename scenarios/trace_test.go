package scenarios

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"aossim/internal/refusal"
)

// times are the scheduled times of a trace, ns from the start.
func (t *Trace) times() (list []int64) {
	at := int64(0)
	for rest := t.Gaps; len(rest) > 0; {
		gap, n := binary.Uvarint(rest)
		rest = rest[n:]
		at += int64(gap)
		list = append(list, at)
	}
	return list
}

func TestTrace(t *testing.T) {
	for _, c := range []struct {
		name, text string
		repeat     bool
		want       []int64
		again      int64
	}{
		{"ns", "0\n1500\n1500\n4000\n", false, []int64{0, 1500, 1500, 4000}, 0},
		{"s", "0.5\n0.500001\n1e0\n", false, []int64{500_000_000, 500_001_000, 1_000_000_000}, 0},
		{"CSV of another system", "\ufeff# time;size\r\n10;a,b\r\n\r\n 20 ; c\r\n  # between\r\n30\t1\r\n40 # last", false, []int64{10, 20, 30, 40}, 0},
		{"again after the mean gap", "1000\n2000\n5000\n", true, []int64{1000, 2000, 5000}, 2000},
		{"one message", "7", false, []int64{7}, 0},
	} {
		got, err := readTrace(c.name, strings.NewReader(c.text), maxTraceTime, c.repeat)
		if err != nil {
			t.Errorf("%s: %s", c.name, err)
			continue
		}
		if !slices.Equal(got.times(), c.want) || got.Again != c.again || got.Count != int64(len(c.want)) || got.First != c.want[0] || len(got.SHA256) != 64 {
			t.Errorf("%s: %v, %+v", c.name, got.times(), got)
		}
	}
}

// TestTraceUntil: what no phase reaches is checked, and not kept; a trace that was cut does not begin anew.
func TestTraceUntil(t *testing.T) {
	const text = "0\n5000\n9000\n12000\n"
	whole, err := readTrace("t", strings.NewReader(text), 20_000, true)
	if err != nil || whole.Again != 4000 {
		t.Fatal(whole, err)
	}
	cut, err := readTrace("t", strings.NewReader(text), 9000, true)
	if err != nil || !slices.Equal(cut.times(), []int64{0, 5000}) || cut.Again != 0 || cut.Count != 4 || cut.SHA256 != whole.SHA256 {
		t.Error(cut, err)
	}
	if _, err := readTrace("t", strings.NewReader(text+"x\n"), 9000, true); err == nil {
		t.Error("what lies behind is not looked at")
	}
}

// TestTraceRefused: what is no trace is refused with its line.
func TestTraceRefused(t *testing.T) {
	for _, c := range []struct {
		name, text string
		repeat     bool
		line       int
		want       string
	}{
		{"empty", "", false, 0, "no time in it"},
		{"comments only", "# a\n\n#b\n", false, 0, "no time in it"},
		{"goes back", "# a\n5\n3\n", false, 3, "goes back"},
		{"NaN", "0.0\nNaN\n", false, 2, "is no time"},
		{"infinite", "+Inf\n", false, 1, "is no time"},
		{"header", "time,size\n1,2\n", false, 1, `"time" is no time`},
		{"negative", "-1\n", false, 1, "before the start"},
		{"negative s", "-0.5\n", false, 1, "before the start"},
		{"mixed", "0.5\n1000000000\n", false, 2, `"1000000000" is in ns`},
		{"time of day", "1733300000123456789\n", false, 1, "take the first time off"},
		{"endless s", "1e300\n", false, 1, "take the first time off"},
		{"a column before", ",5\n", false, 1, `"" is no time`},
		{"NUL", "1\n\x00\n", false, 2, "is no time"},
		{"long line", "1\n" + strings.Repeat("9", 70_000), false, 2, "no line of a trace"},
		{"repeat of one", "5\n", true, 1, "all times are the same"},
		{"repeat without a gap", "5\n5\n5\n", true, 3, "all times are the same"},
		{"repeat above 1 MHz", "1\n1\n1\n1\n2\n", true, 5, "1 MHz"},
	} {
		_, err := readTrace("t.csv", strings.NewReader(c.text), maxTraceTime, c.repeat)
		var e *Error
		if !errors.As(err, &e) || e.Line != c.line || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || !errors.Is(err, refusal.ErrUsage) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestReadTraces: a file is looked for in the scenario's folder, and what is none is refused at the scenario's line.
func TestReadTraces(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.csv"), []byte("1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ trace, want string }{
		{"a.csv", ""}, {filepath.Join(dir, "a.csv"), ""}, {"b.csv", "t.toml:13:"}, {".", "no regular file"}, {"/dev/zero", "no regular file"},
	} {
		s, err := Parse(filepath.Join(dir, "t.toml"), []byte(strings.Replace(good, `rate = "2kHz"`, fmt.Sprintf("arrival = \"trace\"\ntrace = %q", c.trace), 1)))
		if err != nil {
			t.Fatal(err)
		}
		err = s.ReadTraces(s.Duration)
		switch {
		case c.want == "" && (err != nil || s.Publishers[0].Times.Count != 2 || s.Publishers[1].Times != nil):
			t.Errorf("%s: %v", c.trace, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, refusal.ErrUsage)):
			t.Errorf("%s: %v", c.trace, err)
		}
	}
}

// TestLongTrace: ten million times take less than a quarter of their file.
func TestLongTrace(t *testing.T) {
	const n = 10_000_000
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		var buffer []byte
		for i := range int64(n) {
			if buffer = fmt.Appendf(buffer, "%d\n", i*100_000); len(buffer) > 1<<16 || i == n-1 {
				w.Write(buffer)
				buffer = buffer[:0]
			}
		}
		w.Close()
	}()
	got, err := readTrace("long", r, maxTraceTime, false)
	if err != nil || got.Count != n || len(got.Gaps) > 3*n {
		t.Fatal(err, len(got.Gaps))
	}
}

func FuzzTrace(f *testing.F) {
	f.Add("0.5\n1.5\n", true)
	f.Add("# a\n1,2\n1,3\n9", false)
	f.Fuzz(func(t *testing.T, text string, repeat bool) {
		got, err := readTrace("t", strings.NewReader(text), maxTraceTime+1, repeat)
		if err != nil {
			return
		}
		if list := got.times(); int64(len(list)) != got.Count || !slices.IsSorted(list) || list[0] < 0 || repeat && got.Again < 1 {
			t.Errorf("%v %+v", list, got)
		}
	})
}
