package expression

import (
	"math"
	"strings"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

// endRounds makes calls of loop conditions. The cost tracker keeps what each round of a comprehension made until the last
// one ends, and looks through all of it whenever a variable is read: without this 10,000 items take 100 million steps, of
// which none is counted.
func (s shape) endRounds(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	if s.conditions[i.ID()] {
		return round{i}, nil
	}
	return i, nil
}

const nextRound = "@round"

// round is a loop condition that is called with the one before it: the tracker drops that, and what was made since.
type round struct{ interpreter.InterpretableV2 }

func (r round) Function() string   { return nextRound }
func (r round) OverloadID() string { return "" }
func (r round) Args() []interpreter.InterpretableV2 {
	return []interpreter.InterpretableV2{r.InterpretableV2}
}

// costs says what a call cost, after it is done: what Kubernetes says or, where that is more, by how much there is in
// what it was given and what it made. Kubernetes counts a list or a map as one thing in many places, however deep it is,
// and values of unknown types as one: an expression that is estimated before it is allowed may be counted so, one on
// other objects, whose size nobody knows, may not.
//
// So no value weighs more than perUnit times what was paid, and functions that are linear in it need no guard.
type costs struct{ kubernetes library.CostEstimator }

// Constant are functions that only look at a value, however much there is in it.
var constant = map[string]bool{
	"size": true, "type": true, "dyn": true, "_[_]": true, "_?_:_": true, "_[?_]": true, "_?._": true,
	"optional.of": true, "optional.none": true, "optional.ofNonZeroValue": true, "hasValue": true, "value": true,
	"or": true, "orValue": true, "first": true, "last": true, "@not_strictly_false": true, nextRound: true,
}

func (c *costs) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	function = strings.TrimPrefix(function, guarded)
	cost := uint64(1)
	if known := c.kubernetes.CallCost(function, overload, args, result); known != nil {
		cost = max(cost, *known)
	}
	if constant[function] {
		return &cost
	}
	if len(args) == 2 {
		switch function {
		case "matches":
			cost = max(cost, traversal(args[0])*regexCost(args[1]))
		case "contains":
			cost = max(cost, traversal(args[0])*traversal(args[1]))
		}
	}
	const enough = perUnit * (PerCallLimit + 1)
	weight := 0
	if function == constructor {
		args = nil // they are in what it makes
	}
	for _, v := range append(args[:len(args):len(args)], result) {
		switch v.(type) {
		case traits.MutableLister, traits.MutableMapper:
			// What a comprehension collects grows in place: what is put into it is paid for, as the other argument.
		default:
			weight += weigh(v, enough-weight)
		}
		if weight >= enough {
			break
		}
	}
	cost = max(cost, uint64(weight)/perUnit)
	return &cost
}

func traversal(v ref.Val) uint64 {
	s, _ := v.Value().(string)
	return uint64(math.Ceil(float64(len(s)+1) * common.StringTraversalCostFactor))
}

func regexCost(v ref.Val) uint64 {
	s, _ := v.Value().(string)
	return uint64(math.Ceil(float64(len(s)) * common.RegexStringLengthCostFactor))
}

// sizes says how large what an expression refers to may be, by its schema.
type sizes struct {
	types map[string]*apiservercel.DeclType
}

func (s sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	if len(path) == 0 {
		return nil
	}
	t := s.types[path[0]]
	for _, name := range path[1:] {
		if t == nil {
			break
		}
		switch {
		case name == "@items" || name == "@values":
			t = t.ElemType
		case name == "@keys":
			t = t.KeyType
		case t.IsMap():
			t = t.ElemType
		default:
			field := t.Fields[name]
			if t = nil; field != nil {
				t = field.Type
			}
		}
	}
	switch {
	case t == nil || t.CelType().Kind() == types.DynKind:
		return &checker.SizeEstimate{Max: usualItems}
	case t.MaxElements > math.MaxInt32:
		return &checker.SizeEstimate{Max: usualItems}
	case t.MaxElements == 0 && t.CelType().Kind() == types.StringKind:
		return &checker.SizeEstimate{Max: usualLength} // a key
	}
	return &checker.SizeEstimate{Max: uint64(t.MaxElements)}
}

func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
