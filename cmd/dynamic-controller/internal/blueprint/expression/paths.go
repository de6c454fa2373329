package expression

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// Path is a part of a variable that an expression reads: the name of the variable, followed by field names and list
// indexes.
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

// missingIn returns the shortest prefix of the path that does not exist in the variables, or nil if the path exists.
func (p Path) missingIn(variables map[string]any) Path {
	value, found := variables[p[0].(string)]
	for i, step := range p[1:] {
		if !found {
			return p[:i+1]
		}
		switch step := step.(type) {
		case string:
			m, isMap := value.(map[string]any)
			if !isMap {
				return p[:i+2]
			}
			value, found = m[step]
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

// pathsOf returns the paths that an expression reads, sorted and without duplicates. Optional parts (has() and ?) are
// cut off.
func pathsOf(a *ast.AST) []Path {
	found := map[string]Path{}
	collectPaths(ast.NavigateAST(a), nil, found)
	paths := make([]Path, 0, len(found))
	for _, key := range slices.Sorted(maps.Keys(found)) {
		paths = append(paths, found[key])
	}
	return paths
}

// collectPaths adds the paths in e to found. It ignores local, the variables of the surrounding comprehensions.
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

// loopParts is the index of the first child of a comprehension that can read the variables of the comprehension. The
// children before it are the range and the initial value.
const loopParts = 2

// asPath returns the expression as a path, or nil if it is not a path.
func asPath(e ast.Expr, local []string) Path {
	switch e.Kind() {
	case ast.IdentKind:
		// A global variable that a local one hides is written with a leading dot.
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
