package observe

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf/btf"

	"aossim/internal/linux"
	"aossim/internal/refusal"
)

// symbols are the kernel's functions by address.
type symbols struct {
	addresses []uint64
	names     []string
}

// kernelSymbols reads /proc/kallsyms, once: it has 200,000 lines. Without permission
// (kptr_restrict) there are none.
var kernelSymbols = sync.OnceValue(readSymbols)

func readSymbols() (s symbols) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return s
	}
	defer f.Close()
	type symbol struct {
		address uint64
		name    string
	}
	var all []symbol
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || !strings.Contains("tT", fields[1]) {
			continue
		}
		if a, err := strconv.ParseUint(fields[0], 16, 64); err == nil && a != 0 {
			all = append(all, symbol{a, fields[2]})
		}
	}
	slices.SortFunc(all, func(a, b symbol) int {
		if a.address < b.address {
			return -1
		}
		return 1
	})
	for _, x := range all {
		s.addresses, s.names = append(s.addresses, x.address), append(s.names, x.name)
	}
	return s
}

// name returns function+offset, or the address.
func (s symbols) name(address uint64) string {
	at, exact := slices.BinarySearch(s.addresses, address)
	if !exact {
		at--
	}
	if at < 0 {
		return fmt.Sprintf("%#x", address)
	}
	return fmt.Sprintf("%s+%#x", s.names[at], address-s.addresses[at])
}

// firstNamespace is the inode of the pid namespace in which eBPF counts processes
// (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const firstNamespace = 0xeffffffc

// pidNamespace returns what identifies this process's pid namespace, zeros for the first,
// which is the only one of a kernel without CONFIG_PID_NS.
func pidNamespace() (device, inode uint64, err error) {
	device, inode, err = linux.FileIdentity("/proc/self/ns/pid")
	if err != nil {
		if _, e := os.Stat("/proc/self/stat"); e != nil {
			return 0, 0, fmt.Errorf("%s: %w: %w; mount /proc", cannot, refusal.ErrUntried, err)
		}
		return 0, 0, nil
	}
	if inode == firstNamespace {
		return 0, 0, nil
	}
	return device, inode, nil
}

// EnumValue returns the value of a name in one of the kernel's enums, by its BTF.
func EnumValue(name string) (uint64, bool) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, false
	}
	for t, err := range types.All() {
		if err != nil {
			return 0, false
		}
		if enum, ok := t.(*btf.Enum); ok {
			for _, v := range enum.Values {
				if v.Name == name {
					return v.Value, true
				}
			}
		}
	}
	return 0, false
}
