package expression

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// kroLibrary provides the functions of kro's expressions that neither CEL nor Kubernetes' libraries have. Names, types
// and results are the same as in kro, except that json.marshal encodes values in the same way as a template.
//
// cel-go's json.encode is not used because it inserts random whitespace.
type kroLibrary struct{}

func (kroLibrary) CompileOptions() []cel.EnvOption {
	text, number, bytes, dyn, item := cel.StringType, cel.IntType, cel.BytesType, cel.DynType, cel.TypeParamType("T")
	list, object := cel.ListType(item), cel.MapType(cel.TypeParamType("K"), cel.TypeParamType("V"))
	var options []cel.EnvOption
	for _, f := range []struct {
		name      string
		arguments []*cel.Type
		result    *cel.Type
		binding   cel.OverloadOpt
		size      resultSize
	}{
		{"json.marshal", []*cel.Type{dyn}, text, cel.UnaryBinding(marshal), nil},
		{"json.unmarshal", []*cel.Type{text}, dyn, cel.UnaryBinding(unmarshal), sizeOfText},
		{"hash.fnv64a", []*cel.Type{text}, bytes, cel.UnaryBinding(fnv64a), fixedSize(8)},
		{"hash.md5", []*cel.Type{text}, bytes, cel.UnaryBinding(md5Sum), fixedSize(md5.Size)},
		{"hash.sha256", []*cel.Type{text}, bytes, cel.UnaryBinding(sha256Sum), fixedSize(sha256.Size)},
		{"random.seededString", []*cel.Type{number, text}, text, cel.BinaryBinding(seededString), fixedSize(maxRandomLength)},
		{"random.seededInt", []*cel.Type{number, number, text}, number, cel.FunctionBinding(seededInt), nil},
		{"lists.setAtIndex", []*cel.Type{list, number, item}, list, cel.FunctionBinding(setAtIndex), sumOfSizes},
		{"lists.insertAtIndex", []*cel.Type{list, number, item}, list, cel.FunctionBinding(insertAtIndex), sumOfSizes},
		{"lists.removeAtIndex", []*cel.Type{list, number}, list, cel.BinaryBinding(removeAtIndex), sumOfSizes},
		{"omit", nil, dyn, cel.FunctionBinding(omit), nil},
	} {
		options = append(options,
			cel.Function(f.name, cel.Overload(f.name, f.arguments, f.result, f.binding)),
			cel.CostEstimatorOptions(checker.OverloadCostEstimate(f.name, estimate(f.size))))
	}
	return append(options,
		cel.Function("merge", cel.MemberOverload("map_merge", []*cel.Type{object, object}, object, cel.BinaryBinding(merge))),
		cel.Function("deepMerge", cel.MemberOverload("map_deep_merge", []*cel.Type{dyn, dyn}, dyn,
			cel.BinaryBinding(deepMerge))),
		cel.CostEstimatorOptions(
			checker.OverloadCostEstimate("map_merge", estimate(sumOfSizes)),
			checker.OverloadCostEstimate("map_deep_merge", estimate(sumOfSizes)),
			checker.OverloadCostEstimate("string_reverse", estimate(sumOfSizes)), // ext.Strings has no estimate for it
		))
}

func (kroLibrary) ProgramOptions() []cel.ProgramOption { return nil }

// resultSize estimates the size of a function's result from the sizes of its arguments. It is nil if the size cannot be
// estimated or does not matter.
type resultSize func(arguments checker.SizeEstimate) checker.SizeEstimate

func fixedSize(size uint64) resultSize {
	return func(checker.SizeEstimate) checker.SizeEstimate { return checker.FixedSizeEstimate(size) }
}

func sumOfSizes(arguments checker.SizeEstimate) checker.SizeEstimate {
	return checker.SizeEstimate{Max: arguments.Max}
}

// sizeOfText estimates the size of a decoded JSON text. A list such as [1,2,3] has the most items: one for every two
// bytes.
func sizeOfText(text checker.SizeEstimate) checker.SizeEstimate {
	return checker.SizeEstimate{Max: text.Max/2 + 1}
}

// estimate returns an estimator for functions that read their arguments and build a result. The cost is twice that of a
// traversal, as for similar functions in Kubernetes.
func estimate(size resultSize) checker.FunctionEstimator {
	return func(e checker.CostEstimator, target *checker.AstNode, arguments []checker.AstNode) *checker.CallEstimate {
		if target != nil {
			arguments = append([]checker.AstNode{*target}, arguments...)
		}
		call, total := checker.CallEstimate{CostEstimate: checker.FixedCostEstimate(1)}, checker.FixedSizeEstimate(0)
		for _, a := range arguments {
			s := checker.FixedSizeEstimate(1)
			factor := 2.0
			switch a.Type().Kind() {
			case types.StringKind:
				s, factor = estimatedSize(e, a), 2*common.StringTraversalCostFactor
			case types.ListKind, types.MapKind, types.StructKind, types.DynKind:
				s = estimatedSize(e, a)
			}
			call.CostEstimate, total = call.Add(s.MultiplyByCostFactor(factor)), total.Add(s)
		}
		if size != nil {
			result := size(total)
			call.ResultSize = &result
		}
		return &call
	}
}

func estimatedSize(e checker.CostEstimator, node checker.AstNode) checker.SizeEstimate {
	if s := node.ComputedSize(); s != nil {
		return *s
	}
	if s := e.EstimateSize(node); s != nil {
		return *s
	}
	return checker.UnknownSizeEstimate()
}

// copyCost returns the cost of functions that copy their arguments.
func copyCost(args []ref.Val) uint64 {
	size := 0
	for _, v := range args {
		size += 2 * sizeOf(v, sizeLimit)
	}
	return uint64(size) / bytesPerCost
}

// marshalCost returns the cost of encoding a value. The value is copied first.
func marshalCost(args []ref.Val) uint64 { return 2 * copyCost(args) }

// unmarshalCost returns the cost of decoding a JSON text. It assumes that all values are small maps, which are the most
// expensive values.
func unmarshalCost(args []ref.Val) uint64 {
	text := stringAt(args, 0)
	values, _ := shapeOf(text)
	return 2*traversal(len(text)) + 4*uint64(values)
}

// shapeOf returns an upper bound on the number of values in a JSON text, and the depth to which they are nested.
func shapeOf(text string) (values, depth int) {
	level, inString := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			values++
			level++
			depth = max(depth, level)
		case c == ']' || c == '}':
			level--
		case c == ',' || c == ':':
			values++
		}
	}
	return values + 1, depth
}

func marshal(value ref.Val) ref.Val {
	var text []byte
	native, _, err := toJSON(value, &Room{Left: maxJSONBytes}, 0)
	if err == nil {
		text, err = json.Marshal(native)
	}
	switch {
	case errors.Is(err, ErrTooLarge), len(text) > maxJSONBytes: // escaping makes the text longer
		return types.NewErr("json.marshal: the text exceeds %d bytes", maxJSONBytes)
	case err != nil:
		return types.NewErr("json.marshal: the value %w", err)
	}
	return types.String(text)
}

// unmarshal decodes all numbers as double, like kro.
func unmarshal(value ref.Val) ref.Val {
	text := string(value.(types.String))
	if len(text) > maxJSONBytes {
		return types.NewErr("json.unmarshal: the text has %d bytes; the maximum is %d", len(text), maxJSONBytes)
	}
	if _, depth := shapeOf(text); depth > maxValueDepth {
		return types.NewErr("json.unmarshal: the value is nested more than %d levels deep", maxValueDepth)
	}
	var native any
	if err := json.Unmarshal([]byte(text), &native); err != nil {
		return types.NewErr("json.unmarshal: %w", err)
	}
	return sorting{types.DefaultTypeAdapter}.NativeToValue(native)
}

func fnv64a(value ref.Val) ref.Val {
	h := fnv.New64a()
	_, _ = h.Write([]byte(value.(types.String)))
	return types.Bytes(h.Sum(nil))
}

func md5Sum(value ref.Val) ref.Val {
	sum := md5.Sum([]byte(value.(types.String)))
	return types.Bytes(sum[:])
}

func sha256Sum(value ref.Val) ref.Val {
	sum := sha256.Sum256([]byte(value.(types.String)))
	return types.Bytes(sum[:])
}

// seededString returns a string that depends only on its arguments. As in kro, the characters repeat after the first
// eight.
func seededString(length, seed ref.Val) ref.Val {
	const characters = "0123456789abcdefghijklmnopqrstuvwxyz"
	n := length.(types.Int)
	if n < 1 || n > maxRandomLength {
		return types.NewErr("random.seededString: the length %d must be between 1 and %d", n, maxRandomLength)
	}
	sum := sha256.Sum256([]byte(seed.(types.String)))
	var pattern strings.Builder
	for i := 0; i < len(sum); i += 4 {
		pattern.WriteByte(characters[binary.BigEndian.Uint32(sum[i:])%uint32(len(characters))])
	}
	return types.String(strings.Repeat(pattern.String(), int(n)/pattern.Len()+1)[:n])
}

// seededInt returns an integer that depends only on its arguments.
func seededInt(args ...ref.Val) ref.Val {
	low, high := args[0].(types.Int), args[1].(types.Int)
	if low >= high {
		return types.NewErr("random.seededInt: the minimum %d must be less than the maximum %d", low, high)
	}
	sum := sha256.Sum256([]byte(args[2].(types.String)))
	return low + types.Int(binary.BigEndian.Uint64(sum[:])%uint64(high-low))
}

func merge(left, right ref.Val) ref.Val {
	return mergeMaps(left.(traits.Mapper), right.(traits.Mapper), func(_, value ref.Val) ref.Val { return value })
}

func deepMerge(left, right ref.Val) ref.Val {
	for _, v := range []ref.Val{left, right} {
		if _, isMap := v.(traits.Mapper); !isMap {
			return types.NewErr("deepMerge: expected two maps, got a value of type %s", v.Type().TypeName())
		}
	}
	return deepMergeAt(0)(left, right)
}

// deepMergeAt returns a function that merges two values at the given depth. If either value is not a map, the function
// returns the second value.
func deepMergeAt(depth int) func(left, right ref.Val) ref.Val {
	return func(left, right ref.Val) ref.Val {
		l, leftIsMap := left.(traits.Mapper)
		r, rightIsMap := right.(traits.Mapper)
		switch {
		case !leftIsMap || !rightIsMap:
			return right
		case depth > maxValueDepth:
			return types.NewErr("deepMerge: the values have more than %d levels", maxValueDepth)
		}
		return mergeMaps(l, r, deepMergeAt(depth+1))
	}
}

// mergeMaps returns the entries of both maps. If a key is in both, its values are combined.
func mergeMaps(left, right traits.Mapper, combine func(left, right ref.Val) ref.Val) ref.Val {
	merged := map[ref.Val]ref.Val{}
	for it := left.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		merged[key] = left.Get(key)
	}
	for it := right.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		value := right.Get(key)
		if other, inBoth := merged[key]; inBoth {
			value = combine(other, value)
		}
		if types.IsError(value) {
			return value
		}
		merged[key] = value
	}
	return types.NewRefValMap(types.DefaultTypeAdapter, merged)
}

func setAtIndex(args ...ref.Val) ref.Val {
	return edit("lists.setAtIndex", args[0], args[1], 0, func(items []ref.Val, i int) []ref.Val {
		items[i] = args[2]
		return items
	})
}

func insertAtIndex(args ...ref.Val) ref.Val {
	return edit("lists.insertAtIndex", args[0], args[1], 1, func(items []ref.Val, i int) []ref.Val {
		return slices.Insert(items, i, args[2])
	})
}

func removeAtIndex(list, index ref.Val) ref.Val {
	return edit("lists.removeAtIndex", list, index, 0, func(items []ref.Val, i int) []ref.Val {
		return slices.Delete(items, i, i+1)
	})
}

// edit returns a changed copy of a list. The index must be less than size(list) + beyond.
func edit(name string, list, index ref.Val, beyond int, change func(items []ref.Val, i int) []ref.Val) ref.Val {
	var items []ref.Val
	for it := list.(traits.Lister).Iterator(); it.HasNext() == types.True; {
		items = append(items, it.Next())
	}
	i := index.(types.Int)
	if i < 0 || i >= types.Int(len(items)+beyond) {
		return types.NewErr("%s: index out of bounds: %d", name, i)
	}
	return types.NewRefValList(types.DefaultTypeAdapter, change(items, int(i)))
}

// omit returns a value that removes its field or item from a template.
func omit(...ref.Val) ref.Val { return types.OptionalNone }
