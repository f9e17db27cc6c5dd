package question

import (
	"errors"
	"fmt"

	"aossim/internal/linux"
)

// privateHash is whether the process has a hash of its own for private futexes (Linux 6.16).
var privateHash = question{"process-private futex hash", func(*lab) (string, string) {
	slots, err := linux.FutexHashSlots()
	switch {
	case errors.Is(err, linux.ErrInvalid):
		return "not there", fmt.Sprintf("prctl(PR_FUTEX_HASH, GET_SLOTS): %s (it came with Linux 6.16, CONFIG_FUTEX_PRIVATE_HASH)", err)
	case err != nil:
		return Unknown, fmt.Sprintf("prctl(PR_FUTEX_HASH, GET_SLOTS): %s", err)
	}
	return "there", fmt.Sprintf("%d slots in this process now", slots)
}}
