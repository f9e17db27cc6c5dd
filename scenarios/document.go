package scenarios

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// document is where everything stands in a scenario file, and of what kind it is.
type document struct {
	data    []byte
	entries []entry
	byPlace map[where]int // of entries
}

// where names an entry.
type where struct {
	table string
	index int
	key   string
}

// entry is a key with its value, or with key "" the head of a table.
type entry struct {
	table string // "" is the top of the file
	index int    // among the tables of this name
	key   string // parts of a dotted one joined
	parts int
	kind  unstable.Kind
	name  int // offset in the file of the key, or of the head
	value int
}

// read finds out where everything stands, as far as the file is TOML at all: what comes
// after an error of syntax is missing.
func (d *document) read(data []byte) {
	d.data, d.byPlace = data, map[where]int{}
	var parser unstable.Parser
	parser.Reset(data)
	table, index, count := "", 0, map[string]int{}
	for parser.NextExpression() {
		e := parser.Expression()
		name := d.key(e.Key())
		switch name.kind = e.Kind; e.Kind {
		case unstable.ArrayTable:
			table, index = name.key, count[name.key]
			count[table]++
			d.head(table, index, name)
		case unstable.Table:
			table, index = name.key, 0
			d.head(table, index, name)
		case unstable.KeyValue:
			name.table, name.index = table, index
			if first, rest, dotted := strings.Cut(name.key, "."); dotted && table == "" && name.parts > 1 {
				// A table that is written as the first part of a key.
				if _, there := d.find(first, 0, ""); !there {
					d.head(first, 0, entry{kind: unstable.Table, name: name.name})
				}
				name.table, name.key, name.parts = first, rest, name.parts-1
			}
			d.add(name, e.Value())
		}
	}
}

func (d *document) head(table string, index int, at entry) {
	d.append(entry{table: table, index: index, kind: at.kind, name: at.name, value: at.name})
}

func (d *document) append(e entry) {
	d.byPlace[where{e.table, e.index, e.key}] = len(d.entries)
	d.entries = append(d.entries, e)
}

// key reads a key, with its place; value is where that of its value begins.
func (d *document) key(parts unstable.Iterator) (e entry) {
	var names []string
	end := 0
	for parts.Next() {
		n := parts.Node()
		if names == nil {
			e.name = int(n.Raw.Offset)
		}
		names = append(names, string(n.Data))
		end = int(n.Raw.Offset + n.Raw.Length)
	}
	e.key, e.parts = strings.Join(names, "."), len(names)
	for end < len(d.data) && strings.IndexByte("\"' \t", d.data[end]) >= 0 {
		end++
	}
	if end < len(d.data) && d.data[end] == '=' {
		for end++; end < len(d.data) && (d.data[end] == ' ' || d.data[end] == '\t'); end++ {
		}
	}
	e.value = end
	return e
}

// add adds a key of a table; tables that stand inline are tables as any other.
func (d *document) add(e entry, v *unstable.Node) {
	e.kind = v.Kind
	if e.table == "" && v.Kind == unstable.InlineTable {
		d.inline(e, 0, v)
		return
	}
	if e.table == "" && v.Kind == unstable.Array {
		items, tables := v.Children(), 0
		for items.Next() {
			if items.Node().Kind == unstable.InlineTable {
				d.inline(e, tables, items.Node())
				tables++
			}
		}
		if tables > 0 {
			return
		}
	}
	d.append(e)
}

func (d *document) inline(e entry, index int, table *unstable.Node) {
	if table.Raw.Length > 0 {
		e.name = int(table.Raw.Offset)
	}
	d.head(e.key, index, e)
	for keys := table.Children(); keys.Next(); {
		k := d.key(keys.Node().Key())
		k.table, k.index = e.key, index
		d.add(k, keys.Node().Value())
	}
}

// find returns the entry of a key in the index-th table of a name.
func (d *document) find(table string, index int, key string) (entry, bool) {
	at, ok := d.byPlace[where{table, index, key}]
	if !ok {
		return entry{}, false
	}
	return d.entries[at], true
}

// place is where to look for what is wrong with a key: at its value, else at its table,
// else at the begin of the file.
func (d *document) place(table string, index int, key string) int {
	if e, ok := d.find(table, index, key); ok {
		return e.value
	}
	if e, ok := d.find(table, index, ""); ok {
		return e.name
	}
	return 0
}

// toml is the file without the mark by which editors of another system begin theirs.
func (s *Scenario) toml() string { return strings.TrimPrefix(s.Text, "\ufeff") }

// errorAt returns an *Error about what stands at an offset of the file.
func (s *Scenario) errorAt(offset int, format string, args ...any) error {
	before := s.toml()[:offset]
	line := strings.LastIndexByte(before, '\n')
	return &Error{s.File, 1 + strings.Count(before, "\n"), len(before) - line, fmt.Sprintf(format, args...)}
}

// schema are the keys of a struct by name, and which of its tables can be there several times.
type schema struct {
	keys   map[string]reflect.Type
	tables map[string]reflect.Type
}

// schemaOf reads the toml tags of a struct.
func schemaOf(t reflect.Type) (s schema) {
	s.keys, s.tables = map[string]reflect.Type{}, map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		tag := f.Tag.Get("toml")
		switch {
		case tag == "":
		case f.Type.Kind() == reflect.Map, f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			s.tables[tag] = f.Type
		default:
			s.keys[tag] = f.Type
		}
	}
	return s
}

// check holds the keys and the kinds of their values against the schema of file. Keys are
// exact: one in other letters is another one, and unknown.
func (d *document) check(s *Scenario) error {
	top := schemaOf(reflect.TypeFor[file]())
	for _, e := range d.entries {
		known := top
		if e.table != "" || e.key == "" {
			t, ok := top.tables[e.table]
			if !ok {
				return s.unknown(e, e.table, top)
			}
			if t.Kind() == reflect.Map {
				if err := s.checkNamed(e); err != nil {
					return err
				}
				continue
			}
			if e.key == "" {
				if e.kind != unstable.ArrayTable && e.kind != unstable.Array {
					return s.errorAt(e.name, "[%s]: there may be several, so write [[%s]]", e.table, e.table)
				}
				continue
			}
			known = schemaOf(t.Elem())
		}
		t, ok := known.keys[e.key]
		if _, table := known.tables[e.key]; table {
			return s.errorAt(e.value, "%s: %s, where a table is wanted", e.key, e.kind)
		}
		if !ok {
			return s.unknown(e, e.key, known)
		}
		if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) && e.kind != unstable.String && (t != reflect.TypeFor[Buckets]() || e.kind != unstable.Integer) {
			return s.errorAt(e.value, "%s: %s, where a text with its unit is wanted, such as \"5us\", \"2kHz\" or \"30%%\"", e.key, e.kind)
		}
	}
	return nil
}

// checkNamed is check for [expect] and [compare], whose keys are names of metrics.
func (s *Scenario) checkNamed(e entry) error {
	switch {
	case e.key == "" && e.kind != unstable.Table && e.kind != unstable.InlineTable:
		return s.errorAt(e.name, "[[%s]]: there is one, so write [%s]", e.table, e.table)
	case e.key != "" && e.parts > 1:
		return s.errorAt(e.name, "%s: write the name in quotes, as it has dots: %q", e.table, e.key)
	case e.key != "" && e.kind != unstable.String:
		return s.errorAt(e.value, "%s: %s, where a text is wanted, such as \"<= 200us\" or \"10%%\"", e.key, e.kind)
	}
	return nil
}

// unknown is the error for a key or table that there is not.
func (s *Scenario) unknown(e entry, name string, known schema) error {
	const longest = 60
	if len(name) > longest {
		return s.errorAt(e.name, "unknown key %q...; the README lists the keys of a scenario", name[:longest])
	}
	full := name
	if e.table != "" && e.key != "" {
		full = e.table + "." + name
	}
	guess, distance := "", max(1, len(name)/3)+1 // a slip, not another word
	for _, list := range []map[string]reflect.Type{known.keys, known.tables} {
		for k := range list {
			if d := editDistance(strings.ToLower(name), k); d < distance || d == distance && k < guess && guess != "" {
				guess, distance = k, d
			}
		}
	}
	if guess != "" {
		guess = fmt.Sprintf("did you mean %q? ", guess)
	}
	return s.errorAt(e.name, "unknown key %q; %sthe README lists the keys of a scenario", full, guess)
}

// editDistance is how many letters must be changed, added or left out to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := last
			if a[i] != b[j] {
				change++
			}
			last, row[j+1] = row[j+1], min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// decode reads the file's values; what is not there keeps its default.
func (s *Scenario) decode(f *file) error {
	data := []byte(s.toml())
	s.document.read(data)
	if err := s.document.check(s); err != nil {
		return err
	}
	if err := toml.Unmarshal(data, f); err != nil {
		return s.decodeError(err)
	}
	fill(&s.document, "channel", f.Channel, Channel{MaxSize: 64, QueueSize: 1024, Futex: Shared, Count: 1})
	fill(&s.document, "publisher", f.Publisher, Publisher{Member: newMember("publishers"), Arrival: Periodic, Wake: WakeFutex})
	fill(&s.document, "subscriber", f.Subscriber, Subscriber{Member: newMember("subscribers"), Wait: "io_uring", Submit: Split})
	fill(&s.document, "load", f.Load, Load{Member: newMember("load"), Interval: 5000})
	fill(&s.document, "point", f.Point, Point{Futex: PrivateWord})
	return nil
}

// fill gives keys that the tables of a name do not have their defaults.
func fill[T any](d *document, table string, list []T, defaults T) {
	for i := range list {
		fillOne(d, table, i, &list[i], defaults)
	}
}

// fillOne is fill for the index-th one.
func fillOne[T any](d *document, table string, index int, to *T, defaults T) {
	from, at := reflect.ValueOf(defaults), reflect.ValueOf(to).Elem()
	for _, f := range reflect.VisibleFields(at.Type()) {
		if tag := f.Tag.Get("toml"); tag != "" {
			if _, given := d.find(table, index, tag); !given {
				at.FieldByIndex(f.Index).Set(from.FieldByIndex(f.Index))
			}
		}
	}
}

// wrongKind takes the decoder's messages about a value's type apart: they name Go's.
var wrongKind = regexp.MustCompile(`^cannot decode TOML (.+?) into .*?(\S+)$`)

var kindNames = map[string]string{"int": "an integer", "uint32": "an integer", "uint64": "an integer", "string": "a text", "bool": "true or false"}

// decodeError turns the decoder's error into one with its place.
func (s *Scenario) decodeError(err error) error {
	e := &Error{File: s.File, Line: 1, Column: 1, Text: err.Error()}
	var d *toml.DecodeError
	if errors.As(err, &d) {
		e.Line, e.Column = d.Position()
		e.Text = strings.TrimPrefix(d.Error(), "toml: ")
		if m := wrongKind.FindStringSubmatch(e.Text); m != nil {
			wanted := kindNames[m[2]]
			if wanted == "" {
				wanted = "another kind of value"
			}
			e.Text = fmt.Sprintf("a TOML %s, where %s is wanted", m[1], wanted)
		}
		if number, ok := strings.CutPrefix(e.Text, "negative integer value "); ok {
			number, _, _ = strings.Cut(number, " ")
			e.Text = number + " is below 0"
		}
		if key := d.Key(); len(key) > 0 {
			e.Text = key[len(key)-1] + ": " + e.Text
		}
	}
	e.Text = strings.ReplaceAll(e.Text, "\n", " ")
	return e
}
