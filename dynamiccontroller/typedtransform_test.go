package dynamiccontroller_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// shape is a Go type that lacks fields of the objects in the tests.
type shape struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Color string            `json:"color,omitempty"`
		Size  int               `json:"size"`
		Tags  map[string]string `json:"tags,omitempty"`
		Items []shapeItem       `json:"items,omitempty"`
	} `json:"spec"`
}

type shapeItem struct {
	Name string `json:"name"`
	Text string `json:"text,omitempty"`
}

func TestTypedTransform_AppliesChangesAndKeepsUnknownFields(t *testing.T) {
	item := func(name, text string) map[string]any {
		return map[string]any{"name": name, "text": text, "unknown": name}
	}
	without := func(item map[string]any, field string) map[string]any {
		delete(item, field)
		return item
	}
	type spec = map[string]any
	for name, test := range map[string]struct {
		transform func(*shape)
		want      spec // changes; nil removes a field
	}{
		"no change":             {func(*shape) {}, nil},
		"a changed field":       {func(s *shape) { s.Spec.Color = "red" }, spec{"color": "red"}},
		"a removed field":       {func(s *shape) { s.Spec.Color = "" }, spec{"color": nil}},
		"a field that is added": {func(s *shape) { s.Spec.Size = 7 }, spec{"size": int64(7)}},
		"a removed list":        {func(s *shape) { s.Spec.Items = nil }, spec{"items": nil}},
		"an entry of a map": {
			func(s *shape) { s.Spec.Tags["a"] = "2" }, spec{"tags": map[string]any{"a": "2", "b": "1"}},
		},
		"a removed entry": {
			func(s *shape) { delete(s.Spec.Tags, "a") }, spec{"tags": map[string]any{"b": "1"}},
		},
		"a changed item": {
			func(s *shape) { s.Spec.Items[0].Text = "" },
			spec{"items": []any{without(item("x", ""), "text"), item("y", "2"), item("z", "3")}},
		},
		"a removed item": {
			func(s *shape) { s.Spec.Items = s.Spec.Items[1:] },
			spec{"items": []any{item("y", "2"), item("z", "3")}},
		},
		"moved items": {
			func(s *shape) { slices.Reverse(s.Spec.Items) },
			spec{"items": []any{item("z", "3"), item("y", "2"), item("x", "1")}},
		},
		"an item that is added": {
			func(s *shape) { s.Spec.Items = append(s.Spec.Items, shapeItem{Name: "n"}) },
			spec{"items": []any{item("x", "1"), item("y", "2"), item("z", "3"), map[string]any{"name": "n"}}},
		},
		"moved items, and a changed one in the place of another": {
			func(s *shape) { s.Spec.Items[0], s.Spec.Items[1] = s.Spec.Items[1], shapeItem{Name: "n"} },
			spec{"items": []any{item("y", "2"), map[string]any{"name": "n"}, item("z", "3")}},
		},
	} {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Shape", "metadata": map[string]any{"name": "a", "unknown": "kept"}, "unknown": "kept",
			"spec": map[string]any{
				"color": "green", "unknown": map[string]any{"x": 1.5}, "tags": map[string]any{"a": "1", "b": "1"},
				"items": []any{item("x", "1"), item("y", "2"), item("z", "3")},
			},
		}}
		want := object.DeepCopy()
		for field, value := range test.want {
			spec := want.Object["spec"].(map[string]any)
			if spec[field] = value; value == nil {
				delete(spec, field)
			}
		}
		before := object.DeepCopy()
		got, err := dynamiccontroller.TypedTransform(func(s *shape) error {
			test.transform(s)
			return nil
		})(object)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", name, err, diff)
		}
		if diff := cmp.Diff(before, object); diff != "" {
			t.Errorf("%s: the argument has changed: %s", name, diff)
		}
	}
}

func TestTypedTransform_OfOtherForms(t *testing.T) {
	label := func(s *shape) error {
		s.Labels, s.Spec.Color = map[string]string{"x": "y"}, "dropped"
		return nil
	}
	partial := &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"k": "v"}},
	}
	want := partial.DeepCopy()
	want.Labels = map[string]string{"x": "y"}
	got, err := dynamiccontroller.TypedTransform(label)(partial)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("metadata: %v, %s", err, diff)
	}
	untyped := dynamiccontroller.TypedTransform(func(u *unstructured.Unstructured) error {
		delete(u.Object, "spec")
		return nil
	})
	object := &unstructured.Unstructured{Object: map[string]any{"spec": "x", "other": "y"}}
	got, err = untyped(object)
	if diff := cmp.Diff(&unstructured.Unstructured{Object: map[string]any{"other": "y"}}, got); diff != "" || err != nil {
		t.Errorf("unstructured: %v, %s", err, diff)
	}
	if object.Object["spec"] == nil {
		t.Error("the argument has changed")
	}
	if _, err := dynamiccontroller.TypedTransform(label)("text"); err == nil {
		t.Error("the transform accepted a string")
	}
	if dynamiccontroller.TypedTransform[shape](nil) != nil {
		t.Error("without a function, there is a transform")
	}
}

// An object for which the transform fails is stored as it is, like with any other transform.
func TestTypedTransform_Failures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := &logBuffer{}
		f := newFixtureWithLogger(t, logged.logger(0), 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		putSized(f, gvr, "a", int64(1))
		putSized(f, gvr, "b", int64(2))
		putSized(f, gvr, "c", "large")
		stop := f.run()
		f.serve(gvr, succeed, dynamiccontroller.WithTransform(dynamiccontroller.TypedTransform(func(object *typed) error {
			object.Spec.Size *= 10
			if object.Name == "b" {
				return errors.New("b is refused")
			}
			return nil
		})))
		lister := must(f.controller.Lister(gvr))
		for name, want := range map[string]any{"a": int64(10), "b": int64(2), "c": "large"} {
			var object unstructured.Unstructured
			if err := dynamiccontroller.GetInto(lister, "default/"+name, &object); err != nil {
				t.Fatal(err)
			}
			if size, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "size"); size != want {
				t.Errorf("the size of %s is %v, want %v", name, size, want)
			}
		}
		for _, text := range []string{"b is refused", "cannot unmarshal string"} {
			if logged.count(text) == 0 {
				t.Errorf("%q is not in the log: %q", text, logged.lines)
			}
		}
		stop()
	})
}
