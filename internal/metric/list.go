package metric

import (
	"math"
	"strconv"
	"strings"

	"aossim/internal/result"
	"aossim/internal/wait"
)

// Distribution is a histogram that groups have: from each come the metrics KEY.p50 to
// KEY.count.
type Distribution struct {
	Key, Name, Means string
	Unit             Unit
	// Judged: its percentiles are compared. Bench: they are in the Go benchmark format.
	Judged, Bench bool
	// Kernel: it is of an observed pass, not of the run.
	Kernel bool
	// Owners: whose it is.
	of owners
	Of func(g *result.Group) *result.Histogram
}

// Distributions are all there are, in the order of tables.
var Distributions = []Distribution{
	{Key: "rearm", Name: "re-arm", Unit: Nanoseconds, Judged: true, Bench: true,
		Means: "from reading a wake's CQE to the return of the io_uring_enter that armed the channel again, failed arms and handling in between included",
		Of:    func(g *result.Group) *result.Histogram { return g.Histograms.Rearm }},
	{Key: "arm_window", Name: "arm window", Unit: Nanoseconds, Judged: true, Bench: true,
		Means: "from the load of the word to the return of the io_uring_enter that armed successfully",
		Of:    func(g *result.Group) *result.Histogram { return g.Histograms.ArmWindow }},
	{Key: "arm_window_eagain", Name: "arm window, failed", Unit: Nanoseconds, Bench: true,
		Means: "the same of arms that failed",
		Of:    func(g *result.Group) *result.Histogram { return g.Histograms.ArmWindowEAGAIN }},
	{Key: "delivery", Name: "delivery", Unit: Nanoseconds, Judged: true, Bench: true,
		Means: "from the publisher's time stamp, taken as it begins to publish, to the start of handling",
		Of:    func(g *result.Group) *result.Histogram { return g.Histograms.Delivery }},
	{Key: "response", Name: "response", Unit: Nanoseconds, Judged: true, Bench: true,
		Means: "from the time when the publisher was to publish to the start of handling: a late publisher hides nothing",
		Of:    func(g *result.Group) *result.Histogram { return g.Histograms.Response }},
	{Key: "eagain_rate_ppm", Name: "rate over 100 ms", Unit: PPM,
		Means: "share of arms that failed, one value for each subscriber and 100 ms in which it armed",
		Of:    func(g *result.Group) *result.Histogram { return g.Histograms.EAGAINRate }},
	{Key: "kernel_failure", Name: "failed arms, us from syscall", Unit: Nanoseconds, Kernel: true,
		Means: "from syscall entry to the failure, as the kernel sees it", of: both,
		Of: func(g *result.Group) *result.Histogram { return kernel(g).Failure }},
	{Key: "kernel_rearm", Name: "re-arm, observed", Unit: Nanoseconds, Kernel: true,
		Means: "re-arm latency in the observed pass: what observing costs",
		Of:    func(g *result.Group) *result.Histogram { return kernel(g).Rearm }},
	{Key: "wake_to_return", Name: "wake to return", Unit: Nanoseconds, Judged: true, of: live,
		Means: "from the entry of the waker's call to the return to user space of the waiter, of waiters that slept",
		Of:    func(g *result.Group) *result.Histogram { return observed(g).Wake }},
	{Key: "handling", Name: "handling", Unit: Nanoseconds, of: live,
		Means: "from a return from a wake to the entry of the thread's next waiting call or arm",
		Of:    func(g *result.Group) *result.Histogram { return observed(g).Handling }},
	{Key: "return_to_arm", Name: "return to arm", Unit: Nanoseconds, Judged: true, of: live,
		Means: "from a return from a wake to the end of the thread's next arm on a ring that was queued, failed arms and handling in between included",
		Of:    func(g *result.Group) *result.Histogram { return observed(g).Rearm }},
	outcome("woken", "that a wake ended"), outcome("mismatch", "that found another value (-EAGAIN)"),
	outcome("timeout", "that timed out"), outcome("interrupted", "that a signal ended"),
	lock("woken"), lock("mismatch"), lock("timeout"),
}

// observed returns what an observed process did, an empty account where the group is none.
func observed(g *result.Group) *result.Live {
	if g.Live == nil {
		return &result.Live{}
	}
	return g.Live
}

func outcomeOf(g *result.Group, name string) *result.Outcome {
	for i := range observed(g).Outcomes {
		if o := &g.Live.Outcomes[i]; o.Outcome == name {
			return o
		}
	}
	return &result.Outcome{}
}

// outcome is how long waiting system calls took that ended in one way.
func outcome(name, which string) Distribution {
	return Distribution{Key: "call_" + name, Name: "call, " + name, Unit: Nanoseconds, of: live, Means: "from entry to exit of waiting futex system calls " + which,
		Of: func(g *result.Group) *result.Histogram { return outcomeOf(g, name).Time }}
}

// lock is how long futex_q_lock() took in them.
func lock(name string) Distribution {
	return Distribution{Key: "lock_" + name, Name: "lock, " + name, Unit: Nanoseconds, of: live, Means: "time in futex_q_lock(), its waiting included, of waiting futex system calls whose outcome is " + name,
		Of: func(g *result.Group) *result.Histogram { return outcomeOf(g, name).Lock }}
}

// kernel returns what the kernel did for a group, an empty account where it was not observed.
func kernel(g *result.Group) *result.Kernel {
	if g.Kernel == nil {
		return &result.Kernel{}
	}
	return g.Kernel
}

// stats are the statistics of a distribution. Those with a percentage are percentiles.
var stats = []struct {
	name    string
	percent float64
	judged  bool
}{{"p50", 50, true}, {"p90", 90, false}, {"p99", 99, true}, {"p99.9", 99.9, true}, {"max", 0, false}, {"count", 0, false}}

// Percentiles are those of the tables, in %.
var Percentiles = []float64{50, 90, 99, 99.9}

// PercentileKey is the key of a distribution's percentile.
func PercentileKey(distribution string, percent float64) string {
	return distribution + ".p" + strconv.FormatFloat(percent, 'f', -1, 64)
}

// metrics returns those of a distribution.
func (d Distribution) metrics() (list []Metric) {
	for _, s := range stats {
		m := Metric{Key: d.Key + "." + s.name, Name: d.Name + " " + s.name, Means: d.Means, Unit: d.Unit, of: d.of}
		switch {
		case s.percent != 0:
			if d.Judged && s.judged {
				m.Judged = Time
			}
			if d.Bench && s.judged {
				m.Bench = d.Key + "-" + s.name + "-ns"
			}
			m.value = func(g Group) (float64, bool) {
				v, ok := d.Of(g.Group).Percentile(s.percent)
				return float64(v), ok
			}
		case s.name == "max":
			m.Over = Largest
			m.value = func(g Group) (float64, bool) {
				h := d.Of(g.Group)
				if h != nil && h.Overflow > 0 {
					return result.Highest, true
				}
				return float64(h.Max()), h.Count() > 0 // the largest of none is not 0
			}
		default:
			m.Over, m.Unit = Sum, Number
			m.value = func(g Group) (float64, bool) {
				return float64(d.Of(g.Group).Count()), !d.Kernel || g.Kernel != nil
			}
		}
		list = append(list, m)
	}
	return list
}

// All is every metric of a group, in the order in which comparisons show them.
var All = func() []Metric {
	list := []Metric{
		share("eagain_rate", "-EAGAIN rate", "share of arms that failed", func(g Group) int64 { return g.EAGAIN }, func(g Group) int64 { return g.Arms }),
	}
	list[0].Judged, list[0].Bench = Share, "eagain-percent"
	for _, d := range Distributions {
		list = append(list, d.metrics()...)
	}
	messages := perSecond("messages_per_second", "messages", "messages that each subscriber handled", func(g Group) float64 { return float64(g.Handled) / float64(g.Subscribers) })
	messages.Judged, messages.Higher, messages.Bench = Rate, true, "messages/s"
	published := perSecond("published_per_second", "published/s", "messages that the group's publishers published", func(g Group) float64 { return float64(g.Published) })
	published.Publishers = true
	list = append(list, messages,
		perArm("kmalloc_per_arm", "kmalloc per arm", "kmalloc/arm", func(g Group) int64 { return kernel(g.Group).Arms }),
		perArm("kmalloc_per_failed_arm", "kmalloc per failed arm", "", func(g Group) int64 { return kernel(g.Group).EAGAIN }),
		perArm("kmalloc_per_message", "kmalloc per message", "", func(g Group) int64 { return kernel(g.Group).Messages }),
		published,
		perSecond("arms_per_second", "arms/s", "arms that the group's subscribers issued", func(g Group) float64 { return float64(g.Arms) }),
		perSecond("eagain_per_second", "-EAGAIN/s", "arms that failed", func(g Group) float64 { return float64(g.EAGAIN) }),
		Metric{Key: "kfree_per_failed_arm", Name: "kfree per failed arm", Means: "kfrees in the kernel while arming", Unit: Ratio,
			part: func(g Group) float64 { return float64(kernel(g.Group).Kfree) }, whole: func(g Group) float64 { return float64(kernel(g.Group).EAGAIN) }},
	)
	for _, c := range []struct {
		key, name, means string
		of               func(g *result.Group) int64
	}{
		{"published", "published", "messages that the group's publishers published", func(g *result.Group) int64 { return g.Published }},
		{"missed_deadlines", "missed", "deadlines of messages published after the next one was due, or not at all", func(g *result.Group) int64 { return g.MissedDeadlines }},
		{"handled", "handled", "messages that subscribers handled", func(g *result.Group) int64 { return g.Handled }},
		{"overrun", "overrun", "messages overwritten before a subscriber read them", func(g *result.Group) int64 { return g.Overrun }},
		{"arms", "arms", "waits issued", func(g *result.Group) int64 { return g.Arms }},
		{"eagain", "failed arms", "arms whose CQE is -EAGAIN", func(g *result.Group) int64 { return g.EAGAIN }},
		{"wakes", "wakes", "waits that a wake ended", func(g *result.Group) int64 { return g.Wakes }},
		{"lost_wakes", "lost", "wakes that did not come: the word had moved on for 100 ms, all its publishers had woken, and the loop slept on", func(g *result.Group) int64 { return g.LostWakes }},
		{"late_wakes", "late", "wakes read later after the publish than the scenario's bound", func(g *result.Group) int64 { return g.LateWakes }},
		{"spurious_wakes", "spurious", "wakes with the word unchanged", func(g *result.Group) int64 { return g.SpuriousWakes }},
		{"kernel_arms", "arms, observed", "arms as the kernel counted them", func(g *result.Group) int64 { return kernel(g).Arms }},
		{"kernel_eagain", "failed arms, observed", "failed arms as the kernel counted them", func(g *result.Group) int64 { return kernel(g).EAGAIN }},
	} {
		m := Metric{Key: c.key, Name: c.name, Means: c.means, Unit: Number, Over: Sum}
		m.value = func(g Group) (float64, bool) {
			// What was not observed is not 0.
			return float64(c.of(g.Group)), g.Kernel != nil || !strings.HasPrefix(c.key, "kernel_")
		}
		m.Publishers = c.key == "published" || c.key == "missed_deadlines"
		list = append(list, m)
	}
	failed := func(g Group) int64 { return g.EAGAIN }
	kernelFailed := func(g Group) int64 { return kernel(g.Group).EAGAIN }
	for _, s := range []Metric{
		share("one_behind", "1 behind", "share of failed arms that found the word one message on", func(g Group) int64 { return g.Behind[1] }, failed),
		share("kernel_one_behind", "1 behind, observed", "the same, by the word at the failure", func(g Group) int64 { return kernel(g.Group).Behind[1] }, kernelFailed),
		share("kernel_within_6us", "<= 6 us", "share of failures within 6 us of syscall entry", func(g Group) int64 { return kernel(g.Group).Within6us }, kernelFailed),
		share("kernel_over_40us", "> 40 us", "share of failures over 40 us after syscall entry", func(g Group) int64 { return kernel(g.Group).Over40us }, kernelFailed),
	} {
		s.Over = Pooled
		list = append(list, s)
	}
	waits := func(g Group) (n int64) {
		for _, o := range observed(g.Group).Outcomes {
			n += o.Calls
		}
		return n
	}
	mismatches := func(g Group) int64 { return outcomeOf(g.Group, result.OutcomeMismatch).Calls }
	mismatch := share("mismatch_share", "mismatches", "share of waiting futex system calls that found another value (-EAGAIN)", mismatches, waits)
	lockShare := share("mismatch_lock_share", "lock time of mismatches", "their share of the time in futex_q_lock() of all waiting futex system calls", func(g Group) int64 { return outcomeOf(g.Group, result.OutcomeMismatch).LockNS },
		func(g Group) (ns int64) {
			for _, o := range observed(g.Group).Outcomes {
				ns += o.LockNS
			}
			return ns
		})
	calls := perSecond("wait_calls_per_second", "waits/s", "waiting futex system calls", func(g Group) float64 { return float64(waits(g)) })
	wakeCalls := perSecond("wake_calls_per_second", "wakes/s", "calls and requests that wake", func(g Group) (n float64) {
		for _, w := range observed(g.Group).Wakes {
			n += float64(w.Calls)
		}
		return n
	})
	for _, m := range []*Metric{&mismatch, &lockShare, &calls, &wakeCalls} {
		m.of = live
		list = append(list, *m)
	}
	list = append(list,
		Metric{Key: "one_behind_predicted", Name: "1 behind, predicted", Means: "what one_behind is if publishes that race an arm are Poisson", Unit: Fraction,
			value: func(g Group) (float64, bool) { return oneBehind(failureRate(g)), canInfer(g) }},
		Metric{Key: "race_window", Name: "race window", Means: "-ln(1 - rate) / (messages per second on the channel), if publishes that race an arm are Poisson", Unit: Nanoseconds,
			value: func(g Group) (float64, bool) { return raceWindow(failureRate(g), racing(g)), canInfer(g) }})
	for i := range list {
		switch list[i].Key {
		case "eagain_rate", "arms_per_second", "eagain_per_second", "arms", "eagain", "wakes", "kmalloc_per_arm", "kmalloc_per_failed_arm", "kfree_per_failed_arm",
			"kernel_one_behind", "kernel_within_6us", "kernel_over_40us":
			list[i].of = both
		}
		switch list[i].Key {
		case "arms", "eagain":
			list[i].KTAP = list[i].Key
		case "rearm.p99":
			list[i].KTAP = "rearm_p99_ns"
		}
	}
	return list
}()

func share(key, name, means string, part, whole func(g Group) int64) Metric {
	return Metric{Key: key, Name: name, Means: means, Unit: Fraction,
		part: func(g Group) float64 { return float64(part(g)) }, whole: func(g Group) float64 { return float64(whole(g)) }}
}

func perSecond(key, name, means string, of func(g Group) float64) Metric {
	return Metric{Key: key, Name: name, Means: means + ", a second", Unit: PerSecond,
		part: of, whole: func(g Group) float64 { return float64(g.Phase.DurationNS) / 1e9 }}
}

// perArm is about kmallocs, for each event of a kind.
func perArm(key, name, bench string, events func(g Group) int64) Metric {
	count := func(g Group) int64 { return kernel(g.Group).Kmalloc }
	return Metric{Key: key, Name: name, Means: "kmallocs in the kernel while arming, in the observed pass", Unit: Ratio, Judged: Count, Gate: "kmalloc", Bench: bench,
		part: func(g Group) float64 { return float64(count(g)) }, whole: func(g Group) float64 { return float64(events(g)) },
		counts: func(g Group) (int64, int64) { return count(g), events(g) }}
}

// failureRate is the share of arms that failed, 1 where none was issued.
func failureRate(g Group) float64 {
	if g.Arms == 0 {
		return 1
	}
	return float64(g.EAGAIN) / float64(g.Arms)
}

// canInfer says whether failed arms tell of a window in which publishes race: not where
// only a publisher's own next period can.
func canInfer(g Group) bool { return !g.LonePeriodic && failureRate(g) < 1 && racing(g) > 0 }

// racing is how many messages per second can race an arm of the group: those of one
// channel, or of all of them where one arm covers them.
func racing(g Group) float64 {
	perSubscriber := float64(g.Offered) / float64(g.Subscribers) / (float64(g.Phase.DurationNS) / 1e9)
	if kind, _ := wait.Named(g.Wait); kind.OneArm {
		return perSubscriber
	}
	return perSubscriber / float64(max(1, g.Channels))
}

// raceWindow infers the window (ns) in which a publish makes an arm fail from the
// share of arms that failed, for Poisson publishes at so many a second.
func raceWindow(rate, perSecond float64) float64 { return -math.Log1p(-rate) / perSecond * 1e9 }

// oneBehind is the share of failed arms that then find exactly one publish: those
// of a Poisson distribution whose share of non-zeros is rate.
func oneBehind(rate float64) float64 {
	if rate == 0 {
		return 1
	}
	mean := -math.Log1p(-rate)
	return mean * math.Exp(-mean) / rate
}

// OfPoint is the metric of a point of a micro-benchmark: a round's figure.
func OfPoint(m *result.Micro) Metric {
	u := Unit(m.Unit)
	j, gate := Time, ""
	switch {
	case u.Counted():
		j, gate = Instructions, m.Name+".instructions" // one of times would be wide
	case u.HigherIsBetter():
		j = Rate
	}
	return Metric{Key: m.Name, Name: Path(m.Name), Means: "the figure of a measured round", Unit: u, Judged: j, Gate: gate, Higher: u.HigherIsBetter()}
}

// OfPointKernel are the metrics of what the kernel did in a point's observed rounds, with
// each one's count and its events.
func OfPointKernel(m *result.Micro, f func(m Metric, count, of int64)) {
	if m.Kernel == nil {
		return
	}
	g := Group{Group: &result.Group{Kernel: m.Kernel}, Phase: &result.Phase{}}
	for i := range All {
		if k := All[i]; k.Judged == Count {
			if count, of := k.Counts(g); of > 0 {
				k.Gate, k.Name = m.Name+"."+k.Gate, Path(m.Name, k.Name)
				f(k, count, of)
			}
		}
	}
}
