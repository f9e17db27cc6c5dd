package scenarios_test

import (
	"fmt"

	"aossim/scenarios"
)

func ExampleParse() {
	_, err := scenarios.Parse("robot.toml", []byte(`
[[channel]]
name = "/imu"

[[publisher]]
channel = "/imu"
rate = "2"
`))
	fmt.Println(err)
	// Output: robot.toml:7:8: rate: "2" is no rate; write one with its unit, such as "2kHz"
}
