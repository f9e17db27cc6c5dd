//go:build !steps

package channel

import (
	"os/exec"
	"testing"
)

// TestWithSteps runs the tests that stop, interleave and kill at every access to shared
// memory; they need a build of this package that has those steps.
func TestWithSteps(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command to build this package with steps")
	}
	// It waits for the machine as long as other packages have it (linuxtest.Main).
	out, err := exec.CommandContext(t.Context(), tool, "test", "-tags", "steps", "-timeout", "20m", "-run", "Interleavings|Death", ".").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
