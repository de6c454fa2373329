package expression

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// ErrTooLarge says that what is made grows larger than it may.
var ErrTooLarge = errors.New("the object becomes too large")

// Room is how many bytes of JSON may still be made. It is for one goroutine.
type Room struct{ Left int }

// Take takes room for n bytes.
func (r *Room) Take(n int) error {
	if r.Left -= n; r.Left < 0 {
		return ErrTooLarge
	}
	return nil
}

// JSON is the value as it is in an unstructured object, copied. It is false for optional.none().
func (v Value) JSON(room *Room) (any, bool, error) { return plain(v.value, room, 0) }

func plain(v ref.Val, room *Room, depth int) (any, bool, error) {
	if depth > maxNesting {
		return nil, false, fmt.Errorf("it is nested deeper than %d", maxNesting)
	}
	switch v := v.(type) {
	case types.Null:
		return nil, true, room.Take(4)
	case types.Bool:
		return bool(v), true, room.Take(5)
	case types.Int:
		return int64(v), true, room.Take(8)
	case types.Uint:
		if v > math.MaxInt64 {
			return nil, false, fmt.Errorf("%d is more than an integer can be", uint64(v))
		}
		return int64(v), true, room.Take(8)
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, false, fmt.Errorf("%v is no number in JSON", float64(v))
		}
		return float64(v), true, room.Take(8)
	case types.String:
		return string(v), true, room.Take(len(v) + 2)
	case types.Bytes:
		if err := room.Take(base64.StdEncoding.EncodedLen(len(v)) + 2); err != nil {
			return nil, false, err
		}
		return base64.StdEncoding.EncodeToString(v), true, nil
	case types.Timestamp, types.Duration:
		s, is := v.ConvertToType(types.StringType).(types.String)
		if !is {
			return nil, false, fmt.Errorf("a %s that cannot be written", v.Type().TypeName())
		}
		return string(s), true, room.Take(len(s) + 2)
	case *types.Optional:
		if !v.HasValue() {
			return nil, false, nil
		}
		return plain(v.GetValue(), room, depth+1)
	case traits.Mapper:
		return plainMap(v, room, depth)
	case traits.Lister:
		return plainList(v, room, depth)
	}
	return nil, false, fmt.Errorf("a %s cannot be put into an object: make a string or a number of it", v.Type().TypeName())
}

func plainMap(m traits.Mapper, room *Room, depth int) (any, bool, error) {
	values := map[string]ref.Val{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, is := key.(types.String)
		if !is {
			return nil, false, fmt.Errorf("a map with a key that is a %s, not a string", key.Type().TypeName())
		}
		if err := room.Take(len(name) + 4); err != nil {
			return nil, false, err
		}
		values[string(name)], _ = m.Find(key)
	}
	out := make(map[string]any, len(values))
	// In order, so that of several errors it is always the same one.
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value, is, err := plain(values[name], room, depth+1)
		if err != nil {
			return nil, false, err
		}
		if is {
			out[name] = value
		}
	}
	return out, true, room.Take(2)
}

func plainList(l traits.Lister, room *Room, depth int) (any, bool, error) {
	out := []any{}
	for it := l.Iterator(); it.HasNext() == types.True; {
		if err := room.Take(1); err != nil {
			return nil, false, err
		}
		value, is, err := plain(it.Next(), room, depth+1)
		if err != nil {
			return nil, false, err
		}
		if is {
			out = append(out, value)
		}
	}
	return out, true, room.Take(2)
}

// Text is the value within text.
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
		return "", fmt.Errorf("it is of type %s, and within text there can be a string, a number or a boolean", v.Type().TypeName())
	}
	return s, room.Take(len(s))
}
