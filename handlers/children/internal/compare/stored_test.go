package compare

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
			got := StoredDifferently(entries, "m", parsed(t, test.config), parsed(t, test.object))
			if FieldOf(got) != test.want {
				t.Errorf("got %q, want %q", FieldOf(got), test.want)
			}
		})
	}
}
