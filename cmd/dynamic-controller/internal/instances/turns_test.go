package instances

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// chain returns a Blueprint with the given number of ConfigMaps, each of which depends on the previous one. With a text
// of 100,000 letters, each expression costs about 1/100 of the limit for one step.
func chain(length int) *blueprint.Blueprint {
	b := &blueprint.Blueprint{}
	b.Name = "websites"
	b.Spec.Type = blueprint.Type{Group: "shop.example.com", Version: "v1", Kind: "Website"}
	b.Spec.Type.Schema = map[string]any{"properties": map[string]any{"spec": map[string]any{"type": "object",
		"properties": map[string]any{
			"text": map[string]any{"type": "string"},
		}}}}
	for i := range length {
		data := "${string(self.spec.text.contains('" + strings.Repeat("b", 100) + "'))}"
		if i > 0 {
			data += fmt.Sprintf("${r%d.metadata.name}", i-1)
		}
		b.Spec.Resources = append(b.Spec.Resources, blueprint.Resource{ID: fmt.Sprintf("r%d", i), Template: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": fmt.Sprintf("r%d", i)}, "data": map[string]any{"a": data},
		}})
	}
	return b
}

// newTestReconciler returns a Reconciler whose cache contains everything that it applies.
func newTestReconciler(t *testing.T, b *blueprint.Blueprint) (*Reconciler, *platformtest.Server) {
	t.Helper()
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	kinds := append(compiled.Kinds(), website)
	var references []Child
	for _, r := range b.Spec.Resources {
		if r.ExternalRef != nil {
			gvk := schema.FromAPIVersionAndKind(r.ExternalRef.APIVersion, r.ExternalRef.Kind)
			gvr, _ := meta.UnsafeGuessKindToResource(gvk)
			kinds, references = append(kinds, gvk), append(references, Child{GVK: gvk, GVR: gvr})
		}
	}
	server, engine, mapper := platformtest.NewServer(kinds), platformtest.NewEngine(), platformtest.NewMapper(kinds...)
	server.Applied = func(object *unstructured.Unstructured) {
		if object.GetLabels()[parentLabel] != "" {
			_ = engine.Secondary.Add(object)
		}
	}
	revision := Revision{GVR: websites, Spec: b.Spec, Compiled: compiled, References: references}
	for _, r := range b.Spec.Resources {
		if r.ExternalRef != nil {
			continue
		}
		gvk := kindOf(r)
		metadata, _ := r.Template["metadata"].(map[string]any)
		_, cross := metadata["namespace"]
		followed := children.Kind{GroupKind: gvk.GroupKind(), CrossNamespace: cross}
		revision.Followed = append(revision.Followed, followed)
		i := slices.IndexFunc(revision.Children, func(c Child) bool { return c.GVK == gvk })
		if i < 0 {
			gvr, _ := meta.UnsafeGuessKindToResource(gvk)
			i = len(revision.Children)
			revision.Children = append(revision.Children, Child{GVK: gvk, GVR: gvr})
		}
		revision.Children[i].CrossNamespace = revision.Children[i].CrossNamespace || cross
	}
	r, err := newReconciler(Clients{
		Engine: engine, Client: server, Mapper: mapper, Identities: &fakeIdentities{client: server},
	}, revision)
	if err != nil {
		t.Fatal(err)
	}
	return r, server
}

var (
	website     = schema.GroupVersionKind{Group: "shop.example.com", Version: "v1", Kind: "Website"}
	websites, _ = meta.UnsafeGuessKindToResource(website)
	flowers     = dynamiccontroller.ObjectIdentifiers{GVR: websites, NamespacedKey: "shop/flowers"}
)

// newFlowers creates an instance on the server.
func newFlowers(t *testing.T, server *platformtest.Server) *unstructured.Unstructured {
	t.Helper()
	self := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"text": strings.Repeat("a",
		100_000)}}}
	self.SetGroupVersionKind(website)
	self.SetNamespace(flowers.Namespace())
	self.SetName(flowers.Name())
	self.SetUID("flowers")
	if err := server.Tracker().Add(self); err != nil {
		t.Fatal(err)
	}
	return self
}

// Each step stays within the limit for one step, but all steps together exceed it many times. Other instances are
// reconciled in between, and the instance does not count as failing.
func TestApplyChildren_CostlyChainTakesSeveralReconciles(t *testing.T) {
	const length = 60
	k, server := newTestReconciler(t, chain(length))
	self := newFlowers(t, server)
	made, calls := 0, 0
	for {
		step, err := applyChildren(t, k, self)
		calls++
		if err == nil && step.Ready {
			break
		}
		if !errors.Is(err, errContinue) || len(step.Problems) > 0 {
			t.Fatalf("call %d returned %v and %v", calls, step.Problems, err)
		}
		if _, requeue := dynamiccontroller.RequeueDelay(err); !requeue {
			t.Fatalf("the error counts as a failure: %v", err)
		}
		now := len(server.Writes)
		if now <= made {
			t.Fatalf("call %d wrote nothing", calls)
		}
		made = now
	}
	// Step n costs about n/90 of the limit. Each call therefore takes fewer steps than the previous one, but at least one.
	if calls < 10 || calls > length {
		t.Errorf("got %d calls", calls)
	}
	if writes := server.Took(); len(writes) != length+1 {
		t.Errorf("got %d writes for %d children and an inventory", len(writes), length)
	}
	if _, err := applyChildren(t, k, self); err != nil || len(server.Took()) > 0 {
		t.Errorf("with all children up to date, got %v or a write", err)
	}
}

// The kinds of all resources are known from the start, so they are recorded on the instance in one write.
func TestApplyChildren_RecordsAllKindsInOneWrite(t *testing.T) {
	b := chain(2)
	b.Spec.Resources[1].Template["kind"] = "Secret"
	k, server := newTestReconciler(t, b)
	if _, err := applyChildren(t, k, newFlowers(t, server)); err != nil {
		t.Fatal(err)
	}
	want := []string{"patch websites flowers", "patch configmaps r0", "patch secrets r1"}
	if got := server.Took(); !slices.Equal(got, want) {
		t.Errorf("written: %q", got)
	}
}
