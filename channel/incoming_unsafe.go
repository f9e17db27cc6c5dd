package channel

import (
	"sync/atomic"
	"unsafe"
)

// asBytes returns the same memory as bytes.
func asBytes(lines []line) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(lines))), lineSize*len(lines))
}

// asLines returns the same memory as lines, whole ones.
func asLines(words []atomic.Uint64) []line {
	return unsafe.Slice((*line)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words)/lineSize)
}
