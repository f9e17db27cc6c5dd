package linux_test

import (
	"slices"
	"testing"

	"aossim/internal/linux"
)

func TestCPUs(t *testing.T) {
	for text, cpus := range map[string][]int{"0": {0}, "0-2,5": {0, 1, 2, 5}, "3,1": {1, 3}} {
		got, err := linux.ParseCPUs(text)
		if err != nil || !slices.Equal(got, cpus) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got := linux.FormatCPUs([]int{0, 1, 2, 5, 7, 8}); got != "0-2,5,7-8" {
		t.Errorf("got %q", got)
	}
	for _, text := range []string{"", "a", "1-", "2-1", "-1", "0-99999"} {
		if got, err := linux.ParseCPUs(text); err == nil {
			t.Errorf("%q was taken for %v", text, got)
		}
	}
}
