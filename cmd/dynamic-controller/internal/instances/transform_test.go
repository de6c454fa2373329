package instances

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/handlers"
)

func configMap(bytes int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"name": "large", "namespace": "default", "uid": "1", "resourceVersion": "2",
			"labels": map[string]any{parentLabel: "3"},
			"annotations": map[string]any{
				resourceAnnotation: "page", appliedAnnotation: "hash", instanceAnnotation: "default/a", Name +
					"/huge": strings.Repeat("x", maxKeptBytes+1), "note": "x", PausedAnnotation: "true",
			},
			"ownerReferences": []any{
				map[string]any{"uid": "3", "controller": true, "kind": "A", "name": "a", "apiVersion": "v1"},
			},
			"managedFields": []any{map[string]any{"manager": "x"}},
		},
		"data":   map[string]any{"text": strings.Repeat("x", bytes)},
		"status": map[string]any{"conditions": []any{map[string]any{"type": conditionReady}}, "revision": "r", "text": "x"},
	}}
}

func transformed(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	out, err := Transform(object)
	if err != nil {
		t.Fatal(err)
	}
	return out.(*unstructured.Unstructured)
}

func TestTransform_OmitsContentOfLargeObjects(t *testing.T) {
	small := configMap(100)
	if got := transformed(t, small.DeepCopy()); !reflect.DeepEqual(got, small) {
		t.Errorf("a small object was changed to %v", got)
	}
	large := configMap(maxCachedBytes)
	got := transformed(t, large.DeepCopy())
	if !isOmitted(got) {
		t.Fatal("the content of a large object was kept")
	}
	data, err := json.Marshal(got)
	if err != nil || len(data) > 1000 {
		t.Errorf("%d bytes were kept: %v", len(data), err)
	}
	if got.GetUID() != large.GetUID() || got.GetResourceVersion() != large.GetResourceVersion() ||
		got.GetLabels()[parentLabel] != "3" ||
		got.GetAnnotations()[instanceAnnotation] != "default/a" || len(got.GetOwnerReferences()) != 1 ||
		got.GroupVersionKind() != large.GroupVersionKind() {
		t.Errorf("the instance of the object was lost: %v", got)
	}
	if conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions"); len(conditions) != 1 {
		t.Errorf("the conditions were lost: %v", got)
	}
	if revisionOf(got) != "r" || !IsPaused(got) {
		t.Errorf("the state of the rollout was lost: %v", got)
	}
	if again := transformed(t, got.DeepCopy()); !reflect.DeepEqual(again, got) {
		t.Errorf("the second transform returned %v", again)
	}
}

// Kubernetes does not limit the total size of labels, owner references and finalizers. Annotations with the platform's
// prefix are limited only to 256 KiB.
func TestTransform_OmitsLargeMetadata(t *testing.T) {
	const many = 2000
	of := map[string]func(*unstructured.Unstructured){
		"labels": func(u *unstructured.Unstructured) {
			labels := u.GetLabels()
			for i := range many {
				labels[fmt.Sprintf("%s/%d", Name, i)] = strings.Repeat("x", 60)
			}
			u.SetLabels(labels)
		},
		"annotations": func(u *unstructured.Unstructured) {
			annotations := u.GetAnnotations()
			for i := range many {
				annotations[fmt.Sprintf("%s/%d", Name, i)] = strings.Repeat("x", 60)
			}
			u.SetAnnotations(annotations)
		},
		"owners": func(u *unstructured.Unstructured) {
			owners := u.GetOwnerReferences()
			for i := range many {
				owners = append(owners,
					metav1.OwnerReference{UID: types.UID(fmt.Sprint(i)), Name: strings.Repeat("x", 60), Kind: "A", APIVersion: "v1"})
			}
			u.SetOwnerReferences(owners)
		},
		"finalizers": func(u *unstructured.Unstructured) {
			finalizers := u.GetFinalizers()
			for range many {
				finalizers = append(finalizers, ChildrenFinalizer, "example.com/"+strings.Repeat("x", 60))
			}
			u.SetFinalizers(finalizers)
		},
	}
	for name, grow := range of {
		t.Run(name, func(t *testing.T) {
			object := configMap(0)
			object.SetFinalizers([]string{ChildrenFinalizer})
			grow(object)
			got := transformed(t, object)
			data, err := json.Marshal(got)
			if err != nil || len(data) > 1000 || !isOmitted(got) {
				t.Errorf("%d bytes were kept: %v", len(data), err)
			}
			if controller := metav1.GetControllerOf(got); controller == nil || controller.UID != "3" ||
				got.GetLabels()[parentLabel] != "3" ||
				got.GetAnnotations()[instanceAnnotation] != "default/a" ||
				!slices.Equal(got.GetFinalizers(), []string{ChildrenFinalizer}) {
				t.Errorf("the platform's metadata was lost: %v", got)
			}
		})
	}
	t.Run("the controller", func(t *testing.T) {
		object := configMap(0)
		object.SetOwnerReferences([]metav1.OwnerReference{{
			UID: "3", Name: strings.Repeat("x", maxCachedBytes), Kind: "A", APIVersion: "v1", Controller: ptr.To(true),
		}})
		if data, err := json.Marshal(transformed(t, object)); err != nil || len(data) > 1000 {
			t.Errorf("%d bytes were kept: %v", len(data), err)
		}
	})
}

// An object with the parent label that the platform did not write is cached without its content unless it is small.
func TestTransform_OmitsContentOfForgedChildren(t *testing.T) {
	for name, test := range map[string]struct {
		bytes   int
		change  func(*unstructured.Unstructured)
		omitted bool
	}{
		"forged":             {maxForgedBytes, nil, true},
		"forged, but small":  {maxForgedBytes / 4, nil, false},
		"without the label":  {maxForgedBytes, func(u *unstructured.Unstructured) { u.SetLabels(nil) }, false},
		"a child":            {maxForgedBytes, asChild, false},
		"a child, but large": {maxCachedBytes, asChild, true},
	} {
		t.Run(name, func(t *testing.T) {
			object := configMap(test.bytes)
			unstructured.RemoveNestedField(object.Object, "metadata", "annotations")
			if test.change != nil {
				test.change(object)
			}
			if got := transformed(t, object); isOmitted(got) != test.omitted {
				t.Errorf("isOmitted = %t", !test.omitted)
			}
		})
	}
}

// asChild adds the annotations that all children have.
func asChild(u *unstructured.Unstructured) {
	u.SetAnnotations(map[string]string{resourceAnnotation: "page", appliedAnnotation: "hash",
		instanceAnnotation: "default/a"})
}

// Blueprints, their revisions and definitions are read only from the cache, whatever their size.
func TestTransform_KeepsDefinitions(t *testing.T) {
	for _, test := range []struct {
		kind      schema.GroupVersionKind
		transform cache.TransformFunc
	}{
		{blueprint.GroupVersionKind, BlueprintTransform},
		{blueprint.GroupVersionKind, Transform},
		{
			schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
			BlueprintTransform,
		},
		{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ControllerRevision"}, BlueprintTransform},
	} {
		object := configMap(maxCachedBytes)
		object.SetGroupVersionKind(test.kind)
		out, err := test.transform(object)
		if err != nil {
			t.Fatal(err)
		}
		got := out.(*unstructured.Unstructured)
		if text, _, _ := unstructured.NestedString(got.Object, "data", "text"); len(text) != maxCachedBytes {
			t.Errorf("the content of a %s was omitted", test.kind.Kind)
		}
		if test.kind.Kind == "Blueprint" && len(got.GetManagedFields()) > 0 {
			t.Error("the managed fields of a Blueprint were kept")
		}
	}
}

// Rejected Blueprints are cached too, and their number is not limited.
func TestBlueprintTransform_OmitsOversizedSpec(t *testing.T) {
	b := websitesBlueprint()
	b.Generation = 2
	b.Spec.DeletionPolicy, b.Spec.RevisionHistoryLimit = blueprint.Delete, ptr.To[int32](3)
	b.Finalizers = []string{Name + "/blueprint", "example.com/other"}
	b.Spec.Resources[0].Template["text"] = strings.Repeat("x", blueprint.MaxSpecBytes)
	object := asObject(t, b)
	object.SetGroupVersionKind(blueprint.GroupVersionKind)
	name := blueprint.DefinitionName(b)
	for engine, transform := range map[string]cache.TransformFunc{"definitions": BlueprintTransform,
		"instances": Transform} {
		out, err := transform(object.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		kept := out.(*unstructured.Unstructured)
		if data, err := json.Marshal(kept); err != nil || len(data) > 1000 {
			t.Errorf("%s: cached %d bytes: %v", engine, len(data), err)
		}
		got, err := blueprint.FromUnstructured(kept)
		if err != nil {
			t.Fatal(err)
		}
		if blueprint.DefinitionName(got) != name || got.Spec.DeletionPolicy != blueprint.Delete ||
			*got.Spec.RevisionHistoryLimit != 3 ||
			got.UID != b.UID || got.Generation != 2 || !slices.Equal(got.Finalizers, b.Finalizers) {
			t.Errorf("%s: cached %+v", engine, got)
		}
		again, err := transform(kept.DeepCopy())
		if err != nil || !reflect.DeepEqual(again, kept) {
			t.Errorf("%s: the second transform returned %v, %v", engine, again, err)
		}
	}
}

// The annotation that marks oversized Blueprints in the cache has no effect if users set it on the server.
func TestBlueprintTransform_IgnoresForgedMark(t *testing.T) {
	b := websitesBlueprint()
	b.Annotations = map[string]string{blueprint.OversizedAnnotation: "true", "note": "x"}
	object := asObject(t, b)
	object.SetGroupVersionKind(blueprint.GroupVersionKind)
	out, err := BlueprintTransform(object)
	if err != nil {
		t.Fatal(err)
	}
	got := out.(*unstructured.Unstructured)
	if want := map[string]string{"note": "x"}; !reflect.DeepEqual(got.GetAnnotations(), want) ||
		len(got.Object["spec"].(map[string]any)["resources"].([]any)) != 1 {
		t.Errorf("cached %v", got)
	}
}

// Fields of a newer version are described by a mark, which users cannot set.
func TestBlueprintTransform_MarksUnknownFields(t *testing.T) {
	for name, test := range map[string]struct {
		fields map[string]any
		want   string
	}{
		"none": {},
		"some": {
			fields: map[string]any{"later": "x", "resources": []any{map[string]any{
				"id": "a", "template": map[string]any{"any": "field"}, "future": true,
			}}},
			want: `unknown field "later", unknown field "resources[0].future"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := websitesBlueprint()
			b.Annotations = map[string]string{blueprint.UnknownFieldsAnnotation: "forged", "note": "x"}
			object := asObject(t, b)
			object.SetGroupVersionKind(blueprint.GroupVersionKind)
			maps.Copy(object.Object["spec"].(map[string]any), test.fields)
			out, err := BlueprintTransform(object)
			if err != nil {
				t.Fatal(err)
			}
			annotations := out.(*unstructured.Unstructured).GetAnnotations()
			if got := annotations[blueprint.UnknownFieldsAnnotation]; got != test.want || annotations["note"] != "x" {
				t.Errorf("got annotations %v, want %q", annotations, test.want)
			}
			again, err := BlueprintTransform(out.(*unstructured.Unstructured).DeepCopy())
			if err != nil || !reflect.DeepEqual(again, out) {
				t.Errorf("the second transform returned %v, %v", again, err)
			}
		})
	}
}

// one reads a single object.
type one struct {
	handlers.Reader
	object *unstructured.Unstructured
	reads  int
}

func (o *one) Get(context.Context, schema.GroupVersionResource, string, string) (*unstructured.Unstructured, error) {
	o.reads++
	return o.object, nil
}

func TestCacheReader_ReadsOmittedContentLive(t *testing.T) {
	for bytes, reads := range map[int]int{100: 0, maxCachedBytes: 1} {
		object := configMap(bytes)
		live := &one{object: object}
		reader := cacheReader{
			Reader: &one{object: transformed(t, object.DeepCopy())}, live: live,
			canRead: func(context.Context, schema.GroupVersionResource, string) bool { return true },
		}
		got, err := reader.Get(t.Context(), schema.GroupVersionResource{}, "default", "large")
		if err != nil || !reflect.DeepEqual(got, object) {
			t.Errorf("%d bytes: got %v, %v", bytes, got, err)
		}
		if live.reads != reads {
			t.Errorf("%d bytes: got %d live reads, want %d", bytes, live.reads, reads)
		}
	}
}

func websitesBlueprint() *blueprint.Blueprint {
	b := chain(1)
	b.UID, b.Generation = "u", 1
	return b
}

// asObject returns the Blueprint in the form in which the API server returns it.
func asObject(t *testing.T, b *blueprint.Blueprint) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}
