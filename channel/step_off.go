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
