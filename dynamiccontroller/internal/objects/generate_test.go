package objects

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"
)

// decoded returns the object as the dynamic client decodes it.
func decoded(t testing.TB, data []byte) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if _, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, u); err != nil {
		t.Fatalf("decode %s: %v", data, err)
	}
	return u
}

func withoutManagedFields(u *unstructured.Unstructured) *unstructured.Unstructured {
	u = u.DeepCopy()
	unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
	return u
}

func parse(t testing.TB, data string, projection Projection) *Record {
	t.Helper()
	r, err := Parse([]byte(data), projection, metav1.TypeMeta{})
	if err != nil {
		t.Fatalf("parse %s: %v", data, err)
	}
	return r
}

// jsonText generates JSON as text, with everything that a map cannot express: duplicate keys, escapes and white space.
type jsonText struct{ t *rapid.T }

func (g jsonText) pick(options ...string) string {
	return rapid.SampledFrom(options).Draw(g.t, "option")
}

func (g jsonText) oneIn(n int) bool { return rapid.IntRange(0, n-1).Draw(g.t, "chance") == 0 }

// quoted returns a JSON string with some characters escaped.
func (g jsonText) quoted(s string) string {
	escaped := ""
	if s != "" && s[0] < 0x80 && g.oneIn(8) {
		escaped, s = fmt.Sprintf(`\u%04x`, s[0]), s[1:]
	}
	out, err := json.Marshal(s)
	if err != nil {
		g.t.Fatal(err)
	}
	return `"` + escaped + string(out[1:])
}

func (g jsonText) word() string {
	return rapid.OneOf(rapid.SampledFrom([]string{
		"metadata", "labels", "name", "managedFields", "kind", "", "a\"b\\", "é", "日本", "\u2028", "<&>", "{", "}", "]",
	}), rapid.StringN(0, 12, -1)).Draw(g.t, "word")
}

func (g jsonText) number() string {
	return g.pick("0", "-1", fmt.Sprint(math.MaxInt64), fmt.Sprint(math.MinInt64), "9223372036854775808", "1.5", "1.0",
		"1e3", "-2.5E-3", "1E+2", "123456789012345678901234567890")
}

func (g jsonText) space() string { return g.pick("", "", "", " ", "\n\t", "\r\n  ") }

func (g jsonText) value(depth int) string {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(g.t, "kind of value") {
	case 0:
		return g.quoted(g.word())
	case 1:
		return g.number()
	case 2:
		return g.pick("true", "false", "null")
	case 3:
		return g.pick("{}", "[]", `{"metadata":{"name":"nested","labels":{"a":"nested"}}}`)
	case 4:
		return "[" + strings.Join(g.times(4, func() string { return g.value(depth - 1) }), g.space()+","+g.space()) + "]"
	default:
		return g.object(g.times(4, func() string { return g.member(g.word(), g.value(depth-1)) }))
	}
}

func (g jsonText) times(limit int, one func() string) []string {
	out := make([]string, rapid.IntRange(0, limit).Draw(g.t, "count"))
	for i := range out {
		out[i] = one()
	}
	return out
}

func (g jsonText) member(key, value string) string {
	return g.quoted(key) + g.space() + ":" + g.space() + value
}

// object joins members in random order.
func (g jsonText) object(members []string) string {
	members = rapid.Permutation(members).Draw(g.t, "order")
	return "{" + g.space() + strings.Join(members, g.space()+","+g.space()) + g.space() + "}"
}

func (g jsonText) labels() string {
	return g.object(g.times(4, func() string {
		value := g.quoted(g.pick("1", "2", "é", "a\"b"))
		if g.oneIn(15) {
			value = "null"
		}
		return g.member(g.pick("a", "b", "app.kubernetes.io/name", "é"), value)
	}))
}

func (g jsonText) managedFields() string {
	return g.pick(`[{"manager":"kubectl","operation":"Apply","fieldsV1":{"f:spec":{"f:a":{}}}}]`, "null", "[]")
}

func (g jsonText) metadata() string {
	members := []string{
		g.member("name", g.quoted(g.pick("a", "b", "é"))), g.member("resourceVersion", g.quoted(g.pick("1", "22"))),
		g.member("uid", g.pick(`"u"`, "null")),
	}
	for field, value := range map[string]func() string{
		"namespace":     func() string { return g.pick(`"ns"`, "null", `""`, `"\u006es"`) },
		"labels":        g.labels,
		"annotations":   g.labels,
		"managedFields": g.managedFields,
		"generation":    func() string { return g.pick("0", "7", fmt.Sprint(math.MaxInt64), "null") },
		"finalizers":    func() string { return g.pick(`["a","b"]`, "[]") },
		"ownerReferences": func() string {
			return g.pick(`[{"uid":"o","name":"owner","kind":"K","apiVersion":"v1"}]`, "null", "[]")
		},
		"unknown": func() string { return g.value(2) },
	} {
		for range rapid.SampledFrom([]int{0, 1, 1, 1, 2}).Draw(g.t, field) {
			members = append(members, g.member(field, value()))
		}
	}
	return g.object(members)
}

// whole returns an object. One in twenty of the objects is about 1.4 MB in size.
func (g jsonText) whole() string {
	members := []string{
		g.member("kind", g.quoted("Widget")), g.member("apiVersion", g.quoted("example.com/v1")),
		g.member("metadata", g.metadata()), g.member("spec", g.value(4)),
	}
	if g.oneIn(5) {
		members = append(members, g.member("metadata", g.metadata()))
	}
	if g.oneIn(10) {
		members = append(members, g.member("kind", g.quoted("Gadget")))
	}
	if g.oneIn(20) {
		members = append(members, g.member("large", `"`+strings.Repeat(`x\n`, 1<<20/3*4/3)+`"`))
	}
	return g.space() + g.object(members) + g.space()
}
