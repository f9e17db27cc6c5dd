package vm_test

import (
	"context"
	"fmt"
	"time"

	"aossim/internal/vm"
)

// A boot in which this program, as init, runs one of its own commands.
func Example() {
	m, err := vm.New(context.Background(), vm.Options{Memory: "1G", Timeout: time.Minute}, []string{"bzImage"})
	if err != nil {
		panic(err)
	}
	defer m.Close()
	boot, err := m.Run(context.Background(), "bzImage", 2, [][]string{{"check", "--json"}}, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(boot.Outputs[0].Exit)
}
