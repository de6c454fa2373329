package instances

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/test/platformtest"
)

func newTemplate(id, name string, spec map[string]any) blueprint.Resource {
	template := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}
	for field, value := range spec {
		template[field] = value
	}
	return blueprint.Resource{ID: id, Template: template}
}

// granting returns a Blueprint with one resource that can be excluded, and others.
func granting(resources ...blueprint.Resource) *blueprint.Blueprint {
	b := chain(0)
	boolean := map[string]any{"type": "boolean"}
	b.Spec.Type.Schema = map[string]any{"properties": map[string]any{"spec": map[string]any{"type": "object",
		"properties": map[string]any{
			"admin": boolean, "held": boolean, "n": map[string]any{"type": "integer"},
		}}}}
	b.Spec.Resources = resources
	return b
}

// broken is a resource that can be rendered only if n is not zero.
func broken() blueprint.Resource {
	return newTemplate("broken", "broken", map[string]any{"data": map[string]any{"a": "${string(10 / self.spec.n)}"}})
}

func TestExcluded_PrunedFirst(t *testing.T) {
	whenAdmin := func(r blueprint.Resource) blueprint.Resource {
		r.IncludeWhen = []string{"self.spec.admin"}
		return r
	}
	unlessAdmin := func(r blueprint.Resource) blueprint.Resource {
		r.IncludeWhen = []string{"!self.spec.admin"}
		return r
	}
	far := newTemplate("grant", "grant", nil)
	far.Template["metadata"].(map[string]any)["namespace"] = "far"
	renamed := newTemplate("grant", "grant-${string(self.spec.n)}", nil)
	renamed.Template["metadata"].(map[string]any)["namespace"] = "far"
	base := newTemplate("base", "base", nil)
	base.ReadyWhen = []string{"!self.spec.held"}
	for name, c := range map[string]struct {
		resources []blueprint.Resource
		after     map[string]any // the spec, which is {admin: true, held: false, n: 1} at first
		meddle    func(t *testing.T, server *platformtest.Server, self *unstructured.Unstructured)
		deletes   []string
	}{
		"a child found by its name": {
			resources: []blueprint.Resource{whenAdmin(newTemplate("grant", "grant", nil)), broken()},
			after:     map[string]any{"admin": false, "held": false, "n": int64(0)},
			deletes:   []string{"delete configmaps grant"},
		},
		"a child in another namespace, found by its name, after the finalizer was removed": {
			resources: []blueprint.Resource{whenAdmin(far), broken()},
			after:     map[string]any{"admin": false, "held": false, "n": int64(0)},
			meddle: func(_ *testing.T, _ *platformtest.Server, self *unstructured.Unstructured) {
				self.SetFinalizers(nil)
				self.SetAnnotations(nil)
			},
			deletes: []string{"delete configmaps grant"},
		},
		"a child whose name depends on another resource, found by its annotation": {
			resources: []blueprint.Resource{base, whenAdmin(newTemplate("grant", "${base.metadata.name}-grant", nil)), broken()},
			after:     map[string]any{"admin": false, "held": true, "n": int64(0)},
			deletes:   []string{"delete configmaps base-grant"},
		},
		"a child in another namespace whose name has changed": {
			resources: []blueprint.Resource{whenAdmin(renamed), broken()},
			after:     map[string]any{"admin": false, "held": false, "n": int64(0)},
			deletes:   []string{"delete configmaps grant-1"},
		},
		"not an object that another resource now renders": {
			resources: []blueprint.Resource{
				whenAdmin(newTemplate("open", "policy", nil)), unlessAdmin(newTemplate("closed", "policy", nil)), broken(),
			},
			after: map[string]any{"admin": false, "held": false, "n": int64(0)},
		},
		"a child with a name that another resource will use": {
			resources: []blueprint.Resource{
				base, whenAdmin(newTemplate("open", "policy", nil)),
				unlessAdmin(newTemplate("closed", "policy", map[string]any{"data": map[string]any{"a": "${base.metadata.name}"}})),
			},
			after:   map[string]any{"admin": false, "held": true, "n": int64(1)},
			deletes: []string{"delete configmaps policy"},
		},
		"not the object of a waiting resource with the same name": {
			resources: []blueprint.Resource{
				base, unlessAdmin(newTemplate("closed", "policy", nil)),
				whenAdmin(newTemplate("open", "policy", map[string]any{"data": map[string]any{"a": "${base.metadata.name}"}})),
			},
			after: map[string]any{"admin": true, "held": true, "n": int64(1)},
		},
		"not the child of a resource whose includeWhen fails": {
			resources: []blueprint.Resource{whenAdmin(newTemplate("grant", "grant", nil)), broken()},
			after:     map[string]any{"held": false, "n": int64(0)},
		},
		"not an object with the same name that is not a child": {
			resources: []blueprint.Resource{unlessAdmin(newTemplate("grant", "theirs", nil)), broken()},
			after:     map[string]any{"admin": true, "held": false, "n": int64(0)},
			meddle: func(t *testing.T, server *platformtest.Server, _ *unstructured.Unstructured) {
				theirs := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
				theirs.SetNamespace(flowers.Namespace())
				theirs.SetName("theirs")
				if err := server.Tracker().Add(theirs); err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, server := newTestReconciler(t, granting(c.resources...))
			self := newFlowers(t, server)
			self.Object["spec"] = map[string]any{"admin": true, "held": false, "n": int64(1)}
			if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
				t.Fatalf("got %+v, %v", step, err)
			}
			server.Took()
			self.Object["spec"] = c.after
			if c.meddle != nil {
				c.meddle(t, server, self)
			}
			if _, err := applyChildren(t, k, self); err != nil {
				t.Fatal(err)
			}
			writes := server.Took()
			deletes := slices.DeleteFunc(slices.Clone(writes),
				func(write string) bool { return write[:len("delete")] != "delete" })
			if !slices.Equal(deletes, c.deletes) || len(deletes) > 0 && writes[0] != deletes[0] {
				t.Errorf("written: %q, want %q to be deleted first", writes, c.deletes)
			}
		})
	}
}

// Excluded resources are pruned even if the deletion of their instance is blocked by a finalizer of another controller.
func TestExcluded_PrunedOnDeletion(t *testing.T) {
	grant := newTemplate("grant", "grant", nil)
	grant.IncludeWhen = []string{"self.spec.admin"}
	k, server := newTestReconciler(t, granting(grant, newTemplate("other", "other", nil)))
	self := newFlowers(t, server)
	self.Object["spec"] = map[string]any{"admin": true, "held": false, "n": int64(1)}
	if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
		t.Fatalf("got %+v, %v", step, err)
	}
	now := metav1.Now()
	self.SetDeletionTimestamp(&now)
	self.SetFinalizers([]string{"example.com/hold"})
	for _, want := range [][]string{nil, {"delete configmaps grant"}} {
		server.Took()
		admin := want == nil
		self.Object["spec"].(map[string]any)["admin"] = admin
		if err := k.reconcile(t.Context(), flowers, self.DeepCopy()); err != nil && !isRequeue(err) {
			t.Fatal(err)
		}
		if writes := server.Took(); !slices.Equal(writes, want) {
			t.Errorf("admin %t: written: %q, want %q", admin, writes, want)
		}
	}
}
