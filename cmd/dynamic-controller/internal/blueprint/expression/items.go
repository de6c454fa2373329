package expression

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/traits"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// IsList reports whether the value can be a list.
func (p *Program) IsList() bool { return canBe(p.output, types.ListKind) }

// WithItems returns an environment with additional variables, each of which stands for an item of a list. lists maps
// the names of the variables to the programs that yield the lists. The programs must have been compiled in this
// environment. If a program is nil, its variable can have any value. The names must be identifiers and must not be
// variables of the environment yet.
func (e *Env) WithItems(lists map[string]*Program) (*Env, error) {
	extended := &Env{base: e.base, types: maps.Clone(e.types), limited: maps.Clone(e.limited), structs: e.structs}
	var options []cel.EnvOption
	for name, list := range lists {
		t := types.DynType
		if list != nil && list.output.Kind() == types.ListKind {
			t = list.output.Parameters()[0]
			extended.limited[name] = e.areLimited(list.refs)
		}
		extended.types[name] = e.declTypeOf(t)
		options = append(options, cel.Variable(name, t))
	}
	var err error
	if extended.env, err = e.env.Extend(options...); err != nil {
		return nil, fmt.Errorf("declare the variables: %w", err)
	}
	return extended, nil
}

// areLimited reports whether all variables are limited. See Variable.Limited.
func (e *Env) areLimited(variables []string) bool {
	return !slices.ContainsFunc(variables, func(name string) bool { return !e.limited[name] })
}

// declTypeOf returns the declaration of an object type, or DynType for other types.
func (e *Env) declTypeOf(t *types.Type) *apiservercel.DeclType {
	if t.Kind() == types.StructKind {
		if declared, found := e.structs.FindDeclType(t.TypeName()); found {
			return declared
		}
	}
	return apiservercel.DynType
}

// Items returns the items of a list as variables for [Program.Run], and the number of items. If the list has more items
// than the limit, it returns only their number.
func (v Value) Items(limit int) (items []any, size int, err error) {
	list, is := v.value.(traits.Lister)
	if !is {
		return nil, 0, fmt.Errorf("is of type %s, not list", v.value.Type().TypeName())
	}
	length, _ := list.Size().(types.Int)
	if size = int(length); size > limit {
		return nil, size, nil
	}
	items = make([]any, 0, size)
	for it := list.Iterator(); it.HasNext() == types.True; {
		item := it.Next()
		switch native := item.Value().(type) {
		case map[string]any, []any: // the item is a part of a variable
			items = append(items, native)
		default:
			items = append(items, item)
		}
	}
	return items, size, nil
}
