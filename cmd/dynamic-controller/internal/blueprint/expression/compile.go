package expression

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/interpreter"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

// Program is a compiled expression.
type Program struct {
	text    string
	program *interpreter.ObservableInterpretable
	output  *cel.Type
	paths   []Path
	refs    []string
	soft    []string // the variables in refs that the expression reads only by ?
}

// String returns the text of the expression.
func (p *Program) String() string { return p.text }

// References returns the names of the variables that the expression reads, sorted.
func (p *Program) References() []string { return p.refs }

// Requires reports whether the expression needs the value of a variable that it reads. It does not if it reads the
// variable only by ?, as in database.?status or pods[?0], so that the variable can be [Absent].
func (p *Program) Requires(name string) bool { return !slices.Contains(p.soft, name) }

// Paths returns the paths that the expression reads, without duplicates. A path ends before an optional part (has() and
// ?), and before a part that is known only at evaluation.
func (p *Program) Paths() []Path { return p.paths }

// IsBool reports whether the value can be a boolean.
func (p *Program) IsBool() bool { return canBe(p.output, types.BoolKind) }

// IsString reports whether the value can be a string.
func (p *Program) IsString() bool { return canBe(p.output, types.StringKind) }

// IsText reports whether the value can be a string or an optional string.
func (p *Program) IsText() bool {
	if p.output.Kind() == types.OpaqueKind && p.output.TypeName() == types.OptionalType.TypeName() {
		return canBe(p.output.Parameters()[0], types.StringKind)
	}
	return p.IsString()
}

// IsPrimitive reports whether the value can be a string, a number or a boolean. Only these values can be embedded in
// text.
func (p *Program) IsPrimitive() bool {
	return canBe(p.output, types.StringKind, types.IntKind, types.UintKind, types.DoubleKind, types.BoolKind)
}

// Type returns the type of the value in CEL's notation.
func (p *Program) Type() string { return cel.FormatCELType(p.output) }

func canBe(t *types.Type, kinds ...types.Kind) bool {
	return slices.Contains(append(kinds, types.DynKind, types.AnyKind, types.TypeParamKind), t.Kind())
}

// Compile compiles an expression. The text of an error is a single line. The error is an [*UnknownFieldError] if the
// expression reads a field that is not in the schema.
func (e *Env) Compile(text string) (*Program, error) {
	if len(text) > MaxLength {
		return nil, fmt.Errorf("the expression has %d bytes; the maximum is %d", len(text), MaxLength)
	}
	parsed, issues := e.env.Parse(text)
	if issues.Err() != nil {
		return nil, summary(issues)
	}
	calls := &calls{dispatcher: e.base.dispatcher, conditions: map[int64]bool{}}
	if _, err := calls.inspect(ast.NavigateAST(parsed.NativeRep())); err != nil {
		return nil, err
	}
	checked, issues := e.env.Check(parsed)
	if issues.Err() != nil {
		return nil, e.withUnknownField(summary(issues), pathsOf(parsed.NativeRep()))
	}
	p := &Program{text: text, output: checked.OutputType(), paths: pathsOf(checked.NativeRep())}
	for _, path := range p.paths {
		if name := path[0].(string); e.types[name] != nil { // a variable, not the name of a type
			p.refs = append(p.refs, name)
		}
	}
	p.refs = slices.Compact(p.refs)
	p.soft = softIn(checked.NativeRep(), p.refs)
	if err := e.checkEstimate(checked, p.refs); err != nil {
		return nil, err
	}
	planned, err := e.base.interpreter.NewInterpretable(checked.NativeRep(),
		interpreter.CustomDecoratorV2(alternatives),
		interpreter.CustomDecoratorV2(calls.decorate),
		interpreter.InterruptableEval(),
		interpreter.Optimize(),
		e.base.costs,
	)
	if err != nil {
		return nil, err
	}
	p.program = planned.(*interpreter.ObservableInterpretable)
	return p, nil
}

// checkEstimate rejects an expression whose estimated cost is too high. It accepts the expression if limits in the
// schema could not lower the estimate.
func (e *Env) checkEstimate(checked *cel.Ast, refs []string) error {
	const unbounded = 1 << 53 // a lower bound on estimates with an unknown size, such as that of lists.range
	estimate, err := e.env.EstimateCost(checked, &library.CostEstimator{SizeEstimator: sizeEstimator(e.types)})
	if err != nil {
		return fmt.Errorf("estimate the cost: %w", err)
	}
	if estimate.Max <= PerCallLimit || estimate.Max >= unbounded || !e.areLimited(refs) {
		return nil
	}
	return fmt.Errorf("the estimated cost of %d exceeds %d; set maxItems, maxProperties and maxLength in the schema, "+
		"or simplify the expression", estimate.Max, PerCallLimit)
}

// summary returns the compiler's first few messages on one line.
func summary(issues *cel.Issues) error {
	const maxMessages = 3
	var all []string
	for _, e := range issues.Errors()[:min(len(issues.Errors()), maxMessages)] {
		message := strings.ReplaceAll(e.Message, " (in container '')", "")
		message = strings.TrimPrefix(strings.Join(strings.Fields(message), " "), "Syntax error: ")
		if e.Location.Line() > 0 {
			message = fmt.Sprintf("%s (line %d, column %d)", message, e.Location.Line(), e.Location.Column()+1)
		}
		all = append(all, message)
	}
	return errors.New(strings.Join(all, "; "))
}

// UnknownFieldError is returned if an expression reads a field that is not in the schema.
type UnknownFieldError struct {
	Field string
	Known []string // the known fields of the same object, sorted
	cause error
}

func (e *UnknownFieldError) Error() string { return e.cause.Error() }

// withUnknownField converts the compiler's error to an UnknownFieldError if it concerns a field in one of the paths.
func (e *Env) withUnknownField(err error, paths []Path) error {
	for _, p := range paths {
		field, known := unknownField(e.types[p[0].(string)], p[1:])
		if field != "" && strings.Contains(err.Error(), "undefined field '"+field+"'") {
			return &UnknownFieldError{Field: field, Known: known, cause: err}
		}
	}
	return err
}

func unknownField(t *apiservercel.DeclType, steps Path) (field string, known []string) {
	for _, step := range steps {
		name, isName := step.(string)
		switch {
		case t == nil:
			return "", nil
		case isName && t.IsObject() && t.Fields[name] == nil:
			return name, slices.Sorted(maps.Keys(t.Fields))
		case isName && t.IsObject():
			t = t.Fields[name].Type
		default:
			t = t.ElemType
		}
	}
	return "", nil
}
