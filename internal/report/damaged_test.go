package report

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"aossim/internal/compare"
	"aossim/internal/result"
)

// shows writes a result in every way there is.
func shows(t *testing.T, r *result.Result) {
	t.Helper()
	for _, err := range []error{
		Text(io.Discard, r), Summary(io.Discard, r), KTAP(io.Discard, r), GoBench(io.Discard, r), HGRM(t.TempDir(), r), HTML(io.Discard, r, r),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	_ = HLog(t.TempDir(), r) // refuses what has no start
	if c, err := compare.Compare([]*result.Result{r}, []*result.Result{r}, []*result.Result{r}, compare.Options{}); err == nil {
		if err := Comparison(io.Discard, c); err != nil {
			t.Error(err)
		}
		_ = ComparisonMarkdown(io.Discard, c)
	}
	if n, err := compare.CompareNull([]*result.Result{r}, compare.Options{}); err == nil {
		_ = Null(io.Discard, "x", n)
	}
}

// TestDamaged: a file in which any one value is another one, of any kind, is refused or
// shown, and nothing panics.
func TestDamaged(t *testing.T) {
	for _, r := range []*result.Result{fixture(1), microFixture(1)} {
		var b bytes.Buffer
		if err := r.Encode(&b); err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(b.Bytes(), &tree); err != nil {
			t.Fatal(err)
		}
		tried := 0
		try := func() {
			data, err := json.Marshal(tree)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := result.Decode("r", data); err == nil {
				tried++
				shows(t, r)
			}
		}
		damage := []any{nil, -1.0, "", []any{}, map[string]any{}}
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case map[string]any:
				for key, was := range v {
					if key == "eagain_over_time" || key == "environment" {
						continue
					}
					for _, d := range damage {
						v[key] = d
						try()
					}
					v[key] = was
					walk(was)
				}
			case []any:
				for i, was := range v {
					v[i] = nil
					try()
					v[i] = was
					walk(was)
				}
			}
		}
		walk(tree)
		if tried < 50 {
			t.Errorf("only %d damaged files were taken", tried)
		}
	}
}

// TestManyDamaged damages real results in a few places each and has them refused or shown in
// every way; AOSSIM_TEST_DAMAGED says how many, beginning with number AOSSIM_TEST_DAMAGED_FIRST.
func TestManyDamaged(t *testing.T) {
	var originals [][]byte
	for _, name := range []string{"load", "waits", "scalar", "eagain"} {
		data, err := os.ReadFile(filepath.Join("testdata", "8240770", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		originals = append(originals, data)
	}
	number := func(name string, otherwise uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	first, n := number("AOSSIM_TEST_DAMAGED_FIRST", 0), number("AOSSIM_TEST_DAMAGED", 100)
	var next, shown atomic.Uint64
	var all sync.WaitGroup
	for range runtime.NumCPU() {
		all.Go(func() {
			for i := first + next.Add(1) - 1; i < first+n; i = first + next.Add(1) - 1 {
				r := rand.New(rand.NewPCG(i, 1))
				var tree any
				if err := json.Unmarshal(originals[r.IntN(len(originals))], &tree); err != nil {
					t.Error(err)
					return
				}
				for range 1 + r.IntN(5) {
					damage(r, tree)
				}
				data, err := json.Marshal(tree)
				if err != nil {
					t.Error(err)
					return
				}
				if result, err := result.Decode("r", data); err == nil {
					shown.Add(1)
					shows(t, result)
				}
				if t.Failed() {
					t.Errorf("number %d", i)
					return
				}
			}
		})
	}
	all.Wait()
	if shown.Load() < n/4 {
		t.Errorf("only %d of %d were shown", shown.Load(), n)
	}
	t.Logf("%d of %d damaged results were shown, the others refused", shown.Load(), n)
}

// damage makes one value of a tree another one, or leaves it out or doubles it.
func damage(r *rand.Rand, tree any) {
	for at := tree; ; {
		var next any
		var set func(v any)
		switch v := at.(type) {
		case map[string]any:
			keys := slices.Sorted(maps.Keys(v))
			if len(keys) == 0 {
				return
			}
			key := keys[r.IntN(len(keys))]
			next, set = v[key], func(to any) { v[key] = to }
			if r.IntN(20) == 0 {
				delete(v, key)
				return
			}
		case []any:
			if len(v) == 0 {
				return
			}
			i := r.IntN(len(v))
			next, set = v[i], func(to any) { v[i] = to }
		default:
			return
		}
		if r.IntN(60) == 0 || next == nil {
			values := []any{nil, -1, 0, 1e300, -1e300, math.MaxInt64, 0.5, "", "\x1b[2J|\n#", []any{}, map[string]any{}, true, []any{next, next, next}, strings.Repeat("x", 3000)}
			set(values[r.IntN(len(values))])
			return
		}
		switch v := next.(type) {
		case float64:
			set(max(-1e300, min(1e300, v*[]float64{0, -1, 1e-3, 1e3, 1e9, 1e18}[r.IntN(6)])))
			return
		case string, bool:
			if _, word := v.(string); word {
				set([]any{"", "a b", "a_b", "\x1b[2J|\n#"}[r.IntN(4)])
			}
			return
		}
		at = next
	}
}
