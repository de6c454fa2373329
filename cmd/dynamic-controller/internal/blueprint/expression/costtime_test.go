package expression

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// The CPU time of an expression is in proportion to its cost. The test compares the shortest of several CPU times per
// cost with that of a simple loop in the same run. Some expressions take much less time, because Kubernetes' cost model
// overestimates them. The race detector slows some expressions more than the loop.
func TestRun_TakesTimeInProportionToItsCost(t *testing.T) {
	most := 4.0 // without the additions to Kubernetes' cost model, many ratios are between 5 and 17
	if raceEnabled {
		most = 8
	}
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	variables := counted(2000)
	self := variables["self"].(map[string]any)
	wide := map[string]any{}
	for i := range 500 {
		wide[fmt.Sprint("k", i)] = map[string]any{"a": int64(i)}
	}
	self["wide"], self["small"] = wide, map[string]any{"a": map[string]any{"b": int64(1)}}
	self["maps"] = slices.Repeat([]any{map[string]any{"a": int64(1)}}, 2000)
	self["strings"] = slices.Repeat([]any{"abc"}, 2000)
	self["text"] = strings.Repeat("a b ", 5000)
	self["json"] = "[" + strings.Repeat(`{"a":1},`, 5000) + "{}]"
	shortest := func(text string) time.Duration {
		p, err := env.Compile(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		best := time.Hour
		for range 5 {
			start := cpuTime(t)
			_, cost, _ := p.Run(t.Context(), variables) // can exceed the limit
			best = min(best, (cpuTime(t)-start)*1000/time.Duration(cost))
		}
		return best
	}
	const loop = "self.items.all(i, i >= 0)"
	for _, text := range []string{
		// Lists and maps.
		"self.items.map(i, self.wide).size()",
		"self.items.map(i, {'a': i, 'b': {'c': i}}).size()",
		"lists.range(5).map(i, [self.maps, {'a': self.wide}]).size()",
		"lists.range(5).all(i, self.wide.map(k, k).size() > 0)",
		"self.items.transformMapEntry(i, v, {string(v): v}).size()",
		"[self.maps, self.maps, self.maps].flatten().size()",
		"self.maps.sortBy(m, m.a).size()",
		"lists.range(5).map(i, lists.setAtIndex(self.maps, 0, {})).size()",
		// Equality.
		"lists.range(10).all(i, self.maps == self.maps)",
		"lists.range(10).all(i, self.strings == self.strings)",
		"lists.range(10).all(i, self.wide == self.wide)",
		"cel.bind(a, json.unmarshal(self.json), lists.range(4).all(i, a == a))",
		"cel.bind(a, self.items.map(i, {'a': i}), lists.range(4).all(i, a == a))",
		"lists.range(100).all(i, -1 in self.items || true)",
		"lists.range(10).all(i, self.maps.indexOf({'a': 2}) < 0)",
		"[self.wide, {}, self.small].distinct().size()",
		"sets.contains(self.maps, [{'a': 2}])",
		// Concatenation.
		then("self.items", 5, "a + a") + ".all(x, x >= 0)",
		then("self.items", 5, "a + a") + " == []",
		"(self.items" + strings.Repeat(" + [1]", 100) + ").all(x, x >= 0)",
		"lists.range(10).all(i, (self.maps + self.maps).size() > 0)",
		// Merge.
		"self.items.map(i, self.small.deepMerge({'c': i})).size()",
		"lists.range(4).map(i, self.wide.deepMerge({'c': i})).size()",
		"lists.range(4).map(i, self.wide.deepMerge(self.wide)).size()",
		"lists.range(4).map(i, self.wide.merge({'c': i})).size()",
		// JSON.
		"lists.range(4).map(i, json.unmarshal(self.json)).size()",
		"lists.range(4).map(i, json.marshal(self.maps)).size()",
		"lists.range(4).map(i, json.marshal(self.wide)).size()",
		"cel.bind(a, self.items.map(i, {'a': i}), lists.range(4).all(i, json.marshal(a) != ''))",
		// Strings.
		"self.text.split('').size()",
		"self.text.findAll('a').size()",
		"lists.range(4).map(i, self.text).join().size()",
		"self.items.all(i, 'abc'.matches('^[a-z]+$'))",
		"self.items.all(i, '%d %s'.format([i, 'a']) != '')",
		"self.items.all(i, quantity('1Gi').isGreaterThan(quantity('1Mi')))",
		"self.items.all(i, timestamp('2024-01-01T00:00:00Z') > timestamp('2020-01-01T00:00:00Z'))",
	} {
		ratio := math.Inf(1)
		for tries := 5; tries > 0 && ratio > most; tries-- { // other processes can disturb a few runs
			baseline := shortest(loop)
			ratio = min(ratio, float64(shortest(text))/float64(baseline))
		}
		if ratio > most {
			t.Errorf("%s: takes %.1f times as long as its cost suggests", text, ratio)
		} else {
			t.Logf("%4.1f %s", ratio, text)
		}
	}
}
