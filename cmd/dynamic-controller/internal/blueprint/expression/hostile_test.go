package expression

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// then chains map calls on a list of one value. In each call, more computes the next value from the previous value a.
func then(first string, times int, more string) string {
	return "[" + first + "]" + strings.Repeat(".map(a, "+more+")", times) + "[0]"
}

func times(n int, s, between string) string {
	return strings.TrimSuffix(strings.Repeat(s+between, n), between)
}

// Each expression tries to exhaust memory or time. The limits must bound its memory, and other expressions must still
// work afterwards. The expressions read a list of 2,000 items and long strings, whose sizes no schema limits.
func TestHostile(t *testing.T) {
	items := make([]any, 2000)
	for i := range items {
		items[i] = int64(i)
	}
	variables := map[string]any{"self": map[string]any{
		"items": items, "text": strings.Repeat("a", 2000), "one": "a", "invalid": strings.Repeat("(", 4000),
		"pattern": "(a|b|[^c])*d", "thousand": "(a{1000}){1000}", "many": strings.Repeat("(a{900})", 400),
	}}
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	const tooCostly = "the cost of the expression exceeds"
	for reason, c := range map[string]struct{ text, want string }{
		"strings that double": {then("self.text", 8, "a + a + a + a + a + a"), tooCostly},
		"strings that double where types are unknown": {
			then("dyn(self.text)", 9, "dyn(a) + dyn(a) + dyn(a) + dyn(a)"), tooCostly,
		},
		"strings that are replaced by themselves":   {then("self.text", 5, "a.replace('a', a)"), tooCostly},
		"strings that are replaced between letters": {then("self.text", 5, "a.replace('', self.text)"), tooCostly},
		"strings that are joined":                   {then("self.text", 3, "self.items.map(i, a).join(a)"), tooCostly},
		"lists that double": {
			then("self.items", 10, "a + a + a + a + a + a + a + a + a + a") + ".size()", tooCostly,
		},
		"comparing lists that double": {
			then("self.items", 9, "a + a + a + a + a + a + a + a") + " == []", tooCostly,
		},
		"nested lists that share their items": {
			then("self.items", 9, "[a, a, a, a, a, a, a, a, a, a]"), tooCostly,
		},
		"nested maps that share their values": {
			then("self.items", 9, "{'x': a, 'y': a, 'z': a, 'w': a}"), tooCostly,
		},
		"comparing lists that share their items": {
			then("self.items", 9, "[a, a, a, a, a, a, a, a]") + " == self.items", tooCostly,
		},
		"flattening lists that share their items": {
			then("self.items", 9, "[a, a, a, a, a, a, a, a]") + ".flatten(20)", tooCostly,
		},
		"optionals in optionals": {
			then("self.items", 6, "optional.of([a, a, a, a, a, a])"), tooCostly,
		},
		"the size of a large string in a loop": {
			"self.items.all(i, self.items.all(j, self.text.size() > 0))", tooCostly,
		},
		"invalid regular expressions in a loop": {
			"self.items.all(i, self.text.matches(self.invalid) || true)", tooCostly,
		},
		"searching for a large string in another one": {
			then("self.text", 5, "a + a") + ".indexOf(" + then("self.text", 4, "a + a") + " + 'b')", tooCostly,
		},
		"a huge range": {
			"lists.range(size(self.text) * 1000000000)", "lists.range: size 2000000000000 exceeds maximum",
		},
		"ranges in a loop": {
			"lists.range(size(self.text) * 4).map(i, lists.range(size(self.text) * 4))", tooCostly,
		},
		"nested comprehensions": {
			"self.items.map(a, self.items.map(b, self.items.map(c, a + b + c)))", tooCostly,
		},
		"nested comprehensions with two variables": {
			"self.items.all(i, a, self.items.all(j, b, i + a + j + b > -1))", tooCostly,
		},
		"nested comprehensions with an empty result": {"self.items.filter(a, self.items.exists(b, b < 0))", tooCostly},
		"items that are compared with each other": {
			"(self.items + self.items + self.items + self.items).distinct()", tooCostly,
		},
		"comparing large sets": {
			"sets.equivalent(self.items + self.items + self.items, self.items + self.items + self.items)", tooCostly,
		},
		"comparing large strings in a loop": {
			"self.items.all(i, self.items.all(j, self.text + 'b' > self.text))", tooCostly,
		},
		"searching large strings in a loop": {
			"self.items.all(i, self.items.all(j, !self.text.contains('aaaaaaaaaaaaaaaaaaab')))", tooCostly,
		},
		"a number with many digits":     {"'%.999999999f'.format([1.0])", tooCostly},
		"a number with too many digits": {"'%.99999999999999999999999f'.format([1.0])", "precision"},
		"a regular expression with nested repetitions": {
			"self.one.matches('((a{100}){100}){100}')", "invalid regular expression",
		},
		"a regular expression with many repetitions": {
			"self.one.matches('" + times(100, "(a{900})", "") + "')", "the regular expression has about",
		},
		"a large regular expression in find": {
			"self.one.find('" + times(100, "(a{900})", "") + "')", "the regular expression has about",
		},
		"an invalid regular expression known only at evaluation": {"self.one.matches(self.thousand)", "invalid repeat count"},
		"a large regular expression known only at evaluation":    {"self.one.findAll(self.many)", tooCostly},
		"a computed regular expression": {
			"self.one.matches(" + then("'(a{900})'", 8, "a + a") + ")", tooCostly,
		},
		"a regular expression on a large string": {
			then("self.text", 5, "a + a") + ".matches('" + times(20, "(a?){15}", "") + "')", tooCostly,
		},
		"regular expressions on large strings in a loop": {
			"self.items.map(i, self.text.matches('(a|b|[^c])*d' + string(i)))", tooCostly,
		},
		"an expression that is too long": {times(3000, "1", "+"), "the maximum is 4096"},
		"an expression that is too deep": {
			strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000), "recursion limit",
		},
		"lists that are too deep": {
			strings.Repeat("[", 30) + strings.Repeat("]", 30), "nested more than 24 levels deep",
		},
		"chained comprehensions": {then("1", 24, "a"), "nested more than 24 levels deep"},
		"nested types":           {then("1", 9, "[[[a]]]"), "nested more than 24 levels deep"},
		"nested negations":       {strings.Repeat("!", 2000) + "true", ""},
		"nested conditions": {
			strings.Repeat("true ? ", 350) + "1" + strings.Repeat(" : 2", 350), "limit exceeded",
		},
		"a quantity with many digits": {
			"quantity(" + then("'9999999999'", 10, "a + a") + ")", tooCostly,
		},
		"a deep comparison of nested values": {
			then("self.items", 5, "{'x': a, 'y': a, 'z': a}") + " == " + then("self.items", 5, "{'x': a, 'y': a, 'z': a}"),
			tooCostly,
		},
		"nested sums":       {"self.items.map(i, self.items.sum()).sum()", tooCostly},
		"nested sorting":    {"self.items.map(i, self.items.sortBy(j, -j))", tooCostly},
		"bytes that double": {then("bytes(self.text)", 9, "a + a + a + a + a"), tooCostly},
		"repeated base64 encoding": {
			then("self.text", 9, "base64.encode(bytes(a + a + a + a))"), tooCostly,
		},
		"repeated formatting": {
			then("self.text", 9, "'%s%s%s%s'.format([a, a, a, a])"), tooCostly,
		},
		"splitting into letters in a loop": {"self.items.map(i, self.text.split(''))", tooCostly},
		"repeated quoting": {
			then("self.text.replace('a', '\"')", 9, "strings.quote(a + a)"), tooCostly,
		},
		"entries that overwrite each other": {
			"self.items.transformMapEntry(i, v, {'k': self.items.map(j, v)})", "",
		},
		"nested bindings that multiply their values": {
			"cel.bind(a, [self.items, self.items], cel.bind(b, [a, a, a, a, a, a, a, a], cel.bind(c, [b, b, b, b, b, b, b, " +
				"b], cel.bind(d, [c, c, c, c, c, c, c, c], [d, d, d, d, d, d, d, d] == []))))",
			tooCostly,
		},
	} {
		t.Run(reason, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := runOnce(env, c.text, variables)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
			t.Logf("%v, %d MiB: %.200v", took, allocated, err)
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %.200v, want %q", err, c.want)
			}
			if allocated > 512 {
				t.Errorf("%d MiB were allocated", allocated)
			}
			if out, err := runOnce(env, "self.items.size()", variables); err != nil || out != int64(2000) {
				t.Errorf("the next expression returned %v, %v", out, err)
			}
		})
	}
}

func runOnce(env *Env, text string, variables map[string]any) (any, error) {
	p, err := env.Compile(text)
	if err != nil {
		return nil, err
	}
	v, _, err := p.Run(context.Background(), variables)
	if err != nil {
		return nil, err
	}
	out, _, err := v.JSON(&Room{Left: 1 << 20})
	return out, err
}

// A shared value takes up room each time it occurs in the result.
func TestJSON_CountsSharedValues(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{"self": map[string]any{"text": strings.Repeat("a", 50_000)}}
	if _, err := runOnce(env, then("self.text", 3, "[a, a, a]"), variables); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %.100v, want %v", err, ErrTooLarge)
	}
	if _, err := runOnce(env, then("self.text", 1, "[a, a, a]"), variables); err != nil {
		t.Error(err)
	}
	// Expressions cannot be that deep, but the values that they read can.
	var deep any = "end"
	for range maxValueDepth + 1 {
		deep = []any{deep}
	}
	variables["self"].(map[string]any)["deep"] = deep
	if _, err := runOnce(env, "self.deep", variables); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("more than %d levels", maxValueDepth)) {
		t.Errorf("got %v", err)
	}
}

// An evaluation is interrupted when its context ends, even if it stays within the cost limit.
func TestRun_StopsWhenContextEnds(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := env.Compile("self.items.all(a, self.items.all(b, a + b > -1))")
	if err != nil {
		t.Fatal(err)
	}
	items := make([]any, 250)
	for i := range items {
		items[i] = int64(i)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("over")
	cancel(why)
	if _, _, err := p.Run(ctx, map[string]any{"self": map[string]any{"items": items}}); !errors.Is(err, why) {
		t.Errorf("Run: %v, want %v", err, why)
	}
}
