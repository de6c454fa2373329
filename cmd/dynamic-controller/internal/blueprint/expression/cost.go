package expression

import (
	"iter"
	"maps"
	"math"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

// costs extends Kubernetes' cost model. Kubernetes estimates the cost of an expression from the schema. During the
// evaluation, it adds the actual cost of each call after the call has returned, and stops at PerCallLimit. This is not
// sufficient for values whose size the schema does not limit. This file therefore changes the following:
//
//   - Kubernetes counts a nested list or map as one value. Here, a call costs at least the total size of its arguments
//     and its result, so the cost limits the size of values.
//   - A single call to a function in callCosts can far exceed the limit. Here, its cost is checked before the call.
//   - Kubernetes charges some functions less than they take, for example the comparison of maps. Here, the time of an
//     evaluation is in proportion to its cost. See TestRun_TakesTimeInProportionToItsCost.
//   - The cost tracker stores and searches the values of all iterations of a comprehension, which takes quadratic time.
//     Here, each iteration discards the values of the previous iteration.
type costs struct {
	library.CostEstimator
	meter *meter // the meter of the evaluation
}

// bytesPerCost is the number of bytes of a string that cost 1, as in Kubernetes. It is also the base size of every
// value, to which sizeOf adds the sizes of the parts of the value.
const bytesPerCost = 10

// sizeLimit is the size above which the cost of a value exceeds PerCallLimit.
const sizeLimit = bytesPerCost * (PerCallLimit + 1)

// cheapCalls lists functions whose cost does not depend on the sizes of their arguments and results.
var cheapCalls = map[string]bool{
	"size": true, "type": true, "dyn": true, "_[_]": true, "_?_:_": true, "_[?_]": true, "_?._": true,
	"optional.of": true, "optional.none": true, "optional.ofNonZeroValue": true, "hasValue": true, "value": true,
	"or": true, "orValue": true, "first": true, "last": true, "@not_strictly_false": true, iteration: true,
}

func (c costs) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	cost := uint64(1)
	if known := c.CostEstimator.CallCost(function, overload, args, result); known != nil {
		cost = max(cost, *known)
	}
	isString := len(args) > 0 && args[0].Type() == types.StringType
	if cheapCalls[function] && (function != "size" || !isString) {
		return &cost // except for size() of a string, which counts the characters
	}
	if callCost := callCosts[function]; callCost != nil {
		cost = max(cost, callCost(args))
	}
	size := 0
	if function == construction {
		args = nil // they are parts of the result
	}
	for _, v := range append(args[:len(args):len(args)], result) {
		// The unfinished result of a comprehension does not count: each iteration calls a function that adds a value to it.
		// Earlier calls have already counted its contents, so this call counts only the other argument, which is the added
		// value.
		if !isUnfinished(v) {
			size += sizeOf(v, sizeLimit-size)
		}
	}
	cost = max(cost, uint64(size)/bytesPerCost)
	if c.meter.isLimited() {
		c.meter.add(memoryOfResult(function, result))
	}
	return &cost
}

// sizeOf returns the size of a value. A part that occurs several times counts each time. If the size reaches the limit,
// sizeOf stops and returns the size up to this point.
func sizeOf(v ref.Val, limit int) int {
	size := bytesPerCost
	switch v := v.(type) {
	case types.String:
		size += len(v)
	case types.Bytes:
		size += len(v)
	case *types.Optional:
		if v.HasValue() {
			size += sizeOf(v.GetValue(), limit-size)
		}
	case sortedMap:
		return sizeOfNative(v.value, limit)
	case nativeList:
		return sizeOfNative(v.value, limit)
	case traits.Mapper:
		for key, value := range entries(v) {
			if size += sizeOf(key, limit-size); size < limit {
				size += sizeOf(value, limit-size)
			}
			if size >= limit {
				break
			}
		}
	case traits.Lister:
		for it := v.Iterator(); size < limit && it.HasNext() == types.True; {
			size += sizeOf(it.Next(), limit-size)
		}
	}
	return size
}

// sizeOfNative is like sizeOf for a part of a variable. It is much faster than converting each part to a CEL value.
func sizeOfNative(v any, limit int) int {
	size := bytesPerCost
	switch v := v.(type) {
	case string:
		size += len(v)
	case map[string]any:
		for key, value := range v {
			if size += bytesPerCost + len(key); size < limit {
				size += sizeOfNative(value, limit-size)
			}
			if size >= limit {
				break
			}
		}
	case []any:
		for _, item := range v {
			if size += sizeOfNative(item, limit-size); size >= limit {
				break
			}
		}
	}
	return size
}

// entries returns the entries of a map.
func entries(m traits.Mapper) iter.Seq2[ref.Val, ref.Val] {
	if values, ok := m.Value().(map[ref.Val]ref.Val); ok {
		return maps.All(values) // looking up each key would take longer
	}
	return func(yield func(key, value ref.Val) bool) {
		for it := m.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			if value, found := m.Find(key); found && !yield(key, value) {
				return
			}
		}
	}
}

// sizeEstimator estimates the sizes of variables from their schemas.
type sizeEstimator map[string]*apiservercel.DeclType

func (s sizeEstimator) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	if len(path) == 0 {
		return nil
	}
	t := s[path[0]]
	for _, name := range path[1:] {
		switch {
		case t == nil:
		case name == "@keys":
			t = t.KeyType
		case t.IsObject() && t.Fields[name] != nil:
			t = t.Fields[name].Type
		default:
			t = t.ElemType
		}
	}
	switch {
	case t == nil || t.CelType().Kind() == types.DynKind || t.MaxElements > math.MaxInt32:
		return &checker.SizeEstimate{Max: assumedItems}
	case t.MaxElements == 0 && t.CelType().Kind() == types.StringKind:
		return &checker.SizeEstimate{Max: assumedLength} // a key of a map
	}
	return &checker.SizeEstimate{Max: uint64(t.MaxElements)}
}

func (sizeEstimator) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
