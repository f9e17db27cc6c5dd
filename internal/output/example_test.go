package output_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"aossim/internal/output"
)

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	to, err := output.Open(filepath.Join(dir, "result.json")) // before anything is measured
	if err != nil {
		panic(err)
	}
	path, err := to.Save(func(w io.Writer) error { _, err := io.WriteString(w, "{}"); return err })
	fmt.Println(filepath.Base(path), err)
	// Output: result.json <nil>
}
