package compare_test

import (
	"fmt"

	"aossim/internal/compare"
	"aossim/internal/result"
)

func Example() {
	rounds := func(values ...float64) []*result.Result {
		m := result.Micro{Name: "scalar", Unit: "ns/pair", Rounds: values, Spread: result.SpreadOf(values)}
		return []*result.Result{{Runs: []result.Run{{Micro: []result.Micro{m}}}}}
	}
	c, err := compare.Compare(rounds(100, 101, 102, 103, 104), rounds(120, 121, 122, 123, 124), rounds(100, 101, 102, 103, 104), compare.Options{})
	if err != nil {
		panic(err)
	}
	m := c.Metrics[0]
	fmt.Printf("%s: %+.1f %%, %s\n", m.Name, 100*m.Change, m.Verdict)
	// Output: scalar: +19.6 %, slower
}
