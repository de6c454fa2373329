package expression

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// The cost must be checked before the function runs. The tests call the check directly because the cost that Kubernetes
// counts afterwards would hide a missing check.
func TestCallCosts(t *testing.T) {
	repeated := func(s string, n int) types.String { return types.String(strings.Repeat(s, n)) }
	text := repeated("a", 4000)
	list := func(n int) ref.Val {
		items := make([]ref.Val, n)
		for i := range items {
			items[i] = text
		}
		return types.DefaultTypeAdapter.NativeToValue(items)
	}
	mapOf := func(v ref.Val) ref.Val {
		return types.DefaultTypeAdapter.NativeToValue(map[string]ref.Val{"a": v})
	}
	tooLong := repeated("(", MaxLength+1)
	letter, label := types.String("a"), types.String("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
	long := repeated("1", 20_000)
	for name, c := range map[string]struct {
		function string
		args     []ref.Val
		exceeds  bool
	}{
		"replacing with a short string":         {"replace", []ref.Val{text, types.String("a"), types.String("bb")}, false},
		"replacing with a long string":          {"replace", []ref.Val{text, types.String("a"), text}, true},
		"replacing with a limit":                {"replace", []ref.Val{text, types.String("a"), text, types.Int(3)}, false},
		"replacing with a negative limit":       {"replace", []ref.Val{text, types.String("a"), text, types.Int(-1)}, true},
		"replacing between all letters":         {"replace", []ref.Val{text, types.String(""), text}, true},
		"joining a few strings":                 {"join", []ref.Val{list(100), types.String(",")}, false},
		"joining many strings":                  {"join", []ref.Val{list(2000)}, true},
		"joining with a long separator":         {"join", []ref.Val{list(1000), text}, true},
		"comparing a few items in pairs":        {"distinct", []ref.Val{list(5)}, false},
		"comparing many items in pairs":         {"distinct", []ref.Val{list(20)}, true},
		"comparing a few items with many":       {"sets.contains", []ref.Val{list(1), list(50)}, false},
		"comparing many items with many":        {"sets.contains", []ref.Val{list(50), list(50)}, true},
		"a quantity":                            {"quantity", []ref.Val{types.String("1Gi")}, false},
		"a quantity with many digits":           {"quantity", []ref.Val{long}, true},
		"a common precision":                    {"format", []ref.Val{types.String("%.100f")}, false},
		"a high precision":                      {"format", []ref.Val{types.String("%.3f%.99999999f")}, true},
		"a precision beyond int":                {"format", []ref.Val{types.String("%.99999999999999999999999f")}, true},
		"matching a DNS label":                  {"matches", []ref.Val{text, label}, false},
		"matching many repetitions":             {"matches", []ref.Val{long, types.String("(a?){400}")}, true},
		"a regular expression with few parts":   {"matches", []ref.Val{letter, types.String("(a{600})")}, false},
		"a regular expression with many parts":  {"find", []ref.Val{letter, types.String("(a{900})(b{900})")}, true},
		"a regular expression that is too long": {"matches", []ref.Val{letter, tooLong}, true},
		"searching for a short string":          {"indexOf", []ref.Val{long, types.String("abc")}, false},
		"searching for a long string":           {"indexOf", []ref.Val{long, long}, true},
		"arguments of the wrong type":           {"replace", []ref.Val{list(1), text, text}, false},
		"joining a value that is not a list":    {"join", []ref.Val{text}, false},
		"encoding a list":                       {"json.marshal", []ref.Val{list(600)}, false},
		"encoding a large list":                 {"json.marshal", []ref.Val{list(2000)}, true},
		"decoding a long text":                  {"json.unmarshal", []ref.Val{repeated("a", 1<<20)}, false},
		"decoding many values":                  {"json.unmarshal", []ref.Val{repeated("0,", 1<<19)}, true},
		"decoding many quoted commas":           {"json.unmarshal", []ref.Val{`"` + repeated(",", 1<<19)}, false},
		"merging a large map":                   {"merge", []ref.Val{mapOf(list(1000)), mapOf(list(1000))}, true},
		"merging two maps deeply":               {"deepMerge", []ref.Val{mapOf(list(500)), mapOf(list(500))}, false},
		"changing a large list":                 {"lists.setAtIndex", []ref.Val{list(2000), types.Int(0), text}, true},
		"adding a value to a list":              {"lists.insertAtIndex", []ref.Val{list(1000), types.Int(0), text}, false},
		"removing from a large list":            {"lists.removeAtIndex", []ref.Val{list(2000), types.Int(0)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if cost := callCosts[c.function](c.args); (cost > PerCallLimit) != c.exceeds {
				t.Errorf("cost %d, want it to exceed the limit: %v", cost, c.exceeds)
			}
		})
	}
}

func TestRun_Cost(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{"self": map[string]any{
		"text": strings.Repeat("a", 1000), "list": []any{[]any{"a", "b"}, []any{"c"}},
	}}
	for name, c := range map[string]struct {
		text     string
		min, max uint64
	}{
		"the size of a list is cheap":                   {"self.list.size()", 1, 5},
		"a string costs its bytes":                      {"self.text + self.text", 400, 410},
		"a string of dynamic type costs its bytes":      {"dyn(self.text) + dyn(self.text)", 400, 410},
		"a list costs all its parts":                    {"[self.text, self.text]", 200, 215},
		"a map costs all its parts":                     {"{'a': self.text, 'b': [self.text]}", 300, 325},
		"a comparison costs all parts of its arguments": {"self.list == self.list", 12, 20},
		"a collected item is counted once":              {"lists.range(100).map(i, i)", 400, 1000},
		"a constant list is free":                       {"[1, 2, 3]", 0, 0},
		"a search costs the product, capped":            {"self.text.contains(self.text) || true", 10_000, math.MaxUint64},
		"a hash costs its argument":                     {"hash.sha256(self.text)", 100, 110},
		"encoding costs all parts four times":           {"json.marshal([self.text])", 500, 525},
		"decoding costs each value":                     {"json.unmarshal('[0,0,0,0,0,0,0,0,0,0]')", 40, 60},
		"merging costs all parts twice":                 {"self.merge(self)", 400, 450},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := env.Compile(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if _, cost, err := p.Run(t.Context(), variables); err != nil || cost < c.min || cost > c.max {
				t.Errorf("cost %d, %v, want between %d and %d", cost, err, c.min, c.max)
			}
		})
	}
}

// Type checking takes time cubic in the depth of types, and quadratic in the number of operations and values.
func TestCompile_LimitsTypes(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	const tooDeep, tooMany = "nested more than 24 levels deep", "more than 1000 operations and values"
	for name, c := range map[string]struct{ text, want string }{
		"lists in lists":             {strings.Repeat("[", 25) + strings.Repeat("]", 25), tooDeep},
		"maps in maps":               {strings.Repeat("{'a':", 25) + "1" + strings.Repeat("}", 25), tooDeep},
		"optionals":                  {strings.Repeat("optional.of(", 25) + "1" + strings.Repeat(")", 25), tooDeep},
		"comprehensions":             {then("1", 9, "[[[a]]]"), tooDeep},
		"bindings":                   {strings.Repeat("cel.bind(a, [[[a]]], ", 9) + "a" + strings.Repeat(")", 9), tooDeep},
		"a range within another one": {"[1].map(a, " + then("[[[[[[[[[[[[a]]]]]]]]]]]]", 6, "[a]") + ")", tooDeep},
		"values":                     {"[" + times(1000, "{}", ",") + "]", tooMany},
		"operations":                 {times(300, "[][0]<[][0]", "&&"), tooMany},
		"expanded macros":            {"[" + times(150, "[].map(a,a)", ",") + "]", tooMany},
	} {
		if _, err := env.Compile(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := env.Compile("[" + times(999, "{}", ",") + "]"); err != nil {
		t.Error(err)
	}
}

// A function whose cost exceeds the limit is not called. The evaluation stops before the result is allocated.
func TestRun_ChecksCostsBeforeCalls(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("a", 8000)
	variables := map[string]any{"self": map[string]any{
		"text": text, "list": slices.Repeat([]any{text}, 8000),
		"format": strings.Repeat("%.999999f", 50), "numbers": slices.Repeat([]any{1.5}, 50),
		"long": strings.Repeat("1", 256<<10), // -race allocates a copy that is four times as large
		"one":  "a", "pattern": strings.Repeat("(a{900})", 400),
	}}
	for _, text := range []string{
		"self.text.replace('a', self.text)", "self.list.join()", "self.format.format(self.numbers)",
		"self.one.matches(self.pattern)",
		"self.one.find(self.pattern)", "self.one.findAll(self.pattern)", "quantity(self.long)",
	} {
		p, err := env.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err = p.Run(t.Context(), variables)
		runtime.ReadMemStats(&after)
		if allocated := (after.TotalAlloc - before.TotalAlloc) >> 10; !errors.Is(err, ErrCost) || allocated > 2<<10 {
			t.Errorf("%s: %d KiB allocated, %v", text, allocated, err)
		}
	}
}

func TestRun_AlternativesAreLazy(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]any{
		"optional.of(1).orValue(self.missing)":             int64(1),
		"optional.of(1).or(self.missing).value()":          int64(1),
		"optional.none().orValue(2)":                       int64(2),
		"optional.none().or(optional.of(2)).value()":       int64(2),
		"self.?missing.or(optional.of(self.a)).orValue(1)": int64(3),
	} {
		got, err := runOnce(env, text, map[string]any{"self": map[string]any{"a": int64(3)}})
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
}
