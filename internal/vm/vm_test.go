package vm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"

	"aossim/internal/refusal"
)

// TestFrames: messages arrive whole in what a console makes of them, or it is said that
// they do not.
func TestFrames(t *testing.T) {
	big := bytes.Repeat([]byte("some result, which is not all the same: "), 500)
	for i := range big {
		big[i] += byte(i * i % 7)
	}
	messages := []message{{Command: 0, Kind: kindOutput, Data: big}, {Command: 0, Kind: kindExit, Exit: 1}, {Kind: kindDone}}
	var sent bytes.Buffer
	for i, m := range messages {
		if err := send(&sent, i, 2, m); err != nil {
			t.Fatal(err)
		}
	}
	for name, meddle := range map[string]func(string) string{
		"as sent":        func(s string) string { return s },
		"serial line":    func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"kernel between": func(s string) string { return strings.ReplaceAll(s, "\n\n", "\n[ 1.0] a message of the kernel\n") },
		"kernel within": func(s string) string { // one of the two copies of the first part
			return strings.Replace(s, " 0 0 ", " 0 0[ 2.0] oops\n ", 1)
		},
		"doubled": func(s string) string { return s + s },
	} {
		got, rest, err := receive(strings.NewReader("Booting\n" + meddle(sent.String())))
		if err != nil || len(got) != len(messages) || !bytes.Equal(got[0].Data, big) || got[1].Exit != 1 || got[2].Kind != kindDone {
			t.Errorf("%s: %d messages, %v", name, len(got), err)
		}
		if len(rest) == 0 || rest[0] != "Booting" {
			t.Errorf("%s: the other lines are %q", name, rest)
		}
	}
	lost := strings.ReplaceAll(sent.String(), frameMark+" 0 0 ", "x ")
	if _, _, err := receive(strings.NewReader(lost)); err == nil {
		t.Error("a lost part was not missed")
	}
}

// TestOutputs: what a guest says of commands that there are not, or leaves out, is said, and
// no output is taken for another command's.
func TestOutputs(t *testing.T) {
	exit := func(command, code int) message { return message{Command: command, Kind: kindExit, Exit: code} }
	whole := message{Kind: kindDone}
	for name, c := range map[string]struct {
		messages []message
		commands int
		want     string
		done     bool
	}{
		"all": {[]message{exit(0, 0), {Command: 1, Kind: kindOutput, Data: []byte("x")}, exit(1, 4), whole}, 2, "", true},
		"cut": {[]message{exit(0, 0)}, 2, "", false}, "below": {[]message{exit(-1, 0), whole}, 1, "command -1", false}, "above": {[]message{exit(1e9, 0)}, 2, "command 1000000000", false},
		"none": {nil, 2, "", false}, "done and nothing else": {[]message{whole}, 2, "not how each", false}, "another kind": {[]message{{Kind: "x"}}, 1, `kind "x"`, false},
		"no commands": {[]message{whole}, 0, "", true},
	} {
		list, done, err := outputs(c.messages, c.commands)
		if done != c.done || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || len(list) != c.commands {
			t.Errorf("%s: %v, %t, %v", name, list, done, err)
		}
	}
}

// TestGreedyGuest: what a guest sends takes no more memory than a result could.
func TestGreedyGuest(t *testing.T) {
	var sent bytes.Buffer
	part := []byte("x")
	for n := range maxMessages - 1 { // each says that it has very many parts
		fmt.Fprintf(&sent, "%s %d 0 %d %08x %s\n", frameMark, n, maxParts-1, crc32.ChecksumIEEE(part), base64.StdEncoding.EncodeToString(part))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := receive(&sent); err == nil {
		t.Error("parts that never came were not missed")
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 100<<20 {
		t.Errorf("%d MiB for parts that never came", took>>20)
	}
	zeros := make([]byte, maxConsole/3)
	for n := range 4 {
		if err := send(&sent, n, 1, message{Kind: kindOutput, Data: zeros}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := receive(&sent); err == nil || !strings.Contains(err.Error(), "more than any result") {
		t.Errorf("four messages of %d MiB: %v", len(zeros)>>20, err)
	}
}

// FuzzKernel: no file is taken for a kernel that is none, and none takes long or panics.
func FuzzKernel(f *testing.F) {
	for _, data := range [][]byte{gz(bzImage()), zboot("gzip", gz(bzImage())), bzImage(), deb("./boot/vmlinuz-1", bzImage()), deb("./boot/vmlinuz-1", bzImage())[:200], []byte("\x7fELF"), nil} {
		f.Add(data)
	}
	dir, path := f.TempDir(), filepath.Join(f.TempDir(), "k.deb")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		k, err := openKernel(t.Context(), path, dir)
		if (err == nil) != (k != nil) || err != nil && !errors.Is(err, refusal.ErrUsage) || err != nil && strings.Contains(err.Error(), dir) {
			t.Errorf("%+v, %v", k, err)
		}
	})
}

func FuzzReceive(f *testing.F) {
	var sent bytes.Buffer
	if err := send(&sent, 0, 1, message{Kind: kindDone}); err != nil {
		f.Fatal(err)
	}
	f.Add(sent.Bytes())
	f.Add([]byte(frameMark + " 0 0 99999999 00000000 AAAA\n"))
	f.Add([]byte(frameMark + " 999 1 2 00000000 \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		messages, _, err := receive(bytes.NewReader(data))
		if err != nil {
			return
		}
		if list, done, err := outputs(messages, 2); done && (err != nil || len(list) != 2) {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// bzImage is what looks like one.
func bzImage() []byte {
	image := make([]byte, 0x400)
	copy(image[0x202:], "HdrS")
	return image
}

// gz packs data.
func gz(data []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(data)
	z.Close()
	return out.Bytes()
}

// zst packs data.
func zst(data []byte) []byte {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	return z.EncodeAll(data, nil)
}

// zboot is an EFI zboot image with a payload, and what a linker puts behind one.
func zboot(kind string, payload []byte) []byte {
	image := make([]byte, 0x300)
	copy(image, "MZ\x00\x00zimg")
	binary.LittleEndian.PutUint32(image[8:], uint32(len(image)))
	binary.LittleEndian.PutUint32(image[12:], uint32(len(payload)))
	copy(image[24:], kind)
	return append(append(image, payload...), "behind it"...)
}

// deb returns a Debian package with a file.
func deb(name string, data []byte) []byte {
	var files, out bytes.Buffer
	z := gzip.NewWriter(&files)
	w := tar.NewWriter(z)
	_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Typeflag: tar.TypeReg})
	_, _ = w.Write(data)
	w.Close()
	z.Close()
	out.WriteString("!<arch>\n")
	for _, m := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.gz", []byte("odd")}, {"data.tar.gz", files.Bytes()}} {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", m.name, 0, 0, 0, 0o100644, len(m.data))
		out.Write(m.data)
		if len(m.data)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}

// TestKernels: what is one is found, and what is none is refused.
func TestKernels(t *testing.T) {
	dir := t.TempDir()
	arm := make([]byte, 0x400)
	copy(arm[56:], "ARM\x64")
	for name, c := range map[string]struct {
		data []byte
		arch string
	}{
		"bzImage": {bzImage(), "amd64"}, "Image": {arm, "arm64"}, "Image.gz": {gz(arm), "arm64"}, "zboot": {zboot("gzip", gz(arm)), "arm64"}, "zstd.zboot": {zboot("zstd22", zst(arm)), "arm64"}, "zboot.deb": {deb("./boot/vmlinuz-1", zboot("gzip", gz(arm))), "arm64"},
		"broken.gz": {gz(arm)[:len(gz(arm))-6], ""}, "other.gz": {gz([]byte("no kernel")), ""}, "cut.zboot": {zboot("gzip", gz(arm))[:0x310], ""}, "lz4.zboot": {zboot("lz4", gz(arm)), ""}, "nested.gz": {gz(gz(gz(gz(gz(arm))))), ""},
		"old.deb":   {deb("./boot/vmlinuz-6.12-rt", bzImage()), "amd64"},
		"new.deb":   {deb("./usr/lib/modules/7.3-rt/vmlinuz", bzImage()), "amd64"},
		"other.deb": {deb("./usr/bin/vmlinuz", bzImage()), ""}, "text": {[]byte("#!/bin/sh\n"), ""}, "empty": {nil, ""}, "cut.deb": {deb("./boot/vmlinuz-1", bzImage())[:200], ""},
		"zeros": {make([]byte, 4096), ""}, "negative.deb": {[]byte("!<arch>\n" + strings.Repeat("-", 60)), ""},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, c.data, 0o666); err != nil {
			t.Fatal(err)
		}
		k, err := openKernel(t.Context(), path, dir)
		switch {
		case c.arch == "" && (!errors.Is(err, refusal.ErrUsage) || !strings.Contains(err.Error(), name)):
			t.Errorf("%s: %v", name, err)
		case c.arch != "" && (err != nil || k.arch != c.arch || k.name != path):
			t.Errorf("%s: %+v, %v", name, k, err)
		}
	}
	if _, err := openKernel(t.Context(), filepath.Join(dir, "missing"), dir); !errors.Is(err, refusal.ErrUsage) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestInitramfs: init is this program with what it needs, and the files are where the
// guest looks.
func TestInitramfs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "initramfs")
	if err := initramfs(path, "", map[string][]byte{"orders.json": []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(f))
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]uint64{}
	for _, r := range records {
		sizes[r.Name] = r.FileSize
	}
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if sizes["init"] != uint64(self.Size()) || sizes[guestOrders] != 2 {
		t.Errorf("%v", sizes)
	}
	// The test is a program with libraries, or without where there is no C compiler.
	exe, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	libraries, err := exe.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, lib := range libraries {
		found := false
		for name := range sizes {
			found = found || strings.HasSuffix(name, "/"+lib)
		}
		if !found {
			t.Errorf("no %s", lib)
		}
	}
	for _, name := range []string{"proc", "sys", "dev", "tmp", "dev/console"} {
		if _, ok := sizes[name]; !ok {
			t.Errorf("no %s", name)
		}
	}
}

// pretend returns a machine whose QEMU is a shell script.
func pretend(t *testing.T, script string, timeout time.Duration) (*Machine, string) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernel is one for amd64")
	}
	dir := t.TempDir()
	kernel, qemu := filepath.Join(dir, "bzImage"), filepath.Join(dir, "qemu")
	if err := errors.Join(os.WriteFile(kernel, bzImage(), 0o666), os.WriteFile(qemu, []byte("#!/bin/sh\n"+script), 0o777)); err != nil {
		t.Fatal(err)
	}
	m, err := New(t.Context(), Options{QEMU: qemu, Timeout: timeout, Clock: Host}, []string{kernel})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m, kernel
}

// TestGuestsThatFail: each end of a guest that is none is an error with its last lines, in
// time, and QEMU is gone.
func TestGuestsThatFail(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"panic", "case \"$*\" in *-kernel*) echo 'Kernel panic - not syncing: no init';; *) exit 1;; esac", "Kernel panic - not syncing"},
		{"hang", "case \"$*\" in *-kernel*) echo booting; sleep 1000;; *) exit 1;; esac", "not done within 1s"},
		{"refused", "case \"$*\" in *-kernel*) echo 'no such machine' >&2; exit 1;; *) exit 1;; esac", "no such machine"},
		{"silent", "exit 0", "it said nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, kernel := pretend(t, c.script, time.Second)
			start := time.Now()
			b, err := m.Run(t.Context(), kernel, 2, [][]string{{"check"}}, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || b == nil {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	m, kernel := pretend(t, "case \"$*\" in *-kernel*) sleep 1000;; *) exit 1;; esac", time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := m.Run(ctx, kernel, 2, nil, nil); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("interrupted: %v", err)
	}
}

// TestNoPowerOff: a guest that is done and stays on is turned off, and its results count.
func TestNoPowerOff(t *testing.T) {
	var sent bytes.Buffer
	for i, m := range []message{{Kind: kindOutput, Data: []byte("result")}, {Kind: kindExit, Exit: 3}, {Kind: kindDone}} {
		if err := send(&sent, i, 1, m); err != nil {
			t.Fatal(err)
		}
	}
	frames := filepath.Join(t.TempDir(), "frames")
	if err := os.WriteFile(frames, sent.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	m, kernel := pretend(t, "for a; do case $a in file,id=port,path=*) cat "+frames+" >${a#*path=}; exec sleep 1000;; esac; done; exit 1", time.Minute)
	start := time.Now()
	b, err := m.Run(t.Context(), kernel, 2, [][]string{{"run"}}, nil)
	if err != nil || len(b.Outputs) != 1 || string(b.Outputs[0].Data) != "result" || b.Outputs[0].Exit != 3 {
		t.Errorf("%+v, %v", b, err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestNoQEMU: what is missing is said, with the way out.
func TestNoQEMU(t *testing.T) {
	kernel := filepath.Join(t.TempDir(), "bzImage")
	if err := os.WriteFile(kernel, bzImage(), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), Options{QEMU: "no-such-qemu"}, []string{kernel})
	if runtime.GOARCH != "amd64" {
		if !errors.Is(err, refusal.ErrUsage) {
			t.Errorf("another architecture's kernel: %v", err)
		}
		return
	}
	if !errors.Is(err, refusal.ErrCannot) || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("%v", err)
	}
}

// TestOneImage: an image is the same one however it is packed.
func TestOneImage(t *testing.T) {
	dir := t.TempDir()
	arm := make([]byte, 0x400)
	copy(arm[56:], "ARM\x64")
	sums := map[string]bool{}
	for name, data := range map[string][]byte{"Image": arm, "Image.gz": gz(arm), "zboot": zboot("gzip", gz(arm)), "k.deb": deb("./boot/vmlinuz-1", arm)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		k, err := openKernel(t.Context(), path, dir)
		if err != nil {
			t.Fatal(err)
		}
		sums[k.sha256] = true
	}
	if len(sums) != 1 {
		t.Errorf("%d checksums of one image", len(sums))
	}
}

// TestNoInstructions: a QEMU that cannot count them is refused before anything runs, with what
// it said.
func TestNoInstructions(t *testing.T) {
	dir := t.TempDir()
	kernel, qemu := filepath.Join(dir, "bzImage"), filepath.Join(dir, "qemu")
	script := "#!/bin/sh\ncase \"$*\" in --version) echo QEMU of yore;; *-icount*) echo 'qemu: -icount: invalid option' >&2; exit 1;; esac\n"
	if err := errors.Join(os.WriteFile(kernel, bzImage(), 0o666), os.WriteFile(qemu, []byte(script), 0o777)); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), Options{QEMU: qemu, Clock: Instructions}, []string{kernel})
	if runtime.GOARCH != "amd64" {
		return
	}
	if !errors.Is(err, refusal.ErrCannot) || !strings.Contains(err.Error(), "QEMU of yore") || !strings.Contains(err.Error(), "invalid option") || !strings.Contains(err.Error(), "--clock host") {
		t.Errorf("%v", err)
	}
}

// TestFixed: in virtual time all that makes two boots differ is fixed, and what the user adds comes last.
func TestFixed(t *testing.T) {
	for arch := range boards {
		args, cmdline := (&emulator{arch: arch, virtual: true}).arguments(Options{Cmdline: "mitigations=off"}, 1)
		line := strings.Join(args, " ")
		for _, want := range []string{"-smp 1", "-icount shift=0,sleep=off", "thread=single", "-rtc base=2020-01-01,clock=vm", "-seed 1", "-cpu " + boards[arch].model} {
			if !strings.Contains(line, want) {
				t.Errorf("%s: no %q in %s", arch, want, line)
			}
		}
		if !strings.HasSuffix(cmdline, " mitigations=off") || !strings.Contains(cmdline, "nokaslr norandmaps") || !strings.Contains(cmdline, "aossim.clock=instructions") {
			t.Errorf("%s: %s", arch, cmdline)
		}
	}
	if a, b := newID(), newID(); a == b || len(a) != 36 {
		t.Errorf("%s, %s", a, b)
	}
}
