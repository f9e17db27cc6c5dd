package profile

import (
	"golang.org/x/arch/arm64/arm64asm"
	"golang.org/x/arch/x86/x86asm"
)

// kind is what an instruction does to the order of execution.
type kind uint8

const (
	plain kind = iota
	jump       // to another place, maybe: conditional ones are such
	call
	ret
	system // a system call
	back   // from the kernel, or from an interrupt or exception
)

// instruction is one that was executed.
type instruction struct {
	size uint8 // bytes
	kind kind
}

// decode says what an instruction is. What the library does not know is a plain one of the size
// that it has in the log.
func decode(arch string, code []byte) (i instruction) {
	i.size = uint8(len(code))
	if arch == "arm64" {
		inst, err := arm64asm.Decode(code)
		if err != nil {
			return i
		}
		switch inst.Op {
		case arm64asm.BL, arm64asm.BLR:
			i.kind = call
		case arm64asm.RET:
			i.kind = ret
		case arm64asm.SVC:
			i.kind = system
		case arm64asm.ERET:
			i.kind = back
		case arm64asm.B, arm64asm.BR, arm64asm.CBZ, arm64asm.CBNZ, arm64asm.TBZ, arm64asm.TBNZ:
			i.kind = jump
		}
		return i
	}
	inst, err := x86asm.Decode(code, 64)
	if err != nil {
		return i
	}
	switch inst.Op {
	case x86asm.CALL, x86asm.LCALL:
		i.kind = call
	case x86asm.RET, x86asm.LRET:
		i.kind = ret
	case x86asm.SYSCALL, x86asm.SYSENTER:
		i.kind = system
	case x86asm.SYSRET, x86asm.SYSEXIT, x86asm.IRET, x86asm.IRETD, x86asm.IRETQ:
		i.kind = back
	case x86asm.JMP, x86asm.LJMP, x86asm.JA, x86asm.JAE, x86asm.JB, x86asm.JBE, x86asm.JCXZ, x86asm.JE, x86asm.JECXZ, x86asm.JG, x86asm.JGE, x86asm.JL, x86asm.JLE,
		x86asm.JNE, x86asm.JNO, x86asm.JNP, x86asm.JNS, x86asm.JO, x86asm.JP, x86asm.JRCXZ, x86asm.JS, x86asm.LOOP, x86asm.LOOPE, x86asm.LOOPNE:
		i.kind = jump
	}
	return i
}
