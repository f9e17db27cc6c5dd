package question

import (
	"fmt"
	"strconv"

	"aossim/internal/observe"
)

// dataSize is how large struct io_futex_data is, by what arming a FUTEX_WAIT allocated.
var dataSize = question{"size of io_futex_data, bytes", func(l *lab) (string, string) {
	for _, s := range l.arming {
		if s.Operation != observe.Kfree {
			return strconv.FormatInt(s.Size, 10), fmt.Sprintf("%s of %d bytes, given %d, at %s", s.Operation, s.Size, s.Room, s.Function)
		}
	}
	if l.observer == nil {
		return unknown(l.why)
	}
	return Unknown, "no allocation was seen while waits were armed"
}}
