package report_test

import (
	"os"

	"aossim/internal/report"
	"aossim/internal/result"
)

func ExampleKTAP() {
	r := &result.Result{Scenario: result.Scenario{Name: "pair"}, Runs: []result.Run{{Checks: []result.Check{{Name: "accounts", Pass: true, Detail: "20000 messages"}}}}}
	if err := report.KTAP(os.Stdout, r); err != nil {
		panic(err)
	}
	// Output:
	// KTAP version 1
	// 1..1
	//   KTAP version 1
	//   # Subtest: pair run 1
	//   1..1
	//   ok 1 accounts # detail="20000 messages"
	// ok 1 pair run 1
}
