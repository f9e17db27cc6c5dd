//go:build steps

package channel

import "sync/atomic"

// stepper does the accesses of a publisher or reader to shared memory, and tells a
// test: hook is called before each, saw with what it found.
type stepper struct {
	hook func(Step)
	saw  func(uint64)
}

func (s stepper) at(step Step) {
	if s.hook != nil {
		s.hook(step)
	}
}

func (s stepper) found(v uint64) uint64 {
	if s.saw != nil {
		s.saw(v)
	}
	return v
}

func (s stepper) load32(step Step, a *atomic.Uint32) uint32 {
	s.at(step)
	return uint32(s.found(uint64(a.Load())))
}

func (s stepper) load(step Step, a *atomic.Uint64) uint64 {
	s.at(step)
	return s.found(a.Load())
}

func (s stepper) store(step Step, a *atomic.Uint64, v uint64) {
	s.at(step)
	a.Store(v)
	s.found(0)
}

func (s stepper) cas32(step Step, a *atomic.Uint32, o, n uint32) bool {
	s.at(step)
	return s.swapped(a.CompareAndSwap(o, n))
}

func (s stepper) cas(step Step, a *atomic.Uint64, o, n uint64) bool {
	s.at(step)
	return s.swapped(a.CompareAndSwap(o, n))
}

func (s stepper) swapped(ok bool) bool {
	if ok {
		s.found(1)
	} else {
		s.found(0)
	}
	return ok
}

func (s stepper) copyLine(to, from *line) {
	for i := range from {
		s.at(StepReadBody)
		to[i] = s.found(atomic.LoadUint64(&from[i]))
	}
}

func (s stepper) loadFirst(step Step, of *line) uint64 {
	s.at(step)
	return s.found(atomic.LoadUint64(&of[0]))
}
