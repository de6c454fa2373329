package instances

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// childNamed reads a ConfigMap of the instance from the server.
func childNamed(t *testing.T, server *platformtest.Server, name string) *unstructured.Unstructured {
	t.Helper()
	object, err := server.Tracker().Get(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "shop", name)
	if err != nil {
		t.Fatal(err)
	}
	return object.(*unstructured.Unstructured)
}

// Only an instance with dependent children gets a finalizer. It is added in the same write as the inventory.
func TestStages_FollowTheDependencies(t *testing.T) {
	independent := chain(0)
	for _, name := range []string{"a", "b", "c"} {
		independent.Spec.Resources = append(independent.Spec.Resources, newTemplate(name, name, nil))
	}
	excluded := chain(2)
	excluded.Spec.Resources[1].IncludeWhen = []string{"self.spec.text == ''"}
	for name, test := range map[string]struct {
		blueprint *blueprint.Blueprint
		stages    map[string]string // by name of the child
		finalizer bool
	}{
		"each child depends on the previous one": {chain(3), map[string]string{"r0": "", "r1": "1", "r2": "2"}, true},
		"no dependencies":                        {independent, map[string]string{"a": "", "b": "", "c": ""}, false},
		"the dependent child is excluded":        {excluded, map[string]string{"r0": ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			k, server := newTestReconciler(t, test.blueprint)
			self := newFlowers(t, server)
			if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
				t.Fatalf("got %+v, %v", step, err)
			}
			if writes := server.Took(); len(writes) != len(test.stages)+1 {
				t.Errorf("written: %q, want %d children and the inventory", writes, len(test.stages))
			}
			if got := slices.Contains(self.GetFinalizers(), ChildrenFinalizer); got != test.finalizer {
				t.Errorf("the instance has the finalizer: %t, want %t", got, test.finalizer)
			}
			for child, want := range test.stages {
				if got := childNamed(t, server, child).GetAnnotations()[stageAnnotation]; got != want {
					t.Errorf("%s has the stage %q, want %q", child, got, want)
				}
			}
		})
	}
}

func TestChildren_AreRetainedAndAdopted(t *testing.T) {
	b := chain(0)
	kept, adopting := newTemplate("kept", "kept", nil), newTemplate("adopting", "adopting", nil)
	kept.DeletionPolicy, adopting.Adopt = blueprint.Retain, true
	b.Spec.Resources = []blueprint.Resource{kept, adopting}
	k, server := newTestReconciler(t, b)
	self := newFlowers(t, server)
	existing := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	existing.SetNamespace("shop")
	existing.SetName("adopting")
	existing.SetUID("existing")
	if err := server.Tracker().Add(existing); err != nil {
		t.Fatal(err)
	}
	if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
		t.Fatalf("got %+v, %v", step, err)
	}
	child := childNamed(t, server, "kept")
	if len(child.GetOwnerReferences()) > 0 || child.GetAnnotations()[retainedAnnotation] == "" {
		t.Errorf("got the retained child %v", child.Object["metadata"])
	}
	child = childNamed(t, server, "adopting")
	if child.GetUID() != "existing" || len(child.GetOwnerReferences()) != 1 {
		t.Errorf("got the adopted child %v", child.Object["metadata"])
	}
	if len(self.GetFinalizers()) > 0 {
		t.Errorf("the instance has the finalizers %q", self.GetFinalizers())
	}
	// An owner watch does not cover the retained child.
	if options := watches(k.within, k.Revision); len(options) != 2 {
		t.Errorf("got %d watches, want one by owner and one by annotation", len(options))
	}
}

func TestChildren_HaveLabels(t *testing.T) {
	k := &Reconciler{}
	self := &unstructured.Unstructured{}
	self.SetKind("Website")
	self.SetNamespace("shop")
	self.SetName(strings.Repeat("a", 253))
	object := &unstructured.Unstructured{}
	object.SetLabels(map[string]string{"theirs": "a", instanceKindLabel: "Forged"})
	got := k.marked(self, blueprint.Rendered{ID: "page", Object: object}, 1).GetLabels()
	for key, want := range map[string]string{
		managedByLabel: Name, instanceNamespaceLabel: "shop", instanceKindLabel: "Website", resourceLabel: "page",
		"theirs": "a",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if name := got[instanceNameLabel]; !strings.HasPrefix(name, "aaa") || len(name) > validation.LabelValueMaxLength {
		t.Errorf("got the name %q", name)
	}
	object.SetLabels(map[string]string{managedByLabel: "them"})
	self.SetNamespace("")
	got = k.marked(self, blueprint.Rendered{ID: "page", Object: object}, 1).GetLabels()
	if _, has := got[instanceNamespaceLabel]; has || got[managedByLabel] != "them" {
		t.Errorf("got %v", got)
	}
}

func TestLabelValue(t *testing.T) {
	long := strings.Repeat("a", 253)
	seen := map[string]string{}
	for _, name := range []string{
		"a", "page_", "Page", long, long[:252] + "b", strings.Repeat("a.", 126) + "a", strings.Repeat("a", 63),
	} {
		got := LabelValue(name)
		if problems := validation.IsValidLabelValue(got); len(problems) > 0 {
			t.Errorf("LabelValue(%s) = %s: %v", name, got, problems)
		}
		if other, has := seen[got]; has {
			t.Errorf("LabelValue of both %s and %s is %s", name, other, got)
		}
		seen[got] = name
		if valid := len(validation.IsValidLabelValue(name)) == 0; valid && got != name {
			t.Errorf("LabelValue(%s) = %s", name, got)
		}
	}
}
