package check_test

import (
	"os"

	"aossim/internal/check"
)

func Example() {
	found := check.Run(40)
	_ = found.Text(os.Stdout)
}
