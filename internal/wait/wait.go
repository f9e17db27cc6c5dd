// Package wait says what kinds of wait a subscriber can have: each one's name, what the
// kernel must have for it, and what cannot be seen with it. The code is in eventloop, a file
// a kind. It builds on every OS.
package wait

// Kind is a kind of wait.
type Kind struct {
	Name  string // in scenarios and results
	Means string // in the documentation
	// Opcode is the io_uring operation that the kernel must have, by its number in
	// include/uapi/linux/io_uring.h; 0 for a kind without a ring.
	Opcode uint8
	// MaxChannels is how many channels one subscriber can wait on; 0 is no limit.
	MaxChannels int
	// OneArm: a single arm covers all channels of a subscriber.
	OneArm bool
	// Rearmed: the wait is armed again after each wake; else there are no arms to count, and
	// no word that a loop sleeps on.
	Rearmed bool
	// Eventfd: a publisher writes to an eventfd of each subscriber and channel.
	Eventfd bool
	// ArmSleeps: the call that arms is the one that sleeps, so that no call returns when an
	// arm succeeds: neither an arm's window nor the re-arm latency has an end to measure.
	ArmSleeps bool
}

// Kinds are all there are.
var Kinds = []Kind{
	{Name: "io_uring", Opcode: 51, Rearmed: true, Means: "one IORING_OP_FUTEX_WAIT a channel, re-armed after each wake"},
	{Name: "io_uring_waitv", Opcode: 53, Rearmed: true, OneArm: true, MaxChannels: 128, Means: "one IORING_OP_FUTEX_WAITV over all channels, re-armed as a whole"},
	{Name: "futex", Rearmed: true, ArmSleeps: true, MaxChannels: 1, Means: "futex(2): arms and waits in one call, on one channel"},
	{Name: "eventfd", Opcode: 6, Eventfd: true, Means: "a multishot poll of an eventfd a channel, never re-armed; the publisher writes to each"},
}

// Ring says whether the wait is a request on an io_uring.
func (k Kind) Ring() bool { return k.Opcode != 0 }

// Observable says whether the observer can count the kind's arms: those on a ring.
func (k Kind) Observable() bool { return k.Ring() && k.Rearmed }

// Named returns the kind of a name; ok is false where this program knows none.
func Named(name string) (k Kind, ok bool) {
	for _, k := range Kinds {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{Name: name}, false
}

// Names lists the names.
func Names() (names []string) {
	for _, k := range Kinds {
		names = append(names, k.Name)
	}
	return names
}
