package objects

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// FuzzParse checks that no input causes a panic, and that valid JSON is decoded in the same way as by the dynamic
// client.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		``, `{`, `{"`, `{"a`, `{"a":`, `{"a"}`, `[]`, `null`, `{}`, `{,}`, `{"kind":"K"`, `{"a":"\`, `{"a":[}`,
		`{"kind":"K","metadata":{"name":"a"}}`,
		`{"kind":"K","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"1"}}`,
		`{"kind":"K","metadata":{"name":"a","labels":{"a":"1","a":null,"b":2},"managedFields":[{}],"generation":1.5}}`,
		`{"k\u0069nd":"K","metadata":{"name":"\ud83d\ude00","labels":{"\u0061":"\u0062"}},"metadata":{"name":"a"}}`,
		"{\"kind\":\"\xff\",\"metadata\":{\"name\":\"\xc3\x28\",\"labels\":{\"\xff\":\"\xfe\"}}}",
		`{"metadata":{"name":"a","ownerReferences":[{"uid":"u"}]},"kind":"K","spec":{"metadata":{"labels":{}}}}`,
		`{"metadata":{"name":"a","labels":{"a":"1"`, `{"kind":"K","metadata":{"name":"a"}}}`,
	} {
		f.Add([]byte(seed))
	}
	selector, err := labels.Parse("a=1,b notin (2),!c")
	if err != nil {
		f.Fatal(err)
	}
	typeMeta := metav1.TypeMeta{APIVersion: "v1", Kind: "Default"}
	f.Fuzz(func(t *testing.T, data []byte) {
		for projection := Keys; projection <= Complete; projection++ {
			if r, err := Parse(data, projection, typeMeta); err == nil {
				readAll(r, selector)
			}
			if r, err := Parse(data, projection, metav1.TypeMeta{}); err == nil {
				readAll(r, selector)
				compareWithDynamicClient(t, r, data)
			}
		}
	})
}

func readAll(r *Record, selector labels.Selector) {
	for projection := Keys; projection <= Complete; projection++ {
		_, _ = r.Decode(projection)
	}
	_, _, _, _ = r.Key(), r.GetNamespace(), r.GetName(), r.GetUID()
	_, _, _ = r.Size(), r.OwnerReferences(), r.GetObjectKind().GroupVersionKind()
	_, _ = r.SameContent(r.Encoded()), r.SameMetadata(r.Encoded())
	_ = r.Matches(selector)
	_ = r.GetManagedFields()
}

func compareWithDynamicClient(t *testing.T, r *Record, data []byte) {
	want := &unstructured.Unstructured{}
	if !json.Valid(data) {
		return
	}
	if _, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, want); err != nil {
		return
	}
	requireSameHeader(t, r, want)
	requireSameDecoded(t, r, want)
	if r.Projection() != Keys {
		requireSameLabels(t, r, want)
	}
}
