package metric

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

// TestDocumented: docs/metrics.md is what this package's list says.
func TestDocumented(t *testing.T) {
	const path = "../../docs/metrics.md"
	got := document()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != got {
		t.Errorf("%s is not what the list says (%v); go test ./internal/metric -update writes it anew", path, err)
	}
}

// document is the page about all metrics.
func document() string {
	var b strings.Builder
	b.WriteString("# Metrics\n\nMade of `internal/metric/list.go` by `go test ./internal/metric -update`.\n\n" +
		"Each is of one group in one phase of one run: of a scenario, or, where `of` says so, of a process that `aossim observe` watched. `[expect]` takes `GROUP.KEY` of all of them; `[compare]` those that are judged,\nby the key or the gate's name. Of several runs the figure is what the last column says.\n\n" +
		"## Distributions\n\n`KEY.p50`, `.p90`, `.p99`, `.p99.9`, `.max` and `.count`.\n\n| key | in tables | meaning | of | unit | judged | of several runs |\n|---|---|---|---|---|---|---|\n")
	for _, d := range Distributions {
		judged := "no"
		if d.Judged {
			judged = "p50, p99, p99.9, as " + Time.String() + ", lower is better"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | percentiles: median, max: largest, count: sum |\n", d.Key, d.Name, d.Means, d.of, shownAs(d.Unit), judged)
	}
	b.WriteString("\n## Figures\n\n| key | in tables | meaning | of | unit | judged | of several runs |\n|---|---|---|---|---|---|---|\n")
	for i := range All {
		m := &All[i]
		if strings.Contains(m.Key, ".") {
			continue
		}
		judged := "no"
		if m.Judged != Never {
			better := "lower"
			if m.Higher {
				better = "higher"
			}
			judged = "as " + m.Judged.String() + ", " + better + " is better"
			if m.Gate != "" {
				judged += ", gate `" + m.Gate + "`"
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", m.Key, m.Name, m.Means, m.of, shownAs(m.Unit), judged, [...]string{"median", "sum", "largest", "of all together"}[m.Over])
	}
	return b.String()
}

// shownAs is how a unit is written and shown.
func shownAs(u Unit) string {
	switch u {
	case Nanoseconds:
		return "us; `\"<= 200us\"`"
	case Fraction, PPM:
		return "%; `\"<= 5%\"`"
	case PerSecond:
		return "a second"
	case Ratio:
		return "per one"
	}
	return "number"
}
