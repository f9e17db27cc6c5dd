package klog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aossim/internal/linux"
)

// TestComplaints: what kernels say of faults is found, in records of the kernel only; what they
// say on other days is not.
func TestComplaints(t *testing.T) {
	for name, c := range map[string]struct {
		records []string
		want    string // in what was found, "" for nothing
		count   int
	}{
		"quiet":        {[]string{"6,1,2,-;usb 1-1: new device\n SUBSYSTEM=usb\n", "4,2,3,-;ext4 warning: mounted without journal\n", "12,3,4,-;WARNING: by a program\n"}, "", 0},
		"warning":      {[]string{"4,1,2,-;WARNING: io_uring/futex.c:340 at io_futex_wait+0x1a/0x2d0, CPU#0: x/57\n", "4,2,3,-;RIP: 0010:io_futex_wait+0x1a/0x2d0\n", "4,2,3,-;Code: 00 a8\n", "6,3,4,-; ? old+0x1/0x2\n", "6,3,4,-; io_issue_sqe+0x3c/0x5a0\n"}, "RIP: 0010:io_futex_wait+0x1a/0x2d0 / io_issue_sqe+0x3c/0x5a0", 1},
		"old warning":  {[]string{"4,1,2,-;WARNING: CPU: 0 PID: 57 at io_uring/futex.c:340 io_futex_wait+0x1a/0x2d0\n"}, "futex.c:340", 1},
		"bug":          {[]string{"1,1,2,-;BUG: kernel NULL pointer dereference, address: 0000000000000008\n"}, "NULL pointer", 1},
		"kernel BUG":   {[]string{"2,1,2,-;kernel BUG at mm/slub.c:634!\n", "4,2,2,-;Oops: invalid opcode: 0000 [#1] SMP\n"}, "slub.c", 2},
		"atomic":       {[]string{"3,1,2,-;BUG: scheduling while atomic: x/57/0x00000002\n"}, "scheduling while atomic", 1},
		"slab":         {[]string{"3,1,2,-;BUG kmalloc-192 (Not tainted): Poison overwritten\n"}, "kmalloc-192", 1},
		"kasan":        {[]string{"3,1,2,-;==================================================================\n", "3,2,2,-;BUG: KASAN: slab-use-after-free in io_futex_complete+0x20/0x40\n"}, "KASAN", 1},
		"kcsan":        {[]string{"3,1,2,-;BUG: KCSAN: data-race in futex_wake / futex_wait\n"}, "KCSAN", 1},
		"ubsan":        {[]string{"3,1,2,-;UBSAN: array-index-out-of-bounds in kernel/futex/core.c:400:5\n"}, "UBSAN", 1},
		"lockdep":      {[]string{"4,1,2,-;WARNING: possible circular locking dependency detected\n"}, "circular", 1},
		"wait context": {[]string{"4,1,2,-;[ BUG: Invalid wait context ]\n"}, "wait context", 1},
		"rcu":          {[]string{"3,1,2,-;rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n"}, "stalls", 1},
		"rcu itself":   {[]string{"3,1,2,-;rcu: INFO: rcu_sched self-detected stall on CPU\n"}, "self-detected", 1},
		"hung":         {[]string{"3,1,2,-;INFO: task aossim:57 blocked for more than 120 seconds.\n"}, "blocked for", 1},
		"hung now":     {[]string{"3,1,2,-;INFO: task aossim:57 blocked in I/O wait for more than 120 seconds.\n"}, "blocked in", 1},
		"lockup":       {[]string{"0,1,2,-;watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [x:57]\n"}, "soft lockup", 1},
		"arm64":        {[]string{"1,1,2,-;Unable to handle kernel paging request at virtual address dead000000000108\n", "1,2,2,-;Internal error: Oops: 0000000096000004 [#1] SMP\n"}, "paging request", 2},
		"nmi":          {[]string{"0,1,2,-;Uhhuh. NMI received for unknown reason 20 on CPU 0.\n", "8,1,2,-;by a program\n"}, "unknown reason", 1},
		"list":         {[]string{"1,1,2,-;list_del corruption, ffff888->next is LIST_POISON1\n"}, "list_del", 1},
		"nonsense":     {[]string{"x,1;BUG: y", "4;", "", "4,1,2,-"}, "", 0},
	} {
		left := c.records
		r := records{next: func(b []byte) (int, error) {
			for len(left) > 0 {
				n := copy(b, left[0])
				if left = left[1:]; n > 0 {
					return n, nil
				}
			}
			return 0, nil
		}}
		found := strings.Join(r.read(), " / ")
		if r.complaints != c.count || (found == "") != (c.want == "") || !strings.Contains(found, c.want) {
			t.Errorf("%s: %d complaints: %q", name, r.complaints, found)
		}
	}
}

// TestLost: records that were overwritten are said to be, and those behind them are read.
func TestLost(t *testing.T) {
	n := 0
	r := records{next: func(b []byte) (int, error) {
		switch n++; n {
		case 1:
			return 0, linux.ErrOverwritten
		case 2:
			return copy(b, "4,1,2,-;WARNING: x"), nil
		}
		return 0, errors.New("gone")
	}}
	if found := r.read(); len(found) != 1 || !r.lost || r.err == nil {
		t.Errorf("%q, %+v", found, r)
	}
}

// TestWatch: a quiet while passes, and what cannot be read is said.
func TestWatch(t *testing.T) {
	w := Start()
	defer w.Close()
	c := w.Check()
	if c.Name != Name || !strings.Contains(c.Detail, "taint") || w.why == nil && !strings.Contains(c.Detail, "records of the kernel") {
		t.Errorf("%+v", c)
	}
	if blind := (&Watch{why: errors.New("/dev/kmsg: no such file"), tainted: "/no/such"}).Check(); !blind.Pass || !strings.Contains(blind.Detail, "was not read: /dev/kmsg") || !strings.Contains(blind.Detail, "/no/such was not read") {
		t.Errorf("%+v", blind)
	}
	if w.known {
		w.taint = 1<<64 - 1 // nothing is new then
		if c := w.Check(); strings.Contains(c.Detail, "was tainted") {
			t.Errorf("old bits are new: %+v", c)
		}
	}
	if got := taints(1 | 1<<9 | 1<<40); got != "P W bit 40" {
		t.Errorf("%q", got)
	}
}

// TestTaint: a bit that is new fails, once; one that was there does not, nor one that goes.
func TestTaint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tainted")
	w := &Watch{why: errors.New("no log"), tainted: file, taint: 1, known: true}
	for _, c := range []struct {
		now  string
		pass bool
		want string
	}{
		{"1\n", true, "tainted stays 1"}, {"513\n", false, "W, now 513"}, {"513\n", true, "stays 513"}, {"1\n", true, "stays 1"}, {"x\n", true, "was not read"}, {"131585\n", false, "T"},
	} {
		if err := os.WriteFile(file, []byte(c.now), 0o666); err != nil {
			t.Fatal(err)
		}
		if got := w.Check(); got.Pass != c.pass || !strings.Contains(got.Detail, c.want) || !strings.Contains(got.Detail, "the log was not read: no log") {
			t.Errorf("%q: %+v", c.now, got)
		}
	}
}
