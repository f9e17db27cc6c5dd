package scenarios

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"aossim/internal/refusal"
)

func TestBuiltin(t *testing.T) {
	list, err := List()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"channels", "control", "eagain", "fanout", "hash", "load", "low-priority", "mismatch", "pair", "private",
		"scalar-shared", "scalar", "slab", "timeout", "waits", "waitv-shared", "waitv", "wakes"}
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
		if s.Description == "" || s.Name+".toml" != s.File {
			t.Errorf("%s: name %q, description %q", s.File, s.Name, s.Description)
		}
		if !strings.HasPrefix(s.Text, "# ") {
			t.Errorf("%s: no comment to learn from", s.File)
		}
	}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

// good is a scenario in which the tests change lines.
const good = `name = "t"
duration = "1s"
phases = ["a", "b"]

[[channel]]
name = "/c"
queue_size = 64

[[publisher]]
group = "rt"
channel = "/c"
rate = "2kHz"
policy = "fifo"
priority = 40

[[subscriber]]
group = "rt"
channels = ["/c"]
policy = "fifo"
priority = 40

[[publisher]]
group = "low"
joins = "b"
channel = "/c"
rate = "100Hz"

[expect]
"rt.rearm.p99" = "<= 200us"
"rt.eagain_rate" = "<= 50%"
`

func TestParse(t *testing.T) {
	s, err := Parse("t.toml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Publishers[1]; p.Rate != 100 || p.Count != 1 || p.Arrival != "periodic" || p.Policy != "other" {
		t.Errorf("%+v", p)
	}
	if c := s.Channels[0]; c.MaxSize != 64 || c.Futex != "shared" || c.Private() {
		t.Errorf("%+v", c)
	}
	if first, end := s.Span(&s.Publishers[1].Member); first != 1 || end != 2 {
		t.Errorf("span %d..%d", first, end)
	}
	if e := s.Expect; len(e) != 2 || e[0].Value != 0.5 || e[1].Value != 200_000 || e[1].Metric != "rearm.p99" || !e[1].Most {
		t.Errorf("%+v", e)
	}
	// Actor processes get the scenario as JSON.
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back Scenario
	s.document = document{} // it is for errors, before anything starts
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(&back, s) {
		t.Errorf("%v\n%+v\n%+v", err, back, s)
	}
}

// TestRefused: every mistake is one line with its place and a way out.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, from, to string
		line           int
		want           string
	}{
		{"unknown key", `joins = "b"`, `join = "b"`, 24, `unknown key "publisher.join"`},
		{"unknown top key", `duration = "1s"`, `durations = "1s"`, 2, `unknown key "durations"`},
		{"unknown table", "[expect]", "[expected]", 28, "unknown key"},
		{"wrong type", "priority = 40\n\n[[publisher]]", "priority = \"high\"\n\n[[publisher]]", 20, "priority: "},
		{"wrong type of a rate", `rate = "2kHz"`, `rate = 2000`, 12, "rate: "},
		{"no TOML", `name = "t"`, `name = `, 1, ""},
		{"missing channel", `channel = "/c"`, `channel = "/d"`, 11, `there is no channel "/d"; there are /c`},
		{"missing channel of a subscriber", `channels = ["/c"]`, `channels = ["/d"]`, 18, `there is no channel "/d"`},
		{"no channels", `channels = ["/c"]`, `channels = []`, 18, "one at least"},
		{"rate 0", "2kHz", "0Hz", 12, "rate: 0 Hz"},
		{"negative rate", "100Hz", "-1Hz", 26, "rate: -1 Hz"},
		{"rate above 1 MHz", "2kHz", "1.1MHz", 12, "1 MHz"},
		{"rate that is none", "2kHz", "NaNHz", 12, "rate: NaN Hz"},
		{"rate that is hardly one", "2kHz", "1e-300Hz", 12, "rate: 1e-300 Hz"},
		{"CPU twice", `joins = "b"`, "joins = \"b\"\ncpus = [0, 0]", 25, "given twice"},
		{"endless duration", `"1s"`, `"2562047h"`, 2, "duration: "},
		{"endless work", `channels = ["/c"]`, "channels = [\"/c\"]\nwork = \"2h\"", 19, "work: "},
		{"many actors", `joins = "b"`, "joins = \"b\"\ncount = 1023", 16, "more than 1024 actors"},
		{"mixed subscribers", "[expect]", "[[subscriber]]\ngroup=\"rt\"\npolicy=\"fifo\"\npriority=40\nchannels=[\"/c\"]\nwait=\"futex\"\n[expect]", 28, "differ among the subscribers"},
		{"long interval", "[expect]", "[[load]]\nkind=\"timer\"\ninterval=\"1h\"\n[expect]", 30, "interval: "},
		{"bursts far apart", `rate = "100Hz"`, "rate = \"0.01Hz\"\narrival = \"burst\"\nburst = 1000", 28, "more than an hour"},
		{"limit that is none", "<= 50%", "<= nan%", 30, "no number"},
		{"infinite limit", "<= 50%", "<= inf%", 30, "no percentage"},
		{"negative limit", "<= 200us", "<= -1us", 29, "negative"},
		{"metric of no subscriber", `"rt.rearm.p99"`, `"low.rearm.p99"`, 29, "no subscriber"},
		{"deadline's period", "policy = \"fifo\"\npriority = 40\n\n[[subscriber]]", "policy = \"deadline\"\nruntime=\"1ms\"\ndeadline=\"1h\"\nperiod=\"1h\"\n\n[[subscriber]]", 14, "period <= 4s"},
		{"rate without unit", "2kHz", "2000", 12, "unit"},
		{"priority 0", "priority = 40", "priority = 0", 14, "1..99"},
		{"priority 100", "priority = 40", "priority = 100", 14, "1..99"},
		{"priority with policy other", `rate = "100Hz"`, "rate = \"100Hz\"\npriority = 3", 27, `policy "other" has none`},
		{"policy", `policy = "fifo"`, `policy = "rt"`, 13, "none of fifo, rr, deadline, other, batch, idle"},
		{"negative CPU", `joins = "b"`, "joins = \"b\"\ncpus = [-1]", 25, "no CPU"},
		{"phase that nothing joins", `["a", "b"]`, `["a", "b", "c"]`, 3, `nothing joins at "c"`},
		{"no such phase", `joins = "b"`, `joins = "x"`, 24, `there is no phase "x"`},
		{"leaves before it joins", `joins = "b"`, "joins = \"b\"\nleaves = \"a\"", 25, "comes no later"},
		{"queue size", "queue_size = 64", "queue_size = 65", 7, "no power of two; 128 is the next"},
		{"queue size too large", "queue_size = 64", "queue_size = 2097152", 7, "not within"},
		{"duration 0", `"1s"`, `"0s"`, 2, "duration: 0s"},
		{"negative duration", `"1s"`, `"-1s"`, 2, "duration: -1s"},
		{"duration without unit", `"1s"`, `"10"`, 2, "unit"},
		{"private across groups", "queue_size = 64", "futex = \"private\"", 25, "private"},
		{"private across processes", "queue_size = 64\n\n[[publisher]]", "futex = \"private\"\n\n[[publisher]]\nprocesses = true", 17, "processes"},
		{"group that differs", "[expect]", "[[subscriber]]\ngroup=\"low\"\nchannels=[\"/c\"]\n[expect]", 28, `differs within group "low"`},
		{"burst without arrival", `rate = "2kHz"`, "rate = \"2kHz\"\nburst = 3", 13, "burst"},
		{"trace without arrival", `rate = "2kHz"`, "rate = \"2kHz\"\ntrace = \"a\"", 13, "arrival"},
		{"repeat without arrival", `rate = "2kHz"`, "rate = \"2kHz\"\nrepeat = true", 13, "arrival"},
		{"arrival without trace", `rate = "2kHz"`, "arrival = \"trace\"", 9, "needs trace"},
		{"trace with a rate", `rate = "2kHz"`, "rate = \"2kHz\"\narrival = \"trace\"\ntrace = \"a\"", 12, "leave rate out"},
		{"waits", `channels = ["/c"]`, "channels = [\"/c\"]\nwait = \"poll\"", 19, "none of io_uring"},
		{"ring flags", `channels = ["/c"]`, "channels = [\"/c\"]\nring_flags = [\"defer_taskrun\"]", 19, "single_issuer"},
		{"ring flag", `channels = ["/c"]`, "channels = [\"/c\"]\nring_flags = [\"sqpoll\"]", 19, "none of"},
		{"start index", "queue_size = 64", "queue_size = 64\nstart_index = 4294967232", 8, "where queue indexes of this channel wrap"},
		{"late bound", `"1s"`, "\"1s\"\nlate = \"0s\"", 3, "late: "},
		{"rings without channel", "[expect]", "[[load]]\nkind=\"rings\"\n[expect]", 28, "channel: goes with"},
		{"hash without group", "[expect]", "[[load]]\nkind=\"hash\"\n[expect]", 28, "group: "},
		{"metric", `"rt.rearm.p99"`, `"rt.rearm.p98"`, 29, "no such metric"},
		{"metric's group", `"rt.rearm.p99"`, `"xx.rearm.p99"`, 29, `no group "xx"`},
		{"metric's limit", "<= 200us", "200us", 29, "no limit"},
		{"metric's unit", "<= 50%", "<= 5us", 30, "percentage"},
		{"channel's name", `name = "/c"`, `name = "c"`, 6, "starts with /"},
		{"no subscriber", "[[subscriber]]\ngroup = \"rt\"\nchannels = [\"/c\"]\npolicy = \"fifo\"\npriority = 40\n", "", 1, "[[subscriber]]"},
		{"empty", good, "  \n", 1, "empty"},
		{"binary", good, "\x00\x01\x02\xff\xfe", 1, ""},
		{"huge", good, strings.Repeat("# 100 MB\n", 100<<20/9), 1, "larger than 1024 KiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(good, c.from, c.to, 1)
			if text == good {
				t.Fatal("the case changes nothing")
			}
			_, err := Parse("dir/t.toml", []byte(text))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v", err)
			}
			if e.File != "dir/t.toml" || e.Line != c.line || !strings.Contains(e.Text, c.want) || strings.Contains(e.Error(), "\n") {
				t.Errorf("got %s, want line %d and %q", err, c.line, c.want)
			}
		})
	}
}

// TestPlaces: errors stand where the mistake does, whatever is in texts and however tables
// are written; keys are taken as they are written and no other way.
func TestPlaces(t *testing.T) {
	const head = "description = \"\"\"\nhow to read it:\n[[subscriber]]\n  channels = [\"/none\"]\n\"\"\"\n"
	const loop = "[[channel]]\nname = \"/c\"\n[[publisher]]\ngroup = \"g\"\nchannel = \"/c\"\nrate = \"1kHz\"\n[[subscriber]]\ngroup = \"g\"\nchannels = [\"/c\"]\n"
	for _, c := range []struct {
		name, text   string
		line, column int
		want         string
	}{
		{"a table's head within a text", head + strings.Replace(loop, `["/c"]`, `["/d"]`, 1), 14, 12, "channels: there is no channel"},
		{"a key within a text", head + strings.Replace(loop, `rate = "1kHz"`, `rate = "0Hz"`, 1), 11, 8, "rate: 0 Hz"},
		{"indented", strings.Replace(loop, `rate = "1kHz"`, "\t rate   =  \"0Hz\" # slow", 1), 6, 13, "rate: 0 Hz"},
		{"inline tables", "channel = [{name = \"/c\"}]\npublisher = [{channel = \"/c\", rate = \"1kHz\"},\n  {channel = \"/d\", rate = \"1kHz\"}]\n[[subscriber]]\nchannels = [\"/c\"]\n", 3, 14, "channel: there is no channel"},
		{"unknown key of an inline table", "channel = [{name = \"/c\"},\n\n {name = \"/d\", sise = 3}]\n", 3, 16, `unknown key "channel.sise"`},
		{"wrong type in an inline table", "channel = [{name = \"/c\"},\n {name = \"/d\", count = \"x\"}]\n", 2, 24, "a TOML string, where an integer is wanted"},
		{"number for a text", loop + "[expect]\n\"g.rearm.p99\" = 200\n", 11, 17, "g.rearm.p99: Integer, where a text is wanted"},
		{"unquoted dotted key", loop + "[expect]\ng.rearm.p99 = \"<= 200us\"\n", 11, 1, `write the name in quotes, as it has dots: "g.rearm.p99"`},
		{"no name", "name = \"\"\n" + loop, 1, 8, "name: a name has 1 to 128 bytes"},
		{"a long name", "name = \"" + strings.Repeat("n", 129) + "\"\n" + loop, 1, 8, "this one 129"},
		{"a long group", strings.Replace(loop, "group = \"g\"", "group = \""+strings.Repeat("g", 129)+"\"", 1), 4, 9, "this one 129"},
		{"many phases", "phases = [" + strings.Repeat("\"p\",", 1001) + "]\n" + loop, 1, 10, "1001 is not within 1..1000"},
		{"deep arrays", "x = " + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "\n" + loop, 1, 0, "nested"},
		{"a key of many parts", "x" + strings.Repeat(".a", 20000) + " = 1\n" + loop, 1, 1, "unknown key"},
		{"more than all", loop + "[expect]\n\"g.eagain_rate\" = \"<= 500%\"\n", 11, 19, "within 0% and 100%"},
		{"more than all, over time", loop + "[expect]\n\"g.eagain_rate_ppm.max\" = \"<= 101%\"\n", 11, 27, "within 0% and 100%"},
		{"no such metric", loop + "[expect]\n\"g.rearm.p98\" = \"<= 5us\"\n", 11, 1, "no such metric"},
		{"no such metric in [compare]", loop + "[compare]\n\"g.rearm.p98\" = \"5%\"\n", 11, 1, "no such metric"},
		{"limit", loop + "[expect]\n\"g.rearm.p99\" = \"200us\"\n", 11, 17, "no limit"},
		{"dotted key of [compare]", loop + "[compare]\n\"g.rearm.p99\" = 10\n", 11, 17, "g.rearm.p99: Integer"},
		{"[channel]", "name = \"x\"\n[channel]\nname = \"/c\"\n", 2, 2, "write [[channel]]"},
		{"[[expect]]", loop + "[[expect]]\n", 10, 3, "write [expect]"},
		{"another case", strings.Replace(loop, "rate =", "Rate =", 1), 6, 1, `unknown key "publisher.Rate"; did you mean "rate"?`},
		{"both cases", strings.Replace(loop, "rate =", "RATE = \"2kHz\"\nrate =", 1), 6, 1, `unknown key "publisher.RATE"; did you mean "rate"?`},
		{"a case of the top", "Name = \"x\"\n" + loop, 1, 1, `unknown key "Name"; did you mean "name"?`},
		{"a slip", strings.Replace(loop, "channels =", "chanels =", 1), 9, 1, `did you mean "channels"?`},
		{"nothing like it", "zzzzzz = 1\n" + loop, 1, 1, `unknown key "zzzzzz"; the README`},
		{"a table in a table", loop + "[channel.more]\nx = 1\n", 10, 2, `unknown key "channel.more"`},
		{"negative seed", "seed = -1\n" + loop, 1, 8, "seed: -1 is below 0"},
		{"number for a rate", strings.Replace(loop, `"1kHz"`, "1000", 1), 6, 8, "rate: Integer, where a text with its unit is wanted"},
		{"a number for tables", "channel = 3\n" + strings.Replace(loop, "[[channel]]\nname = \"/c\"\n", "", 1), 1, 11, "channel: Integer, where a table is wanted"},
		{"an empty list of tables", "channel = []\n", 1, 11, "channel: Array, where a table is wanted"},
		{"a text for a table", "expect = \"x\"\n" + loop, 1, 10, "expect: String, where a table is wanted"},
		{"an empty key", "\"\" = 1\n" + loop, 1, 1, `unknown key ""`},
		{"an empty table", "[\"\"]\nduration = \"1s\"\n" + loop, 1, 2, `unknown key ""`},
		{"a limit by dots from the top", "expect.\"g.rearm.p99\" = \"200us\"\n" + loop, 1, 24, "no limit"},
		{"behind a byte order mark", "\ufeff" + strings.Replace(loop, `"1kHz"`, `"0Hz"`, 1), 6, 8, "rate: 0 Hz"},
		{"twice", loop + "channels = [\"/c\"]\n", 10, 1, "already defined"},
	} {
		_, err := Parse("t.toml", []byte(c.text))
		var e *Error
		if !errors.As(err, &e) || e.Line != c.line || c.column > 0 && e.Column != c.column || !strings.Contains(e.Text, c.want) {
			t.Errorf("%s: got %v, want %d:%d and %q", c.name, err, c.line, c.column, c.want)
		}
		if err != nil && !errors.Is(err, refusal.ErrUsage) {
			t.Errorf("%s: %v is no wrong usage", c.name, err)
		}
	}
	for name, text := range map[string]string{"plain": head + loop, "byte order mark": "\ufeff" + loop, "dots": "expect.\"g.rearm.p99\" = \"<= 200us\"\n" + loop, "gates": loop + "[compare]\n\"g.rearm.p90\" = \"3%\"\n\"g.kmalloc\" = \"3%\"\n\"g.kmalloc_per_arm\" = \"3%\"\n"} {
		if _, err := Parse("t.toml", []byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Many keys take no longer than few.
	if _, err := Parse("t.toml", []byte(strings.Repeat("a=1\n", maxSize/4))); err == nil {
		t.Error("a thousand times the same key was taken")
	}
}

// TestWords: a load that counts waits by waking them has its words to itself.
func TestWords(t *testing.T) {
	const loop = "[[channel]]\nname = \"/c\"\n[[channel]]\nname = \"/own\"\n[[publisher]]\nchannel = \"/c\"\nrate = \"1kHz\"\n[[subscriber]]\nchannels = [\"/c\"]\n[[load]]\nkind = \"rings\"\n"
	for text, want := range map[string]string{
		"channel = \"/own\"\n": "", "channel = \"/c\"\n": "a [[channel]] of its own", "channel = \"/own\"\ncount = 2\n": "count = 2", "channel = \"/none\"\n": "there is no channel",
	} {
		_, err := Parse("t.toml", []byte(loop+text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// goodMicro is a micro-benchmark in which the tests change lines.
const goodMicro = `kind = "micro"
rounds = 5
policy = "fifo"
priority = 10

[[point]]
name = "a"
workload = "scalar"
words = 16

[[point]]
workload = "waitv"
vectors = 4

[[point]]
workload = "timeout"
timeout = "50us"

[[point]]
workload = "mismatch"
mismatching = "30%"
buckets = 2
`

func TestMicro(t *testing.T) {
	s, err := Parse("t.toml", []byte(goodMicro))
	if err != nil {
		t.Fatal(err)
	}
	want := []Point{
		{Name: "a", Workload: "scalar", Futex: "private", Entries: 64, Cycles: 512, Words: 16},
		{Name: "waitv", Workload: "waitv", Futex: "private", Entries: 64, Cycles: 512, Vectors: 4, Width: 8, Element: 3},
		{Name: "timeout", Workload: "timeout", Futex: "private", Waits: 20000, Timeout: 50000},
		{Name: "mismatch", Workload: "mismatch", Futex: "private", Words: 64, Threads: 1, Runtime: 200_000_000, Mismatching: 0.3, Buckets: 2},
	}
	if m := s.Micro; m.Rounds != 5 || m.WarmupRounds != 3 || !reflect.DeepEqual(m.Points, want) {
		t.Errorf("got %+v", m)
	}
	for _, c := range []struct {
		from, to string
		line     int
		want     string
	}{
		{"words = 16", "words = 0", 9, "words: 0 is not within"},
		{"words = 16", "words = 33", 6, "entries: a ring of 64 entries does not take the 66 requests"},
		{"words = 16", "words = 16\nentries = 31", 10, "entries: a ring of 31"},
		{"words = 16", "words = 16\nwidth = 3", 10, `width: workload "scalar" has no such size`},
		{"words = 16", "cycles = -1", 9, "cycles: -1"},
		{"words = 16", "words = \"x\"", 9, "words: "},
		{"vectors = 4", "width = 129", 13, "width: 129 is not within 1..128"},
		{"vectors = 4", "element = 8", 13, "element: 8 is not within 0..7"},
		{"vectors = 4", "vectors = 64", 11, "entries: "},
		{`timeout = "50us"`, `timeout = "-1us"`, 17, "timeout: "},
		{`timeout = "50us"`, "waits = 0", 17, "waits: 0"},
		{"buckets = 2", "buckets = 3", 22, "power of two"}, {"buckets = 2", "buckets = -1", 22, "power of two"}, {"buckets = 2", "buckets = true", 22, "buckets: "}, {"buckets = 2", "buckets = 2.5", 22, "buckets: "},
		{"buckets = 2", "threads = 33", 22, "threads: "},
		{"30%", "130%", 21, "percentage"},
		{`name = "a"`, `name = "waitv"`, 11, "given twice"},
		{`workload = "waitv"`, `workload = "xyz"`, 12, "none of"},
		{`workload = "waitv"`, "workload = \"waitv\"\nring_flags = [\"defer_taskrun\"]", 13, "single_issuer"},
		{"rounds = 5", "rounds = 0", 2, "rounds: 0"},
		{"priority = 10", "priority = 0", 4, "1..99"},
		{"rounds = 5", "duration = \"1s\"", 2, "no such key"},
		{"buckets = 2", "buckets = 2\n[[channel]]\nname = \"/c\"", 23, "[[point]]s only"},
		{`kind = "micro"`, `kind = "macro"`, 1, "no kind"},
		{`kind = "micro"`, ``, 2, "no such key"},
	} {
		_, err := Parse("t.toml", []byte(strings.Replace(goodMicro, c.from, c.to, 1)))
		var e *Error
		if !errors.As(err, &e) || e.Line != c.line || !strings.Contains(e.Text, c.want) {
			t.Errorf("%s: got %v, want line %d and %q", c.to, err, c.line, c.want)
		}
	}
}

func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	huge := filepath.Join(dir, "huge.toml")
	f, err := os.Create(huge)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(100 << 20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for name, want := range map[string]string{
		"no-such": "no built-in scenario", filepath.Join(dir, "no.toml"): "no such file",
		dir + "/.toml": "no such file", huge: "larger than",
	} {
		_, err := Open(name)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Text, want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d.toml"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(dir, "d.toml")); err == nil {
		t.Error("a directory was taken for a scenario")
	}
}

func FuzzParse(f *testing.F) {
	list, err := List()
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range list {
		f.Add([]byte(s.Text))
	}
	f.Add([]byte(good))
	f.Add([]byte(goodMicro))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("f.toml", data)
		var e *Error
		switch {
		case err == nil && len(s.Subscribers) == 0 && (s.Micro == nil || len(s.Micro.Points) == 0):
			t.Error("a scenario of nothing")
		case err != nil && !errors.As(err, &e):
			t.Errorf("an error without a place: %v", err)
		case err != nil && e.Line < 1:
			t.Errorf("line %d: %v", e.Line, err)
		}
	})
}

// points is a scenario of micro-benchmarks of which one gives the size that is the default anyway.
const points = `kind = "micro"
[[point]]
workload = "eagain"
[[point]]
name = "given"
workload = "eagain"
waits = 100_000
[[point]]
workload = "scalar"
`

// TestInVirtualTime: sizes that the file gives stay, and what changed is said.
func TestInVirtualTime(t *testing.T) {
	s, err := Parse("x", []byte(points))
	if err != nil {
		t.Fatal(err)
	}
	if changed := s.InVirtualTime(); !reflect.DeepEqual(changed, []string{"waits=20000 (eagain)"}) {
		t.Errorf("changed %q", changed)
	}
	if p := s.Micro.Points; p[0].Waits != WorkloadNamed("eagain").Virtual.Waits || p[1].Waits != 100_000 {
		t.Errorf("%+v", p)
	}
}

// TestOnly: points in the order of the scenario, and none that it has not.
func TestOnly(t *testing.T) {
	s, err := Parse("x", []byte(points))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Only([]string{"given", "other"}); err == nil || !strings.Contains(err.Error(), `"other"`) || len(s.Micro.Points) != 3 {
		t.Errorf("%v, %d points left", err, len(s.Micro.Points))
	}
	if err := s.Only([]string{"scalar", "eagain"}); err != nil || len(s.Micro.Points) != 2 || s.Micro.Points[0].Name != "eagain" || s.Micro.Points[1].Name != "scalar" {
		t.Errorf("%v: %+v", err, s.Micro.Points)
	}
}
