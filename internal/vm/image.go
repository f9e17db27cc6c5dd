package vm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"
	"github.com/ulikunitz/xz"
)

// ErrUsage is wrapped by errors about a file that is no kernel, or not one for here.
var ErrUsage = errors.New("no kernel to boot")

// kernel is an image that QEMU can boot.
type kernel struct {
	name string // as it was given
	path string // of the image itself
	arch string // as GOARCH has it
}

// openKernel finds the image in a file: a bzImage, a vmlinux, an arm64 Image, or a
// Debian package that has one. What has to be unpacked goes to dir.
func openKernel(name, dir string) (*kernel, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	defer f.Close()
	head := make([]byte, 0x300)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%w: %s: %w", ErrUsage, name, err)
	}
	head = head[:n]
	if bytes.HasPrefix(head, []byte("!<arch>\n")) {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		image := filepath.Join(dir, strings.TrimSuffix(filepath.Base(name), ".deb")+".vmlinuz")
		if err := unpack(f, image); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrUsage, name, err)
		}
		k, err := openKernel(image, dir)
		if err == nil {
			k.name = name
		}
		return k, err
	}
	k := &kernel{name: name, path: name}
	switch {
	case len(head) > 0x206 && string(head[0x202:0x206]) == "HdrS": // Documentation/arch/x86/boot.rst
		k.arch = "amd64"
	case len(head) > 60 && string(head[56:60]) == "ARM\x64": // Documentation/arch/arm64/booting.rst
		k.arch = "arm64"
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)) && len(head) > 20:
		machine := elf.Machine(binary.LittleEndian.Uint16(head[18:]))
		if k.arch = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[machine]; k.arch == "" {
			return nil, fmt.Errorf("%w: %s is an ELF file for %s; give a kernel for x86-64 or arm64", ErrUsage, name, machine)
		}
	default:
		return nil, fmt.Errorf("%w: %s is neither a bzImage, a vmlinux, an arm64 Image nor a Debian package with one", ErrUsage, name)
	}
	return k, nil
}

// imageName is where packages have the image: since Linux 7.3 with the modules.
var imageName = regexp.MustCompile(`^/(boot/vmlinuz-[^/]+|(usr/)?lib/modules/[^/]+/vmlinuz)$`)

// maxImage is the largest kernel image that is unpacked, in bytes.
const maxImage = 1 << 30

// unpack takes the kernel image out of a Debian package (deb(5)): an ar archive whose
// member data.tar.* has it.
func unpack(f io.Reader, image string) error {
	if _, err := io.CopyN(io.Discard, f, 8); err != nil {
		return err
	}
	for {
		var head [60]byte // name 16, date 12, uid 6, gid 6, mode 8, size 10, end 2 (ar(5))
		if _, err := io.ReadFull(f, head[:]); err != nil {
			return errors.New("a Debian package without data.tar")
		}
		size, err := strconv.ParseInt(strings.TrimSpace(string(head[48:58])), 10, 64)
		if err != nil || size < 0 {
			return errors.New("a damaged Debian package")
		}
		member := io.LimitReader(f, size)
		if name := strings.TrimRight(strings.TrimSpace(string(head[:16])), "/"); strings.HasPrefix(name, "data.tar") {
			return unpackTar(member, path.Ext(name), image)
		}
		if _, err := io.CopyN(io.Discard, f, size+size%2); err != nil {
			return err
		}
	}
}

func unpackTar(r io.Reader, ext, image string) (err error) {
	switch ext {
	case ".xz":
		r, err = xz.NewReader(r)
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(r); err == nil {
			defer z.Close()
			r = z
		}
	case ".gz":
		r, err = gzip.NewReader(r)
	case ".tar":
	default:
		err = fmt.Errorf("a Debian package with data.tar%s, which is not known", ext)
	}
	if err != nil {
		return err
	}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err == io.EOF {
			return errors.New("a Debian package without a vmlinuz; of Debian's, linux-image-* has the image, or linux-binary-* where that one is empty")
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg || !imageName.MatchString(path.Clean("/"+h.Name)) {
			continue
		}
		out, err := os.Create(image)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, io.LimitReader(t, maxImage))
		if e := out.Close(); err == nil {
			err = e
		}
		return err
	}
}

// Where things lie in the guest.
const (
	guestOrders = "aossim/orders.json"
	guestFiles  = "aossim/"
)

// initramfs writes an archive with this program as init, and files, by name below
// guestFiles.
func initramfs(out string, files map[string][]byte) error {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer f.Close()
	w := cpio.NewDedupWriter(cpio.Newc.Writer(f))
	var records []cpio.Record
	dirs := map[string]bool{}
	mkdir := func(dir string) {
		var parts []string
		for _, p := range strings.Split(dir, "/") {
			if parts = append(parts, p); p != "" && !dirs[strings.Join(parts, "/")] {
				dirs[strings.Join(parts, "/")] = true
				records = append(records, cpio.Directory(strings.Join(parts, "/"), 0o755))
			}
		}
	}
	add := func(name string, data []byte, mode uint64) {
		if dir := path.Dir(name); dir != "." {
			mkdir(dir)
		}
		records = append(records, cpio.StaticFile(name, string(data), mode))
	}
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "run", "aossim"} {
		mkdir(dir)
	}
	records = append(records, cpio.CharDev("dev/console", 0o600, 5, 1))
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	add("init", program, 0o755)
	libraries, err := needed("/proc/self/exe")
	if err != nil {
		return err
	}
	for _, lib := range libraries {
		data, err := os.ReadFile(lib)
		if err != nil {
			return err
		}
		add(strings.TrimPrefix(lib, "/"), data, 0o755)
	}
	for name, data := range files {
		add(guestFiles+name, data, 0o644)
	}
	if err := cpio.WriteRecords(w, records); err != nil {
		return err
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return err
	}
	return f.Close()
}

// needed returns the dynamic linker and the libraries of a program: none of a static one,
// as CGO_ENABLED=0 builds it.
func needed(program string) (paths []string, err error) {
	var visit func(file string) error
	seen := map[string]bool{}
	visit = func(file string) error {
		e, err := elf.Open(file)
		if err != nil {
			return err
		}
		defer e.Close()
		if interp := e.Section(".interp"); interp != nil {
			data, err := interp.Data()
			if err != nil {
				return err
			}
			if linker := strings.TrimRight(string(data), "\x00"); !seen[linker] {
				seen[linker] = true
				paths = append(paths, linker)
			}
		}
		libs, err := e.ImportedLibraries()
		if err != nil {
			return err
		}
		for _, lib := range libs {
			if seen[lib] {
				continue
			}
			seen[lib] = true
			found := ""
			for _, pattern := range []string{"/lib64/", "/lib/", "/usr/lib64/", "/usr/lib/", "/lib/*-linux-gnu/", "/usr/lib/*-linux-gnu/"} {
				if at, _ := filepath.Glob(pattern + lib); len(at) > 0 {
					found = at[0]
					break
				}
			}
			if found == "" {
				return fmt.Errorf("this program needs %s, which was not found; build it with CGO_ENABLED=0 go build ./cmd/aossim", lib)
			}
			paths = append(paths, found)
			if err := visit(found); err != nil {
				return err
			}
		}
		return nil
	}
	return paths, visit(program)
}
