// Package channel is a lock-free queue of messages in shared memory with one
// futex word, its queue index, in the manner of AOS: publishers in any number of
// processes, readers that never write, and nobody who waits for anybody.
//
// # Memory
//
//	word      64 B  queue index (futex word)            publishers, by CAS
//	lines     64 B  a publisher: scratch, replaced      that publisher
//	slots      8 B  each: queue index << 32 | message   publishers, by CAS
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
// all of it proves that.
//
// Go's atomics are sequentially consistent, which the order of these stores
// relies on; plain stores would do on amd64 only.
package channel

import (
	"encoding/binary"
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

// Config says how large a channel is. MaxSize is the payload in bytes, 8 to 65536;
// QueueSize the number of messages, a power of two, 2 to 2^20; Publishers how many
// may publish, at least 1; Start the queue index of the first message (0 unless a
// test is about the wrap).
type Config struct {
	MaxSize, QueueSize, Publishers int
	Start                          uint32
}

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

// wrap is where queue indexes start again at 0.
func (c Config) wrap() uint32 { return uint32(1<<32 - int64(c.QueueSize)) }

// Channel is one process's view of a channel. All methods may be called from
// any thread.
type Channel struct {
	Config
	mem   []byte
	word  *atomic.Uint32
	slots []atomic.Uint64
}

// Create lays out an empty channel in mem, which is zeroed and at least Size bytes
// of shared mapping, before any process opens it.
func Create(mem []byte, c Config) *Channel {
	ch := Open(mem, c)
	first := Nothing
	if c.Start != 0 {
		first = c.Start % c.wrap()
	}
	ch.word.Store(first)
	// Every slot names a message of the lap before, as if it had been published.
	index := ch.Add(ch.next(first), -c.QueueSize)
	for i := range c.QueueSize {
		ch.slots[index%uint32(c.QueueSize)].Store(uint64(index)<<32 | uint64(i))
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
	return ch
}

// Open returns the channel that Create laid out in the same memory with the
// same Config.
func Open(mem []byte, c Config) *Channel {
	return &Channel{
		Config: c, mem: mem[:c.Size()],
		word:  linux.Uint32At(mem, 0),
		slots: linux.Uint64sAt(mem, c.slotsOffset(), c.QueueSize),
	}
}

// The words of a publisher's line.
const (
	lineScratch  = 0 // its scratch message
	lineReplaced = 1 // the slot's value that its publish under way replaces, or noSlot
	lineWords    = 2
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

// next is the queue index that a word's value stands for.
func (ch *Channel) next(word uint32) uint32 {
	if word == Nothing {
		return 0
	}
	return word
}

// Add returns the queue index n after index, or before it where n is negative; n
// must be less than 2^31 either way.
func (ch *Channel) Add(index uint32, n int) uint32 {
	w := int64(ch.wrap())
	return uint32((int64(index) + int64(n) + w) % w)
}

// Distance returns how many messages were published between two values of the
// word, from being the earlier one.
func (ch *Channel) Distance(from, to uint32) uint32 {
	from, to = ch.next(from), ch.next(to)
	if to >= from {
		return to - from
	}
	return ch.wrap() - from + to
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
	ch      *Channel
	line    []atomic.Uint64
	scratch uint32
	buf     []byte
}

// Publisher returns the channel's i-th publisher, 0 <= i < Config.Publishers. Two
// must never use the same i at a time.
func (ch *Channel) Publisher(i int) *Publisher {
	line := ch.line(i)
	return &Publisher{
		ch: ch, line: line, scratch: uint32(line[lineScratch].Load()),
		buf: make([]byte, stampSize+8*ch.payloadWords()),
	}
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
	msg := ch.message(p.scratch)
	// A reader that still copies what this message was must see it go first.
	msg[0].Store(uint64(Nothing))
	msg[1].Store(uint64(crc32.Checksum(p.buf, castagnoli)))
	for i := range msg[wordsFixed:] {
		msg[wordsFixed+i].Store(binary.NativeEndian.Uint64(p.buf[8*i:]))
	}
	for {
		word := ch.word.Load()
		next := ch.next(word)
		slot := &ch.slots[next%uint32(ch.QueueSize)]
		old := slot.Load()
		switch uint32(old >> 32) {
		case next: // taken, and its publisher has not moved the word yet
			if ch.word.CompareAndSwap(word, ch.Add(next, 1)) {
				moved = true
			}
			continue
		case ch.Add(next, -ch.QueueSize): // free: the message of the lap before
		default: // the word moved on since it was loaded
			continue
		}
		p.line[lineReplaced].Store(old)
		msg[0].Store(uint64(next))
		if !slot.CompareAndSwap(old, uint64(next)<<32|uint64(p.scratch)) {
			continue
		}
		if ch.word.CompareAndSwap(word, ch.Add(next, 1)) {
			moved = true
		}
		p.scratch = uint32(old)
		p.line[lineScratch].Store(uint64(p.scratch))
		p.line[lineReplaced].Store(noSlot)
		return moved
	}
}

// Incoming is where a Reader puts a message; one can serve many readers.
type Incoming struct {
	Message
	buf []byte
}

// NewIncoming returns room for a message of any of the channels.
func NewIncoming(channels ...*Channel) *Incoming {
	size := 0
	for _, ch := range channels {
		size = max(size, stampSize+8*ch.payloadWords())
	}
	return &Incoming{buf: make([]byte, size)}
}

// Payload is the payload of the message, up to the next one that is put here.
func (m *Incoming) Payload(ch *Channel) []byte { return m.buf[stampSize : stampSize+ch.MaxSize] }

// Reader reads a channel's messages in order. It belongs to one thread. It holds
// all that Read needs, side by side: an event loop on many channels finds none of it
// in its cache.
type Reader struct {
	word     *atomic.Uint32
	slots    []atomic.Uint64
	messages []atomic.Uint64
	wrap     uint32
	next     uint32
	stride   uint32 // words from a message to the next
	words    uint32 // of a message
}

// Reader returns a reader of the messages published from now on.
func (ch *Channel) Reader() Reader {
	stride := ch.messageSize() / 8
	return Reader{
		word: ch.word, slots: ch.slots, wrap: ch.wrap(), next: ch.next(ch.word.Load()),
		messages: linux.Uint64sAt(ch.mem, ch.messagesOffset(), stride*(ch.QueueSize+ch.Publishers)),
		stride:   uint32(stride), words: uint32(wordsFixed + stampSize/8 + ch.payloadWords()),
	}
}

// Word returns the channel's futex word.
func (r *Reader) Word() *atomic.Uint32 { return r.word }

// Skip moves on to the messages published from now on.
func (r *Reader) Skip() {
	if r.next = r.word.Load(); r.next == Nothing {
		r.next = 0
	}
}

// Pending returns how many messages the reader is behind the value word of the
// channel's word.
func (r *Reader) Pending(word uint32) uint32 {
	switch {
	case word == Nothing:
		return 0
	case word < r.next:
		return r.wrap - r.next + word
	}
	return word - r.next
}

// advance moves the reader on by n, at most the queue's size.
func (r *Reader) advance(n uint32) {
	if left := r.wrap - r.next; n >= left {
		r.next = n - left
	} else {
		r.next += n
	}
}

// Outcome is what Read found.
type Outcome int

// A message was read whole; or one or more were overwritten before that; or one
// was read whose checksum is wrong, which no fault of a publisher may cause.
const (
	Read Outcome = iota
	Overrun
	Corrupt
)

// Read takes the next message, given a value of the channel's word that the
// reader is behind, and puts it into m. It returns how many messages it moved on by:
// 1, or more where that many were overrun. It does not allocate.
func (r *Reader) Read(word uint32, m *Incoming) (Outcome, uint32) {
	size := uint32(len(r.slots))
	if behind := r.Pending(word); behind > size {
		r.advance(behind - size)
		return Overrun, behind - size
	}
	index := r.next
	r.advance(1)
	slot := r.slots[index&(size-1)].Load()
	if uint32(slot>>32) != index {
		return Overrun, 1
	}
	first := uint32(slot) * r.stride
	msg := r.messages[first : first+r.words]
	if uint32(msg[0].Load()) != index {
		return Overrun, 1
	}
	sum := uint32(msg[1].Load())
	body := msg[wordsFixed:]
	buf := m.buf[:8*len(body)]
	for i := range body {
		binary.NativeEndian.PutUint64(buf[8*i:], body[i].Load())
	}
	if uint32(msg[0].Load()) != index {
		return Overrun, 1
	}
	if crc32.Checksum(buf, castagnoli) != sum {
		return Corrupt, 1
	}
	m.Published = int64(binary.NativeEndian.Uint64(buf))
	m.Scheduled = int64(binary.NativeEndian.Uint64(buf[8:]))
	m.Sequence = binary.NativeEndian.Uint64(buf[16:])
	return Read, 1
}
