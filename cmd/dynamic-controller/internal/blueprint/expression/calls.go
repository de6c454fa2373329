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

// callCosts maps functions to their costs, for functions that can take much longer, or return much larger values, than
// the size of their arguments suggests. A cost depends only on the arguments, so that it can be checked before the
// call.
var callCosts = map[string]func(args []ref.Val) uint64{
	"matches": matchCost, "find": matchCost, "findAll": matchCost,
	"contains": searchCost, "indexOf": searchCost, "lastIndexOf": searchCost,
	"distinct": pairsCost, "sets.contains": pairsCost, "sets.equivalent": pairsCost, "sets.intersects": pairsCost,
	"quantity": parseCost, "isQuantity": parseCost,
	"replace": replaceCost, "join": joinCost, "format": formatCost,
}

// stringAt returns an argument, or "" for an argument of another type, which the function rejects.
func stringAt(args []ref.Val, i int) string {
	if i >= len(args) {
		return ""
	}
	s, _ := args[i].(types.String)
	return string(s)
}

// traversal is Kubernetes' cost of reading a string once.
func traversal(length int) uint64 {
	return uint64(math.Ceil(float64(length) * common.StringTraversalCostFactor))
}

// matchCost estimates the cost of a match as Kubernetes does, except that a repetition counts as many times as it can
// repeat.
func matchCost(args []ref.Val) uint64 {
	pattern := stringAt(args, 1)
	if len(pattern) > MaxLength {
		return math.MaxUint64
	}
	n, err := regexInstructions(pattern)
	switch {
	case err != nil:
		n = len(pattern) // for parsing it
	case n > maxRegexInstructions:
		return math.MaxUint64
	}
	return traversal(len(stringAt(args, 0))+1) * uint64(n)
}

func searchCost(args []ref.Val) uint64 {
	return traversal(len(stringAt(args, 0))) * traversal(len(stringAt(args, 1)))
}

// pairsCost is the cost of comparing all pairs of items.
func pairsCost(args []ref.Val) uint64 {
	first, second := sizeOf(args[0], sizeLimit), sizeOf(args[len(args)-1], sizeLimit)
	return traversal(first / bytesPerCost * second / bytesPerCost)
}

// parseCost is quadratic, because quantities can have any number of digits.
func parseCost(args []ref.Val) uint64 {
	n := traversal(len(stringAt(args, 0)))
	return n * n
}

func replaceCost(args []ref.Val) uint64 {
	s := stringAt(args, 0)
	n := strings.Count(s, stringAt(args, 1))
	if len(args) > 3 {
		if limit, ok := args[3].(types.Int); ok && limit >= 0 {
			n = min(n, int(limit))
		}
	}
	return 2 * traversal(len(s)+n*len(stringAt(args, 2)))
}

func joinCost(args []ref.Val) uint64 {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return 0
	}
	length := 0
	for it := list.Iterator(); it.HasNext() == types.True; {
		length += len(stringAt([]ref.Val{it.Next()}, 0)) + len(stringAt(args, 1))
	}
	return 2 * traversal(length)
}

var precision = regexp.MustCompile(`%\.([0-9]+)`)

// formatCost is the cost of the digits that formats such as %.3f request.
func formatCost(args []ref.Val) uint64 {
	digits := 0
	for _, match := range precision.FindAllStringSubmatch(stringAt(args, 0), -1) {
		n, err := strconv.Atoi(match[1])
		if err != nil {
			n = math.MaxInt32
		}
		digits += min(n, math.MaxInt32)
	}
	return traversal(digits)
}

// regexInstructions estimates the size of a compiled regular expression, without compiling it.
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

// calls finds the parts of one expression that the cost tracker treats as calls.
type calls struct {
	conditions map[int64]bool // ids of the loop conditions of comprehensions
	nodes      int
}

// inspect collects the loop conditions and checks constant regular expressions. It returns the nesting depth of types.
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
			outer = max(outer, d) // the loop can put its variables into other values
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
		return 0, fmt.Errorf("lists, maps, optionals and comprehensions are nested deeper than %d", maxTypeDepth)
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
			return fmt.Errorf("regular expression of about %d instructions, more than %d", n, maxRegexInstructions)
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
	return i, nil
}

// checked returns a function that checks its cost before the call.
func checked(name string, f *functions.Overload) *functions.Overload {
	cost := callCosts[name]
	if cost == nil {
		return f
	}
	call := func(args ...ref.Val) ref.Val {
		switch {
		case cost(args) > PerCallLimit:
			return types.WrapErr(ErrCost)
		case f.Unary != nil:
			return f.Unary(args[0])
		case f.Binary != nil:
			return f.Binary(args[0], args[1])
		}
		return f.Function(args...)
	}
	return &functions.Overload{Operator: f.Operator, OperandTrait: f.OperandTrait, Function: call}
}

const (
	iteration    = "@iteration"
	construction = "@construction"
)

// trackedCall makes the cost tracker treat a part of an expression as a call. For a loop condition, the argument is the
// condition itself, so that the tracker discards the values of the previous iteration.
type trackedCall struct {
	interpreter.InterpretableV2
	function string
	args     []interpreter.InterpretableV2
}

func (c trackedCall) Function() string                    { return c.function }
func (c trackedCall) OverloadID() string                  { return "" }
func (c trackedCall) Args() []interpreter.InterpretableV2 { return c.args }
