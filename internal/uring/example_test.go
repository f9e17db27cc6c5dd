package uring_test

import (
	"fmt"
	"os"
	"runtime"

	"aossim/internal/linux"
	"aossim/internal/uring"
)

// An arm on a word that has moved on fails inline.
func Example() {
	runtime.LockOSThread() // a ring is its thread's
	defer runtime.UnlockOSThread()
	r, err := uring.Setup(8, 8, 0)
	if err != nil {
		panic(err)
	}
	defer r.Close()
	mem, err := linux.MapAnonymous(os.Getpagesize())
	if err != nil {
		panic(err)
	}
	defer linux.Unmap(mem)
	word := linux.Uint32At(mem, 0)
	word.Store(1)
	r.Push(uring.FutexWait(linux.WordAddress(word), 0, linux.MatchAny, uring.WordFlags(linux.Private), 7))
	if e := r.Enter(1, uring.GetEvents); e != 0 {
		panic(e)
	}
	c, ok := r.Next()
	fmt.Println(ok, c.UserData, c.Errno() == linux.EAGAIN)
	// Output: true 7 true
}
