// Package output is where a result goes: tried before anything is measured, written whole or
// not at all, and never lost.
//
// Open and OpenNew return a refusal.ErrUsage for a place that cannot be written to. Nothing
// replaces what is not a regular file; symbolic links are followed.
package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// reserve is how much room a place must have, in bytes: more than a result of a few runs takes.
const reserve = 1 << 20

// File is a place that was found to take a result.
type File struct {
	path string
	next func(n int) string // of a new file: the n-th name, should others be taken; else nil
	f    *os.File
	temp bool // f is to become path; else it is what path names
}

// Open tries path: an existing regular file is replaced when the result is there; a device, a
// pipe or this program's own standard output is written to.
func Open(path string) (*File, error) {
	o := &File{path: path}
	if err := o.open(); err != nil {
		return nil, refusal.Usage("the result cannot be written: %w; name another place with -o FILE", err)
	}
	return o, nil
}

// OpenNew tries a file in dir that is not there yet, and makes dir. next names the n-th one,
// from 1; the first that nobody else has when the result is there is taken.
func OpenNew(dir string, next func(n int) string) (*File, error) {
	o := &File{path: filepath.Join(dir, next(1)), next: func(n int) string { return filepath.Join(dir, next(n)) }}
	if err := o.open(); err != nil {
		return nil, refusal.Usage("the result cannot be written: %w; name another place with -o FILE", err)
	}
	return o, nil
}

func (o *File) open() (err error) {
	if err := os.MkdirAll(filepath.Dir(o.path), 0o777); err != nil {
		return err
	}
	info, err := os.Stat(o.path)
	if errors.Is(err, fs.ErrNotExist) { // a link to a file that is yet to be
		for range 40 {
			to, e := os.Readlink(o.path)
			if e != nil {
				break
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(o.path), to)
			}
			o.path = to
		}
	}
	for _, own := range []*os.File{os.Stdout, os.Stderr} {
		if mine, e := own.Stat(); err == nil && e == nil && os.SameFile(info, mine) {
			o.f = own
			return nil
		}
	}
	switch {
	case err == nil && info.IsDir():
		return &fs.PathError{Op: "writing", Path: o.path, Err: errors.New("is a directory")}
	case err == nil && !info.Mode().IsRegular():
		// A pipe without a reader would block for good; only opening it can wait.
		o.f, err = os.OpenFile(o.path, os.O_WRONLY|linux.ONonblock, 0)
		return err
	case err == nil:
		if o.path, err = filepath.EvalSymlinks(o.path); err != nil {
			return err
		}
		// It will be replaced, but who may not write to it may not do that either.
		f, err := os.OpenFile(o.path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		f.Close()
	case !errors.Is(err, fs.ErrNotExist):
		return err // a name that cannot be
	}
	if len(filepath.Base(o.path)) > linux.NameMax {
		return &fs.PathError{Op: "writing", Path: o.path, Err: errors.New("the name is too long")}
	}
	if o.f, err = os.CreateTemp(filepath.Dir(o.path), ".aossim-*"); err != nil {
		return err
	}
	o.temp = true
	_, err = o.f.Write(make([]byte, reserve))
	if err == nil {
		err = o.f.Sync()
	}
	if err == nil {
		err = o.f.Truncate(0)
	}
	if err == nil {
		_, err = o.f.Seek(0, io.SeekStart)
	}
	if err != nil {
		o.Discard()
	}
	return err
}

// Discard gives the place up.
func (o *File) Discard() {
	if o.temp {
		o.f.Close()
		os.Remove(o.f.Name())
	}
}

// Standard says whether the place is this program's own standard output, where nothing else
// may stand then.
func (o *File) Standard() bool { return o.f == os.Stdout }

// Save writes the result and returns where it is. Where that fails after all, it goes to a
// file in the directory for temporary ones, which it returns with the error of the first place; or, without that
// either, nowhere, and path is "".
func (o *File) Save(write func(w io.Writer) error) (path string, err error) {
	if err = o.save(write); err == nil {
		return o.path, nil
	}
	return Elsewhere(write), fmt.Errorf("writing the result: %w; name another place with -o FILE", err)
}

// Elsewhere writes what could not be written where it was to go to a file in the directory for
// temporary ones, and returns its name, or "".
func Elsewhere(write func(w io.Writer) error) string {
	other, err := os.CreateTemp("", "aossim-*.json")
	if err != nil {
		return ""
	}
	if errors.Join(write(other), other.Close()) != nil {
		os.Remove(other.Name())
		return ""
	}
	return other.Name()
}

func (o *File) save(write func(w io.Writer) error) (err error) {
	if !o.temp {
		err = write(o.f)
		if o.f != os.Stdout && o.f != os.Stderr {
			err = errors.Join(err, o.f.Close())
		}
		return err
	}
	defer os.Remove(o.f.Name())
	// The kernel may be one that crashes.
	if err := errors.Join(write(o.f), o.f.Chmod(0o644), o.f.Sync(), o.f.Close()); err != nil {
		return err
	}
	if o.next == nil {
		return os.Rename(o.f.Name(), o.path)
	}
	// A link, unlike a rename, does not replace what another one has written meanwhile.
	for n := 1; ; n++ {
		o.path = o.next(n)
		if err = os.Link(o.f.Name(), o.path); err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrExist) { // a file system without links
			var f *os.File
			if f, err = os.OpenFile(o.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
				return errors.Join(f.Close(), os.Rename(o.f.Name(), o.path))
			}
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

// Write is Open and Save for what is there already; it tries no other place.
func Write(path string, write func(w io.Writer) error) error {
	o, err := Open(path)
	if err != nil {
		return err
	}
	return o.save(write)
}
