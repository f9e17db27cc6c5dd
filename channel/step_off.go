//go:build !steps

package channel

import "sync/atomic"

// stepper does the accesses of a publisher or reader to shared memory.
type stepper struct{}

func (stepper) load32(_ Step, a *atomic.Uint32) uint32   { return a.Load() }
func (stepper) load(_ Step, a *atomic.Uint64) uint64     { return a.Load() }
func (stepper) store(_ Step, a *atomic.Uint64, v uint64) { a.Store(v) }
func (stepper) cas32(_ Step, a *atomic.Uint32, o, n uint32) bool {
	return a.CompareAndSwap(o, n)
}
func (stepper) cas(_ Step, a *atomic.Uint64, o, n uint64) bool { return a.CompareAndSwap(o, n) }

// copyLine copies in order. These loads compile to one instruction each, which those of
// atomic.Uint64 do not.
func (stepper) copyLine(to, from *line) {
	to[0] = atomic.LoadUint64(&from[0])
	to[1] = atomic.LoadUint64(&from[1])
	to[2] = atomic.LoadUint64(&from[2])
	to[3] = atomic.LoadUint64(&from[3])
	to[4] = atomic.LoadUint64(&from[4])
	to[5] = atomic.LoadUint64(&from[5])
	to[6] = atomic.LoadUint64(&from[6])
	to[7] = atomic.LoadUint64(&from[7])
}

func (stepper) loadFirst(_ Step, of *line) uint64 { return atomic.LoadUint64(&of[0]) }
