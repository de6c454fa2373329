package expression

import (
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

// meter reserves the memory that an evaluation allocates, until the evaluation ends. It counts the result of each call,
// although most results can be collected sooner.
type meter struct {
	reservation *memory.Reservation // nil if the memory is unlimited
	reserved    int64
	used        int64
}

// meterName is the name of the variable that holds the meter. Expressions cannot contain this name.
const meterName = "@meter"

// metered is an activation with a meter.
type metered struct {
	interpreter.Activation
	meter *meter
}

func (m metered) ResolveName(name string) (any, bool) {
	if name == meterName {
		return m.meter, true
	}
	return m.Activation.ResolveName(name)
}

// exhausted is the panic that ends an evaluation whose memory is not available.
type exhausted struct{ error }

// minReserved is the minimum number of bytes that are reserved at once.
const minReserved = 64 << 10

func (m *meter) isLimited() bool { return m != nil && m.reservation != nil }

// ensure reserves the memory for an allocation that follows. It panics if the memory is not available.
func (m *meter) ensure(bytes int64) {
	if !m.isLimited() || m.used+bytes <= m.reserved {
		return
	}
	more := max(m.used+bytes-m.reserved, minReserved)
	if err := m.reservation.Grow(more); err != nil {
		panic(exhausted{err})
	}
	m.reserved += more
}

// add counts an allocation.
func (m *meter) add(bytes int64) {
	m.ensure(bytes)
	m.used += bytes
}

func (m *meter) release() { m.reservation.Shrink(m.reserved) }

// callMemory maps functions to estimates of the memory that they allocate, which are computed from the arguments. It
// contains the functions that can allocate more than twice the size of their arguments.
var callMemory = map[string]func(args []ref.Val) int64{
	"json.unmarshal": func(args []ref.Val) int64 { return memory.OfJSON(stringAt(args, 0)) },
	"json.marshal":   memoryOfAll, "merge": memoryOfAll, "deepMerge": memoryOfAll, "flatten": memoryOfAll,
	"lists.setAtIndex": memoryOfItems, "lists.insertAtIndex": memoryOfItems, "lists.removeAtIndex": memoryOfItems,
	"distinct": memoryOfItems, "sort": memoryOfItems, "@sortByAssociatedKeys": memoryOfItems, "reverse": memoryOfItems,
	"replace":   func(args []ref.Val) int64 { return memory.OfString(lengthOfReplaced(args)) },
	"join":      func(args []ref.Val) int64 { return memory.OfString(lengthOfJoined(args)) },
	"format":    func(args []ref.Val) int64 { return memory.OfString(digitsOfFormat(args)) },
	"split":     memoryOfParts,
	"findAll":   memoryOfParts,
	"substring": memoryOfItems, "charAt": memoryOfItems, "lowerAscii": memoryOfItems, "upperAscii": memoryOfItems,
}

// memoryOfAll returns the memory of a copy of the arguments.
func memoryOfAll(args []ref.Val) (size int64) {
	for _, v := range args {
		size += memoryOf(v)
	}
	return size
}

// memoryOfItems returns the memory of a list of the first argument's items, or of its characters.
func memoryOfItems(args []ref.Val) int64 {
	switch v := args[0].(type) {
	case types.String:
		const perRune = 4
		return memory.OfString((perRune + 1) * len(v))
	case traits.Lister:
		return memory.OfList(lengthOf(v))
	}
	return 0
}

// memoryOfParts returns the memory of a list of the characters of a string.
func memoryOfParts(args []ref.Val) int64 {
	return memory.OfList(2 * len(stringAt(args, 0)))
}

func lengthOf(v traits.Sizer) int {
	length, _ := v.Size().(types.Int)
	return int(length)
}

// memoryOf returns the memory of a value. A part that occurs several times counts each time.
func memoryOf(v ref.Val) int64 {
	switch v := v.(type) {
	case nativeList:
		return memory.Of(v.value)
	case sortedMap:
		return memory.Of(v.value)
	case types.String:
		return memory.OfString(len(v))
	case types.Bytes:
		return memory.OfString(len(v))
	case *types.Optional:
		if v.HasValue() {
			return memoryOf(v.GetValue())
		}
	case traits.Mapper:
		size := memory.OfMap(lengthOf(v))
		for key, value := range entries(v) {
			size += memoryOf(key) + memoryOf(value)
		}
		return size
	case traits.Lister:
		size := memory.OfList(lengthOf(v))
		for it := v.Iterator(); it.HasNext() == types.True; {
			size += memoryOf(it.Next())
		}
		return size
	}
	return memory.Of(0)
}

// memoryOfResult returns the memory that a call has allocated. It omits the parts of the result that have been counted
// before.
func memoryOfResult(function string, result ref.Val) int64 {
	list, isList := result.(traits.Lister)
	object, isMap := result.(traits.Mapper)
	switch {
	case isUnfinished(result):
		return memory.OfMap(1) // each iteration adds one entry
	case isList && function == operators.Add:
		return memoryOfConverted(lengthOf(list))
	case isList && function == construction:
		return memory.OfList(lengthOf(list))
	case function == construction && isMap:
		return memory.OfMap(lengthOf(object))
	}
	return memoryOf(result)
}

// meteredCall reserves the memory for the result of a call before the call. Without it, a single call could allocate
// far more than the process has.
type meteredCall struct {
	interpreter.InterpretableCall
	estimate func(args []ref.Val) int64
	call     func(args ...ref.Val) ref.Val
}

// meteredOrAdded returns a call that reserves memory, or the call itself if callMemory has no entry for the function.
// It replaces the addition of lists.
func meteredOrAdded(call interpreter.InterpretableCall, dispatcher interpreter.Dispatcher) interpreter.InterpretableV2 {
	estimate := callMemory[call.Function()]
	f, found := dispatcher.FindOverload(call.OverloadID())
	if !found {
		f, found = dispatcher.FindOverload(call.Function())
	}
	switch {
	case !found:
		return call
	case call.Function() == operators.Add && (call.OverloadID() == overloads.AddList || call.OverloadID() == ""):
		return meteredCall{call, memoryOfSum, addLists(variadic(f))}
	case estimate == nil:
		return call
	}
	return meteredCall{call, estimate, variadic(f)}
}

// memoryOfSum returns the memory of the sum of two lists or strings.
func memoryOfSum(args []ref.Val) int64 {
	if list, ok := args[0].(traits.Lister); ok && !isUnfinished(list) {
		if other, ok := args[1].(traits.Lister); ok {
			return memoryOfConverted(lengthOf(list) + lengthOf(other))
		}
	}
	return memory.OfString(len(stringAt(args, 0)) + len(stringAt(args, 1)))
}

// memoryOfConverted returns the memory of a list whose items can be parts of a variable, which are converted to CEL
// values.
func memoryOfConverted(items int) int64 {
	const converted = 128
	return memory.OfList(items) + converted*int64(items)
}

// addLists returns an addition that copies lists. In cel-go, the sum of two lists refers to both of them. To read an
// item of a sum of n lists then takes n steps.
func addLists(add func(args ...ref.Val) ref.Val) func(args ...ref.Val) ref.Val {
	return func(args ...ref.Val) ref.Val {
		left, isList := args[0].(traits.Lister)
		right, areLists := args[1].(traits.Lister)
		if !isList || !areLists || isUnfinished(left) {
			return add(args...)
		}
		items := make([]ref.Val, 0, lengthOf(left)+lengthOf(right))
		for _, list := range []traits.Lister{left, right} {
			for it := list.Iterator(); it.HasNext() == types.True; {
				items = append(items, it.Next())
			}
		}
		return types.NewRefValList(types.DefaultTypeAdapter, items)
	}
}

// isUnfinished reports whether a value is the unfinished result of a comprehension.
func isUnfinished(v ref.Val) bool {
	switch v.(type) {
	case traits.MutableLister, traits.MutableMapper:
		return true
	}
	return false
}

// variadic returns the implementation of a function for any number of arguments.
func variadic(f *functions.Overload) func(args ...ref.Val) ref.Val {
	return func(args ...ref.Val) ref.Val {
		switch {
		case f.OperandTrait != 0 && !args[0].Type().HasTrait(f.OperandTrait):
			return types.NoSuchOverloadErr()
		case f.Unary != nil && len(args) == 1:
			return f.Unary(args[0])
		case f.Binary != nil && len(args) == 2:
			return f.Binary(args[0], args[1])
		case f.Function != nil:
			return f.Function(args...)
		}
		return types.NoSuchOverloadErr()
	}
}

func (c meteredCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	args := make([]ref.Val, len(c.Args()))
	for i, arg := range c.Args() {
		if args[i] = arg.Exec(frame); types.IsUnknownOrError(args[i]) {
			return args[i]
		}
	}
	found, _ := frame.ResolveName(meterName)
	if m, _ := found.(*meter); m.isLimited() {
		m.ensure(c.estimate(args))
	}
	return types.LabelErrNode(c.ID(), c.call(args...))
}

func (c meteredCall) Eval(activation interpreter.Activation) ref.Val {
	return c.Exec(interpreter.AsFrame(activation))
}
