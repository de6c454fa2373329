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

// then chains steps, each of which makes more of what the one before made, as a variable of a comprehension.
func then(first string, times int, more string) string {
	return "[" + first + "]" + strings.Repeat(".map(a, "+more+")", times) + "[0]"
}

func times(n int, s, between string) string {
	return strings.TrimSuffix(strings.Repeat(s+between, n), between)
}

// What is written to take all there is of memory or time is stopped, each kind by what it would take too much of, and
// harms nothing else. All of them see a list of 2,000 items and strings of 2,000 bytes that no schema bounds.
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
	const tooCostly = "costs more"
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
		"lists that double, to be compared": {
			then("self.items", 9, "a + a + a + a + a + a + a + a") + " == []", tooCostly,
		},
		"lists of lists of lists of the same": {
			then("self.items", 9, "[a, a, a, a, a, a, a, a, a, a]"), tooCostly,
		},
		"maps of maps of the same": {
			then("self.items", 9, "{'x': a, 'y': a, 'z': a, 'w': a}"), tooCostly,
		},
		"lists of the same that are compared": {
			then("self.items", 9, "[a, a, a, a, a, a, a, a]") + " == self.items", tooCostly,
		},
		"lists of the same that are flattened": {
			then("self.items", 9, "[a, a, a, a, a, a, a, a]") + ".flatten(20)", tooCostly,
		},
		"optionals in optionals": {
			then("self.items", 6, "optional.of([a, a, a, a, a, a])"), tooCostly,
		},
		"large texts whose size is read, often": {
			"self.items.all(i, self.items.all(j, self.text.size() > 0))", tooCostly,
		},
		"regular expressions that are invalid, often": {
			"self.items.all(i, self.text.matches(self.invalid) || true)", tooCostly,
		},
		"texts that are searched for texts": {
			then("self.text", 5, "a + a") + ".indexOf(" + then("self.text", 4, "a + a") + " + 'b')", tooCostly,
		},
		"a list that counts far": {
			"lists.range(size(self.text) * 1000000000)", "lists.range: size 2000000000000 exceeds maximum",
		},
		"lists that count": {
			"lists.range(size(self.text) * 4).map(i, lists.range(size(self.text) * 4))", tooCostly,
		},
		"comprehensions in comprehensions": {
			"self.items.map(a, self.items.map(b, self.items.map(c, a + b + c)))", tooCostly,
		},
		"comprehensions over two variables": {
			"self.items.all(i, a, self.items.all(j, b, i + a + j + b > -1))", tooCostly,
		},
		"comprehensions that find nothing": {"self.items.filter(a, self.items.exists(b, b < 0))", tooCostly},
		"items that are compared with each other": {
			"(self.items + self.items + self.items + self.items).distinct()", tooCostly,
		},
		"sets that are compared": {
			"sets.equivalent(self.items + self.items + self.items, self.items + self.items + self.items)", tooCostly,
		},
		"texts that are compared, often": {
			"self.items.all(i, self.items.all(j, self.text + 'b' > self.text))", tooCostly,
		},
		"texts that are searched, often": {
			"self.items.all(i, self.items.all(j, !self.text.contains('aaaaaaaaaaaaaaaaaaab')))", tooCostly,
		},
		"a number with many digits":                {"'%.999999999f'.format([1.0])", tooCostly},
		"a number with more digits than there are": {"'%.99999999999999999999999f'.format([1.0])", "precision"},
		"a regular expression that unfolds": {
			"self.one.matches('((a{100}){100}){100}')", "invalid regular expression",
		},
		"a regular expression of many that unfold": {
			"self.one.matches('" + times(100, "(a{900})", "") + "')", "regular expression of",
		},
		"so with find": {
			"self.one.find('" + times(100, "(a{900})", "") + "')", "regular expression of",
		},
		"one that is known later":  {"self.one.matches(self.thousand)", "invalid repeat count"},
		"one that is large, later": {"self.one.findAll(self.many)", tooCostly},
		"one that is made": {
			"self.one.matches(" + then("'(a{900})'", 8, "a + a") + ")", tooCostly,
		},
		"one on a large text": {
			then("self.text", 5, "a + a") + ".matches('" + times(20, "(a?){15}", "") + "')", tooCostly,
		},
		"ones on large texts, often": {
			"self.items.map(i, self.text.matches('(a|b|[^c])*d' + string(i)))", tooCostly,
		},
		"an expression that is too long": {times(3000, "1", "+"), "more than 4096"},
		"one that is too deep": {
			strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000), "recursion limit",
		},
		"lists that are too deep": {
			strings.Repeat("[", 30) + strings.Repeat("]", 30), "nested deeper than 24",
		},
		"comprehensions one after another": {then("1", 24, "a"), "nested deeper than 24"},
		"types in types":                   {then("1", 9, "[[[a]]]"), "nested deeper than 24"},
		"a negation of a negation":         {strings.Repeat("!", 2000) + "true", ""},
		"conditions in conditions": {
			strings.Repeat("true ? ", 350) + "1" + strings.Repeat(" : 2", 350), "limit exceeded",
		},
		"a number with many digits that is a quantity": {
			"quantity(" + then("'9999999999'", 10, "a + a") + ")", tooCostly,
		},
		"a comparison of everything with itself, deeply": {
			then("self.items", 5, "{'x': a, 'y': a, 'z': a}") + " == " + then("self.items", 5, "{'x': a, 'y': a, 'z': a}"),
			tooCostly,
		},
		"a sum of sums":     {"self.items.map(i, self.items.sum()).sum()", tooCostly},
		"a sort of sorts":   {"self.items.map(i, self.items.sortBy(j, -j))", tooCostly},
		"bytes that double": {then("bytes(self.text)", 9, "a + a + a + a + a"), tooCostly},
		"base64 of base64": {
			then("self.text", 9, "base64.encode(bytes(a + a + a + a))"), tooCostly,
		},
		"a format that repeats": {
			then("self.text", 9, "'%s%s%s%s'.format([a, a, a, a])"), tooCostly,
		},
		"a split into letters, often": {"self.items.map(i, self.text.split(''))", tooCostly},
		"a quote of quotes": {
			then("self.text.replace('a', '\"')", 9, "strings.quote(a + a)"), tooCostly,
		},
		"entries that overwrite each other": {
			"self.items.transformMapEntry(i, v, {'k': self.items.map(j, v)})", "",
		},
		"a bound name that is used twice, again and again": {
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
				t.Errorf("afterwards another gives %v, %v", out, err)
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

// A value that costs little to make in many places takes room in each of them.
func TestJSON_takesRoom(t *testing.T) {
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
	// No expression is so deep, but what it reads may be.
	var deep any = "end"
	for range maxValueDepth + 1 {
		deep = []any{deep}
	}
	variables["self"].(map[string]any)["deep"] = deep
	if _, err := runOnce(env, "self.deep", variables); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprint("deeper than ", maxValueDepth)) {
		t.Errorf("got %v", err)
	}
}

// What runs long is interrupted, though nothing of it costs too much.
func TestRun_isInterrupted(t *testing.T) {
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
