package check

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"aossim/internal/linux/linuxtest"
	"aossim/internal/machine"
	"aossim/internal/question"
	"aossim/internal/result"
)

func TestMain(m *testing.M) { os.Exit(linuxtest.Main(m)) }

// TestCheck runs everything, and holds it against what other sources say.
func TestCheck(t *testing.T) {
	c := Run(40)
	var text bytes.Buffer
	if err := c.Text(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", &text)
	for _, i := range c.Machine {
		if i.Detail == "" || i.Verdict == machine.OK && i.Fix != "" || i.Verdict != machine.OK && i.Fix == "" {
			t.Errorf("%+v: it needs a detail, and a way out where it is not OK", i)
		}
		if !strings.Contains(text.String(), i.Detail) {
			t.Errorf("%q is not in the text", i.Detail)
		}
	}
	if c.Fit() && c.Self.Latency.Count() != int64(machine.SelfFor)/c.Self.PeriodNS {
		t.Errorf("self-check: %d values, error %q", c.Self.Latency.Count(), c.Self.Error)
	}
	if c.Self.Collected != 0 {
		t.Errorf("%d garbage collections in the self-check", c.Self.Collected)
	}
	answers := map[string]question.Finding{}
	for _, f := range c.Kernel {
		if f.Answer == "" || f.Evidence == "" {
			t.Errorf("%+v: no answer or no evidence", f)
		}
		answers[f.Question] = f
	}
	for _, words := range question.Words() {
		if answers[words].Question == "" {
			t.Errorf("%q has no answer", words)
		}
	}
	if strings.Contains(text.String(), "%!") {
		t.Error("something was formatted wrongly")
	}
	// What can be asked here is answered.
	for _, words := range []string{"a private wait armed before the private hash is resized is still woken", "a private wait armed before the private hash is installed is still woken"} {
		if got := answers[words]; got.Question == "" || got.Answer == question.Unknown && answers["process-private futex hash"].Answer == "there" {
			t.Errorf("%q: %+v", words, got)
		}
	}
	if got := answers["a mismatched futex(2) wait takes the hash bucket's lock"]; got.Question == "" || got.Answer == question.Unknown && runtime.NumCPU() > 1 && !strings.HasPrefix(got.Evidence, "near certain") {
		t.Errorf("%+v", got)
	}
	// What is counted in the kernel is known where it can be observed.
	for _, words := range []string{"cache patch: a failed arm's data is kept for the next", "inflight tracking of futex requests", "WAITV data accounted to the memory cgroup"} {
		if got := answers[words]; c.Timing != "" && got.Answer == question.Unknown {
			t.Errorf("observed by %s, and %+v", c.Timing, got)
		}
	}
	// The kernel's own description of the struct, where what was observed is a kmalloc.
	var data *btf.Struct
	if spec, err := btf.LoadKernelSpec(); err == nil && spec.TypeByName("io_futex_data", &data) == nil {
		if got := answers["size of io_futex_data, bytes"]; got.Answer != question.Unknown && got.Answer != strconv.Itoa(int(data.Size)) {
			t.Errorf("%+v; the kernel's BTF says %d", got, data.Size)
		}
	}
	var coded bytes.Buffer
	if err := c.Encode(&coded); err != nil {
		t.Fatal(err)
	}
	var back Check
	if err := json.Unmarshal(coded.Bytes(), &back); err != nil || back.Schema != Schema || len(back.Kernel) != len(c.Kernel) {
		t.Errorf("JSON: %v", err)
	}
}

// TestTable: a column a kernel, and no answer where there was none.
func TestTable(t *testing.T) {
	q := question.Words()[0]
	a := &Check{Environment: result.Environment{KernelRelease: "7.0"}, Kernel: []question.Finding{{Question: q, Answer: "yes"}}, Log: result.Check{Pass: true}}
	b := &Check{Environment: result.Environment{KernelRelease: "7.1"}, KernelError: "no BTF"}
	var text bytes.Buffer
	if err := Table(&text, []*Check{a, b}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`(?m)^ +7\.0 +7\.1$`, `(?m)^` + regexp.QuoteMeta(q) + ` +yes +-$`, `(?m)^something is missing +no +no BTF$`, `(?m)^it complained meanwhile +no +YES$`} {
		if !regexp.MustCompile(want).MatchString(text.String()) {
			t.Errorf("no %s in\n%s", want, &text)
		}
	}
}
