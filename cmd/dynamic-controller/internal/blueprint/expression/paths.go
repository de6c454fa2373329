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

// Path is what an expression reads of a variable: its name, then names of fields and indexes of lists.
type Path []any

func (p Path) String() string {
	var s strings.Builder
	for i, step := range p {
		switch step := step.(type) {
		case int64:
			fmt.Fprintf(&s, "[%d]", step)
		case string:
			switch {
			case i == 0:
				s.WriteString(step)
			case strings.ContainsAny(step, "./"):
				fmt.Fprintf(&s, "[%q]", step)
			default:
				s.WriteString("." + step)
			}
		}
	}
	return s.String()
}

// missingIn says how much of the path there is no more in the variables: nil if all of it is there.
func (p Path) missingIn(variables map[string]any) Path {
	value, found := variables[p[0].(string)]
	for i, step := range p[1:] {
		if !found {
			return p[:i+1]
		}
		switch step := step.(type) {
		case string:
			m, is := value.(map[string]any)
			if !is {
				return p[:i+2]
			}
			value, found = m[step]
		case int64:
			l, is := value.([]any)
			if found = is && step >= 0 && step < int64(len(l)); found {
				value = l[step]
			}
		}
	}
	if !found {
		return p
	}
	return nil
}

// pathsOf lists what an expression reads, each once and in order. What it asks for with has() or ? need not be there and
// is not listed, but what that would be in is.
func pathsOf(e ast.Expr) []Path {
	found := map[string]Path{}
	walkPaths(e, map[string]int{}, found)
	paths := make([]Path, 0, len(found))
	for _, key := range slices.Sorted(maps.Keys(found)) {
		paths = append(paths, found[key])
	}
	return paths
}

func walkPaths(e ast.Expr, bound map[string]int, found map[string]Path) {
	if p := asPath(e, bound); p != nil {
		found[p.String()] = p
		return
	}
	switch e.Kind() {
	case ast.SelectKind:
		walkPaths(e.AsSelect().Operand(), bound, found)
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			walkPaths(call.Target(), bound, found)
		}
		for _, a := range call.Args() {
			walkPaths(a, bound, found)
		}
	case ast.ListKind:
		for _, v := range e.AsList().Elements() {
			walkPaths(v, bound, found)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			walkPaths(entry.AsMapEntry().Key(), bound, found)
			walkPaths(entry.AsMapEntry().Value(), bound, found)
		}
	case ast.StructKind:
		for _, f := range e.AsStruct().Fields() {
			walkPaths(f.AsStructField().Value(), bound, found)
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		walkPaths(c.IterRange(), bound, found)
		walkPaths(c.AccuInit(), bound, found)
		names := []string{c.IterVar(), c.AccuVar()}
		if c.HasIterVar2() {
			names = append(names, c.IterVar2())
		}
		for _, n := range names {
			bound[n]++
		}
		walkPaths(c.LoopCondition(), bound, found)
		walkPaths(c.LoopStep(), bound, found)
		walkPaths(c.Result(), bound, found)
		for _, n := range names {
			bound[n]--
		}
	}
}

// asPath is the expression as a path, nil if it is none.
func asPath(e ast.Expr, bound map[string]int) Path {
	switch e.Kind() {
	case ast.IdentKind:
		// A variable that an inner one hides is written with a dot before it.
		if name := e.AsIdent(); strings.HasPrefix(name, ".") || bound[name] == 0 {
			return Path{strings.TrimPrefix(name, ".")}
		}
	case ast.SelectKind:
		s := e.AsSelect()
		if p := asPath(s.Operand(), bound); p != nil && !s.IsTestOnly() {
			return append(p, s.FieldName())
		}
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Index || call.Args()[1].Kind() != ast.LiteralKind {
			return nil
		}
		p := asPath(call.Args()[0], bound)
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
