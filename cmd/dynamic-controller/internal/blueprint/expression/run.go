package expression

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

var (
	// ErrCost is returned if the cost of an evaluation exceeds PerCallLimit.
	ErrCost = fmt.Errorf("the cost of the expression exceeds %d", PerCallLimit)
	// ErrTooLarge is returned if an object exceeds its maximum size.
	ErrTooLarge = errors.New("the object is too large")
)

// MissingError is returned if an expression reads a value that does not exist.
type MissingError struct {
	// Path is the path of the missing value, or nil if the expression computes a part of the path, such as a key.
	Path   Path
	reason string
}

func (e *MissingError) Error() string { return e.reason }

// Absent is the value of a variable that does not exist and never will, such as an excluded resource. An expression
// that reads the variable by ? gets optional.none(). For other expressions, the variable is missing.
var Absent any = types.OptionalNone

// Run evaluates the expression and returns its value and cost. The variables are JSON values as in an unstructured
// object, or [Absent]. Run does not modify them, and values converted from the result share no maps or lists with them.
//
// The error is a [*MissingError] or [ErrCost], or it describes a different failure. If ctx is done, the error wraps its
// cause.
func (p *Program) Run(ctx context.Context, variables map[string]any) (Value, uint64, error) {
	for _, name := range p.refs {
		if value, has := variables[name]; !has || value == Absent && p.Requires(name) {
			return Value{}, 0, &MissingError{Path: Path{name}, reason: name + " does not exist"}
		}
	}
	out, cost, err := evaluate(ctx, p.program, variables)
	if err == nil {
		return Value{out}, cost, nil
	}
	var cancelled interpreter.EvalCancelledError
	switch {
	case errors.Is(err, ErrCost), errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return Value{}, max(cost, PerCallLimit), ErrCost
	case ctx.Err() != nil:
		return Value{}, cost, fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	message := strings.Join(strings.Fields(err.Error()), " ")
	if !strings.Contains(message, "no such key") && !strings.Contains(message, "index out of bounds") {
		return Value{}, cost, errors.New(message)
	}
	for _, path := range p.paths {
		if m := path.missingIn(variables); m != nil {
			return Value{}, cost, &MissingError{Path: m, reason: m.String() + " does not exist"}
		}
	}
	return Value{}, cost, &MissingError{reason: message}
}

// Room tracks how many more bytes of JSON an object can contain, and reserves the memory for the object.
type Room struct {
	Left int
	// Memory is the reservation from which Copies times the memory of the object is taken. If it is nil, no memory is
	// reserved.
	Memory    *memory.Reservation
	Copies    int64
	Allocated int64 // the number of bytes that have been reserved
}

// Allocate reserves the memory for a part of the object.
func (r *Room) Allocate(bytes int64) error {
	if r.Memory == nil {
		return nil
	}
	if err := r.Memory.Grow(r.Copies * bytes); err != nil {
		return err
	}
	r.Allocated += r.Copies * bytes
	return nil
}

// Take reserves n bytes. It returns ErrTooLarge if fewer are left.
func (r *Room) Take(n int) error {
	if r.Left -= n; r.Left < 0 {
		return ErrTooLarge
	}
	return nil
}

// Value is the result of an expression.
type Value struct{ value ref.Val }

// Memory returns the memory of the value in bytes.
func (v Value) Memory() int64 { return memoryOf(v.value) }

// Bool returns the value as a boolean.
func (v Value) Bool() (bool, error) {
	b, ok := v.value.(types.Bool)
	if !ok {
		return false, fmt.Errorf("is of type %s, not bool", v.value.Type().TypeName())
	}
	return bool(b), nil
}

// Text returns the value as text that can be embedded in a string.
func (v Value) Text(room *Room) (string, error) {
	var s string
	switch v := v.value.(type) {
	case types.String:
		s = string(v)
	case types.Int:
		s = strconv.FormatInt(int64(v), 10)
	case types.Uint:
		s = strconv.FormatUint(uint64(v), 10)
	case types.Double:
		s = strconv.FormatFloat(float64(v), 'f', -1, 64)
	case types.Bool:
		s = strconv.FormatBool(bool(v))
	default:
		return "", fmt.Errorf("is of type %s; text can contain only strings, numbers and booleans", v.Type().TypeName())
	}
	return s, errors.Join(room.Take(len(s)), room.Allocate(memory.OfString(len(s))))
}

// JSON returns a copy of the value in the form used by unstructured objects. It returns false for optional.none().
func (v Value) JSON(room *Room) (any, bool, error) { return toJSON(v.value, room, 0) }

func toJSON(v ref.Val, room *Room, depth int) (any, bool, error) {
	if depth > maxValueDepth {
		return nil, false, fmt.Errorf("has more than %d levels", maxValueDepth)
	}
	switch v := v.(type) {
	case types.Null:
		return nil, true, room.Take(4)
	case types.Bool:
		return bool(v), true, room.Take(5)
	case types.Int:
		return int64(v), true, room.takeNumber()
	case types.Uint:
		if v > math.MaxInt64 {
			return nil, false, fmt.Errorf("%d overflows int64", uint64(v))
		}
		return int64(v), true, room.takeNumber()
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, false, fmt.Errorf("%v cannot be represented in JSON", float64(v))
		}
		return float64(v), true, room.takeNumber()
	case types.String:
		return string(v), true, room.takeString(len(v))
	case types.Bytes:
		if err := room.takeString(base64.StdEncoding.EncodedLen(len(v))); err != nil {
			return nil, false, err
		}
		return base64.StdEncoding.EncodeToString(v), true, nil
	case types.Timestamp, types.Duration:
		return toJSON(v.ConvertToType(types.StringType), room, depth)
	case *types.Optional:
		if !v.HasValue() {
			return nil, false, nil
		}
		return toJSON(v.GetValue(), room, depth+1)
	case traits.Mapper:
		return toMap(v, room, depth)
	case traits.Lister:
		return toList(v, room, depth)
	}
	return nil, false, fmt.Errorf("is of type %s, which an object cannot contain; convert it to a string or a number",
		v.Type().TypeName())
}

func (r *Room) takeNumber() error { return errors.Join(r.Take(8), r.Allocate(memory.Of(0))) }

func (r *Room) takeString(length int) error {
	return errors.Join(r.Take(length+2), r.Allocate(memory.Of("")+memory.OfString(length)))
}

func toMap(m traits.Mapper, room *Room, depth int) (any, bool, error) {
	if err := room.Allocate(memory.OfMap(lengthOf(m))); err != nil {
		return nil, false, err
	}
	values := map[string]ref.Val{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, false, fmt.Errorf("has a map key of type %s, not string", key.Type().TypeName())
		}
		if err := errors.Join(room.Take(len(name)+4), room.Allocate(memory.OfString(len(name)))); err != nil {
			return nil, false, err
		}
		values[string(name)], _ = m.Find(key)
	}
	out := make(map[string]any, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) { // sorted so that the same error is always reported first
		value, present, err := toJSON(values[name], room, depth+1)
		if err != nil {
			return nil, false, err
		}
		if present {
			out[name] = value
		}
	}
	return out, true, room.Take(2)
}

func toList(l traits.Lister, room *Room, depth int) (any, bool, error) {
	if err := room.Allocate(memory.OfList(lengthOf(l))); err != nil {
		return nil, false, err
	}
	out := []any{}
	for it := l.Iterator(); it.HasNext() == types.True; {
		if err := room.Take(1); err != nil {
			return nil, false, err
		}
		value, present, err := toJSON(it.Next(), room, depth+1)
		if err != nil {
			return nil, false, err
		}
		if present {
			out = append(out, value)
		}
	}
	return out, true, room.Take(2)
}
