// Package refusal defines, once for the whole program, the two ways in which it declines:
// what was asked for is not valid (exit code 129), or it is valid and this kernel or this
// user cannot do it (exit code 4). Everything else that goes wrong is a failure (1).
//
// Errors of other packages wrap one of these; who decides on an exit code, or whether a test
// may skip, asks with errors.Is. Nothing has started when a refusal is returned.
package refusal

import (
	"errors"
	"fmt"
	"strings"
)

// ErrUsage is about flags, scenarios and files that no machine, or not this one, can follow.
// ErrCannot is wrapped where this kernel or this user cannot do what was asked for.
var (
	ErrUsage  = errors.New("wrong usage")
	ErrCannot = errors.New("cannot run here")
)

// reason is why something cannot be done here; every reason is ErrCannot, too.
type reason struct{ text string }

func (r *reason) Error() string        { return r.text }
func (r *reason) Is(target error) bool { return target == ErrCannot }

// The reasons, where they are known. A test may skip for ErrLacking where the kernel is too
// old, and never for an error that is none of them: that one is this program's fault.
var (
	ErrLacking   error = &reason{"the kernel lacks it"}
	ErrForbidden error = &reason{"not permitted"}
	ErrUntried   error = &reason{"it could not be tried"}
)

// Usage returns an error that wraps ErrUsage; format takes %w.
func Usage(format string, args ...any) error { return because(ErrUsage, format, args) }

// Cannot returns an error that wraps ErrCannot; format takes %w.
func Cannot(format string, args ...any) error { return because(ErrCannot, format, args) }

// Reason is the text of an error without the words by which Usage begins, for where it is no refusal.
func Reason(err error) string { return strings.TrimPrefix(err.Error(), ErrUsage.Error()+": ") }

func because(kind error, format string, args []any) error {
	return fmt.Errorf("%w: %w", kind, fmt.Errorf(format, args...))
}
