package vm

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
)

// message is what the guest tells the host: a file that one of its commands wrote, how a
// command ended, or that all is done.
type message struct {
	Command int    // of the orders
	Kind    string // one of the constants
	Exit    int
	Data    []byte
}

// The kinds of messages.
const (
	kindOutput  = "output" // of the command: a result, or a check
	kindExit    = "exit"
	kindSymbols = "symbols" // of the kernel: /proc/kallsyms
	kindDone    = "done"
)

// A message travels as lines that nothing else on a console looks like: mark, number of the
// message, part, parts, checksum, base64. On a console each is sent twice, since the
// kernel may write into the middle of one.
const (
	frameMark = "@aossim"
	frameSize = 512
)

// send writes a message as lines, each so many times.
func send(w io.Writer, number, times int, m message) error {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if err := json.NewEncoder(z).Encode(m); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	data := packed.Bytes()
	parts := (len(data) + frameSize - 1) / frameSize
	for range times {
		for i := range parts {
			part := data[i*frameSize : min(len(data), (i+1)*frameSize)]
			// The line break before ends what the kernel may have begun.
			if _, err := fmt.Fprintf(w, "\n%s %d %d %d %08x %s\n", frameMark, number, i, parts, crc32.ChecksumIEEE(part), base64.StdEncoding.EncodeToString(part)); err != nil {
				return err
			}
		}
	}
	return nil
}

// receive takes the messages out of what a guest wrote, in order, and returns the lines that
// are none. The error says that a message is not whole.
func receive(r io.Reader) (messages []message, rest []string, err error) {
	type assembly struct {
		parts map[int][]byte
		of    int
	}
	var all []*assembly
	room := maxConsole // for what is unpacked, of all messages
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		line := lines.Text()
		number, part, parts, data, ok := parseFrame(line)
		if !ok {
			if text := strings.TrimSpace(line); text != "" && !strings.Contains(text, frameMark) {
				rest = append(rest, line)
			}
			continue
		}
		for number >= len(all) {
			all = append(all, nil)
		}
		if all[number] == nil {
			all[number] = &assembly{map[int][]byte{}, parts}
		}
		if a := all[number]; part < a.of && a.parts[part] == nil {
			a.parts[part] = data
		}
	}
	for i, a := range all {
		if a == nil || len(a.parts) < a.of {
			return messages, rest, fmt.Errorf("message %d of the guest did not arrive whole", i)
		}
		var whole bytes.Buffer
		for n := range a.of {
			whole.Write(a.parts[n])
		}
		z, err := gzip.NewReader(&whole)
		if err != nil {
			return messages, rest, err
		}
		var m message
		if err := json.NewDecoder(io.LimitReader(z, maxConsole)).Decode(&m); err != nil {
			return messages, rest, err
		}
		if room -= len(m.Data); room < 0 {
			return messages, rest, errors.New("the guest sent more than any result")
		}
		messages = append(messages, m)
	}
	return messages, rest, lines.Err()
}

// Limits of what a guest may send.
const (
	maxMessages = 1000
	maxParts    = 1 << 17 // 64 MiB
)

func parseFrame(line string) (number, part, parts int, data []byte, ok bool) {
	_, after, found := strings.Cut(strings.TrimSpace(line), frameMark+" ")
	fields := strings.Fields(after)
	if !found || len(fields) != 5 {
		return 0, 0, 0, nil, false
	}
	var err error
	atoi := func(s string, limit int) int {
		n, e := strconv.Atoi(s)
		if e != nil || n < 0 || n >= limit {
			err = errors.Join(e, io.ErrUnexpectedEOF)
		}
		return n
	}
	number, part, parts = atoi(fields[0], maxMessages), atoi(fields[1], maxParts), atoi(fields[2], maxParts)
	sum, e := strconv.ParseUint(fields[3], 16, 32)
	data, e2 := base64.StdEncoding.DecodeString(fields[4])
	ok = err == nil && e == nil && e2 == nil && part < parts && crc32.ChecksumIEEE(data) == uint32(sum)
	return number, part, parts, data, ok
}
