package objects

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestRecord_ContentIgnoresTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	const first = `{"kind":"K","apiVersion":"v1",` +
		`"metadata":{"name":"a","labels":{"a":"1"},"managedFields":[{}]},"spec":{"a":1}}`
	const reordered = `{"spec":{"a":1},"metadata":{"labels":{"a":"1"},"name":"a"},"apiVersion":"v1","kind":"K"}`
	for name, c := range map[string]struct {
		text              string
		content, metadata bool
	}{
		"equal":         {first, true, true},
		"order":         {reordered, true, true},
		"spec":          {strings.Replace(first, `{"a":1}`, `{"a":2}`, 1), false, true},
		"labels":        {strings.Replace(first, `{"a":"1"}`, `{"a":"2"}`, 1), false, false},
		"managedFields": {strings.Replace(first, `[{}]`, `[{"manager":"m"}]`, 1), true, true},
		"version":       {strings.Replace(first, `"name"`, `"resourceVersion":"1","name"`, 1), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := parse(t, first, Full), parse(t, c.text, Full)
			if got := a.SameContent(b); got != c.content {
				t.Errorf("same content: %t", got)
			}
			if got := a.SameMetadata(b); got != c.metadata {
				t.Errorf("same metadata: %t", got)
			}
			if got := parse(t, first, Complete).SameMetadata(parse(t, c.text, Complete)); got != c.metadata {
				t.Errorf("same metadata of complete objects: %t", got)
			}
			if got := parse(t, first, Metadata).SameContent(parse(t, c.text, Metadata)); got != c.metadata {
				t.Errorf("same content of metadata: %t", got)
			}
			if got := parse(t, first, Metadata).SameMetadata(parse(t, c.text, Full)); got != c.metadata {
				t.Errorf("same metadata of different projections: %t", got)
			}
		})
	}
}

func TestRecord_MetadataContentIgnoresTheType(t *testing.T) {
	t.Parallel()
	a := parse(t, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}`, Metadata)
	if a.data != `{"metadata":{"name":"a"}}` {
		t.Errorf("data %s", a.data)
	}
	if b := parse(t, `{"kind":"K","apiVersion":"v1","metadata":{"name":"a"}}`, Metadata); !a.SameContent(b) {
		t.Error("a different type counts as different content")
	}
}

func TestRecord_DecodesIntoGoStruct(t *testing.T) {
	t.Parallel()
	type spec struct {
		Size int64 `json:"size"`
	}
	type widget struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              spec `json:"spec"`
	}
	const text = `{"kind":"K","apiVersion":"v1",` +
		`"metadata":{"name":"a","namespace":"n","uid":"u"},"spec":{"size":3,"Size":4}}`
	want := widget{
		TypeMeta:   metav1.TypeMeta{Kind: "K", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", UID: "u"},
		Spec:       spec{Size: 3},
	}
	for projection := Complete; ; projection-- {
		switch projection {
		case Metadata:
			want.Spec = spec{}
		case Keys:
			want.TypeMeta = metav1.TypeMeta{}
		}
		var got widget
		if err := parse(t, text, projection).DecodeInto(&got, Complete); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("projection %d: %+v, %v", projection, got, err)
		}
		if projection == Keys {
			return
		}
	}
}

func TestRecord_DecodeIntoWrongTypeFails(t *testing.T) {
	t.Parallel()
	var into struct {
		Metadata struct {
			Name int `json:"name"`
		} `json:"metadata"`
	}
	err := parse(t, `{"kind":"K","metadata":{"namespace":"n","name":"a"}}`, Full).DecodeInto(&into, Complete)
	if err == nil || !strings.Contains(err.Error(), `"n/a"`) {
		t.Errorf("error %v", err)
	}
}

func TestRecord_WithKeysDecodesToTheHeader(t *testing.T) {
	t.Parallel()
	const text = `{"kind":"K","metadata":{"namespace":"n","name":"a","uid":"u","resourceVersion":"1","generation":2}}`
	r := parse(t, text, Keys)
	requireDecoded(t, r, Full, &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
		"namespace": "n", "name": "a", "uid": "u", "resourceVersion": "1",
	}}})
	requireDecoded(t, r, Metadata, &metav1.PartialObjectMetadata{
		TypeMeta:   partialTypeMeta,
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", UID: "u", ResourceVersion: "1"},
	})
}

func TestRecord_GettersMatchUnstructured(t *testing.T) {
	t.Parallel()
	const text = `{"kind":"K","metadata":{"name":"a","generateName":"a-","selfLink":"/a","generation":2,` +
		`"creationTimestamp":"2026-01-02T03:04:05Z","deletionTimestamp":"2026-01-02T03:04:06Z",` +
		`"deletionGracePeriodSeconds":3,` +
		`"annotations":{"a":"b"},"labels":{"a":"b"},"finalizers":["f"],"ownerReferences":[{"uid":"u","controller":true}],` +
		`"managedFields":[{"manager":"m"}]}}`
	var r metav1.Object = parse(t, text, Complete)
	want := decoded(t, []byte(text))
	if !equality.Semantic.DeepEqual(metaOf(r), metaOf(want)) {
		t.Errorf("got %v, want %v", metaOf(r), metaOf(want))
	}
	if !equality.Semantic.DeepEqual(r.GetManagedFields(), want.GetManagedFields()) {
		t.Errorf("managedFields %v", r.GetManagedFields())
	}
	if parse(t, text, Full).GetManagedFields() != nil {
		t.Error("managedFields were kept")
	}
}

func TestRecord_DecodedObjectsAreIndependent(t *testing.T) {
	t.Parallel()
	r := parse(t, string(widget()), Full)
	first, err := r.Decode(Full)
	if err != nil {
		t.Fatal(err)
	}
	first.(*unstructured.Unstructured).SetLabels(map[string]string{"changed": "true"})
	r.ObjectMeta().Labels["changed"] = "true"
	r.GetLabels()["changed"] = "true"
	requireDecoded(t, r, Full, withoutManagedFields(decoded(t, widget())))
	if r.DeepCopyObject() != runtime.Object(r) {
		t.Error("DeepCopyObject copied the record")
	}
}

func TestRecord_SettersPanic(t *testing.T) {
	t.Parallel()
	var r metav1.Object = parse(t, string(widget()), Full)
	for name, set := range map[string]func(){
		"SetNamespace":                  func() { r.SetNamespace("") },
		"SetName":                       func() { r.SetName("") },
		"SetGenerateName":               func() { r.SetGenerateName("") },
		"SetUID":                        func() { r.SetUID("") },
		"SetResourceVersion":            func() { r.SetResourceVersion("") },
		"SetGeneration":                 func() { r.SetGeneration(0) },
		"SetSelfLink":                   func() { r.SetSelfLink("") },
		"SetCreationTimestamp":          func() { r.SetCreationTimestamp(metav1.Time{}) },
		"SetDeletionTimestamp":          func() { r.SetDeletionTimestamp(nil) },
		"SetDeletionGracePeriodSeconds": func() { r.SetDeletionGracePeriodSeconds(nil) },
		"SetLabels":                     func() { r.SetLabels(nil) },
		"SetAnnotations":                func() { r.SetAnnotations(nil) },
		"SetFinalizers":                 func() { r.SetFinalizers(nil) },
		"SetOwnerReferences":            func() { r.SetOwnerReferences(nil) },
		"SetManagedFields":              func() { r.SetManagedFields(nil) },
	} {
		func() {
			defer func() {
				if message, _ := recover().(string); !strings.Contains(message, "read-only") {
					t.Errorf("%s: panic %q", name, message)
				}
			}()
			set()
		}()
	}
}

func TestAllocated_MatchesTheRuntime(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{
		0: 0, 1: 8, 33: 48, 1024: 1024, 1025: 1152, 32768: 32768, 32769: 40960, 1 << 20: 1 << 20,
	} {
		if got := allocated(n); got != want {
			t.Errorf("an allocation of %d bytes uses %d, want %d", n, got, want)
		}
		if got := cap(append([]byte(nil), make([]byte, n)...)); got != want {
			t.Errorf("the runtime allocates %d for %d bytes, want %d", got, n, want)
		}
	}
}

// Records that keep different parts of an object are compared by the parts that both keep.
func TestRecord_SameContentIgnoresWhatOneRecordDoesNotKeep(t *testing.T) {
	const text = `{"apiVersion":"v1","kind":"K",` +
		`"metadata":{"name":"a","managedFields":[{}],"labels":{"x":"1"}},"spec":{"a":1}}`
	complete := parse(t, text, Complete)
	for name, c := range map[string]struct {
		text string
		same bool
	}{
		"the same object":     {text, true},
		"other managedFields": {strings.Replace(text, `[{}]`, `[{"manager":"m"}]`, 1), true},
		"another label":       {strings.Replace(text, `"x":"1"`, `"x":"2"`, 1), false},
		"another spec":        {strings.Replace(text, `"a":1`, `"a":2`, 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			full := parse(t, c.text, Full)
			if complete.SameContent(full) != c.same || full.SameContent(complete) != c.same {
				t.Errorf("SameContent returned %t, want %t", !c.same, c.same)
			}
		})
	}
}
