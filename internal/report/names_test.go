package report

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"aossim/internal/compare"
	"aossim/internal/result"
)

// TestNames: what is called differently has different names in every format, and nothing that
// moves a cursor or breaks a line gets through.
func TestNames(t *testing.T) {
	names := []string{"電機", "感知", "a b", "a_b", "a\tb", "a\\tb", "m#1", "m%1", "m\\#1", "m%231", "a/b", "a,b", "a.b", "a-1", "a", "A", "", " a", "é", "e\u0301",
		"\x1b[2Ja", "a\x00b", "a\nok 1 b", "\xff", "\ufffd", "\u202eb", "|", "x,rearm", strings.Repeat("長", 300), strings.Repeat("長", 301)}
	r := fixture(1)
	first := r.Runs[0].Phases[0]
	first.BeganNS = 1
	r.Runs[0].Phases, r.Runs[0].Checks = nil, nil
	for _, n := range names {
		p := first
		p.Name, p.Groups = n, nil
		for _, m := range names {
			g := first.Groups[0]
			g.Name = m
			p.Groups = append(p.Groups, g)
		}
		r.Runs[0].Phases = append(r.Runs[0].Phases, p)
		r.Runs[0].Checks = append(r.Runs[0].Checks, result.Check{Name: n, Pass: true, Detail: n})
	}
	r.Started = "2026-11-30T12:00:00Z"
	dir := t.TempDir()
	if err := errors.Join(HGRM(dir, r), HLog(dir, r)); err != nil {
		t.Fatal(err)
	}
	pairs := len(names) * len(names)
	files, err := filepath.Glob(filepath.Join(dir, "*,rearm.hgrm"))
	if err != nil {
		t.Fatal(err)
	}
	long, err := filepath.Glob(filepath.Join(dir, "*,,*.hgrm")) // with a checksum
	if err != nil {
		t.Fatal(err)
	}
	if all := len(distributions(r)); len(files)+len(long) < pairs || len(distinct(t, dir, "*.hgrm")) != all {
		t.Errorf("%d files of %d distributions, %d and %d of re-arms", len(distinct(t, dir, "*.hgrm")), all, len(files), len(long))
	}
	log, err := os.ReadFile(filepath.Join(dir, "fixture.hlog"))
	if err != nil {
		t.Fatal(err)
	}
	var bench, ktap, text bytes.Buffer
	if err := errors.Join(GoBench(&bench, r), KTAP(&ktap, r), Text(&text, r)); err != nil {
		t.Fatal(err)
	}
	var md bytes.Buffer
	c, err := compare.Compare([]*result.Result{r}, []*result.Result{r}, nil, compare.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := ComparisonMarkdown(&md, c); err != nil {
		t.Fatal(err)
	}
	for format, found := range map[string]struct {
		text, one string
		want      int
	}{
		"hlog": {string(log), `(?m)^(Tag=run1/[^/,]*/[^/,]*/rearm),`, pairs}, "gobench": {bench.String(), `(?m)^(Benchmark\S+) 1 `, pairs},
		"KTAP values": {ktap.String(), ` (\S*\.arms)=`, pairs}, "KTAP tests": {ktap.String(), `(?m)^  ok \d+ (.*) # detail=`, len(names)},
		"Markdown": {md.String(), `(?m)^\| ((?:[^|]|\\\|)*re-arm p50(?:[^|]|\\\|)*) \|`, pairs}, "text": {text.String(), `(?m)^ok(.*)$`, len(names)},
	} {
		seen := map[string]bool{}
		for _, m := range regexp.MustCompile(found.one).FindAllStringSubmatch(found.text, -1) {
			seen[m[1]] = true
		}
		if len(seen) != found.want {
			t.Errorf("%s: %d names, want %d: %.400s", format, len(seen), found.want, found.text)
		}
		if at := strings.IndexFunc(found.text, func(r rune) bool { return r != '\n' && hidden(r) && r != '\\' }); at >= 0 {
			t.Errorf("%s: %q", format, found.text[max(0, at-40):min(len(found.text), at+40)])
		}
	}
}

func distinct(t *testing.T, dir, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestUnits: a unit from a file breaks no line, and keeps its slash.
func TestUnits(t *testing.T) {
	r := microFixture(1)
	r.Runs[0].Micro[0].Unit = "ns/x\nBenchmarkFake 1 1 ns/op\x1b"
	var b bytes.Buffer
	if err := GoBench(&b, r); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "\nBenchmarkFake") || strings.Contains(b.String(), "\x1b") || !strings.Contains(b.String(), " ns/x%0A") || !strings.Contains(b.String(), " waits/s ") {
		t.Errorf("%s", &b)
	}
}

// TestExtremeRounds: plots of values for which no axis can be made are left out.
func TestExtremeRounds(t *testing.T) {
	for _, rounds := range [][]float64{{1e17, 1e17, 1e17}, {-1.7e308, 1.7e308}, {0, 0, 0}, {5e-324, 5e-324}, {1e11, 1e11}, {1e300, 1}} {
		r := microFixture(1)
		r.Runs[0].Micro[0].Rounds = rounds
		if err := HTML(io.Discard, r); err != nil {
			t.Errorf("%v: %v", rounds, err)
		}
	}
}

// FuzzWord: a name can be had back from its word, but for bytes that the word has no use for.
func FuzzWord(f *testing.F) {
	for _, s := range []string{"a b", "a_b", "%5F", "電機", "\xff", "\ufffd", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		w := Word(name)
		if strings.ContainsAny(w, ",/=# \n\x1b|") {
			t.Errorf("%q became %q", name, w)
		}
		back, err := url.PathUnescape(strings.ReplaceAll(w, "_", "%20"))
		if err != nil || back != name {
			t.Errorf("%q became %q and %q, %v", name, w, back, err)
		}
		if hidden := strings.IndexFunc(Plain(name), func(r rune) bool { return !unicode.IsPrint(r) && r != '\u00a0' }); hidden >= 0 {
			t.Errorf("%q is shown as %q", name, Plain(name))
		}
	})
}
