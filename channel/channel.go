// Package channel is a lock-free queue of messages in shared memory with one
// futex word, its queue index, in the manner of AOS: publishers in any number of
// processes, readers that never write, and nobody who waits for anybody.
//
// # Memory
//
//	word      64 B  queue index (futex word)            publishers, by CAS
//	lines     64 B  a publisher: scratch, replaced,     that publisher, but
//	                owner                               see complete
//	slots      8 B  each: queue index << 32 |           publishers, by CAS
//	                publisher << 21 | message
//	messages        each: queue index, checksum,        the publisher whose
//	                published, scheduled, sequence,     scratch it is
//	                payload
//
// A queue of size n has n slots and n messages in them, and one more message, the
// scratch message, for each publisher.
//
// # Queue index
//
// The word is the queue index that the next message will get: 0xffffffff
// ([Nothing]) until the first message, then it grows by one a message and wraps to 0
// at the largest multiple of the queue's size below 2^32. The message with
// queue index i is named by slot i mod size.
//
// # Publishing
//
// Fill the scratch message; CAS it into the slot (from here readers can see it);
// CAS the word forward; wake the word. The message that was in the slot is the
// new scratch message. Who finds the slot taken moves the word on for the other
// one, and whoever moved the word wakes it.
//
// A reader copies a message by 64-bit atomic loads and checks the message's own
// queue index before and after, so a copy is whole or is not used; a checksum over
// all of it proves that ([Incoming.Whole]).
//
// # Invariants
//
// With w the queue index that the word stands for, in every state between two
// accesses, whoever was stopped or killed wherever (TestInterleavings visits them all):
//
//  1. The word only moves to the next queue index, and only when the slot of the
//     one before has a message: the two CASes on it in Publish, and the one in help.
//  2. Slot i mod size has queue index i for every i of the last size before w; but the
//     oldest may have w already, when a message is published whose word is to be
//     moved: slots change only by the CAS in Publish, from one lap to the next.
//  3. A message that a slot names with queue index i has i itself and is whole: the CAS
//     comes after all stores, and only its own publisher writes to a scratch message.
//  4. Every message is named by exactly one slot or is one publisher's scratch message.
//     While a line still names the message that stands in its slot, its scratch message
//     is the one noted in "replaced": the CAS exchanges the two. Nobody replaces that
//     message before the line is up to date, so what a dead publisher owns is certain.
//  5. A message is either readable, or its place has been taken by one of the next lap.
//  6. For every move of the word there is a wake after it, by who moved it; if that
//     one died, by who takes its place.
//  7. Nobody waits: each step of a publisher fails only if another one's succeeded.
//
// Go's atomics are sequentially consistent, which the order of these stores
// relies on; plain stores would do on amd64 only.
package channel

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync/atomic"

	"aossim/internal/linux"
)

// Nothing is the word of a channel that has not had a message yet, and the
// queue index of a message that is being filled.
const Nothing uint32 = 0xffffffff

// Sizes in bytes. Lines keep what different threads write apart.
const (
	lineSize   = 64
	headerSize = 16                    // queue index and checksum
	stampSize  = 24                    // published, scheduled, sequence
	wordsFixed = headerSize / 8        // in front of what the checksum covers
	noSlot     = uint64(Nothing) << 32 // no slot's value
)

// Config says how large a channel is. MaxSize is the payload in bytes, 8 to MaxPayload;
// QueueSize the number of messages, a power of two, 2 to MaxQueueSize: publishers find a slot
// by the remainder and readers by a mask. Publishers is how many may publish, 1 to
// MaxPublishers; Start the queue index of the first message (0 unless a test is about the
// wrap), below where indexes wrap.
type Config struct {
	MaxSize, QueueSize, Publishers int
	Start                          uint32
}

// The ranges of a Config; the last is what fits the lines' numbers in a slot.
const (
	MaxPayload    = 1 << 16
	MaxQueueSize  = 1 << 20
	MaxPublishers = nobody - 1
)

// Check returns an error that names the first field out of its range.
func (c Config) Check() error {
	switch {
	case c.MaxSize < 8 || c.MaxSize > MaxPayload:
		return fmt.Errorf("channel: MaxSize %d is not within 8..%d", c.MaxSize, MaxPayload)
	case c.QueueSize < 2 || c.QueueSize > MaxQueueSize || c.QueueSize&(c.QueueSize-1) != 0:
		return fmt.Errorf("channel: QueueSize %d is no power of two within 2..%d", c.QueueSize, MaxQueueSize)
	case c.Publishers < 1 || c.Publishers > MaxPublishers:
		return fmt.Errorf("channel: Publishers %d is not within 1..%d", c.Publishers, MaxPublishers)
	case c.Start >= c.Wrap():
		return fmt.Errorf("channel: Start %d is not below %d, where queue indexes wrap", c.Start, c.Wrap())
	}
	return nil
}

// A slot's value: queue index, publisher and message. A message's number in it has
// room for the largest queue and all publishers.
const (
	messageBits = 21
	nobody      = 1<<(32-messageBits) - 1 // the publisher of messages that were never sent
)

func indexOf(slot uint64) uint32    { return uint32(slot >> 32) }
func publisherOf(slot uint64) int   { return int(uint32(slot) >> messageBits) }
func messageOf(value uint64) uint32 { return uint32(value) & (1<<messageBits - 1) } // of a slot or a line

func (c Config) payloadWords() int { return (c.MaxSize + 7) / 8 }

func (c Config) messageSize() int {
	size := headerSize + stampSize + 8*c.payloadWords()
	return (size + lineSize - 1) / lineSize * lineSize
}

func (c Config) slotsOffset() int { return lineSize * (1 + c.Publishers) }

func (c Config) messagesOffset() int {
	return (c.slotsOffset() + 8*c.QueueSize + lineSize - 1) / lineSize * lineSize
}

// Size returns the bytes of memory that the channel takes, a multiple of 64.
func (c Config) Size() int {
	return c.messagesOffset() + c.messageSize()*(c.QueueSize+c.Publishers)
}

// Wrap is where queue indexes start again at 0.
func (c Config) Wrap() uint32 { return uint32(1<<32 - int64(c.QueueSize)) }

// Channel is one process's view of a channel. All methods may be called from
// any thread.
type Channel struct {
	Config
	mem   []byte
	word  *atomic.Uint32
	slots []atomic.Uint64
}

// Create lays out an empty channel in mem, which is zeroed and at least Size bytes
// of shared mapping, before any process opens it. Its error is Open's.
func Create(mem []byte, c Config) (*Channel, error) {
	ch, err := Open(mem, c)
	if err != nil {
		return nil, err
	}
	first := Nothing
	if c.Start != 0 {
		first = c.Start
	}
	ch.word.Store(first)
	// Every slot names a message of the lap before, as if it had been published.
	index := ch.Add(nextOf(first), -c.QueueSize)
	for i := range c.QueueSize {
		ch.slots[index%uint32(c.QueueSize)].Store(uint64(index)<<32 | nobody<<messageBits | uint64(i))
		index = ch.Add(index, 1)
	}
	for i := range c.QueueSize + c.Publishers {
		ch.message(uint32(i))[0].Store(uint64(Nothing))
	}
	for i := range c.Publishers {
		line := ch.line(i)
		line[lineScratch].Store(uint64(c.QueueSize + i))
		line[lineReplaced].Store(noSlot)
	}
	return ch, nil
}

// Open returns the channel that Create laid out in the same memory with the
// same Config. It is an error that the Config is out of its ranges, or mem too short.
func Open(mem []byte, c Config) (*Channel, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if len(mem) < c.Size() {
		return nil, fmt.Errorf("channel: %d bytes of memory, and it takes %d", len(mem), c.Size())
	}
	return &Channel{
		Config: c, mem: mem[:c.Size()],
		word:  linux.Uint32At(mem, 0),
		slots: linux.Uint64sAt(mem, c.slotsOffset(), c.QueueSize),
	}, nil
}

// The words of a publisher's line.
const (
	lineScratch  = 0 // how many it has had << 32 | its scratch message
	lineReplaced = 1 // the slot's value that its publish under way replaces, or noSlot
	lineOwner    = 2 // who publishes here, 0 if nobody
	lineWords    = 3
)

func (ch *Channel) line(i int) []atomic.Uint64 {
	return linux.Uint64sAt(ch.mem, lineSize*(1+i), lineWords)
}

func (ch *Channel) message(i uint32) []atomic.Uint64 {
	return linux.Uint64sAt(ch.mem, ch.messagesOffset()+int(i)*ch.messageSize(),
		wordsFixed+stampSize/8+ch.payloadWords())
}

// Word returns the futex word.
func (ch *Channel) Word() *atomic.Uint32 { return ch.word }

// nextOf is the queue index that a word's value stands for.
func nextOf(word uint32) uint32 {
	if word == Nothing {
		return 0
	}
	return word
}

// Add returns the queue index n after index, or before it where n is negative; n
// must be less than 2^31 either way.
func (ch *Channel) Add(index uint32, n int) uint32 {
	w := int64(ch.Wrap())
	return uint32((int64(index) + int64(n) + w) % w)
}

// Distance returns how many messages were published between two values of the
// word, from being the earlier one.
func (ch *Channel) Distance(from, to uint32) uint32 {
	return distance(nextOf(from), nextOf(to), ch.Wrap())
}

// distance is how many queue indexes lie from one to another, which wrap.
func distance(from, to, wrap uint32) uint32 {
	if to >= from {
		return to - from
	}
	return wrap - from + to
}

// Message is what a publisher sends besides its payload.
type Message struct {
	Published int64  // ns: when Publish was called
	Scheduled int64  // ns: when it was to be called
	Sequence  uint64 // the publisher's own count
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Publisher sends messages on a channel. It belongs to one thread.
type Publisher struct {
	stepper
	ch      *Channel
	number  int
	line    []atomic.Uint64
	scratch uint64 // as in the line
	buf     []byte
}

// Claim makes the caller the channel's i-th publisher, 0 <= i < Config.Publishers.
// owner is not 0 and names the caller among all processes that ever were; alive says
// whether another owner can still publish. The place of one that cannot, wherever in
// Publish it died, is taken over with its scratch message. wake is true then: it may
// have moved the word, even for another one, and not have woken it, so the caller must. It is an error that another
// owner holds the place.
func (ch *Channel) Claim(i int, owner uint64, alive func(owner uint64) bool) (p *Publisher, wake bool, err error) {
	p = &Publisher{ch: ch, number: i, line: ch.line(i), buf: make([]byte, stampSize+8*ch.payloadWords())}
	was := p.line[lineOwner].Load()
	if was != 0 && alive(was) {
		return nil, false, fmt.Errorf("publisher %d of the channel is taken by process %d", i, was>>32)
	}
	if !p.cas(StepOwner, &p.line[lineOwner], was, owner) {
		return nil, false, fmt.Errorf("publisher %d of the channel was taken a moment ago", i)
	}
	p.takeOver()
	return p, was != 0, nil
}

// Release gives the publisher's place up in order.
func (p *Publisher) Release() { p.line[lineOwner].Store(0) }

// takeOver finds the scratch message of a publisher that died anywhere in Publish, and
// does what it had left undone, but for the wake.
func (p *Publisher) takeOver() {
	replaced := p.line[lineReplaced].Load()
	if replaced == noSlot {
		p.scratch = p.line[lineScratch].Load()
		return
	}
	// It died between noting what to replace and being done. Its message is published
	// if it stands in its slot: nobody replaces it there before the line has another.
	index := p.ch.Add(indexOf(replaced), p.ch.QueueSize)
	slot := &p.ch.slots[index%uint32(p.ch.QueueSize)]
	for {
		p.scratch = p.load(StepLine, &p.line[lineScratch])
		p.ch.complete(&p.stepper, slot, p.slotValue(index))
		if p.load(StepLine, &p.line[lineScratch]) == p.scratch {
			break
		}
	}
	p.store(StepDone, &p.line[lineReplaced], noSlot)
	p.help()
}

// complete brings the line of a message's publisher up to date, if the slot still has
// the message and the line still names it as scratch message: the publisher was stopped,
// or died, between the two. It is what the publisher does itself next, if it lives.
func (ch *Channel) complete(s *stepper, slot *atomic.Uint64, value uint64) {
	line := ch.line(publisherOf(value))
	scratch := s.load(StepLine, &line[lineScratch])
	if messageOf(scratch) != messageOf(value) {
		return
	}
	// The publisher may own the message again, by having replaced it. Only while the
	// slot has it do line and note belong to this publish.
	replaced := s.load(StepNote, &line[lineReplaced])
	if s.load(StepSlot, slot) == value {
		s.cas(StepScratch, &line[lineScratch], scratch, successor(scratch, replaced))
	}
}

// successor is what a line has for its scratch message after an exchange; it counts,
// so that it never has the same value again.
func successor(scratch, replaced uint64) uint64 {
	return (scratch>>32+1)<<32 | uint64(messageOf(replaced))
}

// help moves the word on where a message stands in its slot already.
func (p *Publisher) help() {
	ch := p.ch
	for {
		word := p.load32(StepWord, ch.word)
		next := nextOf(word)
		if indexOf(p.load(StepSlot, &ch.slots[next%uint32(ch.QueueSize)])) != next {
			return
		}
		p.cas32(StepHelp, ch.word, word, ch.Add(next, 1))
	}
}

// slotValue is what the publisher puts into a slot.
func (p *Publisher) slotValue(index uint32) uint64 {
	return uint64(index)<<32 | uint64(p.number)<<messageBits | uint64(messageOf(p.scratch))
}

// Payload is where the next message's payload is written before Publish; it
// keeps what was there.
func (p *Publisher) Payload() []byte { return p.buf[stampSize : stampSize+p.ch.MaxSize] }

// Publish sends the payload and m. It never blocks and does not allocate. It
// returns true where it moved the word: then its caller must wake the word.
func (p *Publisher) Publish(m Message) (moved bool) {
	ch := p.ch
	binary.NativeEndian.PutUint64(p.buf, uint64(m.Published))
	binary.NativeEndian.PutUint64(p.buf[8:], uint64(m.Scheduled))
	binary.NativeEndian.PutUint64(p.buf[16:], m.Sequence)
	msg := ch.message(messageOf(p.scratch))
	// A reader that still copies what this message was must see it go first (invariant 3).
	p.store(StepInvalidate, &msg[0], uint64(Nothing))
	p.store(StepSum, &msg[1], uint64(crc32.Checksum(p.buf, castagnoli)))
	for i := range msg[wordsFixed:] {
		p.store(StepBody, &msg[wordsFixed+i], binary.NativeEndian.Uint64(p.buf[8*i:]))
	}
	for {
		word := p.load32(StepWord, ch.word)
		next := nextOf(word)
		slot := &ch.slots[next%uint32(ch.QueueSize)]
		old := p.load(StepSlot, slot)
		switch indexOf(old) {
		case next: // taken, and its publisher has not moved the word yet (invariants 6 and 7)
			if p.cas32(StepHelp, ch.word, word, ch.Add(next, 1)) {
				moved = true
			}
			continue
		case ch.Add(next, -ch.QueueSize): // free: the message of the lap before
		default: // the word moved on since it was loaded
			continue
		}
		p.store(StepReplaced, &p.line[lineReplaced], old)
		p.store(StepIndex, &msg[0], uint64(next))
		// The message to be replaced may still stand in the line of its publisher, who
		// was stopped, or died, a lap ago. It must not be in two places (invariant 4).
		if q := publisherOf(old); q != p.number && q != nobody {
			ch.complete(&p.stepper, slot, old)
		}
		if !p.cas(StepPublish, slot, old, p.slotValue(next)) { // invariants 2 and 4
			continue
		}
		if p.cas32(StepMove, ch.word, word, ch.Add(next, 1)) { // invariant 1
			moved = true
		}
		scratch := p.scratch
		p.scratch = successor(scratch, old)
		p.cas(StepScratch, &p.line[lineScratch], scratch, p.scratch) // unless another did
		p.store(StepDone, &p.line[lineReplaced], noSlot)
		return moved
	}
}

// Prefetch makes the cache lines of the next message this CPU's own, for who has time
// between two messages: their readers may have them still, and to take them back is most
// of what Publish does. It changes no value, so it is no step.
func (p *Publisher) Prefetch() {
	msg := p.ch.message(messageOf(p.scratch))
	msg[0].Add(0)
	msg[len(msg)-1].Add(0)
}

// Incoming is where a Reader puts a message; one can serve many readers.
type Incoming struct {
	size  int    // words of the message: its stamps and its payload
	lines []line // as they were copied: the message with its header
}

// line is a line of words, which are loaded one by one and atomically where they are shared.
type line [lineSize / 8]uint64

// NewIncoming returns room for a message of any of the channels.
func NewIncoming(channels ...*Channel) *Incoming {
	size := 0
	for _, ch := range channels {
		size = max(size, ch.messageSize()/lineSize)
	}
	return &Incoming{lines: make([]line, size)}
}

// Message is what came with the message besides its payload.
func (m *Incoming) Message() Message {
	w := m.lines[0][wordsFixed:]
	return Message{Published: int64(w[0]), Scheduled: int64(w[1]), Sequence: w[2]}
}

// Payload is the payload of the message, up to the next one that is put here.
func (m *Incoming) Payload(ch *Channel) []byte {
	return asBytes(m.lines)[headerSize+stampSize:][:ch.MaxSize]
}

// Whole says whether the message's checksum is right, which no fault of a publisher may
// change. Read does not look, so that who handles a message can do it when there is time.
func (m *Incoming) Whole() bool {
	return crc32.Checksum(asBytes(m.lines)[headerSize:][:8*m.size], castagnoli) == uint32(m.lines[0][1])
}

// Reader reads a channel's messages in order. It belongs to one thread. It holds
// all that Read needs, side by side: an event loop on many channels finds none of it
// in its cache.
type Reader struct {
	stepper
	word     *atomic.Uint32
	slots    []atomic.Uint64
	messages []line
	wrap     uint32
	next     uint32
	lines    uint32 // of a message
	after    uint32 // first line after the message that was read last
	size     int    // words of a message's stamps and payload
}

// Reader returns a reader of the messages published from now on.
func (ch *Channel) Reader() Reader {
	words := ch.messageSize() / 8 * (ch.QueueSize + ch.Publishers)
	return Reader{
		word: ch.word, slots: ch.slots, wrap: ch.Wrap(), next: nextOf(ch.word.Load()),
		messages: asLines(linux.Uint64sAt(ch.mem, ch.messagesOffset(), words)),
		lines:    uint32(ch.messageSize() / lineSize), size: stampSize/8 + ch.payloadWords(),
	}
}

// Word returns the channel's futex word.
func (r *Reader) Word() *atomic.Uint32 { return r.word }

// Skip moves on to the messages published from now on.
func (r *Reader) Skip() { r.next = nextOf(r.word.Load()) }

// Pending returns how many messages the reader is behind the value word of the
// channel's word.
func (r *Reader) Pending(word uint32) uint32 {
	return distance(r.next, nextOf(word), r.wrap)
}

// advance moves the reader on by n messages.
func (r *Reader) advance(n uint32) {
	if left := r.wrap - r.next; n >= left {
		r.next = n - left
	} else {
		r.next += n
	}
}

// expected is the first line of the message that the next slot is likely to name: a single
// publisher goes round all messages in the order in which they lie, and several nearly do.
func (r *Reader) expected() uint32 {
	if int(r.after) == len(r.messages) {
		return 0
	}
	return r.after
}

// Prefetch begins to bring the next message into the cache, while the caller does something
// else: its slot, and the message that this is expected to name, as to find out which it is
// would be to wait for one miss after the other. What it reads is not used: it is no step.
func (r *Reader) Prefetch() {
	r.slots[r.next&uint32(len(r.slots)-1)].Load()
	first := r.expected()
	atomic.LoadUint64(&r.messages[first][0])
	atomic.LoadUint64(&r.messages[first+r.lines-1][0])
}

// Outcome is what Read found.
type Outcome int

// A message was read; or one or more were overwritten before that.
const (
	Read Outcome = iota
	Overrun
)

// Read takes the next message and puts it into m, given how many messages the reader is behind a
// value of the channel's word (Pending), at least 1. It returns how many messages it moved on by:
// 1, or more where that many were overrun. It does not allocate.
//
//go:nosplit
func (r *Reader) Read(behind uint32, m *Incoming) (Outcome, uint32) {
	size := uint32(len(r.slots))
	if behind > size {
		r.advance(behind - size)
		return Overrun, behind - size
	}
	index := r.next
	r.advance(1)
	slot := r.load(StepReadSlot, &r.slots[index&(size-1)])
	if indexOf(slot) != index {
		return Overrun, 1
	}
	first := messageOf(slot) * r.lines
	r.after = first + r.lines
	for i := range r.lines {
		r.copyLine(&m.lines[i], &r.messages[first+i])
	}
	// Invariant 5: the queue index was copied first, and is looked at again last.
	if uint32(m.lines[0][0]) != index || uint32(r.loadFirst(StepReadAgain, &r.messages[first])) != index {
		return Overrun, 1
	}
	m.size = r.size
	return Read, 1
}
