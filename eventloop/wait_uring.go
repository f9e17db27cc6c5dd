package eventloop

// One IORING_OP_FUTEX_WAIT a channel.
func init() {
	kinds["io_uring"] = func(s *Subscriber) (waits, error) { return &ringWaits{Subscriber: s}, s.openRing() }
}
