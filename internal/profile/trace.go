package profile

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Code is what instructions a CPU of an architecture executed, by address: an emulator's log has each
// as it first meets it, so of code that patches itself the last.
type Code struct {
	arch string // as GOARCH has it
	at   map[uint64]instruction
}

// NewCode returns an empty one.
func NewCode(arch string) *Code { return &Code{arch, map[uint64]instruction{}} }

// Trace is the addresses of the instructions that one CPU executed, in order. Code has them all.
type Trace []uint64

// errOtherCPU is about a log of several CPUs.
var errOtherCPU = errors.New("another CPU than the first executed something")

// Read reads QEMU's log of -d exec,in_asm,nochain with one instruction in each of its blocks
// (accel/tcg/cpu-exec.c), and adds to c what it disassembles. The trace is that of so many first bytes:
// behind them blocks may have several instructions.
func (c *Code) Read(r io.Reader, traced int64) (t Trace, err error) {
	lines := bufio.NewScanner(r)
	var raw []byte // of the instruction that follows, where it is not disassembled
	for lines.Scan() {
		line := lines.Bytes()
		traced -= int64(len(line)) + 1
		switch {
		case traced < 0 && bytes.HasPrefix(line, []byte("Trace ")):
			raw = nil
		case bytes.HasPrefix(line, []byte("Trace ")):
			if !bytes.HasPrefix(line, []byte("Trace 0: ")) {
				return nil, errOtherCPU
			}
			// [cs_base/pc/flags/cflags]
			_, rest, _ := bytes.Cut(line, []byte("/"))
			pc, ok := address(rest, '/')
			if !ok {
				return nil, fmt.Errorf("no address in %q", line)
			}
			if raw != nil {
				c.add(pc, raw)
				raw = nil
			}
			t = append(t, pc)
		case bytes.HasPrefix(line, []byte("Stopped execution of TB chain before ")):
			// It was to be executed, and an interrupt came before it.
			_, rest, _ := bytes.Cut(line, []byte("["))
			if pc, ok := address(rest, ']'); ok && len(t) > 0 && t[len(t)-1] == pc {
				t = t[:len(t)-1]
			}
		case bytes.HasPrefix(line, []byte("0x")):
			text, rest, _ := strings.Cut(string(line), ":")
			pc, err := strconv.ParseUint(text[2:], 16, 64)
			if err != nil {
				continue // of something else that QEMU logs
			}
			c.add(pc, c.bytes(rest))
		case bytes.HasPrefix(line, []byte("OBJD-T: ")): // a QEMU without a disassembler
			raw, _ = hex.DecodeString(string(line[len("OBJD-T: "):]))
		}
	}
	return t, lines.Err()
}

// address is a hexadecimal number that ends before a byte.
func address(text []byte, end byte) (uint64, bool) {
	text, _, found := bytes.Cut(text, []byte{end})
	pc, err := strconv.ParseUint(string(bytes.TrimPrefix(text, []byte("0x"))), 16, 64)
	return pc, found && err == nil
}

// bytes are those of an instruction's line: in groups, and behind them its text.
func (c *Code) bytes(line string) (code []byte) {
	const widest = "  " // between the bytes and the text are two blanks at least
	line = strings.TrimLeft(line, " ")
	if at := strings.Index(line, widest); at >= 0 {
		line = line[:at]
	}
	for _, group := range strings.Fields(line) {
		b, err := hex.DecodeString(group)
		if err != nil {
			break
		}
		if c.arch == "arm64" { // a word, not bytes
			for i := len(b) - 1; i >= 0; i-- {
				code = append(code, b[i])
			}
			continue
		}
		code = append(code, b...)
	}
	return code
}

func (c *Code) add(pc uint64, code []byte) {
	if i := decode(c.arch, code); i.size > 0 {
		c.at[pc] = i
	}
}
