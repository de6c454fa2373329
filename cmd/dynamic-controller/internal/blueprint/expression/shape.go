package expression

import (
	"fmt"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
)

// shape is what is counted of an expression before its types are worked out, which takes long where they are large: types
// grow with each comprehension, for what it collects, and with each value that is put into another.
type shape struct {
	comprehensions int
	conditions     map[int64]bool // the ids of their loop conditions
	regexes        int            // instructions of constant regular expressions
	err            error
}

// shapeOf says what is too much of an expression. Checking compiles regular expressions, too.
func shapeOf(e ast.Expr) (shape, error) {
	s := shape{conditions: map[int64]bool{}}
	s.walk(e, 1)
	if s.err == nil && s.comprehensions > maxComprehensions {
		s.err = fmt.Errorf("it has %d comprehensions (map, filter, all, cel.bind, ...), more than %d", s.comprehensions, maxComprehensions)
	}
	return s, s.err
}

// walk returns how often types are put into others for the type of the expression.
func (s *shape) walk(e ast.Expr, depth int) int {
	if depth > maxDepth {
		s.err = fmt.Errorf("it is deeper than %d operations in each other", maxDepth)
	}
	if s.err != nil {
		return 0
	}
	grown := 0
	parts := func(parts ...ast.Expr) {
		for _, part := range parts {
			grown = max(grown, s.walk(part, depth+1))
		}
	}
	switch e.Kind() {
	case ast.SelectKind:
		parts(e.AsSelect().Operand())
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			parts(call.Target())
		}
		parts(call.Args()...)
		if call.IsMemberFunction() && call.Target().Kind() == ast.IdentKind && call.Target().AsIdent() == "optional" {
			grown++
		}
		switch call.FunctionName() {
		case "matches", "find", "findAll":
			s.regex(call)
		}
	case ast.ListKind:
		parts(e.AsList().Elements()...)
		grown++
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			parts(entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
		grown++
	case ast.StructKind:
		for _, f := range e.AsStruct().Fields() {
			parts(f.AsStructField().Value())
		}
		grown++
	case ast.ComprehensionKind:
		s.comprehensions++
		c := e.AsComprehension()
		s.conditions[c.LoopCondition().ID()] = true
		// What it makes of an item may have the item's type in it.
		parts(c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result())
		grown += s.walk(c.IterRange(), depth+1)
	}
	if grown > maxGrowth {
		s.err = fmt.Errorf("it puts lists, maps, optionals and comprehensions into each other more than %d times", maxGrowth)
	}
	return grown
}

// regex adds up what is constant in a call of a function that takes a regular expression, whichever way it is called.
func (s *shape) regex(call ast.CallExpr) {
	for _, a := range call.Args() {
		if a.Kind() != ast.LiteralKind {
			continue
		}
		if text, is := a.AsLiteral().(types.String); is {
			n, err := instructions(string(text))
			if err != nil {
				s.err = err
				return
			}
			s.regexes += n
		}
	}
}
