package vm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"aossim/internal/linux"
	"aossim/internal/profile"
)

// Traced is what the CPU executed in a round of a point.
type Traced struct {
	Scenario, Point string
	Trace           profile.Trace
}

// Traces are those of a boot, and what it takes to follow them.
type Traces struct {
	Code    *profile.Code
	Symbols *profile.Symbols
	Rounds  []Traced
}

// tracer has QEMU log what the guest executes, one instruction after the other, when the guest
// says that a round begins.
type tracer struct {
	guest, monitor *linux.Socket
	replies        *json.Decoder // of monitor
	log            string        // QEMU's
	read           int64         // of it
	ended          chan error
	traces         Traces
}

// mostLog is how much of a round is traced (bytes, some 80 an instruction): rounds of which profiles
// are made have far less.
const mostLog = 256 << 20

// newTracer adds to a command of QEMU what a tracer needs, which listen begins.
func newTracer(cmd *exec.Cmd, dir, arch string) (*tracer, error) {
	t := &tracer{log: filepath.Join(dir, "trace"), ended: make(chan error, 1), traces: Traces{Code: profile.NewCode(arch)}}
	var err error
	pass := func(id string) *linux.Socket {
		ours, theirs, e := linux.SocketPair()
		if err = errors.Join(err, e); e != nil {
			return nil
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
		cmd.Args = append(cmd.Args, "-chardev", fmt.Sprintf("socket,id=%s,fd=%d", id, 2+len(cmd.ExtraFiles)))
		return ours
	}
	t.guest, t.monitor = pass("ask"), pass("monitor")
	cmd.Args = append(cmd.Args, "-device", "virtserialport,chardev=ask,name="+profile.PortName, "-mon", "chardev=monitor,mode=control", "-D", t.log)
	if err != nil {
		t.close()
		return nil, err
	}
	t.replies = json.NewDecoder(t.monitor)
	return t, nil
}

// close ends it, and what it waits for.
func (t *tracer) close() {
	for _, c := range []*linux.Socket{t.guest, t.monitor} {
		if c != nil {
			c.Close()
		}
	}
}

// listen does what the guest asks for, until QEMU has ended. It is to be called when QEMU has started,
// and is over when ended says how.
func (t *tracer) listen() {
	err := t.serve()
	t.close() // who still waits for an answer gets none
	t.ended <- err
}

func (t *tracer) serve() error {
	if err := t.execute("qmp_capabilities", nil); err != nil {
		return err
	}
	for asks := json.NewDecoder(t.guest); ; {
		var ask profile.Ask
		err := asks.Decode(&ask)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrClosed), errors.Is(err, linux.ECONNRESET):
			return nil // QEMU is gone, or is to go
		case err != nil:
			return fmt.Errorf("what the guest asks for: %w", err)
		case ask.Done:
			continue // it said so when nothing was traced any more
		}
		trace, err := t.trace(asks)
		if err != nil {
			return err
		}
		t.traces.Rounds = append(t.traces.Rounds, Traced{ask.Scenario, ask.Point, trace})
	}
}

// trace logs until there is enough, or the guest says that its round is done.
func (t *tracer) trace(asks *json.Decoder) (profile.Trace, error) {
	// First the log: it has an instruction's code only when it translates it.
	if err := t.monitorLine("log exec,in_asm,nochain"); err != nil {
		return nil, err
	}
	single := "one-insn-per-tb"
	if err := t.monitorLine(single + " on"); err != nil {
		single = "singlestep" // its name up to QEMU 8.0
		if old := t.monitorLine(single + " on"); old != nil {
			return nil, errors.Join(err, old)
		}
	}
	if err := json.NewEncoder(t.guest).Encode(struct{}{}); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		var ask profile.Ask
		err := asks.Decode(&ask)
		if err == nil && !ask.Done {
			err = errors.New("the guest began another round before the end of one")
		}
		done <- err
	}()
	var err error
	over := false
	traced := t.read
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !over && traced-t.read < mostLog {
		select {
		case err = <-done:
			over = true
		case <-look.C:
		}
		if info, e := os.Stat(t.log); e == nil {
			traced = info.Size()
		}
	}
	if e := errors.Join(t.monitorLine(single+" off"), t.monitorLine("log none")); err == nil {
		err = e
	}
	trace, e := t.logged(traced)
	if err == nil {
		err = e
	}
	if !over && err == nil { // the rest of the round is not traced
		err = <-done
	}
	return trace, err
}

// logged reads what was logged since the last time, and the trace up to a place in it.
func (t *tracer) logged(traced int64) (profile.Trace, error) {
	f, err := os.Open(t.log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	part := io.NewSectionReader(f, t.read, info.Size()-t.read)
	traced -= t.read
	t.read = info.Size()
	return t.traces.Code.Read(part, traced)
}

// monitorLine has QEMU do what a line of its monitor for people says, which answers nothing unless
// something is wrong.
func (t *tracer) monitorLine(line string) error {
	return t.execute("human-monitor-command", map[string]string{"command-line": line})
}

// execute has QEMU's monitor do something (docs/interop/qmp-spec.txt).
func (t *tracer) execute(command string, arguments map[string]string) error {
	type order struct {
		Execute   string            `json:"execute"`
		Arguments map[string]string `json:"arguments,omitempty"`
	}
	if err := json.NewEncoder(t.monitor).Encode(order{command, arguments}); err != nil {
		return err
	}
	for {
		var reply struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := t.replies.Decode(&reply); err != nil {
			return fmt.Errorf("QEMU's monitor: %w", err)
		}
		var said string
		switch _ = json.Unmarshal(reply.Return, &said); {
		case reply.Error != nil:
			return fmt.Errorf("QEMU's monitor: %s", reply.Error.Desc)
		case reply.Return == nil:
			continue // a greeting, or an event
		case strings.TrimSpace(said) != "":
			return fmt.Errorf("QEMU's monitor: %s", strings.TrimSpace(said))
		}
		return nil
	}
}

// symbols are those of the guest's kernel, as it sent them, and of the program.
func (t *tracer) symbols(kallsyms []byte, program string) error {
	if len(kallsyms) == 0 {
		return errors.New("the guest sent no symbols of its kernel")
	}
	var err error
	t.traces.Symbols, err = profile.NewSymbols(bytes.NewReader(kallsyms), program)
	return err
}
