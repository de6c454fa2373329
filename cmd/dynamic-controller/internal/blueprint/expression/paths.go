package expression

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/traits"
)

// Path is the part of a variable that an expression reads. It consists of the name of the variable, followed by field
// names and list indexes.
type Path []any

func (p Path) String() string {
	var s strings.Builder
	for i, step := range p {
		name, isName := step.(string)
		switch {
		case !isName:
			fmt.Fprintf(&s, "[%d]", step)
		case i == 0:
			s.WriteString(name)
		case strings.ContainsAny(name, "./"):
			fmt.Fprintf(&s, "[%q]", name)
		default:
			s.WriteString("." + name)
		}
	}
	return s.String()
}

// missingIn returns the shortest prefix of the path that is missing from the variables, or nil if the path exists.
func (p Path) missingIn(variables map[string]any) Path {
	value, found := variables[p[0].(string)]
	for i, step := range p[1:] {
		if !found {
			return p[:i+1]
		}
		switch step := step.(type) {
		case string:
			switch m := value.(type) {
			case map[string]any:
				value, found = m[step]
			case traits.Mapper: // values from Value.Items
				value, found = m.Find(types.String(step))
			default:
				return p[:i+2]
			}
		case int64:
			l, isList := value.([]any)
			if found = isList && step >= 0 && step < int64(len(l)); found {
				value = l[step]
			}
		}
	}
	if !found {
		return p
	}
	return nil
}

// pathsOf returns the paths that an expression reads, sorted and without duplicates. Paths end before optional parts
// (has() and ?).
func pathsOf(a *ast.AST) []Path {
	found := map[string]Path{}
	collectPaths(ast.NavigateAST(a), nil, found)
	paths := make([]Path, 0, len(found))
	for _, key := range slices.Sorted(maps.Keys(found)) {
		paths = append(paths, found[key])
	}
	return paths
}

// collectPaths adds the paths in e to found. It ignores the variables of surrounding comprehensions, which are in
// local.
func collectPaths(e ast.NavigableExpr, local []string, found map[string]Path) {
	if p := asPath(e, local); p != nil {
		found[p.String()] = p
		return
	}
	for i, child := range e.Children() {
		inner := local
		if e.Kind() == ast.ComprehensionKind && i >= loopParts {
			c := e.AsComprehension()
			inner = append(slices.Clip(local), c.IterVar(), c.IterVar2(), c.AccuVar())
		}
		collectPaths(child, inner, found)
	}
}

// softIn returns the variables among refs that an expression reads only by ?. They are sorted.
func softIn(a *ast.AST, refs []string) (soft []string) {
	required := map[string]bool{}
	collectRequired(ast.NavigateAST(a), nil, required)
	return slices.DeleteFunc(slices.Clone(refs), func(name string) bool { return required[name] })
}

// collectRequired adds the variables in e that are not the operand of ? to found.
func collectRequired(e ast.NavigableExpr, local []string, found map[string]bool) {
	if p := asPath(e, local); len(p) == 1 {
		found[p[0].(string)] = true
		return
	}
	isOptional := e.Kind() == ast.CallKind &&
		(e.AsCall().FunctionName() == operators.OptSelect || e.AsCall().FunctionName() == operators.OptIndex)
	for i, child := range e.Children() {
		if p := asPath(child, local); isOptional && i == 0 && len(p) == 1 {
			continue
		}
		inner := local
		if e.Kind() == ast.ComprehensionKind && i >= loopParts {
			c := e.AsComprehension()
			inner = append(slices.Clip(local), c.IterVar(), c.IterVar2(), c.AccuVar())
		}
		collectRequired(child, inner, found)
	}
}

// loopParts is the index of the first child of a comprehension that can read the variables of the comprehension. The
// children before it are the range and the initial value.
const loopParts = 2

// asPath returns the expression as a path, or nil if it is not a path.
func asPath(e ast.Expr, local []string) Path {
	switch e.Kind() {
	case ast.IdentKind:
		// A leading dot refers to the global variable, even if a local variable has the same name.
		name := e.AsIdent()
		if global, isDotted := strings.CutPrefix(name, "."); isDotted || !slices.Contains(local, name) {
			return Path{global}
		}
	case ast.SelectKind:
		s := e.AsSelect()
		if p := asPath(s.Operand(), local); p != nil && !s.IsTestOnly() {
			return append(p, s.FieldName())
		}
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Index || call.Args()[1].Kind() != ast.LiteralKind {
			return nil
		}
		p := asPath(call.Args()[0], local)
		if p == nil {
			return nil
		}
		switch v := call.Args()[1].AsLiteral().(type) {
		case types.String:
			return append(p, string(v))
		case types.Int:
			return append(p, int64(v))
		}
	}
	return nil
}
