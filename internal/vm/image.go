package vm

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
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

// openKernel finds the image in a file: a bzImage, a vmlinux, an arm64 Image, as it is, by gzip or
// as EFI zboot, or a Debian package that has one. What has to be unpacked goes to dir.
func openKernel(ctx context.Context, name, dir string) (*kernel, error) {
	const most = 3 // a package has a zboot image, which has an Image
	return openImage(ctx, name, dir, most)
}

// openImage is openKernel of what is wrapped depth times at most.
func openImage(ctx context.Context, name, dir string, depth int) (*kernel, error) {
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
	if unpack := wrapped(head); unpack != nil {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		// A name of its own: two builds of one tree have packages of one name.
		out, err := os.CreateTemp(dir, "*.vmlinuz")
		if err != nil {
			return nil, err
		}
		image := out.Name()
		err = errors.Join(unpack(interruptible{ctx, f}, &limited{out, maxImage}), out.Close())
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: interrupted while it was unpacked", name)
		}
		if err != nil {
			return nil, refusal.Usage("no kernel to boot: %s: %w", name, err)
		}
		if depth == 0 {
			return nil, refusal.Usage("no kernel to boot: %s is packed more often than any kernel", name)
		}
		k, err := openImage(ctx, image, dir, depth-1)
		if err != nil { // it knows the image by a name that will be gone
			return nil, refusal.Usage("no kernel to boot: what %s has for a kernel is none (%s)", name, strings.ReplaceAll(strings.TrimPrefix(refusal.Reason(err), "no kernel to boot: "), image, "its content"))
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
		switch k.arch = machines[machine]; k.arch {
		case "":
			return nil, refusal.Usage("no kernel to boot: %s is an ELF file for %s; give a kernel for x86-64 or arm64", name, machine)
		case "arm64":
			return nil, refusal.Usage("no kernel to boot: %s is a vmlinux for arm64, which QEMU does not boot; give arch/arm64/boot/Image of the same build", name)
		}
	default:
		return nil, refusal.Usage("no kernel to boot: %s is neither a bzImage, a vmlinux, an arm64 Image (or Image.gz, or EFI zboot) nor a Debian package with one", name)
	}
	if info, err := f.Stat(); err != nil || info.Size() > maxImage {
		return nil, refusal.Usage("no kernel to boot: %s is larger than any kernel, or cannot be read", name)
	}
	if k.sha256, err = checksum(f); err != nil {
		return nil, refusal.Usage("no kernel to boot: %w", err)
	}
	return k, nil
}

// wrapped returns what unpacks the image that a file has, by how it begins; nil where the file
// itself is one.
func wrapped(head []byte) func(r io.Reader, image io.Writer) error {
	switch {
	case bytes.HasPrefix(head, []byte("!<arch>\n")):
		return unpack
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return func(r io.Reader, image io.Writer) error { return decompress("gzip", r, image) }
	case len(head) > zbootHead && bytes.HasPrefix(head, []byte("MZ")) && string(head[4:8]) == "zimg":
		// drivers/firmware/efi/libstub/zboot-header.S: where the payload lies, its size, how it is packed.
		start, size := int64(binary.LittleEndian.Uint32(head[8:])), int64(binary.LittleEndian.Uint32(head[12:]))
		kind := string(bytes.TrimRight(head[24:zbootHead], "\x00"))
		return func(r io.Reader, image io.Writer) error {
			if _, err := io.CopyN(io.Discard, r, start); err != nil {
				return errors.New("an EFI zboot image that is cut off")
			}
			return decompress(kind, io.LimitReader(r, size), image)
		}
	}
	return nil
}

// zbootHead is where the name of the compression ends in a zboot image.
const zbootHead = 56

// decompress writes the image that r has in one of the kernel's kinds of compression.
func decompress(kind string, r io.Reader, image io.Writer) error {
	z, err := decompressor(kind, r)
	if errors.Is(err, errCompression) {
		return fmt.Errorf("it is packed by %q; give one that is packed by gzip, zstd or xz, or the Image itself", kind)
	}
	if err == nil {
		defer z.Close()
		if g, ok := z.(*gzip.Reader); ok {
			g.Multistream(false) // something else may follow
		}
		_, err = io.Copy(image, z)
	}
	if err != nil {
		return fmt.Errorf("packed by %s, and damaged: %w", kind, err)
	}
	return nil
}

// errCompression is about a kind of compression that is not known.
var errCompression = errors.New("an unknown compression")

// decompressor reads what r has, by the kernel's name for its compression.
func decompressor(kind string, r io.Reader) (io.ReadCloser, error) {
	switch {
	case kind == "gzip":
		return gzip.NewReader(r)
	case strings.HasPrefix(kind, "zstd"):
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case kind == "xz" || kind == "xzkern":
		z, err := xz.NewReader(r)
		return io.NopCloser(z), err
	}
	return nil, errCompression
}

// limited writes so many bytes at most: a small file may unpack to any size.
type limited struct {
	io.Writer
	room int64
}

func (w *limited) Write(p []byte) (int, error) {
	if w.room -= int64(len(p)); w.room < 0 {
		return 0, errors.New("it is larger than any kernel")
	}
	return w.Writer.Write(p)
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

func unpackTar(r io.Reader, ext string, image io.Writer) error {
	if ext != ".tar" {
		z, err := decompressor(map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[ext], r)
		if errors.Is(err, errCompression) {
			return fmt.Errorf("a Debian package with data.tar%s, which is not known", ext)
		}
		if err != nil {
			return err
		}
		defer z.Close()
		r = z
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

// initramfs writes an archive with a program as init, this one where it is "", and files, by name
// below guestFiles.
func initramfs(out, program string, files map[string][]byte) error {
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
	init, err := os.ReadFile(cmp.Or(program, "/proc/self/exe"))
	if err != nil {
		return err
	}
	add("init", init, 0o755)
	if program == "" {
		libraries, err := ownLibraries()
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
	}
	for _, name := range slices.Sorted(maps.Keys(files)) { // two boots unpack the same archive
		add(guestFiles+name, files[name], 0o644)
	}
	if err := cpio.WriteRecords(w, records); err != nil {
		return err
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return err
	}
	return f.Close()
}

// ownLibraries are those that this program is linked with, none of a static one, as CGO_ENABLED=0
// builds it.
func ownLibraries() ([]string, error) {
	// By its path: the dynamic linker that is asked has a /proc/self/exe of its own.
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	libraries, err := ldd.List(self)
	if err != nil {
		return nil, fmt.Errorf("the libraries of this program: %w; build it with CGO_ENABLED=0 go build ./cmd/aossim", err)
	}
	return libraries, nil
}
