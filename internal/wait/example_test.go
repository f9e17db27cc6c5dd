package wait_test

import (
	"fmt"

	"aossim/internal/wait"
)

func ExampleNamed() {
	k, known := wait.Named("io_uring_waitv")
	fmt.Println(known, k.Ring(), k.Observable(), k.MaxChannels)
	_, known = wait.Named("poll")
	fmt.Println(known)
	// Output:
	// true true true 128
	// false
}
