package expression

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReferences(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"}, Variable{Name: "a"}, Variable{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		"1":                      nil,
		"b.x + a.y + b.z":        {"a", "b"},
		"has(a.x)":               {"a"},
		"a.?x":                   {"a"},
		"[1].map(a, a + 1)":      nil,
		"[1].map(a, a + self.x)": {"self"},
		"[1].map(a, [a].map(b, b).size()) == [a]": {"a"},
		"[1].map(a, .a.x)":                        {"a"},
		"[a].map(a, a)":                           {"a"},
		"{'a': a, a.x: 1}":                        {"a"},
		"a.items.all(i, v, v.x == b[i])":          {"a", "b"},
		"cel.bind(x, a.y, x + x)":                 {"a"},
		"cel.bind(a, a.y, a + a)":                 {"a"},
	} {
		p, err := env.Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if d := cmp.Diff(want, p.References()); d != "" {
			t.Errorf("%s reads (-want +got):\n%s", text, d)
		}
	}
}

func TestPaths(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"}, Variable{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		"self.a.b + self.a.b + self.c":  {"self.a.b", "self.c"},
		"self.list[0].x['y/z']":         {`self.list[0].x["y/z"]`},
		"self.list[self.index].x":       {"self.index", "self.list"},
		"has(self.a.b) ? self.a.b : ''": {"self.a", "self.a.b"},
		"self.a.?b.orValue(a.c)":        {"a.c", "self.a"},
		"self.list.map(x, x.name)":      {"self.list"},
	} {
		p, err := env.Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, path := range p.Paths() {
			got = append(got, path.String())
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s reads (-want +got):\n%s", text, d)
		}
	}
}
