package report

import (
	"fmt"
	"slices"
	"time"

	"aossim/internal/metric"
	"aossim/internal/result"
	"aossim/internal/wait"
)

// chunk is how many groups stand side by side in the first table.
const chunk = 3

// phaseTables are the first to look at: a line a phase, three columns a group.
func phaseTables(all []*row) (list []table) {
	var groups, phases []string
	for _, r := range all {
		if !slices.Contains(phases, r.phase) {
			phases = append(phases, r.phase)
		}
		if r.subscribes() && !slices.Contains(groups, r.group) {
			groups = append(groups, r.group)
		}
	}
	for part := range slices.Chunk(groups, chunk) {
		t := table{title: "Phases", left: 1, head: cols("phase", "published/s")}
		for _, g := range part {
			t.head = append(t.head, under(g, "arms/s", "-EAGAIN/s", "rate")...)
		}
		for _, ph := range phases {
			published := 0.0
			for _, r := range all {
				if r.phase != ph {
					continue
				}
				if v, ok := r.value("published_per_second"); ok {
					published += v
				}
			}
			cells := []string{ph, metric.PerSecond.Format(published)}
			for _, g := range part {
				at := slices.IndexFunc(all, func(r *row) bool { return r.phase == ph && r.group == g && r.subscribes() })
				if at < 0 || !all[at].any("arms") {
					cells = append(cells, none, none, none)
					continue
				}
				cells = append(cells, all[at].figures("arms_per_second", "eagain_per_second", "eagain_rate")...)
			}
			t.add(cells...)
		}
		list = append(list, t)
	}
	return list
}

func latencyTable(all []*row) table {
	t := table{title: "Latencies", left: 3, head: cols("phase", "group", "latency, us")}
	for _, p := range metric.Percentiles {
		t.head = append(t.head, cols(fmt.Sprintf("p%g", p))...)
	}
	t.head = append(t.head, cols("max", "count")...)
	unseen := false
	for _, d := range metric.Distributions {
		if d.Unit != metric.Nanoseconds || d.Kernel {
			continue
		}
		gap := len(t.rows) > 0 && len(t.rows[len(t.rows)-1]) > 0
		for _, r := range all {
			cells := latency(r, d)
			if cells == nil || !r.subscribes() {
				continue
			}
			if gap { // between quantities
				t.add()
				gap = false
			}
			unseen = unseen || cells[0] == "*"
			t.add(append(r.where(d.Name), cells...)...)
		}
	}
	t.below = []string{fmt.Sprintf("A percentile is left out (%s) where fewer than %d values lie beyond it.", none, result.Beyond)}
	if unseen {
		t.below = append(t.below, "* cannot be observed: submit = \"combined\" and wait = \"futex\" arm and wait in one call, and no call returns when an arm succeeds.")
	}
	return t
}

// latency is a distribution of a row, nil where it has none.
func latency(r *row, d metric.Distribution) (cells []string) {
	var count, missed, overflow int64
	for _, g := range r.groups {
		if h := d.Of(g.Group); h != nil {
			count, missed, overflow = count+h.Count(), missed+h.Missed, overflow+h.Overflow
		}
	}
	switch {
	case missed > 0 && count == 0:
		for range metric.Percentiles {
			cells = append(cells, "*")
		}
		return append(cells, "*", "0")
	case count == 0:
		return nil
	}
	for _, p := range metric.Percentiles {
		cells = append(cells, r.figure(metric.PercentileKey(d.Key, p)))
	}
	top := r.figure(d.Key + ".max")
	if overflow > 0 {
		top = fmt.Sprintf("%d above %s", overflow, time.Duration(result.Highest))
	}
	return append(cells, top, metric.Comma(count))
}

func failureTable(all []*row) table {
	t := table{title: "Failed arms", left: 2, head: append(cols("phase", "group"),
		two("failed", "arms"), two("1 behind", ""), two("1 behind,", "predicted"), two("race window, us", "inferred"), two("arm window,", "us, p50"))}
	t.head = append(t.head, under("rate over 100 ms, %", "p50", "p99", "max")...)
	lone := false
	for _, r := range all {
		if !r.subscribes() || !r.any("arms") {
			continue
		}
		inferred := []string{none, none}
		if r.groups[0].LonePeriodic {
			lone, inferred = true, []string{"**", "**"}
		} else if r.any("eagain") {
			inferred = r.figures("one_behind_predicted", "race_window")
		}
		cells := append(r.figures("eagain", "one_behind"), inferred...)
		t.add(append(r.where(cells...), r.figures("arm_window.p50", "eagain_rate_ppm.p50", "eagain_rate_ppm.p99", "eagain_rate_ppm.max")...)...)
	}
	t.below = []string{"Race window: if publishes that race an arm are Poisson, it is -ln(1 - rate) / (messages per second on the channel)."}
	if lone {
		t.below = append(t.below, "** does not hold for a lone periodic publisher: nothing but its own next period can race the arm.")
	}
	return t
}

func messageTable(all []*row) table {
	t := table{title: "Messages and wakes", left: 2, head: cols("phase", "group", "published", "missed", "handled", "overrun", "wakes", "lost", "late", "spurious")}
	for _, r := range all {
		figures := func(has bool, keys ...string) (cells []string) {
			if has {
				return r.figures(keys...)
			}
			for range keys {
				cells = append(cells, none)
			}
			return cells
		}
		kind, known := wait.Named(r.groups[0].Wait)
		cells := figures(r.groups[0].Publishers > 0, "published", "missed_deadlines")
		cells = append(cells, figures(r.subscribes(), "handled", "overrun", "wakes")...)
		cells = append(cells, figures(r.subscribes() && (kind.Rearmed || !known), "lost_wakes", "late_wakes", "spurious_wakes")...)
		t.add(r.where(cells...)...)
	}
	t.below = []string{"missed: deadlines, of messages published after the next one was due, or not at all. Wakes are lost where the loop still slept on a word",
		"that had moved on for 100 ms; late where they came later than the scenario's bound (5 ms unless given), for whatever",
		"reason, the thread's own start included. spurious: woken with the word unchanged, as when",
		"the publish that made an arm fail wakes only after its message was handled and the channel armed again."}
	return t
}
