package expression

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// guarded comes before the names of functions that have a guard, for those who look for functions by name and would put
// theirs in its place. No function's name can have it.
const guarded = "@guarded "

// A guard looks at what a function is called with, before it is: an error says why it is not.
type guard func(args []ref.Val) error

// guards stand before functions that can make much of little, or take long, in a single call: their cost is counted when
// it is too late.
var guards = map[string]guard{
	"replace":         replaced,
	"join":            joined,
	"format":          formatted,
	"lists.range":     ranged,
	"distinct":        compared,
	"sets.contains":   compared,
	"sets.equivalent": compared,
	"sets.intersects": compared,
	"quantity":        parsed,
	"isQuantity":      parsed,
	"matches":         nil, // see matcher
	"find":            nil,
	"findAll":         nil,
}

// guardCalls puts the guards before the functions, and lets constructors of lists and maps be calls, whose cost is
// counted by what they make.
func (b *base) guardCalls(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch i := i.(type) {
	case interpreter.InterpretableConstructor:
		for _, v := range i.InitVals() {
			if _, is := v.(interpreter.InterpretableConst); !is {
				return construction{made: i, args: i.InitVals()}, nil
			}
		}
		return i, nil // and is made once
	case interpreter.InterpretableCall:
		check, is := guards[i.Function()]
		if !is {
			return i, nil
		}
		call := b.implementation(i)
		if check == nil {
			var err error
			if call, err = matcher(i, call); err != nil {
				return nil, err
			}
		}
		return interpreter.NewCall(i.ID(), guarded+i.Function(), i.OverloadID(), i.Args(), func(args ...ref.Val) ref.Val {
			if check != nil {
				if err := check(args); err != nil {
					return types.WrapErr(err)
				}
			}
			return call(args...)
		}), nil
	}
	return i, nil
}

const constructor = "@construct"

// construction is a constructor that is a call.
type construction struct {
	made interpreter.InterpretableV2
	args []interpreter.InterpretableV2
}

func (c construction) ID() int64                                      { return c.made.ID() }
func (c construction) Eval(vars interpreter.Activation) ref.Val       { return c.made.Eval(vars) }
func (c construction) Exec(frame *interpreter.ExecutionFrame) ref.Val { return c.made.Exec(frame) }
func (c construction) Function() string                               { return constructor }
func (c construction) OverloadID() string                             { return "" }
func (c construction) Args() []interpreter.InterpretableV2            { return c.args }

// implementation is what is called without a guard.
func (b *base) implementation(call interpreter.InterpretableCall) functions.FunctionOp {
	overload := b.functions[call.OverloadID()]
	if overload == nil {
		overload = b.functions[call.Function()]
	}
	return func(args ...ref.Val) ref.Val {
		switch {
		case overload == nil:
		case len(args) == 1 && overload.Unary != nil:
			return overload.Unary(args[0])
		case len(args) == 2 && overload.Binary != nil:
			return overload.Binary(args[0], args[1])
		case overload.Function != nil:
			return overload.Function(args...)
		}
		return types.NewErr("no such overload: %s", call.Function())
	}
}

// A function that is given what it does not take says so itself: guards let it.
func stringsOf(args []ref.Val) ([]string, bool) {
	s := make([]string, len(args))
	for i, a := range args {
		v, is := a.(types.String)
		if !is {
			return nil, false
		}
		s[i] = string(v)
	}
	return s, true
}

func tooLong(function string, n int) error {
	return fmt.Errorf("%s would make a string of %d bytes, more than %d", function, n, MaxStringBytes)
}

func replaced(args []ref.Val) error {
	if len(args) < 3 {
		return nil
	}
	s, is := stringsOf(args[:3])
	if !is {
		return nil
	}
	n := strings.Count(s[0], s[1])
	if len(args) > 3 {
		if limit, is := args[3].(types.Int); is && limit >= 0 {
			n = min(n, int(limit))
		}
	}
	if made := len(s[0]) + n*(len(s[2])-len(s[1])); made > MaxStringBytes {
		return tooLong("replace", made)
	}
	return nil
}

func joined(args []ref.Val) error {
	list, is := args[0].(traits.Lister)
	if !is {
		return nil
	}
	separator := 0
	if len(args) > 1 {
		s, _ := args[1].(types.String)
		separator = len(s)
	}
	made := -separator
	for it := list.Iterator(); it.HasNext() == types.True; {
		s, _ := it.Next().(types.String)
		if made += len(s) + separator; made > MaxStringBytes {
			return tooLong("join", made)
		}
	}
	return nil
}

var precision = regexp.MustCompile(`%\.([0-9]+)`)

func formatted(args []ref.Val) error {
	s, _ := args[0].(types.String)
	for _, m := range precision.FindAllStringSubmatch(string(s), -1) {
		if n, err := strconv.Atoi(m[1]); err != nil || n > maxPrecision {
			return fmt.Errorf("format with a precision of more than %d digits", maxPrecision)
		}
	}
	return nil
}

func ranged(args []ref.Val) error {
	if n, is := args[0].(types.Int); is && n > MaxListItems {
		return fmt.Errorf("lists.range would make a list of %d items, more than %d", n, MaxListItems)
	}
	return nil
}

// parsed limits what is read as a number of any size, which takes its length squared.
func parsed(args []ref.Val) error {
	if s, _ := args[0].(types.String); len(s) > maxDigits {
		return fmt.Errorf("a quantity of %d characters, more than %d", len(s), maxDigits)
	}
	return nil
}

// compared limits what comparing each item with each other takes: how much there is in one list times how much in the
// other.
func compared(args []ref.Val) error {
	const steps = MaxListItems * MaxListItems / 4
	work := 1
	for _, a := range args {
		work *= max(1, weigh(a, MaxListItems*perUnit)/perUnit)
	}
	if len(args) == 1 {
		work *= work
	}
	if work > steps {
		return fmt.Errorf("comparing each item with each other takes more than %d steps", steps)
	}
	return nil
}

// matcher matches regular expressions: a constant one is compiled once, any other must not be too large.
func matcher(call interpreter.InterpretableCall, otherwise functions.FunctionOp) (functions.FunctionOp, error) {
	var once *pattern
	if args := call.Args(); len(args) > 1 {
		if c, is := args[1].(interpreter.InterpretableConst); is {
			if s, is := c.Value().(types.String); is {
				p, err := newPattern(string(s))
				if err != nil {
					return nil, err
				}
				once = p
			}
		}
	}
	return func(args ...ref.Val) ref.Val {
		if len(args) < 2 {
			return otherwise(args...)
		}
		s, is := stringsOf(args[:2])
		if !is {
			return otherwise(args...)
		}
		p := once
		if p == nil {
			var err error
			if p, err = newPattern(s[1]); err != nil {
				return types.WrapErr(err)
			}
		}
		if len(s[0])*p.instructions > maxRegexSteps {
			return types.NewErr("matching %d bytes with this regular expression takes too long", len(s[0]))
		}
		switch call.Function() {
		case "matches":
			return types.Bool(p.MatchString(s[0]))
		case "find":
			return types.String(p.FindString(s[0]))
		}
		n := -1
		if len(args) > 2 {
			limit, is := args[2].(types.Int)
			if !is {
				return otherwise(args...)
			}
			n = int(max(min(limit, types.Int(len(s[0])+1)), -1))
		}
		return types.NewStringList(types.DefaultTypeAdapter, p.FindAllString(s[0], n))
	}, nil
}

type pattern struct {
	*regexp.Regexp
	instructions int
}

func newPattern(s string) (*pattern, error) {
	n, err := instructions(s)
	if err != nil {
		return nil, err
	}
	compiled, err := regexp.Compile(s)
	if err != nil {
		return nil, fmt.Errorf("a bad regular expression: %w", err)
	}
	return &pattern{Regexp: compiled, instructions: n}, nil
}

// instructions estimates how large a regular expression is when it is compiled, without compiling it: "a{1000}" is a
// thousand. An error says that it is bad or too large.
func instructions(s string) (int, error) {
	if len(s) > MaxLength {
		return 0, fmt.Errorf("a regular expression of %d bytes, more than %d", len(s), MaxLength)
	}
	parsed, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return 0, fmt.Errorf("a bad regular expression: %w", err)
	}
	n := unfolded(parsed)
	if n > MaxRegexInstructions {
		return 0, fmt.Errorf("a regular expression of %d instructions, more than %d", n, MaxRegexInstructions)
	}
	return n, nil
}

func unfolded(re *syntax.Regexp) int {
	n := 1
	for _, sub := range re.Sub {
		n += unfolded(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		n += len(re.Rune)
	case syntax.OpCharClass:
		n += len(re.Rune) / 2
	case syntax.OpRepeat:
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, 1<<30)
}
