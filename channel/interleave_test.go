//go:build steps

package channel

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"iter"
	"testing"

	"aossim/internal/linux/linuxtest"
)

// actor is a publisher or reader that a world runs access by access.
type actor struct {
	body    func(w *world, a *actor)
	heir    bool // takes the place of actor 0 and runs once that is dead
	next    func() (Step, bool)
	stop    func()
	steps   stepper
	history uint64 // of what it saw: with the shared memory, the whole of its state
	ended   bool
	owes    bool // it moved the word and has not been told to wake it yet
}

// tag tells messages apart.
type tag struct{ publisher, sequence uint64 }

// world is one run of a few actors on a small channel.
type world struct {
	t      *testing.T
	ch     *Channel
	actors []*actor
	dead   bool           // actor 0 was killed
	sent   map[uint32]tag // what stands in a slot, or stood there, by queue index
}

// die stands in a schedule for the death of actor 0.
const die = -1

type abandoned struct{}

func mix(h, v uint64) uint64 { return (h^v)*0x9e3779b97f4a7c15 ^ h>>29 }

// newWorld runs every actor up to its first access.
func newWorld(t *testing.T, mem []byte, c Config, bodies []func(*world, *actor), heir int) *world {
	clear(mem)
	w := &world{t: t, ch: created(t, mem, c), sent: map[uint32]tag{}}
	for i, body := range bodies {
		a := &actor{body: body, heir: i == heir}
		a.next, a.stop = iter.Pull(func(yield func(Step) bool) {
			defer func() {
				if v := recover(); v != nil && v != (abandoned{}) {
					panic(v)
				}
			}()
			a.steps = stepper{
				hook: func(s Step) {
					a.history = mix(a.history, uint64(s)+1)
					if heir >= 0 && (s == StepSum || s == StepBody) {
						return // nobody reads here, and the check finds a message torn in its slot
					}
					if !yield(s) {
						panic(abandoned{})
					}
				},
				saw: func(v uint64) { a.history = mix(a.history, v) },
			}
			a.body(w, a)
		})
		w.actors = append(w.actors, a)
		w.advance(a)
	}
	return w
}

func (w *world) advance(a *actor) {
	if _, ok := a.next(); !ok {
		a.ended = true
	}
}

func (w *world) close() {
	for _, a := range w.actors {
		a.stop()
	}
}

// enabled returns what may happen next.
func (w *world) enabled(mortal bool) (list []int) {
	for i, a := range w.actors {
		if !a.ended && (!a.heir || w.dead) && !(i == 0 && w.dead) {
			list = append(list, i)
		}
	}
	if mortal && !w.dead && !w.actors[0].ended {
		list = append(list, die)
	}
	return list
}

// do lets one thing happen.
func (w *world) do(i int) {
	if i == die {
		w.dead = true
		return
	}
	before := w.ch.word.Load()
	w.advance(w.actors[i])
	if w.ch.word.Load() != before {
		w.actors[i].owes = true
	}
	for s := range w.ch.slots {
		v := w.ch.slots[s].Load()
		if publisherOf(v) != nobody {
			msg := w.ch.message(messageOf(v))
			if _, known := w.sent[indexOf(v)]; !known {
				w.sent[indexOf(v)] = tag{msg[wordsFixed].Load(), msg[wordsFixed+2].Load()}
			}
		}
	}
}

// state is a hash of all that decides what can happen from here on.
func (w *world) state(seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	h.Write(w.ch.mem)
	for _, a := range w.actors {
		maphash.WriteComparable(&h, a.history)
		maphash.WriteComparable(&h, a.ended)
		maphash.WriteComparable(&h, a.owes)
	}
	maphash.WriteComparable(&h, w.dead)
	return h.Sum64()
}

// check holds the state to the invariants of the package comment.
func (w *world) check() error {
	ch, size := w.ch, w.ch.QueueSize
	next := nextOf(ch.word.Load())
	for n := range size { // 2
		index := ch.Add(next, n-size)
		got := indexOf(ch.slots[index%uint32(size)].Load())
		if got != index && !(n == 0 && got == next) {
			return fmt.Errorf("invariant 2: the slot of queue index %d has %d, the word is %d", index, got, next)
		}
	}
	owner := map[uint32]string{}
	own := func(message uint32, who string) error {
		if owner[message] != "" {
			return fmt.Errorf("invariant 4: message %d belongs to %s and to %s", message, owner[message], who)
		}
		owner[message] = who
		return nil
	}
	for s := range ch.slots {
		v := ch.slots[s].Load()
		if err := own(messageOf(v), fmt.Sprintf("slot %d", s)); err != nil {
			return err
		}
		if publisherOf(v) == nobody {
			continue
		}
		msg := ch.message(messageOf(v)) // 3
		if got := uint32(msg[0].Load()); got != indexOf(v) {
			return fmt.Errorf("invariant 3: message %d in slot %d with queue index %d has %d", messageOf(v), s, indexOf(v), got)
		}
		var body []byte
		for i := range msg[wordsFixed:] {
			body = binary.NativeEndian.AppendUint64(body, msg[wordsFixed+i].Load())
		}
		if uint32(msg[1].Load()) != crc32.Checksum(body, castagnoli) {
			return fmt.Errorf("invariant 3: message %d in slot %d is torn", messageOf(v), s)
		}
	}
	for i := range ch.Publishers {
		line := ch.line(i)
		scratch, replaced := line[lineScratch].Load(), line[lineReplaced].Load()
		message := messageOf(scratch)
		for s := range ch.slots {
			if v := ch.slots[s].Load(); replaced != noSlot && publisherOf(v) == i && messageOf(v) == message {
				message = messageOf(replaced) // the exchange is done, its record is not
			}
		}
		if err := own(message, fmt.Sprintf("publisher %d", i)); err != nil {
			return err
		}
	}
	return nil
}

// publish is an actor that sends n messages as the channel's i-th publisher.
func publish(i, n int) func(*world, *actor) {
	return func(w *world, a *actor) {
		p, wake, err := w.ch.Claim(i, uint64(100+i), func(uint64) bool { return false })
		if err != nil || wake {
			w.t.Fatal(err, wake)
		}
		p.stepper = a.steps
		sends(p, a, uint64(i), n)
	}
}

func sends(p *Publisher, a *actor, publisher uint64, n int) {
	for sequence := range uint64(n) {
		binary.NativeEndian.PutUint64(p.Payload(), publisher<<8|sequence)
		if p.Publish(Message{Published: int64(publisher), Sequence: sequence}) {
			a.owes = false
		}
	}
}

// inherit is an actor that takes the place of publisher 0 and sends n messages.
func inherit(n int) func(*world, *actor) {
	return func(w *world, a *actor) {
		// Not before the other is dead: the first access waits.
		a.steps.at(StepOwner)
		p := &Publisher{stepper: a.steps, ch: w.ch, number: 0, line: w.ch.line(0), buf: make([]byte, stampSize+8)}
		p.takeOver()
		w.actors[0].owes, a.owes = false, false // the caller of Claim wakes
		sends(p, a, 9, n)
	}
}

// read is an actor that looks at the word n times and reads what is there.
func read(n int) func(*world, *actor) {
	return func(w *world, a *actor) {
		r, m := w.ch.Reader(), NewIncoming(w.ch)
		r.stepper = a.steps
		for range n {
			word := a.steps.load32(StepWord, w.ch.word)
			for r.Pending(word) > 0 {
				index := r.next
				outcome, by := r.Read(r.Pending(word), m)
				switch got := (tag{uint64(m.Message().Published), m.Message().Sequence}); {
				case outcome == Read && !m.Whole():
					w.t.Errorf("a torn message at queue index %d", index)
				case outcome == Read && got != w.sent[index]:
					w.t.Errorf("queue index %d: read %v, sent was %v", index, got, w.sent[index])
				case outcome == Read && binary.NativeEndian.Uint64(m.Payload(w.ch)) != got.publisher<<8|got.sequence:
					w.t.Errorf("queue index %d: a payload of another message", index)
				case outcome == Overrun && by == 1 && w.ch.Distance(index, nextOf(w.ch.word.Load())) < uint32(w.ch.QueueSize):
					w.t.Errorf("queue index %d: overrun, though no message of the next lap can have its place", index)
				}
			}
		}
	}
}

var long = flag.Bool("long", false, "one message more against the death of a publisher: five million states, a minute each")

// TestInterleavings visits every state that a few actors can reach, whatever the order
// of their accesses to shared memory, and holds it to the invariants.
func TestInterleavings(t *testing.T) {
	others := 2
	if *long {
		others = 3
	}
	for _, c := range []struct {
		name   string
		bodies []func(*world, *actor)
		heir   int // which actor takes the place of actor 0, or -1
		total  int // messages if nobody dies
		others int // messages of all but actor 0, if that dies
	}{
		{"2 publishers, 1 reader", []func(*world, *actor){publish(0, 1), publish(1, 1), read(2)}, -1, 2, 0},
		{"a lap against a stopped publisher", []func(*world, *actor){publish(0, 1), publish(1, 3)}, -1, 4, 0},
		{"a lap against a reader", []func(*world, *actor){publish(0, 4), read(2)}, -1, 4, 0},
		{"death and an heir that is silent", []func(*world, *actor){publish(0, 1), inherit(0)}, 1, 1, 0},
		{"death and an heir", []func(*world, *actor){publish(0, 1), publish(1, others), inherit(1)}, 2, 1 + others, 1 + others},
	} {
		for _, start := range []uint32{0, 1<<32 - 3} {
			t.Run(fmt.Sprintf("%s from %#x", c.name, start), func(t *testing.T) {
				explore(t, Config{MaxSize: 8, QueueSize: 2, Publishers: 2, Start: start}, c.bodies, c.heir, c.total, c.others)
			})
		}
	}
}

func explore(t *testing.T, config Config, bodies []func(*world, *actor), heir, total, others int) {
	mem := linuxtest.Map(t, config.Size())
	seed := maphash.MakeSeed()
	seen := map[uint64]bool{}
	ends := 0
	first := config.Start % config.Wrap()
	for todo := [][]int8{nil}; len(todo) > 0 && !t.Failed(); {
		schedule := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		w := newWorld(t, mem, config, bodies, heir)
		word := w.ch.word.Load()
		for _, i := range schedule {
			word = w.ch.word.Load()
			w.do(int(i))
		}
		// From the state that the schedule leads to, on: one way at once, and the others
		// later from the start.
		for {
			if err := w.check(); err != nil {
				t.Errorf("after %v: %v", schedule, err)
				break
			}
			if d := w.ch.Distance(word, w.ch.word.Load()); d > 1 { // 1
				t.Errorf("after %v: invariant 1: the word moved by %d", schedule, d)
				break
			}
			if s := w.state(seed); seen[s] {
				break
			} else {
				seen[s] = true
			}
			ways := w.enabled(heir >= 0)
			if len(ways) == 0 {
				ends++
				w.finish(schedule, first, total, others)
				break
			}
			for _, i := range ways[1:] {
				todo = append(todo, append(bytesOf(schedule), int8(i)))
			}
			schedule = append(schedule, int8(ways[0]))
			word = w.ch.word.Load()
			w.do(ways[0])
		}
		w.close()
	}
	if len(seen) < 50 || ends == 0 {
		t.Errorf("only %d states and %d ends were visited", len(seen), ends)
	}
	t.Logf("%d states, %d of them ends", len(seen), ends)
}

func bytesOf(s []int8) []int8 { return append(make([]int8, 0, len(s)+1), s...) }

// finish checks a state in which nothing can happen any more.
func (w *world) finish(schedule []int8, first uint32, total, others int) {
	sent := int(w.ch.Distance(first, nextOf(w.ch.word.Load())))
	if !w.dead && sent != total || w.dead && (sent < others || sent > others+1) { // the dead one's message, or not
		w.t.Errorf("after %v: %d messages were published, want %d", schedule, sent, total)
	}
	for i, a := range w.actors {
		if a.owes && !(i == 0 && w.dead) { // 6
			w.t.Errorf("after %v: invariant 6: actor %d moved the word and was not told to wake it", schedule, i)
		}
	}
	if w.dead && w.actors[0].owes {
		w.t.Errorf("after %v: invariant 6: nobody wakes the word that the dead publisher moved", schedule)
	}
	next := nextOf(w.ch.word.Load())
	if indexOf(w.ch.slots[next%uint32(w.ch.QueueSize)].Load()) == next {
		w.t.Errorf("after %v: queue index %d stands in its slot and nobody moves the word", schedule, next)
	}
}
