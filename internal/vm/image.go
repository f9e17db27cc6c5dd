package vm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"
	"github.com/u-root/u-root/pkg/ldd"
	"github.com/ulikunitz/xz"

	"aossim/internal/refusal"
)

// kernel is an image that QEMU can boot.
type kernel struct {
	name   string // as it was given
	path   string // of the image itself
	arch   string // as GOARCH has it
	sha256 string // of the image, in hexadecimal
}

// openKernel finds the image in a file: a bzImage, a vmlinux, an arm64 Image, or a
// Debian package that has one. What has to be unpacked goes to dir.
func openKernel(ctx context.Context, name, dir string) (*kernel, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, refusal.Usage("no kernel to boot: %w", err)
	}
	defer f.Close()
	head := make([]byte, 0x300)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, refusal.Usage("no kernel to boot: %s: %w", name, err)
	}
	head = head[:n]
	if bytes.HasPrefix(head, []byte("!<arch>\n")) {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		// A name of its own: two builds of one tree have packages of one name.
		out, err := os.CreateTemp(dir, "*.vmlinuz")
		if err != nil {
			return nil, err
		}
		image := out.Name()
		err = errors.Join(unpack(interruptible{ctx, f}, out), out.Close())
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: interrupted while it was unpacked", name)
		}
		if err != nil {
			return nil, refusal.Usage("no kernel to boot: %s: %w", name, err)
		}
		k, err := openKernel(ctx, image, dir)
		if err != nil { // it knows the image by a name that will be gone
			return nil, refusal.Usage("no kernel to boot: what %s has for a kernel is neither a bzImage, a vmlinux nor an arm64 Image", name)
		}
		k.name = name
		return k, nil
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
			return nil, refusal.Usage("no kernel to boot: %s is an ELF file for %s; give a kernel for x86-64 or arm64", name, machine)
		}
	default:
		return nil, refusal.Usage("no kernel to boot: %s is neither a bzImage, a vmlinux, an arm64 Image nor a Debian package with one", name)
	}
	if info, err := f.Stat(); err != nil || info.Size() > maxImage {
		return nil, refusal.Usage("no kernel to boot: %s is larger than any kernel, or cannot be read", name)
	}
	if k.sha256, err = checksum(f); err != nil {
		return nil, refusal.Usage("no kernel to boot: %w", err)
	}
	return k, nil
}

// interruptible reads until ctx ends: unpacking takes seconds.
type interruptible struct {
	context.Context
	io.Reader
}

func (r interruptible) Read(p []byte) (int, error) {
	if r.Err() != nil {
		return 0, errors.New("interrupted")
	}
	return r.Reader.Read(p)
}

// checksum is that of a whole file.
func checksum(f *os.File) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// imageName is where packages have the image: since Linux 7.3 with the modules.
var imageName = regexp.MustCompile(`^/(boot/vmlinuz-[^/]+|(usr/)?lib/modules/[^/]+/vmlinuz)$`)

// maxImage is the largest kernel image that is unpacked, in bytes.
const maxImage = 1 << 30

// unpack takes the kernel image out of a Debian package (deb(5)): an ar archive whose
// member data.tar.* has it.
func unpack(f io.Reader, image io.Writer) error {
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

func unpackTar(r io.Reader, ext string, image io.Writer) (err error) {
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
		if h.Size > maxImage {
			return fmt.Errorf("a Debian package whose vmlinuz has %d bytes, more than any kernel", h.Size)
		}
		_, err = io.Copy(image, t)
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
	// By its path: the dynamic linker that is asked has a /proc/self/exe of its own.
	self, err := os.Executable()
	if err != nil {
		return err
	}
	libraries, err := ldd.List(self) // none of a static program, as CGO_ENABLED=0 builds it
	if err != nil {
		return fmt.Errorf("the libraries of this program: %w; build it with CGO_ENABLED=0 go build ./cmd/aossim", err)
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
