package micro_test

import (
	"context"
	"fmt"

	"aossim/internal/micro"
	"aossim/scenarios"
)

// From a scenario to its figures. It starts this program anew, which must be one that calls
// ActorMain for ActorCommand.
func Example() {
	s, err := scenarios.Open("scalar")
	if err != nil {
		panic(err)
	}
	plan, err := micro.Prepare(s, micro.Options{Rounds: 3})
	if err != nil {
		panic(err)
	}
	r, err := plan.Run(context.Background())
	if err != nil {
		panic(err)
	}
	for _, m := range r.Runs[0].Micro {
		fmt.Printf("%s: %.1f %s\n", m.Name, m.Median, m.Unit)
	}
}
