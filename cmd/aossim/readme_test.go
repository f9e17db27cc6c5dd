package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aossim/internal/wait"
	"aossim/scenarios"
)

// TestReadme runs the README's commands, each as it stands there but shorter.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "scenarios"), filepath.Join(dir, "scenarios")); err != nil {
		t.Fatal(err)
	}
	// What a reader has by then.
	p := command(t, "-q", "--rounds", "6", "--cycles", "50", "--observe=no", "-o", filepath.Join(dir, "A.json"), "scalar")
	if code := p.run(t); code != 0 {
		t.Fatalf("exit %d: %s", code, &p.stderr)
	}
	data, err := os.ReadFile(filepath.Join(dir, "A.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"B.json", "A2.json"} {
		booted := bytes.Replace(data, []byte(`"boot_id": "`), []byte(`"boot_id": "of `+name), 1)
		if err := os.WriteFile(filepath.Join(dir, name), booted, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	ran := 0
	for _, line := range strings.Split(string(readme), "\n") {
		line, _, _ = strings.Cut(line, "#")
		args, ok := strings.CutPrefix(line, "    aossim ")
		if !ok {
			if args, ok = strings.CutPrefix(line, "    go run ./cmd/aossim "); !ok {
				continue
			}
		}
		ran++
		list, want := strings.Fields(args), 0
		last := list[len(list)-1]
		switch {
		case list[0] == "compare":
		case list[0] == "vm": // TestVM boots; here are no such images
			want = exitUsage
		case list[0] == "observe":
			list = append(list, "-D", "200ms")
		case last == "eagain", last == "scalar":
			list = append(list, "--rounds", "2")
		default:
			list = append(list, "-D", "200ms", "--warmup", "0s", "-r", "1")
		}
		p := command(t, list...)
		p.Dir = dir
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if code := p.exit(t, time.Minute); code != want || want == exitUsage && !strings.Contains(p.stderr.String(), "before/bzImage: no such file") {
			t.Errorf("aossim %s: exit %d, want %d: %s", args, code, want, &p.stderr)
		}
	}
	if ran < 6 {
		t.Errorf("only %d commands", ran)
	}
	// Whatever a scenario can ask for is there.
	var names []string
	for _, k := range wait.Kinds {
		names = append(names, k.Name)
	}
	for _, k := range scenarios.LoadKinds {
		names = append(names, k.Name)
	}
	for _, w := range scenarios.Workloads {
		names = append(append(names, w.Name), w.Keys...)
	}
	for _, name := range names {
		if !strings.Contains(string(readme), "`"+name+"`") {
			t.Errorf("the README has no `%s`", name)
		}
	}
}

// TestLinted: the linter has a rule for every package.
func TestLinted(t *testing.T) {
	rules, err := os.ReadFile("../../.depguard.yml")
	if err != nil {
		t.Fatal(err)
	}
	packages := 0
	for _, pattern := range []string{"../../*/*.go", "../../cmd/*/*.go", "../../internal/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			dir := strings.TrimPrefix(filepath.Dir(f), "../../")
			packages++
			if !strings.Contains(string(rules), "\"**/"+dir+"/*.go\"") {
				t.Errorf("%s has no rule", dir)
			}
		}
	}
	if packages < 50 {
		t.Errorf("only %d files", packages)
	}
}
