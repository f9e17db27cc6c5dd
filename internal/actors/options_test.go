package actors

import (
	"slices"
	"testing"
)

func TestCPUs(t *testing.T) {
	for text, cpus := range map[string][]int{"0": {0}, "0-2,5": {0, 1, 2, 5}, "3,1": {1, 3}} {
		got, err := ParseCPUs(text)
		if err != nil || !slices.Equal(got, cpus) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got := FormatCPUs([]int{0, 1, 2, 5, 7, 8}); got != "0-2,5,7-8" {
		t.Errorf("got %q", got)
	}
	for _, text := range []string{"", "a", "1-", "2-1", "-1", "0-99999"} {
		if got, err := ParseCPUs(text); err == nil {
			t.Errorf("%q was taken for %v", text, got)
		}
	}
}
