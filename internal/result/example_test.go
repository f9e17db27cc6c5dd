package result_test

import (
	"fmt"

	"aossim/internal/result"
)

// A percentile that rests on chance is none.
func ExampleHistogram_Percentile() {
	h := result.NewHistogram(result.Highest)
	for v := range int64(1000) {
		h.Record(v)
	}
	fmt.Println(h.Percentile(50))
	fmt.Println(h.Percentile(99.9))
	// Output:
	// 499 true
	// 0 false
}
