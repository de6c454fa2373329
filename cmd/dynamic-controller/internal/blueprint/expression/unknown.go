package expression

import (
	"maps"
	"slices"
	"strings"

	apiservercel "k8s.io/apiserver/pkg/cel"
)

// UnknownFieldError is that of an expression that reads a field which the schema has not.
type UnknownFieldError struct {
	Field  string
	Beside []string // the fields that there are in its place, in order
	said   error
}

func (e *UnknownFieldError) Error() string { return e.said.Error() }

// explained is what the compiler says, and an UnknownFieldError if it says so of one of the paths.
func (e *Env) explained(said error, paths []Path) error {
	for _, p := range paths {
		field, beside := unknownIn(e.types[p[0].(string)], p[1:])
		if field != "" && strings.Contains(said.Error(), "undefined field '"+field+"'") {
			return &UnknownFieldError{Field: field, Beside: beside, said: said}
		}
	}
	return said
}

func unknownIn(t *apiservercel.DeclType, steps Path) (field string, beside []string) {
	for _, step := range steps {
		name, isName := step.(string)
		switch {
		case t == nil:
			return "", nil
		case isName && t.IsObject() && t.Fields[name] == nil:
			beside = slices.Sorted(maps.Keys(t.Fields))
			// Those that are escaped are written otherwise.
			return name, slices.DeleteFunc(beside, func(s string) bool { return strings.Contains(s, "__") })
		case isName && t.IsObject():
			t = t.Fields[name].Type
		default:
			t = t.ElemType
		}
	}
	return "", nil
}
