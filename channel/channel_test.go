package channel

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
)

func create(t testing.TB, c Config) *Channel {
	return created(t, linuxtest.Map(t, c.Size()), c)
}

func created(t testing.TB, mem []byte, c Config) *Channel {
	t.Helper()
	ch, err := Create(mem, c)
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// TestRanges: what is out of a Config's ranges is refused by Create and by Open, by its
// name, and so is too little memory.
func TestRanges(t *testing.T) {
	good := Config{MaxSize: 8, QueueSize: 4, Publishers: 1}
	mem := linuxtest.Map(t, good.Size())
	for want, c := range map[string]Config{
		"MaxSize 0":           {QueueSize: 4, Publishers: 1},
		"MaxSize 65537":       {MaxSize: MaxPayload + 1, QueueSize: 4, Publishers: 1},
		"QueueSize 3":         {MaxSize: 8, QueueSize: 3, Publishers: 1}, // % and & differ
		"QueueSize 1":         {MaxSize: 8, QueueSize: 1, Publishers: 1},
		"QueueSize 2097152":   {MaxSize: 8, QueueSize: 2 * MaxQueueSize, Publishers: 1},
		"QueueSize -4":        {MaxSize: 8, QueueSize: -4, Publishers: 1},
		"Publishers 0":        {MaxSize: 8, QueueSize: 4},
		"Publishers 2047":     {MaxSize: 8, QueueSize: 4, Publishers: MaxPublishers + 1},
		"Start 4294967292":    {MaxSize: 8, QueueSize: 4, Publishers: 1, Start: 1<<32 - 4},
		"320 bytes of memory": {MaxSize: 8, QueueSize: 8, Publishers: 1},
	} {
		if want == "320 bytes of memory" {
			want = fmt.Sprintf("%d bytes of memory", len(mem))
		}
		if _, err := Create(mem, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Create of %+v: %v, want %q", c, err, want)
		}
		if _, err := Open(mem, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open of %+v: %v, want %q", c, err, want)
		}
	}
	for _, c := range []Config{good, {MaxSize: MaxPayload, QueueSize: MaxQueueSize, Publishers: MaxPublishers, Start: 1<<32 - MaxQueueSize - 1}} {
		if err := c.Check(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// claim makes the test the i-th publisher.
func claim(t testing.TB, ch *Channel, i int) *Publisher {
	t.Helper()
	p, wake, err := ch.Claim(i, 1, func(uint64) bool { return true })
	if err != nil || wake {
		t.Fatal(err, wake)
	}
	return p
}

// starts are first indexes: of a fresh channel, and just below the wrap.
func starts(size int) []uint32 {
	return []uint32{0, uint32(1<<32 - 2*size - 1), uint32(1<<32 - size - 1)}
}

func TestIndex(t *testing.T) {
	ch := create(t, Config{MaxSize: 8, QueueSize: 4, Publishers: 1})
	const wrap = 1<<32 - 4
	for _, c := range []struct {
		from, to, distance uint32
	}{
		{Nothing, Nothing, 0}, {Nothing, 1, 1}, {0, 1, 1}, {wrap - 1, 0, 1}, {wrap - 1, 3, 4}, {5, 5, 0}, {1, 0, wrap - 1},
	} {
		if got := ch.Distance(c.from, c.to); got != c.distance {
			t.Errorf("Distance(%d, %d) = %d, want %d", c.from, c.to, got, c.distance)
		}
	}
	for _, c := range []struct {
		index uint32
		n     int
		want  uint32
	}{{0, 1, 1}, {wrap - 1, 1, 0}, {0, -1, wrap - 1}, {2, -4, wrap - 2}} {
		if got := ch.Add(c.index, c.n); got != c.want {
			t.Errorf("Add(%d, %d) = %d, want %d", c.index, c.n, got, c.want)
		}
	}
}

// TestInOrder publishes several laps and reads every message whole and in order.
func TestInOrder(t *testing.T) {
	for _, start := range starts(8) {
		ch := create(t, Config{MaxSize: 20, QueueSize: 8, Publishers: 1, Start: start})
		p, r, m := claim(t, ch, 0), ch.Reader(), NewIncoming(ch)
		if got := ch.Word().Load(); start == 0 && got != Nothing {
			t.Fatalf("a fresh channel's word is %#x", got)
		}
		for i := range uint64(50) {
			binary.NativeEndian.PutUint64(p.Payload(), i^0xff)
			before := ch.Word().Load()
			if !p.Publish(Message{Published: int64(i), Scheduled: -int64(i), Sequence: i}) {
				t.Fatal("nobody else could have moved the word")
			}
			word := ch.Word().Load()
			if d := ch.Distance(before, word); d != 1 {
				t.Fatalf("the word moved by %d", d)
			}
			if outcome, n := r.Read(r.Pending(word), m); outcome != Read || n != 1 || !m.Whole() {
				t.Fatalf("message %d: outcome %d, %d, whole %t", i, outcome, n, m.Whole())
			}
			if want := (Message{int64(i), -int64(i), i}); m.Message() != want || binary.NativeEndian.Uint64(m.Payload(ch)) != i^0xff || len(m.Payload(ch)) != 20 {
				t.Fatalf("got %+v %x, want %+v", m.Message(), m.Payload(ch), want)
			}
			if r.Pending(word) != 0 {
				t.Fatal("there is more than was published")
			}
		}
	}
}

// TestExpected: a single publisher's messages lie where Prefetch looks for them.
func TestExpected(t *testing.T) {
	ch := create(t, Config{MaxSize: 64, QueueSize: 8, Publishers: 1})
	p, r, m := claim(t, ch, 0), ch.Reader(), NewIncoming(ch)
	for i := range uint64(3 * 9) {
		p.Publish(Message{Sequence: i})
		was := &r.messages[r.expected()][0]
		r.Prefetch()
		if outcome, _ := r.Read(r.Pending(ch.Word().Load()), m); outcome != Read || m.Message().Sequence != i {
			t.Fatalf("message %d: outcome %d, %+v", i, outcome, m.Message())
		}
		if i > 0 && uint32(atomic.LoadUint64(was)) != uint32(i) {
			t.Errorf("message %d was expected where %d is", i, uint32(atomic.LoadUint64(was)))
		}
	}
}

// TestOverrun counts exactly what a reader lost, and it goes on with the oldest
// message that is left.
func TestOverrun(t *testing.T) {
	for _, start := range starts(8) {
		ch := create(t, Config{MaxSize: 8, QueueSize: 8, Publishers: 1, Start: start})
		p, r, m := claim(t, ch, 0), ch.Reader(), NewIncoming(ch)
		for i := range uint64(21) {
			p.Publish(Message{Sequence: i})
		}
		word := ch.Word().Load()
		outcome, n := r.Read(r.Pending(word), m)
		if outcome != Overrun || n != 13 {
			t.Fatalf("outcome %d, %d lost; 13 of 21 do not fit into 8", outcome, n)
		}
		for i := uint64(13); i < 21; i++ {
			if outcome, _ := r.Read(r.Pending(word), m); outcome != Read || m.Message().Sequence != i {
				t.Fatalf("outcome %d, message %d, want %d", outcome, m.Message().Sequence, i)
			}
		}
	}
}

// TestOverwritten reads with a value of the word that is out of date.
func TestOverwritten(t *testing.T) {
	ch := create(t, Config{MaxSize: 8, QueueSize: 4, Publishers: 1})
	p, r, m := claim(t, ch, 0), ch.Reader(), NewIncoming(ch)
	for i := range uint64(3) {
		p.Publish(Message{Sequence: i})
	}
	old := ch.Word().Load()
	for i := range uint64(2) {
		p.Publish(Message{Sequence: 3 + i})
	}
	if outcome, n := r.Read(r.Pending(old), m); outcome != Overrun || n != 1 {
		t.Errorf("outcome %d, %d: message 0 was overwritten by message 4", outcome, n)
	}
	if outcome, _ := r.Read(r.Pending(old), m); outcome != Read || m.Message().Sequence != 1 {
		t.Errorf("outcome %d, message %d, want 1", outcome, m.Message().Sequence)
	}
}

// TestCorrupt flips a bit in shared memory.
func TestCorrupt(t *testing.T) {
	ch := create(t, Config{MaxSize: 8, QueueSize: 4, Publishers: 1})
	p, r, m := claim(t, ch, 0), ch.Reader(), NewIncoming(ch)
	scratch := messageOf(p.scratch)
	p.Publish(Message{})
	word := &ch.message(scratch)[len(ch.message(scratch))-1]
	word.Store(word.Load() ^ 1)
	if outcome, n := r.Read(r.Pending(ch.Word().Load()), m); outcome != Read || n != 1 || m.Whole() {
		t.Errorf("outcome %d, %d, whole %t", outcome, n, m.Whole())
	}
}

// TestHelp stops a publisher between its slot and the word: another one moves the
// word for it, and says that it has to be woken.
func TestHelp(t *testing.T) {
	ch := create(t, Config{MaxSize: 8, QueueSize: 4, Publishers: 2})
	stopped, other, r, m := claim(t, ch, 0), claim(t, ch, 1), ch.Reader(), NewIncoming(ch)
	msg := ch.message(messageOf(stopped.scratch))
	stopped.Publish(Message{Sequence: 7}) // message 0, to have whole contents
	word := ch.Word().Load()
	// By hand: message 1 stands in its slot, the word has not moved.
	second := ch.message(messageOf(stopped.scratch))
	for i := range second[1:] {
		second[1+i].Store(msg[1+i].Load())
	}
	second[0].Store(1)
	ch.slots[1].Store(stopped.slotValue(1))
	if !other.Publish(Message{Sequence: 8}) {
		t.Error("it moved the word and was not told to wake")
	}
	if d := ch.Distance(word, ch.Word().Load()); d != 2 {
		t.Errorf("the word moved by %d, want 2: the other's message and its own", d)
	}
	for _, want := range []uint64{7, 7, 8} {
		if outcome, _ := r.Read(r.Pending(ch.Word().Load()), m); outcome != Read || m.Message().Sequence != want {
			t.Errorf("outcome %d, message %d, want %d", outcome, m.Message().Sequence, want)
		}
	}
}

// TestConcurrent has several publishers and readers on a small queue: no message
// is torn, lost without being counted, or moved twice.
func TestConcurrent(t *testing.T) {
	const publishers, each = 3, 20000
	for _, start := range starts(16) {
		ch := create(t, Config{MaxSize: 64, QueueSize: 16, Publishers: publishers, Start: start})
		first := ch.Word().Load()
		var wg sync.WaitGroup
		moves := make([]int, publishers)
		for i := range publishers {
			p := claim(t, ch, i)
			wg.Go(func() {
				for n := range uint64(each) {
					for j := range p.Payload() {
						p.Payload()[j] = byte(n)
					}
					if p.Publish(Message{Published: int64(i), Sequence: n}) {
						moves[i]++
					}
					p.Prefetch()
				}
			})
		}
		for range 2 {
			r, m := ch.Reader(), NewIncoming(ch)
			r.next = nextOf(first)
			wg.Go(func() {
				last := [publishers]int64{-1, -1, -1}
				for read, lost := 0, uint32(0); read+int(lost) < publishers*each; {
					word := ch.Word().Load()
					if r.Pending(word) == 0 {
						continue
					}
					r.Prefetch()
					switch outcome, n := r.Read(r.Pending(word), m); {
					case outcome == Overrun:
						lost += n
					case !m.Whole():
						t.Errorf("a torn message of publisher %d", m.Message().Published)
						return
					default:
						if read++; int64(m.Message().Sequence) <= last[m.Message().Published] {
							t.Errorf("publisher %d: message %d after %d", m.Message().Published, m.Message().Sequence, last[m.Message().Published])
							return
						}
						last[m.Message().Published] = int64(m.Message().Sequence)
					}
				}
				if r.Pending(ch.Word().Load()) != 0 {
					t.Error("the account balances before the queue is empty")
				}
			})
		}
		wg.Wait()
		if d := ch.Distance(first, ch.Word().Load()); d != publishers*each {
			t.Errorf("the word moved by %d, want %d", d, publishers*each)
		}
	}
}

func TestAllocations(t *testing.T) {
	ch := create(t, Config{MaxSize: 64, QueueSize: 16, Publishers: 1})
	p, r, m := claim(t, ch, 0), ch.Reader(), NewIncoming(ch)
	if n := testing.AllocsPerRun(1000, func() {
		p.Publish(Message{Published: linux.Now()})
		r.Read(r.Pending(ch.Word().Load()), m)
	}); n != 0 {
		t.Errorf("publish and read allocate %g times", n)
	}
}

func BenchmarkPublish(b *testing.B) {
	p := claim(b, create(b, Config{MaxSize: 64, QueueSize: 4096, Publishers: 1}), 0)
	b.ReportAllocs()
	for b.Loop() {
		p.Publish(Message{})
	}
}

func BenchmarkRead(b *testing.B) {
	ch := create(b, Config{MaxSize: 64, QueueSize: 4096, Publishers: 1})
	p, r, m := claim(b, ch, 0), ch.Reader(), NewIncoming(ch)
	p.Publish(Message{})
	b.ReportAllocs()
	for b.Loop() {
		r.next = 0
		if outcome, _ := r.Read(r.Pending(1), m); outcome != Read || !m.Whole() {
			b.Fatal(outcome)
		}
	}
}

// FuzzModel does the operations that the input names on a channel, and on a plain
// list of what was published: both must agree.
func FuzzModel(f *testing.F) {
	f.Add([]byte{0, 4, 1, 5, 2, 2, 2, 2, 2, 2, 4, 5, 6}, uint8(0))
	f.Add([]byte{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 6, 4, 7, 5}, uint8(1))
	f.Add([]byte("a longer mix of publishes and reads"), uint8(2))
	f.Fuzz(func(t *testing.T, operations []byte, where uint8) {
		config := Config{MaxSize: 8, QueueSize: 4, Publishers: 2}
		config.Start = starts(config.QueueSize)[int(where)%3]
		ch := create(t, config)
		publishers := []*Publisher{claim(t, ch, 0), claim(t, ch, 1)}
		readers := []Reader{ch.Reader(), ch.Reader()}
		m := NewIncoming(ch)
		var model []uint64 // what was published
		var position [2]int
		for n, op := range operations {
			switch op % 8 {
			case 0, 1, 2, 3:
				if !publishers[op%2].Publish(Message{Sequence: uint64(n)}) {
					t.Fatal("alone, a publisher moves the word")
				}
				model = append(model, uint64(n))
			case 4, 5:
				i := op % 2
				word := ch.Word().Load()
				if got := int(readers[i].Pending(word)); got != len(model)-position[i] {
					t.Fatalf("reader %d is %d behind, want %d", i, got, len(model)-position[i])
				}
				if position[i] == len(model) {
					continue
				}
				outcome, by := readers[i].Read(readers[i].Pending(word), m)
				lost := max(0, len(model)-position[i]-config.QueueSize)
				switch {
				case lost > 0 && (outcome != Overrun || int(by) != lost):
					t.Fatalf("reader %d: outcome %d by %d, want %d overrun", i, outcome, by, lost)
				case lost == 0 && (outcome != Read || by != 1 || !m.Whole() || m.Message().Sequence != model[position[i]]):
					t.Fatalf("reader %d: outcome %d by %d, message %d, want %d", i, outcome, by, m.Message().Sequence, model[position[i]])
				}
				position[i] += int(by)
			case 6, 7: // a publisher dies in order, and another takes its place
				i := int(op % 2)
				publishers[i].Release()
				publishers[i] = claim(t, ch, i)
			}
		}
	})
}
