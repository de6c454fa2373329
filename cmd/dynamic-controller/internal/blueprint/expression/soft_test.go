package expression

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

func TestRequires(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"}, Variable{Name: "a"}, Variable{Name: "b", List: true})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"a.?x":                                  "",
		"a.?x.?y.orValue('z')":                  "",
		"a.?x.y":                                "",
		"a[?'x'].orValue(1)":                    "",
		"b[?0].?x":                              "",
		"a.?x.orValue(self.y)":                  "self",
		"a.?x.orValue(a.y)":                     "a",
		"a.x.?y":                                "a",
		"has(a.x)":                              "a",
		"a['x'].?y":                             "a",
		"b.map(x, x.?y)":                        "b",
		"[1].map(a, {'x': a}.?x)":               "",
		"[1].map(a, .a.?x)":                     "",
		"[self].map(x, x.?y.orValue(a))":        "a self",
		"b[?0].?x.hasValue() ? b[0].x : 'none'": "b",
		"cel.bind(x, a.?y, x.orValue(b))":       "b",
		"[a.?x.hasValue(), self.?y.hasValue()]": "",
		"{'k': a}.?k":                           "a",
	} {
		p, err := env.Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := slices.DeleteFunc(slices.Clone(p.References()), func(name string) bool { return !p.Requires(name) })
		if strings.Join(got, " ") != want {
			t.Errorf("%s requires %q, want %q", text, got, want)
		}
	}
}

// An absent variable is optional.none() where it is read by ?, whether its type is known or not.
func TestRun_ReadsAbsentVariablesByQuestionMark(t *testing.T) {
	text := map[string]spec.Schema{"name": *spec.StringProperty()}
	metadata := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: text}}
	known := &openapi.Schema{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{
		Type: []string{"object"}, Properties: map[string]spec.Schema{"metadata": metadata},
	}}}
	for name, schema := range map[string]common.Schema{"unknown type": nil, "known type": known} {
		env, err := NewEnv(Variable{Name: "self"}, Variable{Name: "a", Schema: schema},
			Variable{Name: "b", List: true, Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]any{
			"a.?metadata.?name.orValue('none')":                             "none",
			"a.?metadata.name.orValue('none')":                              "none",
			"a.?metadata.?name":                                             nil,
			"a.?metadata.hasValue() ? 'yes' : 'no'":                         "no",
			"b[?0].?metadata.?name.orValue('none')":                         "none",
			"[1, 2].map(i, a.?metadata.?name.orValue(string(i))).join(',')": "1,2",
		} {
			p, err := env.Compile(text)
			if err != nil {
				t.Errorf("%s: %s: %v", name, text, err)
				continue
			}
			value, _, err := p.Run(t.Context(), map[string]any{"self": map[string]any{}, "a": Absent, "b": Absent})
			if err != nil {
				t.Errorf("%s: %s: %v", name, text, err)
				continue
			}
			got, present, err := value.JSON(&Room{Left: 100})
			if err != nil || got != want || present != (want != nil) {
				t.Errorf("%s: %s: got %v, %v, %v, want %v", name, text, got, present, err, want)
			}
		}
		for _, text := range []string{"a.metadata.name", "a.metadata.?name", "has(a.metadata)", "b.size()", "a"} {
			p, err := env.Compile(text)
			if err != nil {
				t.Errorf("%s: %s: %v", name, text, err)
				continue
			}
			_, _, err = p.Run(t.Context(), map[string]any{"self": map[string]any{}, "a": Absent, "b": Absent})
			var missing *MissingError
			if !errors.As(err, &missing) || len(missing.Path) != 1 {
				t.Errorf("%s: %s: got error %v, want a missing variable", name, text, err)
			}
		}
	}
}
