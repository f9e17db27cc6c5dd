package main

import (
	"fmt"
	"os"
	"path/filepath"

	"aossim/scenarios"
)

// readTraces reads those that the scenario's publishers play, so that the guest has them where the
// scenario names them.
func (t *task) readTraces() error {
	if err := t.ReadTraces(0); err != nil {
		return err
	}
	for i := range t.Publishers {
		p := &t.Publishers[i]
		if p.Arrival != scenarios.Traced {
			continue
		}
		if !filepath.IsLocal(p.Trace) {
			return t.Errorf("publisher", i, "trace", "%q does not lie in the scenario's folder or below, which is what the guest gets; put it there", p.Trace)
		}
		data, err := os.ReadFile(t.TracePath(p))
		if err != nil {
			return fmt.Errorf("reading a trace: %w", err)
		}
		if t.traces == nil {
			t.traces = map[string][]byte{}
		}
		t.traces[filepath.Clean(p.Trace)] = data
	}
	return nil
}
