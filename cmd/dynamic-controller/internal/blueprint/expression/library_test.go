package expression

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/ptr"
)

// The results are those of kro v0.9.4.
func TestLibrary(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{"self": map[string]any{
		"labels": map[string]any{"a": "x"}, "numbers": []any{int64(1), 2.5}, "config": `{"port": 80, "hosts": ["a"]}`,
	}}
	for text, want := range map[string]string{
		`json.marshal({'b': [1, 2.5, true, null], 'a': {'x': '<&>"'}})`: `"{\"a\":{\"x\":\"\\u003c\\u0026\\u003e\\\"\"},` +
			`\"b\":[1,2.5,true,null]}"`,
		"json.marshal(self.numbers)":                    `"[1,2.5]"`,
		"json.marshal(b'hello')":                        `"\"aGVsbG8=\""`,
		"json.marshal(optional.none())":                 `"null"`,
		"json.unmarshal(self.config)":                   `{"hosts":["a"],"port":80}`,
		"json.unmarshal(self.config).hosts[0]":          `"a"`,
		"json.unmarshal('[1, 2.5, true, null, \"x\"]')": `[1,2.5,true,null,"x"]`,
		`json.unmarshal('{"a": 1, "a": 2}').a + 1.0`:    "3",
		`json.unmarshal('"[[\\"{,:\\\\"')`:              `"[[\"{,:\\"`,
		`"%x".format([hash.fnv64a('hello world')])`:     `"779a65e7023cd2e7"`,
		`"%x".format([hash.sha256('hello world')])`: `"b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2` +
			`efcde9"`,
		"base64.encode(hash.md5(''))":                                         `"1B2M2Y8AsgTpgAmY7PhCfg=="`,
		"random.seededString(20, 'seed')":                                     `"qakd42wvqakd42wvqakd"`,
		"random.seededString(3, '')":                                          `"ew0"`,
		"random.seededInt(30000, 32768, 'seed')":                              "32522",
		"random.seededInt(-100, -50, 'seed')":                                 "-58",
		"random.seededInt(-9223372036854775807, 9223372036854775807, 'seed')": "-7371732509874106165",
		"{'a': 'z', 'b': 'y'}.merge(self.labels)":                             `{"a":"x","b":"y"}`,
		"{'a': {'x': 1}}.merge({'a': {'y': 2}})":                              `{"a":{"y":2}}`,
		"{'a': {'x': 1, 'y': [1]}, 'b': 1}.deepMerge({'a': {'y': [2], 'z': 3}, 'c': 1})": `{"a":{"x":1,"y":[2],"z":3},` +
			`"b":1,"c":1}`,
		"{'a': {'x': 1}}.deepMerge({'a': 5})":           `{"a":5}`,
		"{'a': 5}.deepMerge(dyn({'a': {'x': 1}}))":      `{"a":{"x":1}}`,
		"lists.setAtIndex(self.numbers, 1, 9)":          "[1,9]",
		"lists.insertAtIndex([1, 2], 1, 9)":             "[1,9,2]",
		"lists.insertAtIndex([1, 2], 2, 9)":             "[1,2,9]",
		"lists.insertAtIndex([], 0, 9)":                 "[9]",
		"lists.removeAtIndex(self.numbers, 0)":          "[2.5]",
		"lists.removeAtIndex([1], 0)":                   "[]",
		"{'a': omit(), 'b': [omit(), 1]}":               `{"b":[1]}`,
		"self.labels.a == 'x' ? omit() : self.labels.a": "null",
		"'héllo'.reverse()":                             `"olléh"`,
		// Inputs are not modified.
		"[lists.setAtIndex(self.numbers, 0, 9), self.numbers]":      "[[9,2.5],[1,2.5]]",
		"cel.bind(a, {'x': {}}, [a.deepMerge({'x': {'y': 1}}), a])": `[{"x":{"y":1}},{"x":{}}]`,
	} {
		got, err := runOnce(env, text, variables)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if encoded, err := json.Marshal(got); err != nil || string(encoded) != want {
			t.Errorf("%s: got %s, %v, want %s", text, encoded, err, want)
		}
	}
}

func TestLibrary_Errors(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	var deep any = map[string]any{}
	for range maxValueDepth + 1 {
		deep = map[string]any{"a": deep}
	}
	variables := map[string]any{"self": map[string]any{
		"long": strings.Repeat("a", maxJSONBytes), "deep": deep, "escaped": strings.Repeat("<", maxJSONBytes/2),
		"deepText": strings.Repeat("[", maxValueDepth+1) + strings.Repeat("]", maxValueDepth+1),
	}}
	for text, want := range map[string]string{
		"json.marshal(self.long)":             "json.marshal: the text exceeds 1048576 bytes",
		"json.marshal(self.escaped)":          "json.marshal: the text exceeds 1048576 bytes",
		"json.marshal(self.deep)":             "json.marshal: the value has more than 64 levels",
		"json.marshal({1: 2})":                "json.marshal: the value has a map key of type int, not string",
		"json.marshal(0.0 / 0.0)":             "json.marshal: the value NaN cannot be represented in JSON",
		"json.marshal(18446744073709551615u)": "json.marshal: the value 18446744073709551615 overflows int64",
		"json.marshal(url('http://a'))":       "json.marshal: the value is of type kubernetes.URL",
		"json.unmarshal('{\"a\"}')":           "json.unmarshal: invalid character '}' after object key",
		"json.unmarshal('')":                  "json.unmarshal: unexpected end of JSON input",
		"json.unmarshal(self.long + 'a')":     "json.unmarshal: the text has 1048577 bytes; the maximum is 1048576",
		"json.unmarshal(self.deepText)":       "json.unmarshal: the value is nested more than 64 levels deep",
		"json.unmarshal(self)":                "no such overload",
		"hash.sha256(1)":                      "found no matching overload for 'hash.sha256' applied to '(int)'",
		"hash.md5(dyn(1))":                    "no such overload",
		"random.seededString(0, 'x')":         "random.seededString: the length 0 must be between 1 and 1024",
		"random.seededString(1025, 'x')":      "random.seededString: the length 1025 must be between 1 and 1024",
		"random.seededInt(5, 5, 'x')":         "random.seededInt: the minimum 5 must be less than the maximum 5",
		"{'a': 1}.merge({'a': 'x'})":          "found no matching overload for 'merge'",
		"{'a': 1}.merge(dyn([1]))":            "no such overload",
		"{'a': 1}.deepMerge([1])":             "deepMerge: expected two maps, got a value of type list",
		"dyn('x').deepMerge({'a': 1})":        "deepMerge: expected two maps, got a value of type string",
		"self.deep.deepMerge(self.deep)":      "deepMerge: the values have more than 64 levels",
		"lists.setAtIndex([1], 1, 2)":         "lists.setAtIndex: index out of bounds: 1",
		"lists.insertAtIndex([1], 2, 2)":      "lists.insertAtIndex: index out of bounds: 2",
		"lists.removeAtIndex([1], -1)":        "lists.removeAtIndex: index out of bounds: -1",
		"lists.removeAtIndex([], 0)":          "lists.removeAtIndex: index out of bounds: 0",
		"omit() + 1":                          "no such overload",
	} {
		got, err := runOnce(env, text, variables)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %.200v, %.200v, want %q", text, got, err, want)
		}
	}
}

// If the list belongs to another resource, an index beyond its end is a missing value to wait for, as with list[i].
func TestLibrary_MissingIndex(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	var missing *MissingError
	_, err = runOnce(env, "lists.setAtIndex(self, 0, 'a')", map[string]any{"self": []any{}})
	if !errors.As(err, &missing) {
		t.Errorf("got %v, want a MissingError", err)
	}
}

func TestLibrary_Estimates(t *testing.T) {
	text := func(maxLength int64) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}, MaxLength: ptr.To(maxLength)}}
	}
	of := func(maxItems int64, items spec.Schema) spec.Schema {
		s := spec.ArrayProperty(&items)
		s.MaxItems = ptr.To(maxItems)
		return *s
	}
	labels := spec.MapProperty(ptr.To(text(63)))
	labels.MaxProperties = ptr.To[int64](2000)
	s := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
		"short": text(10), "long": text(10_000), "texts": of(2000, text(10_000)), "labels": *labels,
		"lists": of(2000, of(2000, text(1))),
	}}}
	env, err := NewEnv(Variable{Name: "self", Schema: &openapi.Schema{Schema: &s}, Limited: true})
	if err != nil {
		t.Fatal(err)
	}
	for text, rejected := range map[string]bool{
		"json.unmarshal(self.short)":                                 false,
		"self.texts.map(t, json.unmarshal(t))":                       true,
		"self.texts.map(t, hash.sha256(t))":                          true,
		"self.texts.map(t, hash.sha256(self.short))":                 false,
		"self.texts.map(t, random.seededInt(1, 2, t))":               true,
		"self.texts.map(t, random.seededString(1, self.short))":      false,
		"self.texts.map(t, self.labels.merge(self.labels))":          true,
		"self.texts.map(t, self.labels.deepMerge(self.labels))":      true,
		"self.labels.merge(self.labels).deepMerge({'a': 1})":         false,
		"self.lists.map(l, lists.setAtIndex(l, 0, ''))":              true,
		"self.lists.map(l, lists.insertAtIndex(l, 0, ''))":           true,
		"self.lists.map(l, lists.removeAtIndex(l, 0))":               true,
		"lists.removeAtIndex(self.texts, 0)":                         false,
		"self.deepMerge({'short': 'x'})":                             false,
		"self.texts.map(t, t.reverse())":                             true,
		"self.texts.map(t, self.texts.map(u, self.texts.map(v, 1)))": true,
		// The size of these results is limited.
		"self.texts.map(t, string(hash.md5(self.short)).contains(self.short))": false,
		"lists.insertAtIndex(self.texts, 0, 'a').map(t, self.texts.map(u, u))": true,
		"self.short.reverse().matches(self.short)":                             false,
		// The size of this result is unknown, so no limit in the schema would help.
		"json.marshal(self.texts).contains(json.marshal(self.texts))": false,
	} {
		_, err := env.Compile(text)
		if rejected && !strings.HasPrefix(fmt.Sprint(err), "the estimated cost of ") || !rejected && err != nil {
			t.Errorf("%s: got %v, want it to be rejected: %t", text, err, rejected)
		}
	}
}

// Hostile calls to the functions are stopped within the memory and time limits.
func TestLibrary_Hostile(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	items := make([]any, 2000)
	object := map[string]any{}
	for i := range items {
		items[i], object[strconv.Itoa(i)] = int64(i), int64(i)
	}
	variables := map[string]any{"self": map[string]any{
		"items": items, "object": object, "numbers": slices.Repeat([]any{int64(1)}, 100_000),
		"text":  strings.Repeat("a", 2000),
		"maps":  "[" + strings.Repeat(`{"":0},`, 100_000) + "0]",
		"lists": "[" + strings.Repeat("[],", 300_000) + "0]",
		"long":  strings.Repeat("a", 1<<20),
	}}
	for _, text := range []string{
		"json.unmarshal(self.maps)",
		"json.unmarshal(self.lists)",
		"self.items.map(i, json.unmarshal(self.lists.substring(0, 3001) + '0]'))",
		"self.items.map(i, json.marshal(self.items))",
		"self.items.map(i, json.marshal(self.object))",
		then("self.text", 12, "json.marshal(a + a)"),
		then("self.items", 9, "json.marshal([a, a, a, a, a, a, a, a])"),
		then("self.items", 9, "json.unmarshal(json.marshal([a, a, a, a, a, a, a, a]))"),
		"self.items.map(i, hash.sha256(self.long))",
		"self.items.map(i, hash.md5(self.long))",
		"self.items.map(i, hash.fnv64a(self.long))",
		"self.items.map(i, random.seededString(1024, self.long))",
		"self.items.map(i, random.seededInt(0, 9, self.long))",
		"self.items.map(i, self.items.map(j, random.seededString(1024, '')))",
		"self.items.map(i, self.items.map(j, hash.sha256('')))",
		"self.items.map(i, self.object.merge(self.object))",
		"self.items.map(i, self.object.deepMerge(self.object))",
		then("self.object", 9, "{'a': a, 'b': a, 'c': a}.deepMerge({'a': a, 'b': a, 'd': a})"),
		"self.items.map(i, lists.setAtIndex(self.numbers, 0, 1))",
		"self.items.map(i, lists.insertAtIndex(self.numbers, 0, 1))",
		"self.items.map(i, lists.removeAtIndex(self.numbers, 0))",
		"self.items.map(i, self.long.reverse())",
		"self.items.map(i, self.items.map(j, omit()))",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := runOnce(env, text, variables)
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%v, %d MiB: %s", took, allocated, text)
		if !errors.Is(err, ErrCost) && !strings.HasSuffix(fmt.Sprint(err), "exceeds 1048576 bytes") || allocated > 512 {
			t.Errorf("%s: %d MiB, %.200v", text, allocated, err)
		}
	}
}
