package expression

import (
	"context"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/go-cmp/cmp"
)

// Guards are asked before the function runs; what it would have cost is counted after, and hides what they said.
func TestGuards(t *testing.T) {
	text := types.String(strings.Repeat("a", 2000))
	list := func(n int) ref.Val {
		items := make([]ref.Val, n)
		for i := range items {
			items[i] = text
		}
		return types.DefaultTypeAdapter.NativeToValue(items)
	}
	for reason, c := range map[string]struct {
		check   guard
		args    []ref.Val
		refused bool
	}{
		"a few are replaced":                 {replaced, []ref.Val{text, types.String("a"), types.String("bb")}, false},
		"many are replaced by much":          {replaced, []ref.Val{text, types.String("a"), text}, true},
		"a limit limits it":                  {replaced, []ref.Val{text, types.String("a"), text, types.Int(3)}, false},
		"no limit does not":                  {replaced, []ref.Val{text, types.String("a"), text, types.Int(-1)}, true},
		"nothing is replaced between all":    {replaced, []ref.Val{text, types.String(""), text}, true},
		"a few are joined":                   {joined, []ref.Val{list(100), types.String(",")}, false},
		"many are joined":                    {joined, []ref.Val{list(600)}, true},
		"a few are joined by much":           {joined, []ref.Val{list(300), text}, true},
		"a list counts":                      {ranged, []ref.Val{types.Int(MaxListItems)}, false},
		"a list counts further":              {ranged, []ref.Val{types.Int(MaxListItems + 1)}, true},
		"a few are compared with each other": {compared, []ref.Val{list(10)}, false},
		"many are":                           {compared, []ref.Val{list(100)}, true},
		"few with many":                      {compared, []ref.Val{list(1), list(100)}, false},
		"many with many":                     {compared, []ref.Val{list(100), list(100)}, true},
		"a quantity":                         {parsed, []ref.Val{types.String("1Gi")}, false},
		"a long one":                         {parsed, []ref.Val{text}, true},
		"a usual precision":                  {formatted, []ref.Val{types.String("%.100f")}, false},
		"more":                               {formatted, []ref.Val{types.String("%.3f%.101f")}, true},
		"what is of the wrong type is left to the function": {replaced, []ref.Val{list(1), text, text}, false},
	} {
		t.Run(reason, func(t *testing.T) {
			if err := c.check(c.args); (err != nil) != c.refused {
				t.Errorf("got %v, want refused: %v", err, c.refused)
			}
		})
	}
}

func TestInstructions(t *testing.T) {
	for text, want := range map[string]bool{
		`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`: true,
		`(a{600})`:                             true,
		`(a{600})(b{600})`:                     false,
		`((a|b){40}){40}`:                      false,
		`(`:                                    false,
		strings.Repeat("a", MaxLength+1):       false,
	} {
		if n, err := instructions(text); (err == nil) != want {
			t.Errorf("%.60s: %d, %v", text, n, err)
		}
	}
}

// What is paid is what there is, however deep and whatever it is called.
func TestRun_costs(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{"self": map[string]any{"text": strings.Repeat("a", 1000), "list": []any{[]any{"a", "b"}, []any{"c"}}}}
	for reason, c := range map[string]struct {
		text     string
		min, max uint64
	}{
		"to look at something is cheap":          {"self.list.size()", 1, 5},
		"text is paid by the byte":               {"self.text + self.text", 400, 410},
		"so it is where its type is not known":   {"dyn(self.text) + dyn(self.text)", 400, 410},
		"a list is paid by all that is in it":    {"[self.text, self.text]", 200, 215},
		"so is a map":                            {"{'a': self.text, 'b': [self.text]}", 300, 325},
		"so is a comparison":                     {"self.list == self.list", 12, 20},
		"what is collected is paid once an item": {"lists.range(100).map(i, i)", 400, 1000},
	} {
		t.Run(reason, func(t *testing.T) {
			p, err := env.Compile(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if _, cost, err := p.Run(context.Background(), variables); err != nil || cost < c.min || cost > c.max {
				t.Errorf("cost %d, %v, want between %d and %d", cost, err, c.min, c.max)
			}
		})
	}
}

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
		"{'a': a, a.x: 1}":                        {"a"},
		"a.items.all(i, v, v.x == b[i])":          {"a", "b"},
		"cel.bind(x, a.y, x + x)":                 {"a"},
	} {
		p, err := env.Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if d := cmp.Diff(want, p.References()); d != "" {
			t.Errorf("%s refers to (-want +got):\n%s", text, d)
		}
	}
}
