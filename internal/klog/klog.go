// Package klog watches what the kernel complains of while something runs: splats in its log, and
// new taint bits.
package klog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"aossim/internal/linux"
	"aossim/internal/result"
)

// Name is that of the check.
const Name = "kernel log"

// Watch is one from Start on. It is for one thread at a time.
type Watch struct {
	log     *linux.KernelLog
	why     error  // the log cannot be read
	tainted string // the file
	taint   uint64
	known   bool // the taint is
}

// Start begins to watch. What cannot be read Check says.
func Start() *Watch {
	w := &Watch{tainted: taintFile}
	w.log, w.why = linux.OpenKernelLog()
	w.taint, w.known = w.now()
	return w
}

// taintFile has the kernel's taint as a number, a bit a reason (Documentation/admin-guide/tainted-kernels.rst).
const taintFile = "/proc/sys/kernel/tainted"

// now is the taint as it is.
func (w *Watch) now() (uint64, bool) {
	text, err := os.ReadFile(w.tainted)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// Check says whether the kernel complained since Start or the last Check.
func (w *Watch) Check() result.Check {
	c := result.Check{Name: Name, Pass: true}
	var said []string
	if w.why != nil {
		said = append(said, fmt.Sprintf("the log was not read: %s", w.why))
	} else {
		r := records{next: w.log.Read}
		found := r.read()
		switch {
		case found != nil:
			c.Pass = false
			said = append(said, fmt.Sprintf("%d complaints, the first: %s", r.complaints, strings.Join(found, " / ")))
		default:
			said = append(said, fmt.Sprintf("no complaint in %d records of the kernel", r.count))
		}
		if r.lost {
			said = append(said, "older ones were overwritten before they were read")
		}
		if r.err != nil {
			said = append(said, "the rest was not read: "+r.err.Error())
		}
	}
	switch now, ok := w.now(); {
	case !ok || !w.known:
		said = append(said, w.tainted+" was not read")
	case now&^w.taint != 0:
		c.Pass = false
		said = append(said, fmt.Sprintf("the kernel was tainted: %s, now %d", taints(now&^w.taint), now))
		w.taint = now
	default:
		said = append(said, fmt.Sprintf("tainted stays %d", now))
	}
	c.Detail = strings.Join(said, "; ")
	return c
}

// Close ends the watch.
func (w *Watch) Close() {
	if w.log != nil {
		w.log.Close()
	}
}

// letters are those of the taint's bits, from the lowest.
const letters = "PFSRMBUDAWCIOELKXTNJ"

func taints(bits uint64) string {
	var names []string
	for i := range 64 {
		switch {
		case bits>>i&1 == 0:
		case i < len(letters):
			names = append(names, letters[i:i+1])
		default:
			names = append(names, fmt.Sprintf("bit %d", i))
		}
	}
	return strings.Join(names, " ")
}

// complaint is how a splat begins: those of the kernel's own checks, of lockdep, RCU, the watchdogs,
// the sanitizers, and of faults on each architecture.
var complaint = regexp.MustCompile(`\bBUG\b|\bWARNING: |\bOops\b|\bInternal error: |general protection fault|Unable to handle kernel|Kernel panic|UBSAN: |` +
	`detected (expedited )?stalls? |self-detected stall|kthread (starved|timer wakeup)|blocked( .*)? for more than \d+ seconds|hard LOCKUP|DEBUG_LOCKS_WARN_ON|` +
	`trying to register non-static key|list_(add|del) corruption|use-after-free|new suspected memory leaks|nobody cared|\bINFO: possible |\bINFO: inconsistent `)

// place is a line of a splat that says where: of what follows the first line only those are shown,
// up to shown in all.
var place = regexp.MustCompile(`^[^?]*\+0x[0-9a-f]+/0x[0-9a-f]+`)

const shown = 6

// records reads the kernel's own records (Documentation/ABI/testing/dev-kmsg).
type records struct {
	next func(b []byte) (int, error) // one record; 0 where there is no more

	count, complaints int
	lost              bool
	err               error
}

// read returns the first complaint with the records that follow it, nil where there is none.
func (r *records) read() (found []string) {
	const largest = 8192 // CONSOLE_EXT_LOG_MAX
	buffer := make([]byte, largest)
	for {
		n, err := r.next(buffer)
		switch {
		case errors.Is(err, linux.ErrOverwritten):
			r.lost = true
			continue
		case err != nil:
			r.err = err
			return found
		case n == 0:
			return found
		}
		text, level, ok := kernels(buffer[:n])
		if !ok {
			continue
		}
		r.count++
		is := level == emergency || complaint.MatchString(text)
		if is {
			r.complaints++
		}
		if is && found == nil || found != nil && len(found) < shown && place.MatchString(text) {
			found = append(found, text)
		}
	}
}

// emergency is the level of what the kernel may not survive (syslog(2)), such as an NMI that nobody
// knows the reason of.
const emergency = 0

// kernels returns the text of a record with its level, and whether it is the kernel's own: anybody
// may write others.
func kernels(record []byte) (text string, level int, ok bool) {
	head, body, found := bytes.Cut(record, []byte(";"))
	priority, _, _ := bytes.Cut(head, []byte(","))
	p, err := strconv.Atoi(string(priority))
	const levels = 8 // of each facility, the kernel's is 0 (syslog(2))
	if !found || err != nil || p >= levels {
		return "", 0, false
	}
	line, _, _ := bytes.Cut(body, []byte("\n"))
	return strings.TrimSpace(string(line)), p, true
}
