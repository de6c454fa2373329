package expression

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// itemsOf returns the items of a list as variables.
func itemsOf(t *testing.T, env *Env, text string, variables map[string]any) (*Program, []any) {
	t.Helper()
	list, err := env.Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	value, _, err := list.Run(t.Context(), variables)
	if err != nil {
		t.Fatal(err)
	}
	items, size, err := value.Items(10)
	if err != nil || size != len(items) {
		t.Fatalf("%d items, %v", size, err)
	}
	return list, items
}

func TestItems_HaveTheItemTypeOfTheList(t *testing.T) {
	person := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
		"name": *spec.StringProperty(), "mail": *spec.StringProperty(),
	}}}
	self := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
		"people": *spec.ArrayProperty(&person), "tags": *spec.ArrayProperty(spec.StringProperty()),
	}}}
	env, err := NewEnv(Variable{Name: "self", Schema: &openapi.Schema{Schema: &self}, Limited: true},
		Variable{Name: "all", Schema: &openapi.Schema{Schema: &person}, List: true})
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{
		"self": map[string]any{"people": []any{map[string]any{"name": "ann"}}, "tags": []any{"a"}},
		"all":  []any{map[string]any{"name": "bob", "mail": "b"}},
	}
	for _, c := range []struct{ list, text, want string }{
		{"self.people", "item.name", "ann"},
		{"self.people", "item.mail", "item.mail does not exist"},
		{"self.people", "item.phone", "undefined field 'phone'"},
		{"self.tags", "item + 'x'", "ax"},
		{"self.tags", "item + 1", "no matching overload"},
		{"all", "item.name + item.mail", "bobb"},
		{"all.filter(a, a.name == 'bob')", "item.phone", "undefined field 'phone'"},
		{"[{'name': 'cid'}]", "item.name", "cid"},
		{"[{'name': 'cid', 'at': {'x': 'y'}}]", "item.at.z + item.name", "item.at.z does not exist"},
		{"[[1, 2]]", "string(item[1])", "2"},
		{"[timestamp('2026-01-02T03:04:05Z')]", "string(item.getFullYear())", "2026"},
		{"dyn([1u])", "string(item)", "1"},
		{"[null]", "string(item == null)", "true"},
	} {
		list, items := itemsOf(t, env, c.list, variables)
		inner, err := env.WithItems(map[string]*Program{"item": list})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		program, err := inner.Compile(c.text)
		if err == nil {
			var value Value
			inner := map[string]any{"self": variables["self"], "item": items[0]}
			if value, _, err = program.Run(t.Context(), inner); err == nil {
				got, err = value.Text(&Room{Left: 100})
			}
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s of %s is %s, want %s", c.text, c.list, got, c.want)
		}
	}
	if _, err := env.Compile("item"); err == nil {
		t.Error("WithItems changed the environment")
	}
	undeclared, err := env.WithItems(map[string]*Program{"item": nil})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := undeclared.Compile("item.any.field + 1"); err != nil {
		t.Errorf("compile with an item of an unknown type: %v", err)
	}
}

// To suggest a name, the error must contain the fields of an item.
func TestItems_UnknownField(t *testing.T) {
	person := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"},
		Properties: map[string]spec.Schema{"name": *spec.StringProperty()}}}
	env, err := NewEnv(Variable{Name: "all", Schema: &openapi.Schema{Schema: &person}, List: true})
	if err != nil {
		t.Fatal(err)
	}
	list, err := env.Compile("all")
	if err != nil {
		t.Fatal(err)
	}
	inner, err := env.WithItems(map[string]*Program{"each": list})
	if err != nil {
		t.Fatal(err)
	}
	var unknown *UnknownFieldError
	if _, err := inner.Compile("each.nam == ''"); !errors.As(err, &unknown) || fmt.Sprint(unknown.Known) != "[name]" {
		t.Errorf("got %v", err)
	}
}

func TestItems_LimitAndType(t *testing.T) {
	env, err := NewEnv(Variable{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"lists.range(3)": "3 of 3, <nil>", "lists.range(4)": "0 of 4, <nil>", "[]": "0 of 0, <nil>",
		"a": "0 of 0, is of type map, not list", "dyn('x')": "0 of 0, is of type string, not list",
	} {
		program, err := env.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := program.Run(t.Context(), map[string]any{"a": map[string]any{"b": 1}})
		if err != nil {
			t.Fatal(err)
		}
		items, size, err := value.Items(3)
		if got := fmt.Sprintf("%d of %d, %v", len(items), size, err); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
