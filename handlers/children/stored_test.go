package children

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

func parsed(t *testing.T, text string) (value map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// Values that the API server stores in another form are equal. The managedFields show which lists have keys or are
// sets.
func TestStoredDifferently(t *testing.T) {
	const keyed = `{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},` +
		`"f:tags":{"v:\"a\"":{}}}}`
	for name, test := range map[string]struct{ config, object, want string }{
		"equal":                  {`{spec: {a: 1}}`, `{spec: {a: 1}}`, ""},
		"a default":              {`{spec: {a: 1}}`, `{spec: {a: 1, b: 2}}`, ""},
		"a quantity":             {`{spec: {cpu: 1000m}}`, `{spec: {cpu: "1"}}`, ""},
		"a quantity as a number": {`{spec: {cpu: 1}}`, `{spec: {cpu: "1"}}`, ""},
		"another quantity":       {`{spec: {cpu: 1000m}}`, `{spec: {cpu: "2"}}`, "spec.cpu"},
		"a duration":             {`{spec: {for: 60s}}`, `{spec: {for: 1m0s}}`, ""},
		"a time": {
			`{spec: {at: "2026-01-01T01:00:00+01:00"}}`, `{spec: {at: "2026-01-01T00:00:00Z"}}`, "",
		},
		"null":               {`{spec: {a: null}}`, `{spec: {}}`, ""},
		"empty values":       {`{spec: {a: {}, b: [], c: "", d: 0, e: false, f: {g: null}}}`, `{}`, ""},
		"a dropped field":    {`{spec: {a: {b: 1}}}`, `{spec: {}}`, "spec.a.b"},
		"a changed field":    {`{spec: {image: nginx}}`, `{spec: {image: mirror/nginx}}`, "spec.image"},
		"true is not a text": {`{spec: {a: true}}`, `{spec: {a: "true"}}`, "spec.a"},
		"an item with a key and others": {
			`{spec: {ports: [{port: 80}]}}`, `{spec: {ports: [{port: 1}, {port: 80, protocol: TCP}]}}`, "",
		},
		"a missing item": {`{spec: {ports: [{port: 80}]}}`, `{spec: {ports: [{port: 1}]}}`, "spec.ports"},
		"a changed field of an item": {
			`{spec: {ports: [{port: 80, name: a}]}}`, `{spec: {ports: [{port: 80, protocol: TCP, name: b}]}}`, "spec.ports.name",
		},
		"two items with the same port": {
			`{spec: {ports: [{port: 80, protocol: UDP, name: a}, {port: 80, name: b}]}}`,
			`{spec: {ports: [{port: 80, protocol: UDP, name: a}, {port: 80, protocol: TCP, name: b}]}}`, "",
		},
		"a default instead of null":           {`{spec: {a: null, b: ""}}`, `{spec: {a: [1], b: x}}`, ""},
		"numbers with long exponents":         {`{spec: {a: 1e2000000000}}`, `{spec: {a: "2"}}`, "spec.a"},
		"many digits and a long exponent":     {`{spec: {a: 1234567890123456789e2000000000}}`, `{spec: {a: "2"}}`, "spec.a"},
		"a set with more items":               {`{spec: {tags: [a]}}`, `{spec: {tags: [b, a]}}`, ""},
		"a set without an item":               {`{spec: {tags: [a]}}`, `{spec: {tags: [b]}}`, "spec.tags"},
		"an atomic list with a further item":  {`{spec: {args: [a]}}`, `{spec: {args: [a, b]}}`, "spec.args"},
		"an atomic list with a changed field": {`{spec: {args: [{a: 1}]}}`, `{spec: {args: [{a: 2}]}}`, "spec.args.a"},
		"further owner references": {
			`{metadata: {ownerReferences: [{uid: a}]}}`, `{metadata: {ownerReferences: [{uid: b}, {uid: a}]}}`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			owner := &unstructured.Unstructured{Object: map[string]any{}}
			owner.SetManagedFields([]metav1.ManagedFieldsEntry{{
				Manager: "m", Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(keyed),
			}})
			entries, err := ownership.Of(owner)
			if err != nil {
				t.Fatal(err)
			}
			got := storedDifferently(entries, "m", parsed(t, test.config), parsed(t, test.object))
			if fieldOf(got.path) != test.want || (got.reason != "") != (test.want != "") {
				t.Errorf("got %q (%s), want %q", fieldOf(got.path), got.reason, test.want)
			}
			if got.reason != "" && !strings.Contains(got.message(), "field "+test.want) {
				t.Errorf("the message is %q", got.message())
			}
		})
	}
}

// A field of others that the desired child gets and loses again is undesired again. A cache without managedFields does
// not change which fields are undesired.
func TestOthersPaths_OutlastTheDesiredChild(t *testing.T) {
	a, b := fieldpath.MakePathOrDie("data", "a"), fieldpath.MakePathOrDie("data", "b")
	others := othersPaths{existing: []fieldpath.Path{a, b}}
	for _, step := range []struct {
		applied string // the fields that the Reconciler has applied, or empty for an object without managedFields
		data    string
		want    string
	}{
		{`{"f:data":{"f:a":{}}}`, `{a: x, b: x}`, "[.data.b]"},
		{"", `{a: x, b: x}`, "[.data.b]"},
		{`{"f:data":{"f:a":{},"f:b":{}}}`, `{a: x, b: x}`, "[]"},
		{`{"f:data":{"f:a":{}}}`, `{a: x, b: x}`, "[.data.b]"},
		{"", `{a: x}`, "[]"},
		{`{"f:data":{"f:a":{}}}`, `{a: x, b: x}`, "[]"}, // someone has set it again
	} {
		object := &unstructured.Unstructured{Object: map[string]any{"data": parsed(t, step.data)}}
		if step.applied != "" {
			object.SetManagedFields([]metav1.ManagedFieldsEntry{{
				Manager: "platform", Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(step.applied),
			}})
		}
		others.update(object, "platform")
		if got := fmt.Sprint(others.undesired); got != step.want {
			t.Errorf("applied %s, data %s: got %s, want %s", step.applied, step.data, got, step.want)
		}
	}
}
