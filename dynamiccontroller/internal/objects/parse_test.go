package objects

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
)

func TestRecord_DecodesLikeTheDynamicClient(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		text := jsonText{rt}.whole()
		requireSameAsDynamicClient(t, text)
	})
}

func requireSameAsDynamicClient(t testing.TB, text string) {
	t.Helper()
	data := []byte(text)
	want := decoded(t, data)
	for projection := Keys; projection <= Complete; projection++ {
		r := parse(t, text, projection)
		requireSameHeader(t, r, want)
		requireSameDecoded(t, r, want)
		if projection != Keys {
			requireSameLabels(t, r, want)
		}
	}
	if string(data) != text {
		t.Fatalf("Parse changed its argument")
	}
}

func requireSameHeader(t testing.TB, r *Record, want *unstructured.Unstructured) {
	t.Helper()
	got := []string{r.GetNamespace(), r.GetName(), string(r.GetUID()), r.GetResourceVersion()}
	expected := []string{want.GetNamespace(), want.GetName(), string(want.GetUID()), want.GetResourceVersion()}
	if !reflect.DeepEqual(got, expected) {
		t.Fatalf("header %q, want %q", got, expected)
	}
	gvk := want.GroupVersionKind()
	if r.Projection() == Keys {
		gvk = schema.GroupVersionKind{Group: "meta.k8s.io", Version: "v1", Kind: "PartialObjectMetadata"}
	}
	if got := r.GetObjectKind().GroupVersionKind(); got != gvk {
		t.Fatalf("kind %v, want %v", got, gvk)
	}
}

func requireSameDecoded(t testing.TB, r *Record, want *unstructured.Unstructured) {
	t.Helper()
	reduced := withoutManagedFields(want)
	switch r.Projection() {
	case Complete:
		requireDecoded(t, r, Complete, want)
		requireDecoded(t, r, Full, reduced)
	case Full:
		requireDecoded(t, r, Complete, reduced)
		requireDecoded(t, r, Full, reduced)
	case Metadata:
		kept := map[string]any{}
		for _, field := range []string{"kind", "apiVersion", "metadata"} {
			if value, found := reduced.Object[field]; found {
				kept[field] = value
			}
		}
		requireDecoded(t, r, Full, &unstructured.Unstructured{Object: kept})
	case Keys:
		requireDecoded(t, r, Keys, &metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Namespace: want.GetNamespace(), Name: want.GetName()},
		})
		return
	}
	meta := metaOf(reduced)
	got, err := r.Decode(Metadata)
	if err != nil {
		t.Fatal(err)
	}
	partial := got.(*metav1.PartialObjectMetadata)
	if partial.TypeMeta != partialTypeMeta || !equality.Semantic.DeepEqual(&partial.ObjectMeta, meta) {
		t.Fatalf("metadata %v, want %v", partial, meta)
	}
	if got := r.OwnerReferences(); !equality.Semantic.DeepEqual(got, meta.OwnerReferences) {
		t.Fatalf("owners %v, want %v", got, meta.OwnerReferences)
	}
	if got := r.GetAnnotations(); !equality.Semantic.DeepEqual(got, meta.Annotations) {
		t.Fatalf("annotations %v, want %v", got, meta.Annotations)
	}
}

func requireDecoded(t testing.TB, r *Record, projection Projection, want runtime.Object) {
	t.Helper()
	got, err := r.Decode(projection)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("decoded with projection %d:\n%v\nwant\n%v", projection, got, want)
	}
}

func requireSameLabels(t testing.TB, r *Record, want *unstructured.Unstructured) {
	t.Helper()
	set := labels.Set(want.GetLabels())
	if !equality.Semantic.DeepEqual(r.GetLabels(), map[string]string(set)) {
		t.Fatalf("labels %v, want %v", r.GetLabels(), set)
	}
	for _, label := range []string{"a", "b", "app.kubernetes.io/name", "é", "missing"} {
		value, exists := (*recordLabels)(r).Lookup(label)
		if wantValue, wantExists := set.Lookup(label); value != wantValue || exists != wantExists {
			t.Fatalf("label %q: %q, %t; want %q, %t", label, value, exists, wantValue, wantExists)
		}
	}
	for _, text := range []string{"", "a", "!a", "a=1,b!=2", "a in (1,2)", "b notin (1)", "a>1", "missing"} {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := r.Matches(selector), selector.Matches(set); got != want {
			t.Fatalf("selector %q matches %v: %t, want %t", text, set, got, want)
		}
	}
}

func TestRecord_KeepsLastOfDuplicateKeys(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"name":               `{"kind":"K","metadata":{"name":1,"name":"a","name":"b"}}`,
		"null namespace":     `{"kind":"K","metadata":{"name":"a","namespace":"n","namespace":null}}`,
		"escaped key":        `{"kind":"K","metadata":{"name":"a","n\u0061me":"b"}}`,
		"kind":               `{"kind":"K","kind":"L","metadata":{"name":"a"}}`,
		"metadata":           `{"kind":"K","metadata":{"name":"a","uid":"u","labels":{"a":"1"}},"metadata":{"name":"b"}}`,
		"metadata after":     `{"metadata":null,"kind":"K","metadata":{"name":"b"}}`,
		"labels":             `{"kind":"K","metadata":{"name":"a","labels":{"a":"1"},"labels":{"b":"1"}}}`,
		"a label":            `{"kind":"K","metadata":{"name":"a","labels":{"a":"1","b":"1","a":"2"}}}`,
		"a null label":       `{"kind":"K","metadata":{"name":"a","labels":{"a":"1","a":null}}}`,
		"a numeric label":    `{"kind":"K","metadata":{"name":"a","labels":{"a":1,"a":"1"}}}`,
		"annotations":        `{"kind":"K","metadata":{"name":"a","annotations":{"a":"1"},"annotations":{"b":"1"}}}`,
		"finalizers":         `{"kind":"K","metadata":{"name":"a","finalizers":["a","b"],"finalizers":null}}`,
		"managedFields":      `{"kind":"K","metadata":{"managedFields":[],"managedFields":[{}],"name":"a"}}`,
		"owners":             `{"kind":"K","metadata":{"name":"a","ownerReferences":[{"uid":"1"}],"ownerReferences":[]}}`,
		"a nested field":     `{"kind":"K","metadata":{"name":"a"},"spec":{"a":{"b":1},"a":{"c":1.50}}}`,
		"numbers stay equal": `{"kind":"K","metadata":{"name":"a","name":"b"},"spec":[1.0,1e3,9223372036854775807]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireSameAsDynamicClient(t, text)
		})
	}
}

func TestParse_CutsManagedFields(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"first":       {`{"managedFields":[{"a":{}}],"name":"a","uid":"u"}`, `{"name":"a","uid":"u"}`},
		"in between":  {`{"name":"a","managedFields":[{"a":{}}],"uid":"u"}`, `{"name":"a","uid":"u"}`},
		"last":        {`{"name":"a","uid":"u","managedFields":[{"a":{}}]}`, `{"name":"a","uid":"u"}`},
		"with spaces": {`{ "managedFields" : [] , "name":"a"}`, `{  "name":"a"}`},
		"escaped key": {`{"name":"a","m\u0061nagedFields":[]}`, `{"name":"a"}`},
		"absent":      {`{"name":"a"}`, `{"name":"a"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := `{"kind":"K","metadata":` + c.in + `,"spec":{"managedFields":1}}`
			want := `{"kind":"K","metadata":` + c.want + `,"spec":{"managedFields":1}}`
			if got := parse(t, text, Full).data; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if got, want := parse(t, text, Metadata).data, `{"kind":"K","metadata":`+c.want+`}`; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if got := parse(t, text, Complete).data; got != text {
				t.Errorf("got %s, want %s", got, text)
			}
			requireSameAsDynamicClient(t, text)
		})
	}
}

func TestParse_AddsTheTypeOfTheList(t *testing.T) {
	t.Parallel()
	typeMeta := metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	for name, c := range map[string]struct{ in, want string }{
		"both": {
			`{"metadata":{"name":"a"}}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`,
		},
		"apiVersion": {
			`{"kind":"K","metadata":{"name":"a"}}`,
			`{"apiVersion":"v1","kind":"K","metadata":{"name":"a"}}`,
		},
		"null and empty": {
			`{"kind":null,"apiVersion":"","metadata":{"name":"a"}}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`,
		},
		"neither": {
			`{"kind":"K","apiVersion":"v2","metadata":{"name":"a"}}`,
			`{"kind":"K","apiVersion":"v2","metadata":{"name":"a"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, projection := range []Projection{Metadata, Full} {
				r, err := Parse([]byte(c.in), projection, typeMeta)
				if err != nil {
					t.Fatal(err)
				}
				if projection == Full && r.data != c.want {
					t.Errorf("got %s, want %s", r.data, c.want)
				}
				u := decoded(t, []byte(c.want))
				requireSameHeader(t, r, u)
				requireSameDecoded(t, r, u)
			}
		})
	}
}

// Some of the values are as short as a quoted empty string, but must not be replaced with defaults.
func TestParse_RejectsNonStringKindAndAPIVersion(t *testing.T) {
	for _, field := range []string{"kind", "apiVersion"} {
		for _, value := range []string{"5", "12", "{}", "[]"} {
			data := fmt.Sprintf(`{%q:%s,"metadata":{"name":"a"}}`, field, value)
			_, err := Parse([]byte(data), Full, metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"})
			if err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: got error %v", data, err)
			}
		}
	}
}

func TestParse_ErrorNamesTheField(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"kind":"K"}`:                                             "no metadata.name",
		`{"kind":"K","metadata":null}`:                             "no metadata.name",
		`{"kind":"K","metadata":{"name":null}}`:                    "no metadata.name",
		`{"kind":"K","metadata":{"name":""}}`:                      "no metadata.name",
		`{"kind":"K","Metadata":{"name":"a"}}`:                     "no metadata.name",
		`{"metadata":{"name":"a"}}`:                                "no kind",
		`{"kind":"","metadata":{"name":"a"}}`:                      "no kind",
		`{"kind":1,"metadata":{"name":"a"}}`:                       "kind is not a string",
		`{"kind":"K","metadata":1}`:                                "metadata is not an object",
		`{"kind":"K","metadata":{"name":1}}`:                       "metadata.name is not a string",
		`{"kind":"K","metadata":{"name":"a","namespace":[]}}`:      "metadata.namespace is not a string",
		`{"kind":"K","metadata":{"name":"a","uid":{}}}`:            "metadata.uid is not a string",
		`{"kind":"K","metadata":{"name":"a","resourceVersion":1}}`: "metadata.resourceVersion is not a string",
		`[]`:   "not a JSON object",
		``:     "not a JSON object",
		`{} x`: "not a JSON object",
	} {
		if _, err := Parse([]byte(text), Full, metav1.TypeMeta{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
}
