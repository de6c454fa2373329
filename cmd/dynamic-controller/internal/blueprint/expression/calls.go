package expression

import (
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// callCosts maps functions to their costs. It contains functions that can take much longer, or return much larger
// values, than the sizes of their arguments suggest. The cost is computed from the arguments alone so that it can be
// checked before the call.
var callCosts = map[string]func(args []ref.Val) uint64{
	"matches": matchCost, "find": matchCost, "findAll": matchCost,
	"contains": searchCost, "indexOf": searchCost, "lastIndexOf": searchCost,
	"distinct": pairsCost, "sets.contains": pairsCost, "sets.equivalent": pairsCost, "sets.intersects": pairsCost,
	"quantity": parseCost, "isQuantity": parseCost,
	"replace": replaceCost, "join": joinCost, "format": formatCost,
	"json.marshal": marshalCost, "json.unmarshal": unmarshalCost, "merge": copyCost, "deepMerge": copyCost,
	"lists.setAtIndex": copyCost, "lists.insertAtIndex": copyCost, "lists.removeAtIndex": copyCost,
}

// stringAt returns the argument at index i, or "" if it is not a string. The called function rejects arguments of the
// wrong type.
func stringAt(args []ref.Val, i int) string {
	if i >= len(args) {
		return ""
	}
	s, _ := args[i].(types.String)
	return string(s)
}

// traversal is Kubernetes' cost for reading a string once.
func traversal(length int) uint64 {
	return uint64(math.Ceil(float64(length) * common.StringTraversalCostFactor))
}

// The cost of compiling a regular expression, and that of each of its instructions.
const compileCost, instructionCost = 30, 3

// matchCost estimates the cost of compiling and matching a regular expression. Unlike Kubernetes' estimate, it
// multiplies the cost of a repetition by its maximum count.
func matchCost(args []ref.Val) uint64 {
	pattern := stringAt(args, 1)
	if len(pattern) > MaxLength {
		return math.MaxUint64
	}
	n, err := regexInstructions(pattern)
	switch {
	case err != nil:
		n = len(pattern) // the cost of parsing the pattern
	case n > maxRegexInstructions:
		return math.MaxUint64
	}
	return compileCost + (traversal(len(stringAt(args, 0))+1)+instructionCost)*uint64(n)
}

// searchCost returns the cost of searching for a string in a string, or for a value in a list.
func searchCost(args []ref.Val) uint64 {
	if list, ok := args[0].(traits.Lister); ok {
		return 2 * uint64(sizeOf(list, sizeLimit)) / bytesPerCost
	}
	return traversal(len(stringAt(args, 0))) * traversal(len(stringAt(args, 1)))
}

// pairsCost returns the cost of comparing all pairs of items.
func pairsCost(args []ref.Val) uint64 {
	first, second := sizeOf(args[0], sizeLimit), sizeOf(args[len(args)-1], sizeLimit)
	return traversal(first / bytesPerCost * second / bytesPerCost)
}

// parseCost returns the cost of parsing a quantity. It is quadratic in the length of the argument because a quantity
// can have any number of digits.
func parseCost(args []ref.Val) uint64 {
	n := traversal(len(stringAt(args, 0)))
	return n * n
}

func replaceCost(args []ref.Val) uint64 { return 2 * traversal(lengthOfReplaced(args)) }

func lengthOfReplaced(args []ref.Val) int {
	s := stringAt(args, 0)
	n := strings.Count(s, stringAt(args, 1))
	if len(args) > 3 {
		if limit, ok := args[3].(types.Int); ok && limit >= 0 {
			n = min(n, int(limit))
		}
	}
	return len(s) + n*len(stringAt(args, 2))
}

func joinCost(args []ref.Val) uint64 { return 2 * traversal(lengthOfJoined(args)) }

func lengthOfJoined(args []ref.Val) (length int) {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return 0
	}
	for it := list.Iterator(); it.HasNext() == types.True; {
		length += len(stringAt([]ref.Val{it.Next()}, 0)) + len(stringAt(args, 1))
	}
	return length
}

var precision = regexp.MustCompile(`%\.([0-9]+)`)

func formatCost(args []ref.Val) uint64 { return traversal(digitsOfFormat(args)) }

// digitsOfFormat returns the number of decimal places that a format such as %.3f requests.
func digitsOfFormat(args []ref.Val) (digits int) {
	for _, match := range precision.FindAllStringSubmatch(stringAt(args, 0), -1) {
		n, err := strconv.Atoi(match[1])
		if err != nil {
			n = math.MaxInt32
		}
		digits += min(n, math.MaxInt32)
	}
	return digits
}

// regexInstructions estimates the size of a compiled regular expression without compiling it.
func regexInstructions(pattern string) (int, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, fmt.Errorf("invalid regular expression: %w", err)
	}
	return expanded(parsed), nil
}

func expanded(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/2
	for _, sub := range re.Sub {
		n += expanded(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, math.MaxInt32)
}

// calls decorates the calls of one expression. It also records the loop conditions, which the cost tracker must treat
// as calls. See trackedCall.
type calls struct {
	dispatcher interpreter.Dispatcher
	conditions map[int64]bool // ids of the loop conditions of comprehensions
	nodes      int
}

// inspect collects the loop conditions, checks constant regular expressions and returns the nesting depth of types.
func (c *calls) inspect(e ast.NavigableExpr) (depth int, err error) {
	if c.nodes++; c.nodes > maxNodes {
		return 0, fmt.Errorf("the expression has more than %d operations and values", maxNodes)
	}
	outer := 0
	for i, child := range e.Children() {
		d, err := c.inspect(child)
		if err != nil {
			return 0, err
		}
		if e.Kind() == ast.ComprehensionKind && i < loopParts {
			outer = max(outer, d) // the loop can nest the range and the initial value in other values
		} else {
			depth = max(depth, d)
		}
	}
	switch e.Kind() {
	case ast.ListKind, ast.MapKind, ast.StructKind:
		depth++
	case ast.ComprehensionKind:
		c.conditions[e.AsComprehension().LoopCondition().ID()] = true
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() && call.Target().Kind() == ast.IdentKind && call.Target().AsIdent() == "optional" {
			depth++
		}
		switch call.FunctionName() {
		case "matches", "find", "findAll":
			err = checkConstantRegex(call)
		}
	}
	if depth += outer; depth > maxTypeDepth {
		return 0, fmt.Errorf("lists, maps, optionals and comprehensions are nested more than %d levels deep", maxTypeDepth)
	}
	return depth, err
}

func checkConstantRegex(call ast.CallExpr) error {
	for _, arg := range call.Args() {
		if arg.Kind() != ast.LiteralKind {
			continue
		}
		pattern, _ := arg.AsLiteral().(types.String)
		n, err := regexInstructions(string(pattern))
		if err != nil {
			return err
		}
		if n > maxRegexInstructions {
			return fmt.Errorf("the regular expression has about %d instructions; the maximum is %d", n, maxRegexInstructions)
		}
	}
	return nil
}

func (c *calls) decorate(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	if c.conditions[i.ID()] {
		return trackedCall{i, iteration, []interpreter.InterpretableV2{i}}, nil
	}
	if i, ok := i.(interpreter.InterpretableConstructor); ok {
		for _, v := range i.InitVals() {
			if _, isConst := v.(interpreter.InterpretableConst); !isConst {
				return trackedCall{i, construction, i.InitVals()}, nil
			}
		}
	}
	if call, ok := i.(interpreter.InterpretableCall); ok {
		return meteredOrAdded(call, c.dispatcher), nil
	}
	return i, nil
}

// checked returns a function that checks the cost of a call before it calls f. It returns f itself if callCosts has no
// entry for the function.
func checked(name string, f *functions.Overload) *functions.Overload {
	cost := callCosts[name]
	if cost == nil {
		return f
	}
	unchecked := variadic(f)
	call := func(args ...ref.Val) ref.Val {
		if cost(args) > PerCallLimit {
			return types.WrapErr(ErrCost)
		}
		return unchecked(args...)
	}
	return &functions.Overload{Operator: f.Operator, OperandTrait: f.OperandTrait, Function: call}
}

const (
	iteration    = "@iteration"
	construction = "@construction"
)

// trackedCall makes the cost tracker treat a part of an expression as a call. A loop condition has itself as its
// argument. When the tracker looks up that argument, it discards all values that it has stored since the previous
// evaluation of the condition.
type trackedCall struct {
	interpreter.InterpretableV2
	function string
	args     []interpreter.InterpretableV2
}

func (c trackedCall) Function() string                    { return c.function }
func (c trackedCall) OverloadID() string                  { return "" }
func (c trackedCall) Args() []interpreter.InterpretableV2 { return c.args }
