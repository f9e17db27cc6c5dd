package actors

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"aossim/internal/limits"
	"aossim/internal/linux"
	"aossim/internal/machine"
	"aossim/internal/refusal"
)

// Kind says what signals a process hears.
type Kind int

// It measures, and it makes load, and both hear none; it runs programs of the
// user's, and is asked by SIGTERM to end them, also when the controller dies.
const (
	Measuring Kind = iota
	Loading
	Gentle
)

// death is the signal by which the kernel says that the controller died.
func (k Kind) death() linux.Signal {
	if k == Gentle {
		return linux.Terminate
	}
	return linux.Kill
}

// ErrTimeout is returned by Hear where there was no answer in time.
var ErrTimeout = errors.New("no answer in time")

// Process is an actor process as the controller has it. Its methods may be called from any
// thread, Tell and Hear from one at a time.
type Process struct {
	Name    string // in errors, such as: group "real-time"
	kind    Kind
	cmd     *exec.Cmd
	in      io.WriteCloser
	stderr  bytes.Buffer
	answers chan answer
	ordered chan struct{} // closed when it has its orders
	gone    atomic.Bool   // it was reaped: its number may be another's
	killed  atomic.Bool   // by this program
}

// Start starts this program with a first argument and orders, with a P for each of so many
// threads while they block and a few for the runtime, and without the signal by which the
// scheduler preempts, as that would interrupt system calls. The calling thread must be locked and stay
// until the process is gone (linux.TieToParent). files are inherited from number 3 on.
func Start(name, argument string, kind Kind, threads int, body any, files ...*os.File) (*Process, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	p := &Process{Name: name, kind: kind, cmd: exec.Command("/proc/self/exe", argument), answers: make(chan answer), ordered: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", threads+4),
		"GODEBUG="+strings.TrimPrefix(os.Getenv("GODEBUG")+",asyncpreemptoff=1", ","))
	linux.TieToParent(p.cmd, kind.death())
	p.cmd.Stderr, p.cmd.ExtraFiles, p.cmd.WaitDelay = &p.stderr, files, time.Second
	in, theirs, err := linux.SocketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p.in, p.cmd.Stdin = in, theirs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	start := p.cmd.Start
	if machine.Virtual() {
		start = func() error { return linux.StartAlike(p.cmd) }
	}
	if err := start(); err != nil {
		in.Close()
		return nil, fmt.Errorf("%s: starting its process: %w", name, err)
	}
	go p.listen(out)
	go func() { // a plan may be more than a pipe holds, and the process take its time
		defer close(p.ordered)
		p.tell(orders{os.Getpid(), kind, data})
	}()
	return p, nil
}

// listen takes the answers, and then the process's end.
func (p *Process) listen(out io.Reader) {
	defer close(p.answers)
	for d := json.NewDecoder(out); ; {
		var a answer
		if d.Decode(&a) != nil {
			break
		}
		p.answers <- a
	}
	_, _ = io.Copy(io.Discard, out)
	_ = p.cmd.Wait() // its state says how it ended
	p.gone.Store(true)
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// tell writes a value. A process that is gone says why, or how it ended, when it is heard.
func (p *Process) tell(v any) { _ = json.NewEncoder(p.in).Encode(v) }

// Tell gives the process a command.
func (p *Process) Tell(command any) {
	<-p.ordered
	p.tell(command)
}

// Hear waits for the next answer. Its error is the process's own, which wraps
// refusal.ErrCannot where that is what it is; ctx's; ErrTimeout; or that the process ended.
func (p *Process) Hear(ctx context.Context, limit time.Duration, body any) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a, ok := <-p.answers:
		switch {
		case !ok:
			return fmt.Errorf("%s: its process ended before its time: %s%s", p.Name, p.howEnded(), p.said())
		case a.Cannot:
			return fmt.Errorf("%s %w: %s", p.Name, refusal.ErrCannot, a.Error)
		case a.Error != "":
			return fmt.Errorf("%s: %s", p.Name, a.Error)
		}
		return json.Unmarshal(a.Body, body)
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("%s: %w", p.Name, ErrTimeout)
	}
}

// Kill ends the process and its group at once; one that runs programs of the user's is asked
// to, as only it knows their process groups. It does nothing but system calls: the watchdog
// uses it when there is no CPU for anything else.
func (p *Process) Kill() {
	p.killed.Store(true)
	if p.kind != Gentle {
		p.KillNow()
	} else if !p.gone.Load() {
		linux.TerminateGroup(p.cmd)
	}
}

// KillNow is Kill for a process that had its time to end its programs.
func (p *Process) KillNow() {
	p.killed.Store(true)
	if !p.gone.Load() {
		linux.KillGroup(p.cmd)
	}
}

// End waits until the process is gone, and ends it where that takes longer than patience. Its
// error is that the process ended badly after it had said its last, and not by this program.
func (p *Process) End(patience time.Duration) error {
	force := time.AfterFunc(patience, p.KillNow)
	defer force.Stop()
	<-p.ordered
	p.in.Close()
	for range p.answers {
	}
	if state := p.cmd.ProcessState; !p.killed.Load() && !state.Success() {
		return fmt.Errorf("%s: its process: %s%s", p.Name, p.howEnded(), p.said())
	}
	return nil
}

// howEnded is how the process ended, and the limit that may have done it.
func (p *Process) howEnded() string {
	how := linux.DescribeExit(p.cmd.ProcessState)
	if l := limits.Read().Of(limits.RTTime); l != nil && !p.killed.Load() && linux.WasKilled(p.cmd.ProcessState) {
		how += fmt.Sprintf(" (the kernel does that to a real-time thread that runs for longer than %s without sleeping; ulimit -R unlimited)", l)
	}
	return how
}

// said is the begin of what the process wrote to its standard error, once it is gone, to stand
// behind an error's text.
func (p *Process) said() string {
	const most = 1000
	// The Go runtime says first why it ends a process, and then shows its stacks.
	text, _, _ := strings.Cut(p.stderr.String(), "goroutine ")
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return ": " + text[:min(len(text), most)]
}
