package expression

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"k8s.io/apiserver/pkg/cel/library"
)

// Program is an expression that is ready to run.
type Program struct {
	text    string
	steps   steps
	output  *cel.Type
	paths   []Path
	refs    []string
	regexes int
}

// String is the expression's text.
func (p *Program) String() string { return p.text }

// References are the variables that it refers to, in order of their names.
func (p *Program) References() []string { return p.refs }

// Paths returns the paths that the expression reads, without duplicates. For an optional part (has() and ?), and for a
// part that is known only at evaluation, it returns the path of the value that contains the part.
func (p *Program) Paths() []Path { return p.paths }

// RegexInstructions estimates what its constant regular expressions take, of which each instruction is some 100 bytes.
func (p *Program) RegexInstructions() int { return p.regexes }

// IsBool tells whether it may be true or false.
func (p *Program) IsBool() bool { return p.may(types.BoolKind) }

// IsString tells whether it may be a string.
func (p *Program) IsString() bool { return p.may(types.StringKind) }

// IsText tells whether it may be a string, or one that may be absent.
func (p *Program) IsText() bool {
	if p.output.Kind() == types.OpaqueKind && p.output.TypeName() == types.OptionalType.TypeName() {
		return mayBe(p.output.Parameters()[0], types.StringKind)
	}
	return p.IsString()
}

// IsPrimitive tells whether it may be what can be put into text: a string, a number or a boolean.
func (p *Program) IsPrimitive() bool {
	return p.may(types.StringKind, types.IntKind, types.UintKind, types.DoubleKind, types.BoolKind)
}

// Type is what its value is, as CEL writes types.
func (p *Program) Type() string { return cel.FormatCELType(p.output) }

func (p *Program) may(kinds ...types.Kind) bool { return mayBe(p.output, kinds...) }

func mayBe(t *types.Type, kinds ...types.Kind) bool {
	switch k := t.Kind(); k {
	case types.DynKind, types.AnyKind, types.TypeParamKind:
		return true
	default:
		for _, want := range kinds {
			if k == want {
				return true
			}
		}
		return false
	}
}

// Compile makes a program of an expression. The error says, in a line, what is wrong with it.
func (e *Env) Compile(text string) (*Program, error) {
	if len(text) > MaxLength {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(text), MaxLength)
	}
	parsed, issues := e.env.Parse(text)
	if err := issues.Err(); err != nil {
		return nil, said(issues)
	}
	shape, err := shapeOf(parsed.NativeRep().Expr())
	if err != nil {
		return nil, err
	}
	checked, issues := e.env.Check(parsed)
	if err := issues.Err(); err != nil {
		return nil, e.explained(said(issues), pathsOf(parsed.NativeRep().Expr()))
	}
	estimator := &library.CostEstimator{SizeEstimator: sizes{e.types}}
	estimate, err := e.env.EstimateCost(checked, estimator)
	if err != nil {
		return nil, fmt.Errorf("estimate what it costs: %w", err)
	}
	paths := pathsOf(checked.NativeRep().Expr())
	refs := references(paths)
	if limit := uint64(PerCallLimit); estimate.Max > limit && estimate.Max < unknownCost && !slices.ContainsFunc(refs, e.isUnlimited) {
		return nil, fmt.Errorf("it may cost %d, more than %d: let the schema limit what it reads (maxItems, maxProperties, maxLength), or simplify it",
			estimate.Max, limit)
	}
	planned, err := e.base.planner.plan(checked.NativeRep(), e.base.guardCalls, shape.endRounds)
	if err != nil {
		return nil, err
	}
	return &Program{text: text, steps: planned, output: checked.OutputType(), paths: paths, refs: refs, regexes: shape.regexes}, nil
}

// unknownCost and more is what an estimate says when it knows no bound, as of what lists.range makes.
const unknownCost = 1 << 53

func (e *Env) isUnlimited(variable string) bool { return !e.limited[variable] }

func references(paths []Path) []string {
	var refs []string
	for _, p := range paths {
		if name := p[0].(string); len(refs) == 0 || refs[len(refs)-1] != name {
			refs = append(refs, name)
		}
	}
	return refs
}

// said is what the compiler says, one line after another, in one.
func said(issues *cel.Issues) error {
	var all []string
	for _, e := range issues.Errors() {
		// The container is a notion of protobuf's, and empty.
		message := strings.ReplaceAll(e.Message, " (in container '')", "")
		message = strings.Join(strings.Fields(message), " ")
		message = strings.TrimPrefix(message, "Syntax error: ")
		if e.Location.Line() > 0 {
			message = fmt.Sprintf("%s (line %d, column %d)", message, e.Location.Line(), e.Location.Column()+1)
		}
		all = append(all, message)
		if len(all) == 3 {
			break
		}
	}
	if len(all) == 0 {
		return errors.New(issues.String())
	}
	return errors.New(strings.Join(all, "; "))
}
