package expression

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// ErrCost says that an expression costs more than it may.
var ErrCost = fmt.Errorf("it costs more than %d", PerCallLimit)

// MissingError says that something is not there which an expression reads.
type MissingError struct {
	// Path is what is not there. It is nil when what is read is known only while the expression runs.
	Path   Path
	reason string
}

func (e *MissingError) Error() string { return e.reason }

// Run evaluates the expression and says what that cost. The variables are plain JSON values, as of an unstructured
// object; they are not changed, and nothing that comes out of this package shares anything with them but strings.
//
// The error is a [*MissingError], [ErrCost], or says what went wrong; when ctx ended it wraps its cause.
func (p *Program) Run(ctx context.Context, variables map[string]any) (Value, uint64, error) {
	out, cost, err := p.steps.evaluate(ctx, variables)
	if err == nil {
		return Value{out}, cost, nil
	}
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded {
		return Value{}, max(cost, PerCallLimit), ErrCost
	}
	if ctx.Err() != nil {
		return Value{}, cost, fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	message := strings.Join(strings.Fields(err.Error()), " ")
	if strings.Contains(message, "no such key") || strings.Contains(message, "index out of bounds") {
		missing := &MissingError{reason: message}
		for _, path := range p.paths {
			if m := path.missingIn(variables); m != nil {
				missing.Path, missing.reason = m, m.String()+" is not there"
				break
			}
		}
		return Value{}, cost, missing
	}
	return Value{}, cost, errors.New(message)
}

// Value is what an expression evaluated to.
type Value struct{ value ref.Val }

// Bool is the value as a condition.
func (v Value) Bool() (bool, error) {
	b, is := v.value.(types.Bool)
	if !is {
		return false, fmt.Errorf("it is of type %s, not bool", v.value.Type().TypeName())
	}
	return bool(b), nil
}
