package acceptance

import (
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

func TestValidate_LimitsBlueprintsToTheNamespaces(t *testing.T) {
	for name, test := range map[string]struct {
		scope apiextensionsv1.ResourceScope
		want  string
	}{
		"a namespaced type":     {apiextensionsv1.NamespaceScoped, ""},
		"a cluster-scoped type": {apiextensionsv1.ClusterScoped, "spec.type: must be namespaced, because --namespaces"},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			b.Spec.Type.Scope = test.scope
			if test.want != "" { // a namespaced child of a cluster-scoped instance must set its namespace
				b.Spec.Resources[0].Template["metadata"] = map[string]any{"name": "a", "namespace": "shop"}
			}
			p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)}, nil, wheel)
			reviews := &answers{allowed: everything}
			p.config.Namespaces, p.config.Reviews = []string{"shop", "team"}, reviews
			p.forgetDecisions()
			if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil && !isRequeue(err) {
				t.Fatal(err)
			}
			d, _ := p.registry.get(b.Name)
			if test.want != "" {
				if d.rejection == nil || d.rejection.reason != reasonInvalid || !strings.HasPrefix(d.rejection.message, test.want) {
					t.Errorf("got rejection %+v, want %q", d.rejection, test.want)
				}
				return
			}
			slices.Sort(reviews.namespaces)
			if got := slices.Compact(reviews.namespaces); d.rejection != nil || !slices.Equal(got, []string{"shop", "team"}) {
				t.Errorf("got rejection %+v and reviews in namespaces %q", d.rejection, got)
			}
		})
	}
}

// Namespaced instances are limited to the namespaces. Instances of a cluster-scoped type can remain from before the
// platform was limited.
func TestTeardown_FindsInstancesWithinTheirScope(t *testing.T) {
	for scope, test := range map[meta.RESTScope]struct {
		in   []string // namespaces of the instances
		want []string
	}{
		meta.RESTScopeNamespace: {
			[]string{"shop", "team", "other"}, []string{"delete websites in-shop", "delete websites in-team"},
		},
		meta.RESTScopeRoot: {[]string{""}, []string{"delete websites in-"}},
	} {
		t.Run(string(scope.Name()), func(t *testing.T) {
			var all []metav1.PartialObjectMetadata
			for _, namespace := range test.in {
				all = append(all, partial("in-"+namespace, func(m *metav1.PartialObjectMetadata) { m.Namespace = namespace }))
			}
			e := newEnding(t, blueprint.Delete, all...)
			e.mapper.Add(website, scope)
			e.config.Namespaces = []string{"shop", "team"}
			e.use(nil, nil)
			if err := e.cleanUp(t); !isRequeue(err) {
				t.Fatal(err)
			}
			definition, others := e.written()
			if !slices.Equal(others[:len(others)-1], test.want) || len(definition) > 0 {
				t.Errorf("got CRD writes %q and other writes %q, want %q", definition, others, test.want)
			}
		})
	}
}
