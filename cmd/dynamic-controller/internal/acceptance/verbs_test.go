package acceptance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/test/platformtest"
)

func TestUnsupportedKinds(t *testing.T) {
	group := schema.GroupVersion{Group: "parts.example.com", Version: "v1"}
	for name, test := range map[string]struct {
		plural     string
		scope      meta.RESTScope
		verbs      []string // nil for all verbs
		isExternal bool
		want       string // the missing verbs
	}{
		"all verbs": {"wheels", meta.RESTScopeNamespace, nil, false, ""},
		"create only": {
			"wheels", meta.RESTScopeRoot, []string{"create"}, false, "get, list, watch, patch, delete",
		},
		"no verbs": {
			"wheels", meta.RESTScopeRoot, []string{}, false, "get, list, watch, create, patch, delete",
		},
		"no watch": {
			"wheels", meta.RESTScopeRoot, []string{"create", "delete", "get", "list", "patch"}, false, "watch",
		},
		"read-only": {
			"wheels", meta.RESTScopeRoot, []string{"get", "list", "watch"}, false, "create, patch, delete",
		},
		"a read-only reference":   {"wheels", meta.RESTScopeRoot, []string{"get", "list", "watch"}, true, ""},
		"an unwatched reference":  {"wheels", meta.RESTScopeRoot, []string{"get", "list"}, true, "watch"},
		"the plural watch":        {"watch", meta.RESTScopeNamespace, nil, false, "list, watch"},
		"a cluster-scoped status": {"status", meta.RESTScopeRoot, nil, false, ""},
		"a namespaced status":     {"status", meta.RESTScopeNamespace, nil, false, "get, create, patch, delete"},
	} {
		t.Run(name, func(t *testing.T) {
			gvk, resource := group.WithKind("Wheel"), group.WithResource(test.plural)
			mapper := platformtest.NewMapper()
			if test.verbs != nil {
				mapper.Supported[resource] = test.verbs
			}
			mapping := &meta.RESTMapping{Resource: resource, GroupVersionKind: gvk, Scope: test.scope}
			verbs, err := kindFinder{mapper, mapper.Verbs}.unsupported(mapping)
			if err != nil {
				t.Fatal(err)
			}
			r, want := blueprint.Resource{Template: map[string]any{"apiVersion": group.String(), "kind": "Wheel"}}, ""
			path := "template"
			if test.isExternal {
				path = "externalRef"
				r = blueprint.Resource{ExternalRef: &blueprint.ExternalRef{APIVersion: group.String(), Kind: "Wheel"}}
			}
			if test.want != "" {
				want = fmt.Sprintf("spec.resources[0].%s: the API server does not support %s for Wheel in "+
					"parts.example.com/v1; use another kind", path, test.want)
			}
			in := inputs{
				mappings:    map[schema.GroupVersionKind]*meta.RESTMapping{gvk: mapping},
				unsupported: map[schema.GroupVersionKind][]string{gvk: verbs},
			}
			b := &blueprint.Blueprint{Spec: blueprint.Spec{Resources: []blueprint.Resource{r}}}
			if got := unsupportedKinds(b, in); len(got) > 1 || len(got) == 1 && got[0].String() != want ||
				len(got) == 0 && want != "" {
				t.Errorf("got %v, want %s", got, want)
			}
		})
	}
}

func TestRejectMisrouted(t *testing.T) {
	for name, test := range map[string]struct {
		spec blueprint.Type
		crd  *apiextensionsv1.CustomResourceDefinition
		want string
	}{
		"an ordinary type": {spec: blueprint.Type{Group: "a.example.com", Kind: "Watch"}},
		"the plural watch": {
			blueprint.Type{Group: "a.example.com", Kind: "Watch", Plural: "watch"}, nil,
			`spec.type: the API server does not support list, watch for watch.a.example.com, because "watch" has another ` +
				`meaning in the paths of requests; use a type with another plural`,
		},
		"a cluster-scoped Namespace": {
			blueprint.Type{Group: "a.example.com", Kind: "Namespace", Scope: apiextensionsv1.ClusterScoped}, nil,
			"spec.type: the API server does not support delete, get, patch for namespaces.a.example.com",
		},
		"a namespaced Namespace": {spec: blueprint.Type{Group: "a.example.com", Kind: "Namespace"}},
		"an existing type": {
			blueprint.Type{CRD: "watch.a.example.com"}, scoped(apiextensionsv1.NamespaceScoped), "spec.type.crd: ",
		},
		"a type that does not exist": {spec: blueprint.Type{CRD: "watch.a.example.com"}},
		"an existing type of Status": {
			blueprint.Type{CRD: "status.a.example.com"}, scoped(apiextensionsv1.NamespaceScoped), "spec.type.crd: ",
		},
		"an existing, cluster-scoped type of Status": {
			spec: blueprint.Type{CRD: "status.a.example.com"}, crd: scoped(apiextensionsv1.ClusterScoped),
		},
	} {
		t.Run(name, func(t *testing.T) {
			rejected := rejectMisrouted(&blueprint.Blueprint{Spec: blueprint.Spec{Type: test.spec}}, test.crd)
			if (rejected != nil) != (test.want != "") || rejected != nil && !strings.HasPrefix(rejected.message, test.want) {
				t.Errorf("got %+v, want %s", rejected, test.want)
			}
		})
	}
}

func scoped(scope apiextensionsv1.ResourceScope) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Spec.Scope = scope
	return crd
}

// After a kind has lost a verb, the Blueprint is rejected, and its revision remains served, as if the kind were
// unknown.
func TestDecide_KindLosesAVerb(t *testing.T) {
	b := &blueprint.Blueprint{Spec: making("Wheel")}
	b.Name, b.UID, b.Generation = "websites", "u", 1
	p, mapper := newTestController([]*unstructured.Unstructured{asObject(t, b)},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "u")}, wheel)
	add(t, p, stored(t, b, 1))
	decided := func() decision {
		t.Helper()
		if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
			t.Fatal(err)
		}
		d, _ := p.registry.get(b.Name)
		return d
	}
	if d := decided(); d.rejection != nil || d.cleansUpOnly() {
		t.Fatalf("got decision %+v", d)
	}
	wheels, _ := meta.UnsafeGuessKindToResource(wheel)
	mapper.Supported[wheels] = []string{"create", "delete", "get", "patch", "watch"}
	p.KindChanged(wheel.GroupKind())
	d := decided()
	if d.rejection == nil || !strings.Contains(d.rejection.message, "does not support list for Wheel") ||
		d.cleansUpOnly() {
		t.Errorf("without list: got decision %+v", d)
	}
	delete(mapper.Supported, wheels)
	if d := decided(); d.rejection != nil || d.cleansUpOnly() {
		t.Errorf("with list again: got decision %+v", d)
	}
}

// The platform does not clean up after a Blueprint whose type it could not serve, so the list cannot fail.
func TestDecide_MisroutedTypeHasNothingToCleanUp(t *testing.T) {
	b := &blueprint.Blueprint{Spec: making("Wheel")}
	b.Name, b.UID, b.Generation, b.Spec.Type.Plural = "websites", "u", 1, "watch"
	b.DeletionTimestamp, b.Finalizers = &metav1.Time{Time: deletedAt}, []string{finalizer}
	b.Spec.DeletionPolicy = blueprint.Delete
	object := asObject(t, b)
	object.SetGroupVersionKind(blueprint.GroupVersionKind)
	p, _ := newTestController([]*unstructured.Unstructured{object}, nil, wheel)
	server := platformtest.NewServer(nil, object)
	p.use(server, nil)
	id := instances.BlueprintID(b.Name)
	if err := p.decide(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if d, _ := p.registry.get(b.Name); d.rejection == nil || !d.gvr.Empty() || d.running != nil {
		t.Errorf("got decision %+v", d)
	}
	if err := p.blueprints.teardown.cleanUp(t.Context(), id, object); err != nil {
		t.Errorf("the Blueprint cannot be deleted: %v", err)
	}
	if took := server.Took(); slices.ContainsFunc(took, func(w string) bool { return strings.Contains(w, "watch") }) {
		t.Errorf("wrote %q", took)
	}
}
