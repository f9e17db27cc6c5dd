package observe_test

import (
	"fmt"
	"runtime"

	"aossim/internal/linux"
	"aossim/internal/observe"
)

// What the kernel did for the calling thread.
func Example() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o, err := observe.Start([]observe.Watched{{ThreadID: linux.ThreadID()}})
	if err != nil {
		panic(err)
	}
	defer o.Close()
	before, err := o.Snapshot()
	if err != nil {
		panic(err)
	}
	// Here it arms waits.
	after, err := o.Snapshot()
	if err != nil {
		panic(err)
	}
	threads, sites := after.Since(before)
	fmt.Println(threads[0].Arms, threads[0].Failed, len(sites))
}
