package channel_test

import (
	"encoding/binary"
	"fmt"

	"aossim/channel"
	"aossim/internal/linux"
)

// A publisher and a reader of one process on a channel in a mapping that both have.
func Example() {
	config := channel.Config{MaxSize: 8, QueueSize: 4, Publishers: 1}
	mem, err := linux.MapAnonymousShared(config.Size())
	if err != nil {
		panic(err)
	}
	defer linux.Unmap(mem)
	ch, err := channel.Create(mem, config)
	if err != nil {
		panic(err)
	}
	publisher, _, err := ch.Claim(0, 1, func(uint64) bool { return true })
	if err != nil {
		panic(err)
	}
	reader, incoming := ch.Reader(), channel.NewIncoming(ch)

	binary.NativeEndian.PutUint64(publisher.Payload(), 42)
	moved := publisher.Publish(channel.Message{Published: linux.Now(), Sequence: 7})
	fmt.Println("the word moved, so its waiters must be woken:", moved)

	for word := ch.Word().Load(); reader.Pending(word) > 0; {
		if outcome, _ := reader.Read(reader.Pending(word), incoming); outcome == channel.Read {
			fmt.Println(incoming.Message().Sequence, binary.NativeEndian.Uint64(incoming.Payload(ch)), incoming.Whole())
		}
	}
	// Output:
	// the word moved, so its waiters must be woken: true
	// 7 42 true
}
