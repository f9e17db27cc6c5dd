package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// FormatCPUs writes CPUs as a list that taskset takes: 0-2,5.
func FormatCPUs(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if part := strconv.Itoa(cpus[i]); j > i {
			parts = append(parts, part+"-"+strconv.Itoa(cpus[j]))
		} else {
			parts = append(parts, part)
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// ParseCPUs reads what FormatCPUs writes.
func ParseCPUs(text string) ([]int, error) {
	var cpus []int
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(high)
		}
		if err != nil || first < 0 || last < first || last >= 1024 {
			return nil, fmt.Errorf("%q is no list of CPUs; write one such as 0-2,5", text)
		}
		for c := first; c <= last; c++ {
			cpus = append(cpus, c)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}
