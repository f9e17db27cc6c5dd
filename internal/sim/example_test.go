package sim_test

import (
	"context"
	"os"

	"aossim/internal/report"
	"aossim/internal/sim"
	"aossim/scenarios"
)

// From a scenario to a report. It starts this program anew, which must be one that calls
// ActorMain for ActorCommand.
func Example() {
	s, err := scenarios.Open("pair")
	if err != nil {
		panic(err)
	}
	plan, err := sim.Prepare(s, sim.Options{})
	if err != nil {
		panic(err)
	}
	r, err := plan.Run(context.Background())
	if err != nil {
		panic(err)
	}
	_ = report.Text(os.Stdout, r)
}
