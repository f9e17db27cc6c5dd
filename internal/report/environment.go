package report

import (
	"cmp"
	"fmt"
	"strings"

	"aossim/internal/metric"
	"aossim/internal/result"
)

// checkTables have a line for each check, and what the loads found out.
func checkTables(r *result.Result) []table {
	t := table{title: "Checks", above: []string{"checks"}, left: 3, wide: true, silent: true}
	for i, run := range r.Runs {
		for _, c := range run.Checks {
			name := c.Name
			if len(r.Runs) > 1 {
				name = fmt.Sprintf("run %d: %s", i+1, name)
			}
			t.add(passed(c.Pass), name, c.Detail)
		}
	}
	// The checks of points that passed have one line a point.
	for _, p := range points(r) {
		for i, m := range p {
			name := pointName(p, i)
			var fine []string
			for _, c := range m.Checks {
				if c.Pass && c.Name != "observer" {
					fine = append(fine, c.Name)
					continue
				}
				t.add(passed(c.Pass), name+": "+c.Name, c.Detail)
			}
			if len(fine) > 0 {
				t.add(fineWord, name, "in every round: "+strings.Join(fine, ", "))
			}
		}
	}
	found := table{title: "What the loads found out", above: []string{"what the loads found out"}, left: 2}
	for _, run := range r.Runs {
		for _, o := range run.Observations {
			found.add(o.Load, o.What, fmt.Sprintf("%s of %s", metric.Comma(o.Count), metric.Comma(o.Of)))
		}
	}
	return []table{t, found}
}

// The words for a check; a page colours them.
const fineWord, failedWord = "ok", "FAILED"

func passed(pass bool) string {
	if pass {
		return fineWord
	}
	return failedWord
}

// environmentTables have a line for each thing about the machine, and for each actor.
func environmentTables(r *result.Result) []table {
	e := &r.Environment
	t := table{title: "Environment", above: []string{"environment"}, left: 2, wide: true}
	const dmaLatency, sharedMemory = "cpu_dma_latency", "shared memory"
	options := strings.Join(r.Scenario.Options, " ")
	live := r.Observer.Mode == result.ObservedLive
	what, which := "scenario", r.Scenario.Name+", sha256 "+r.Scenario.SHA256+", "+options
	if live {
		what, which = "observed", cmp.Or(options, "all processes")
	}
	rt := "no"
	if e.Realtime {
		rt = "yes"
	}
	for _, line := range [][2]string{
		{"kernel", e.KernelRelease + " " + e.KernelVersion + " " + e.Machine},
		{"preemption", e.Preempt}, {"PREEMPT_RT", rt}, {"command line", e.CommandLine},
		{"CPU", e.CPU + ", online " + e.CPUs}, {"governor", e.Governor}, {"isolcpus", e.Isolated}, {"nohz_full", e.NohzFull},
		{"RT throttling", e.RTThrottling}, {"clock source", e.ClockSource}, {dmaLatency, e.DMALatency},
		{sharedMemory, fmt.Sprintf("pages of %d KiB", e.SharedPages>>10)},
		{"mitigations", strings.Join(e.Mitigations, "; ")}, {"virtualization", e.Virtualization},
		{"boot id", e.BootID}, {"program", e.Program + ", " + e.GoVersion},
		{what, which},
	} {
		if live && (line[0] == dmaLatency || line[0] == sharedMemory) {
			continue // an observer sets nothing up
		}
		t.add(line[0], line[1])
	}
	for _, line := range [][2]string{{"memory group", e.MemoryGroup}, {"emulator", e.Emulator}, {"image, sha256", e.Image}} {
		if line[1] != "" {
			t.add(line[0], line[1])
		}
	}
	for _, limit := range e.Limits {
		t.add("limit", limit)
	}
	granted := table{title: "Granted by the kernel", above: []string{"granted by the kernel"}, left: 5, silent: !live, head: cols("group", "actors", "policy", "priority", "CPUs")}
	if len(r.Runs) > 0 && !live { // its threads have a table
		for _, p := range r.Runs[0].Processes {
			for _, a := range p.Actors {
				granted.add(p.Group, a.Kind, a.Policy, fmt.Sprint(a.Priority), strings.Trim(strings.Join(strings.Fields(fmt.Sprint(a.CPUs)), ","), "[]"))
			}
		}
	}
	return []table{t, granted}
}
