package profile

import (
	"encoding/json"
	"fmt"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// PortName is the name of the virtio-serial port by which a guest asks its host to trace.
const PortName = "aossim.profile"

// Ask is what it asks, or says.
type Ask struct {
	Scenario string `json:"scenario,omitempty"`
	Point    string `json:"point,omitempty"`
	Done     bool   `json:"done,omitempty"` // the round that it asked for is
}

// Tracing is a round that the host of this guest is to trace.
type Tracing struct {
	port      *linux.Port
	ask, done []byte
}

// NewTracing finds out whether there is such a host. Its error wraps refusal.ErrCannot.
func NewTracing(a Ask) (*Tracing, error) {
	port, err := linux.OpenPort(PortName)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; a profile is made by aossim vm --profile", refusal.ErrCannot, err)
	}
	ask, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	done, err := json.Marshal(Ask{Done: true})
	return &Tracing{port, ask, done}, err
}

// Begin returns when the host traces. The thread may be pinned.
func (t *Tracing) Begin() error {
	if _, err := t.port.Write(t.ask); err != nil {
		return err
	}
	var answer [64]byte
	if _, err := t.port.Read(answer[:]); err != nil {
		return fmt.Errorf("the host does not trace: %w", err)
	}
	return nil
}

// End says that the round is done. The thread may be pinned.
func (t *Tracing) End() error {
	_, err := t.port.Write(t.done)
	return err
}

// Close lets go of the host.
func (t *Tracing) Close() error { return t.port.Close() }
