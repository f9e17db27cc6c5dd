package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aossim/internal/refusal"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// left fails where dir has other entries than these.
func left(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("%s has %q, want %q", dir, names, want)
	}
}

// TestRefused: a place that cannot take a result is refused at once, and nothing is left there.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	fifo, file, tiny := filepath.Join(dir, "fifo"), filepath.Join(dir, "file"), filepath.Join(dir, "tiny")
	if err := errors.Join(unix.Mkfifo(fifo, 0o666), os.WriteFile(file, nil, 0o666), os.Mkdir(tiny, 0o777)); err != nil {
		t.Fatal(err)
	}
	places := map[string]string{
		dir: "is a directory", filepath.Join(file, "r.json"): "not a directory", "/proc/no/r.json": "no such file",
		filepath.Join(dir, strings.Repeat("x", 256)): "name too long", filepath.Join(dir, "a\x00b"): "invalid argument", fifo: "no such device",
		filepath.Join(dir, "loop"): "too many",
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", tiny, "tmpfs", 0, "size=64k"); err == nil {
		defer unix.Unmount(tiny, 0)
		places[filepath.Join(tiny, "r.json")] = "no space left"
	} else {
		t.Logf("no disk that is full: %v", err)
	}
	for path, want := range places {
		o, err := Open(path)
		if err == nil {
			o.Discard()
		}
		if !errors.Is(err, refusal.ErrUsage) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "-o FILE") {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
	left(t, dir, "fifo", "file", "loop", "tiny")
	left(t, tiny)
}

// TestSave: what is there is replaced whole, or not at all; what is no regular file is written to.
func TestSave(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("old"), []byte("old"), 0o600), os.Symlink("old", at("link"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{at("link"), at("new"), at("sub/new")} {
		o, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := content(t, at("old")); path == at("link") && got != "old" {
			t.Errorf("it was replaced by %q before there was a result", got)
		}
		if _, err := o.Save(text("result")); err != nil || content(t, path) != "result" {
			t.Errorf("%s: %v", path, err)
		}
	}
	if info, err := os.Lstat(at("link")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is none any more: %v", err)
	}
	// A link to what is not there yet makes it there.
	if err := os.Symlink("sub/later", at("dangling")); err != nil {
		t.Fatal(err)
	}
	if err := Write(at("dangling"), text("result")); err != nil || content(t, at("sub/later")) != "result" {
		t.Errorf("a dangling link: %v", err)
	}
	if err := os.Remove(at("dangling")); err != nil {
		t.Fatal(err)
	}
	o, err := Open(at("old"))
	if err != nil {
		t.Fatal(err)
	}
	o.Discard()
	left(t, dir, "link", "new", "old", "sub")
	// Failing half-way leaves the old one, and the result elsewhere.
	o, err = Open(at("old"))
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	path, err := o.Save(func(w io.Writer) error {
		if tries++; tries == 1 {
			_, _ = io.WriteString(w, "half")
			return unix.ENOSPC
		}
		return text("whole")(w)
	})
	if err == nil || content(t, at("old")) != "result" || content(t, path) != "whole" {
		t.Errorf("%s, %v", path, err)
	}
	os.Remove(path)
	left(t, dir, "link", "new", "old", "sub")
	if err := Write("/dev/null", text("result")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode().IsRegular() {
		t.Errorf("/dev/null is a file now: %v", err)
	}
}

// TestPipe: a pipe with a reader is written to.
func TestPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	var got []byte
	read := make(chan error)
	go func() { // opening waits for who writes
		r, err := os.Open(fifo)
		if err == nil {
			got, err = io.ReadAll(r)
			r.Close()
		}
		read <- err
	}()
	long := strings.Repeat("result ", 50_000) // more than a pipe holds
	err := Write(fifo, text(long))
	for end := time.Now().Add(10 * time.Second); errors.Is(err, unix.ENXIO) && time.Now().Before(end); time.Sleep(time.Millisecond) {
		err = Write(fifo, text(long)) // the reader was not there yet
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil || string(got) != long {
		t.Errorf("%d of %d bytes, %v", len(got), len(long), err)
	}
}

// TestTogether: results that come at one time each have a file of their own.
func TestTogether(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	const n = 20
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		o, err := OpenNew(dir, func(n int) string { return fmt.Sprintf("r-%d.json", n) })
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			<-begin
			if _, err := o.Save(text(fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	all.Wait()
	seen := map[string]bool{}
	for i := range n {
		seen[content(t, filepath.Join(dir, fmt.Sprintf("r-%d.json", i+1)))] = true
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != n || len(seen) != n {
		t.Errorf("%d files of %d results, %v", len(entries), len(seen), err)
	}
}
