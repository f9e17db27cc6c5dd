package refusal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"aossim/internal/refusal"
)

func ExampleUsage() {
	err := refusal.Usage("--priority %d is not within 1..99", 100)
	fmt.Println(err)
	fmt.Println(errors.Is(err, refusal.ErrUsage), errors.Is(err, refusal.ErrCannot))
	// Output:
	// wrong usage: --priority 100 is not within 1..99
	// true false
}

// TestReasons: a reason is ErrCannot and no other reason; what is wrapped stays to be found.
func TestReasons(t *testing.T) {
	reasons := []error{refusal.ErrLacking, refusal.ErrForbidden, refusal.ErrUntried}
	for i, r := range reasons {
		err := fmt.Errorf("observing: %w", r)
		if !errors.Is(err, refusal.ErrCannot) || errors.Is(err, refusal.ErrUsage) {
			t.Errorf("%v: cannot %t, usage %t", err, errors.Is(err, refusal.ErrCannot), errors.Is(err, refusal.ErrUsage))
		}
		for j, o := range reasons {
			if errors.Is(err, o) != (i == j) {
				t.Errorf("%v is taken for %v", r, o)
			}
		}
	}
	if err := refusal.Cannot("reading: %w", fs.ErrNotExist); !errors.Is(err, refusal.ErrCannot) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if errors.Is(errors.New("a bug"), refusal.ErrCannot) {
		t.Error("a plain error was taken for a refusal")
	}
}
