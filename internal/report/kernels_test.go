package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"aossim/internal/result"
)

// TestCompareKernels: versions are in the order in which they were made.
func TestCompareKernels(t *testing.T) {
	want := []string{"6.9.1", "6.12.117+deb13-rt-amd64", "7.3.0-rc2", "7.3.0-rc2-custom", "7.3.0-rc10", "7.3.0", "7.3.0-custom", "7.3.4"}
	var list []*result.Environment
	for _, r := range want {
		list = append(list, &result.Environment{KernelRelease: r})
	}
	slices.Reverse(list)
	slices.SortFunc(list, CompareKernels)
	for i, e := range list {
		if e.KernelRelease != want[i] {
			t.Errorf("%d: %s, want %s", i, e.KernelRelease, want[i])
		}
	}
	a, b := result.Environment{KernelRelease: "7", Machine: "x86_64", Image: "1"}, result.Environment{KernelRelease: "7", Machine: "x86_64", Image: "2"}
	if CompareKernels(&a, &b) >= 0 || CompareKernels(&b, &a) <= 0 {
		t.Error("two images of one release are not in order")
	}
}

// TestKernels: what one kernel has and the other has not is no 0, two images of one release have two
// heads, and a result that failed says so.
func TestKernels(t *testing.T) {
	one, other := microFixture(1), microFixture(2)
	one.Environment.Image, other.Environment.Image = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
	one.Runs[0].Micro[0].Checks = nil
	one.Runs[0].Micro[0].Kernel = nil
	k := NewKernels([]*result.Result{other, one})
	if len(k.Kernels) != 2 || k.Kernels[0].Image != "aaaaaaaaaaaa" || len(k.Kernels[0].Failed) != 0 || len(k.Kernels[1].Failed) != 1 {
		t.Fatalf("%+v", k.Kernels)
	}
	var text bytes.Buffer
	if err := k.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"x86_64 aaaaaaaa", "x86_64 bbbbbbbb", "bbbbbbbb: check \"", "FAILED"} {
		if !strings.Contains(text.String(), word) {
			t.Errorf("no %q in %s", word, &text)
		}
	}
	data, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Metrics []struct {
			Name   string
			Values []*float64
		}
	}
	if err := json.Unmarshal(data, &read); err != nil || len(read.Metrics) < 2 {
		t.Fatalf("%v: %s", err, data)
	}
	for _, m := range read.Metrics {
		if allocations := strings.Contains(m.Name, "kmalloc"); allocations != (m.Values[0] == nil) || m.Values[1] == nil {
			t.Errorf("%s: %v", m.Name, m.Values)
		}
	}
}

// TestVirtualTime: no format shows virtual time without saying so.
func TestVirtualTime(t *testing.T) {
	for name, r := range map[string]*result.Result{"loops": fixture(1), "micro": microFixture(1)} {
		r.Started = "2026-11-30T12:00:00Z"
		r.Environment.Clock = result.ClockInstructions
		counted := name == "micro"
		if counted {
			r.Runs[0].Micro[0].Unit = "instructions/wait"
		}
		dir := t.TempDir()
		var text, gobench, ktap, page bytes.Buffer
		for _, err := range []error{Text(&text, r), GoBench(&gobench, r), KTAP(&ktap, r), HTML(&page, r), HLog(dir, r), HGRM(dir, r)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		all := map[string]string{"text": text.String(), "gobench": gobench.String(), "ktap": ktap.String(), "page": page.String()}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all[f] = string(data)
		}
		if len(files) < 2 {
			t.Errorf("%s: %d files", name, len(files))
		}
		for format, said := range all {
			if !strings.Contains(said, "virtual time") || counted != strings.Contains(said, "may execute fewer and take longer") {
				t.Errorf("%s, %s: %s", name, format, said)
			}
		}
	}
}
