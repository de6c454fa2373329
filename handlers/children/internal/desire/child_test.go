package desire

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// What a Reconciler adds to a child depends on whether an owner reference to the parent has an effect. The hash is left
// out; see hash_test.go.
func TestNew_MetadataOfChildren(t *testing.T) {
	owner := []any{map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "name": "p", "uid": "parent", "controller": true,
		"blockOwnerDeletion": true,
	}}
	identity := decide.IdentityLabel("Widget.example.com/default/p")
	const record = `{"parent":"Widget.example.com/default/p","uid":"parent","namespaceUID":"namespace"}`
	far := func(spec Spec) Spec { spec.Object.SetNamespace("far"); return spec }
	for situation, test := range map[string]struct {
		change   func(*Input)
		spec     Spec
		stage    int
		want     map[string]any // the metadata
		marked   bool
		requests int // for the UID of the namespace
	}{
		"in the namespace of the parent": {
			spec: configMap(), want: map[string]any{
				"name": "a", "namespace": "default", "ownerReferences": owner,
				"labels": map[string]any{"platform.example.com/parent": "parent"},
			},
		},
		"in a later stage": {
			spec: configMap(annotated("mine", "x")), stage: 2, want: map[string]any{
				"name": "a", "namespace": "default", "ownerReferences": owner,
				"labels":      map[string]any{"platform.example.com/parent": "parent"},
				"annotations": map[string]any{"mine": "x", "platform.example.com/stage": "2"},
			},
		},
		"in another namespace": {
			change: crossNamespace(configMapKind), spec: far(configMap()), marked: true, requests: 1, want: map[string]any{
				"name": "a", "namespace": "far", "labels": map[string]any{"platform.example.com/parent": identity},
				"annotations": map[string]any{
					"platform.example.com/self":   "far/a",
					"platform.example.com/parent": record,
				},
			},
		},
		"in another namespace, written by an identity": {
			change: func(in *Input) {
				crossNamespace(configMapKind)(in)
				in.Parent.Writer = "team"
			},
			spec: far(configMap()), marked: true, requests: 1, want: map[string]any{
				"name": "a", "namespace": "far", "labels": map[string]any{"platform.example.com/parent": identity},
				"annotations": map[string]any{
					"platform.example.com/self": "far/a",
					"platform.example.com/parent": `{"parent":"Widget.example.com/default/p","uid":"parent",` +
						`"namespaceUID":"namespace","as":"team"}`,
				},
			},
		},
		"cluster-scoped": {
			change: crossNamespace(namespaceKind), spec: Spec{Object: newObject("v1", "Namespace", "", "a")},
			marked: true, requests: 1, want: map[string]any{
				"name": "a", "labels": map[string]any{"platform.example.com/parent": identity},
				"annotations": map[string]any{
					"platform.example.com/self":   "a",
					"platform.example.com/parent": record,
				},
			},
		},
		"retained": {
			spec: configMap(retained), marked: true, want: map[string]any{
				"name": "a", "namespace": "default", "labels": map[string]any{"platform.example.com/parent": identity},
				"annotations": map[string]any{
					"platform.example.com/self":        "default/a",
					"platform.example.com/parent":      `{"parent":"Widget.example.com/default/p","uid":"parent"}`,
					"platform.example.com/retained-by": "Widget.example.com/default/p",
				},
			},
		},
		"with the bucket of the parent's type": {
			change: func(in *Input) { in.Parent.Buckets = true }, spec: configMap(), want: map[string]any{
				"name": "a", "namespace": "default", "ownerReferences": owner,
				"labels": map[string]any{"platform.example.com/parent": "parent", "platform.example.com/bucket": "7"},
			},
		},
		"with another owner, and fields that the API server sets": {
			spec: configMap(func(s *Spec) {
				s.Object.Object["status"] = map[string]any{"x": "y"}
				s.Object.Object["metadata"] = map[string]any{
					"name": "a", "uid": "x", "resourceVersion": "1", "generation": int64(1), "managedFields": []any{},
					"creationTimestamp": nil, "deletionTimestamp": nil, "deletionGracePeriodSeconds": int64(1), "selfLink": "x",
					"ownerReferences": []any{
						map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "another"},
						map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "name": "p", "uid": "parent"},
					},
					"finalizers": []any{"mine"},
				}
			}),
			want: map[string]any{
				"name": "a", "namespace": "default", "finalizers": []any{"mine"},
				"ownerReferences": append([]any{
					map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "another"},
				}, owner...),
				"labels": map[string]any{"platform.example.com/parent": "parent"},
			},
		},
	} {
		t.Run(situation, func(t *testing.T) {
			in := newInput(t)
			if test.change != nil {
				test.change(&in)
			}
			requests, namespace := 0, in.Namespace
			in.Namespace = func() (types.UID, error) { requests++; return namespace() }
			before := test.spec.Object.DeepCopy()
			desired := stages(make([][]Spec, test.stage+1)...)
			desired.Stages[test.stage] = []Spec{test.spec}
			set, err := New(in, desired)
			if err != nil {
				t.Fatal(err)
			}
			child := set.Stages[test.stage][0].Ready
			if d := cmp.Diff(before, test.spec.Object); d != "" {
				t.Errorf("the caller's object has been changed: %s", d)
			}
			if child.Marked != test.marked || requests != test.requests {
				t.Errorf("the child is marked: %t; read the namespace %d times", child.Marked, requests)
			}
			if d := cmp.Diff(test.want, metadataOf(t, child)); d != "" {
				t.Errorf("the metadata differs (-want +got):\n%s", d)
			}
			if child.Template.Object["status"] != nil {
				t.Error("the status is applied")
			}
		})
	}
}

// metadataOf returns the metadata of a child without the hash. It fails the test if this is not the hash of the child.
func metadataOf(t *testing.T, child *decide.Child) any {
	t.Helper()
	object := child.Template.DeepCopy()
	if object.GetAnnotations()[testNames.Applied()] != child.Hash || child.Hash == "" {
		t.Errorf("got the hash %q, and the annotations %v", child.Hash, object.GetAnnotations())
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "annotations", testNames.Applied())
	if len(object.GetAnnotations()) == 0 {
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations")
	}
	return object.Object["metadata"]
}

func TestNew_IdentifiesChildren(t *testing.T) {
	spec := Spec{Object: newObject("example.com/v1", "Widget", "", "a"), Adopt: true}
	child := one(t, newInput(t), spec)
	if child.Kind != widgetKind || child.Name != "default/a" || child.Mapping.Resource != widgets || !child.Spec.Adopt {
		t.Errorf("got %+v", child)
	}
	ready := child.Ready
	if ready.ID != "widgets.v1.example.com default/a" || ready.GroupKind != widgetKind || ready.Resource != widgets ||
		!ready.Adopt || ready.Retain || ready.Recreate || len(ready.Kept) > 0 {
		t.Errorf("got %+v", ready)
	}
	if kept := one(t, newInput(t), configMap(retained)).Ready; !kept.Retain || kept.Adopt {
		t.Errorf("got the retained child %+v", kept)
	}
	if core := one(t, newInput(t), configMap()).Ready; core.ID != "configmaps.v1 default/a" {
		t.Errorf("got the ID %s", core.ID)
	}
}

// The size limits how many children are applied at the same time.
func TestNew_SizeIsThatOfTheConfiguration(t *testing.T) {
	small, large := one(t, newInput(t), configMap()).Size, one(t, newInput(t), configMap(valued(fmt.Sprint(1<<20)))).Size
	if content, _ := json.Marshal(configMap().Object); small < int64(len(content)) || large <= small {
		t.Errorf("got %d and %d bytes", small, large)
	}
}
