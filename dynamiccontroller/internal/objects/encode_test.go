package objects

import (
	"math"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

func encoded(t testing.TB, obj runtime.Object, projection Projection, resourceVersion string) *Record {
	t.Helper()
	before := obj.DeepCopyObject()
	r, err := Encode(obj, projection, resourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	if !r.IsEncoded() || r.Projection() != projection {
		t.Fatalf("encoded %t, projection %d", r.IsEncoded(), r.Projection())
	}
	if !reflect.DeepEqual(obj, before) {
		t.Fatalf("Encode changed its argument to %v", obj)
	}
	return r
}

func TestEncode_DoesNotEscapeHTML(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{"kind": "K", "text": "<&>"}}
	u.SetName("a")
	r, err := Encode(u, Full, "")
	if err != nil || !strings.Contains(r.data, "<&>") {
		t.Errorf("encoded %q, %v", r.data, err)
	}
}

func TestEncode_EqualsParse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := strings.ReplaceAll(jsonText{t}.whole(), "1.0", "1.25")
		for _, e := range []string{"1e3", "1E+2"} { // encoded as integers
			text = strings.ReplaceAll(text, e, "1.25")
		}
		u := &unstructured.Unstructured{}
		if _, _, err := unstructured.UnstructuredJSONScheme.Decode([]byte(text), nil, u); err != nil {
			t.Fatal(err)
		}
		for projection := Keys; projection <= Complete; projection++ {
			r, err := Encode(u, projection, "")
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := Parse([]byte(text), projection, metav1.TypeMeta{})
			if err != nil {
				t.Fatal(err)
			}
			if !r.SameContent(parsed) || !parsed.SameContent(r) || !r.SameMetadata(parsed) {
				t.Fatalf("projection %d: encoded %q, parsed %q", projection, r.data, parsed.data)
			}
		}
	})
}

func TestEncode_KeepsTheGivenResourceVersion(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Name: "a", Namespace: "n", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}
	for name, obj := range map[string]runtime.Object{
		"unstructured": &unstructured.Unstructured{Object: map[string]any{
			"kind": "K", "apiVersion": "v1", "metadata": map[string]any{"name": "a", "namespace": "n"},
		}},
		"partial": &metav1.PartialObjectMetadata{ObjectMeta: meta},
		"opaque":  &corev1.ConfigMap{ObjectMeta: meta},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for projection := Keys; projection <= Complete; projection++ {
				r := encoded(t, obj, projection, "7")
				if r.GetResourceVersion() != "7" || r.ObjectMeta().ResourceVersion != "7" || r.Key() != "n/a" {
					t.Errorf("projection %d: key %q, %v", projection, r.Key(), r.ObjectMeta())
				}
				if r.ObjectMeta().ManagedFields != nil {
					t.Errorf("projection %d: managedFields are in the metadata", projection)
				}
				if r.opaque == nil && (projection == Complete) != strings.Contains(r.data, `"manager":"m"`) && name == "partial" {
					t.Errorf("projection %d: %s", projection, r.data)
				}
			}
		})
	}
}

func TestEncode_KeepsOtherTypesAsTheyAre(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "1", Labels: map[string]string{"a": "1"}},
		Spec:       corev1.PodSpec{NodeName: "node"},
	}
	pod.OwnerReferences = []metav1.OwnerReference{{UID: "o"}}
	r := encoded(t, pod, Full, "")
	for projection := Keys; projection <= Complete; projection++ {
		if got, err := r.Decode(projection); err != nil || got != runtime.Object(pod) {
			t.Errorf("projection %d: decoded %v, %v", projection, got, err)
		}
	}
	matches := func(value string) bool { return r.Matches(labels.SelectorFromSet(labels.Set{"a": value})) }
	if !matches("1") || matches("2") {
		t.Error("wrong labels")
	}
	if r.GetUID() != "u" || len(r.OwnerReferences()) != 1 || r.GetObjectKind().GroupVersionKind().Kind != "Pod" {
		t.Errorf("UID %q, owners %v, kind %v", r.GetUID(), r.OwnerReferences(), r.GetObjectKind())
	}
	var into corev1.Pod
	if err := r.DecodeInto(&into, Complete); err != nil || !equality.Semantic.DeepEqual(&into, pod) {
		t.Errorf("decoded into %v, %v", into, err)
	}
	if !r.SameContent(encoded(t, pod.DeepCopy(), Full, "")) {
		t.Error("a copy has different content")
	}
	other := pod.DeepCopy()
	other.Spec.NodeName = "other"
	if changed := encoded(t, other, Full, ""); r.SameContent(changed) || !r.SameMetadata(changed) {
		t.Error("a change to the spec must change the content, but not the metadata")
	}
}

func TestEncode_ErrorNamesTheObject(t *testing.T) {
	t.Parallel()
	with := func(spec any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"kind": "K", "metadata": map[string]any{"namespace": "n", "name": "a"}, "spec": spec,
		}}
	}
	for name, obj := range map[string]runtime.Object{
		"a function":   with(func() {}),
		"not a number": with(math.NaN()),
		"a channel":    with([]any{make(chan int)}),
	} {
		if _, err := Encode(obj, Full, ""); err == nil || !strings.Contains(err.Error(), `"n/a"`) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for name, obj := range map[string]runtime.Object{
		"no name":     &unstructured.Unstructured{},
		"no metadata": &metav1.Status{},
		"an empty":    &corev1.Pod{},
	} {
		if _, err := Encode(obj, Full, ""); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestEncode_ObjectWithoutKind(t *testing.T) {
	t.Parallel()
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}}}
	requireDecoded(t, encoded(t, u, Full, ""), Full, u)
	requireDecoded(t, encoded(t, u, Metadata, ""), Full, u)
}
