package acceptance

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestUnknownKinds(t *testing.T) {
	known := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	for name, test := range map[string]struct {
		made []string // apiVersion kind
		want []string
	}{
		"a known kind": {made: []string{"v1 ConfigMap"}},
		"an unknown kind": {
			[]string{"v1 ConfigMip"}, []string{"spec.resources[0].template: unknown kind ConfigMip in v1"},
		},
		"two versions of a kind": {
			[]string{"v1 ConfigMap", "v2 ConfigMap"},
			[]string{"unknown kind ConfigMap in v2", "template.apiVersion: version v2 differs from version v1 of the same kind"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{}
			for _, made := range test.made {
				apiVersion, kind, _ := strings.Cut(made, " ")
				b.Spec.Resources = append(b.Spec.Resources,
					blueprint.Resource{Template: map[string]any{"apiVersion": apiVersion, "kind": kind}})
			}
			got := unknownKinds(b, inputs{mappings: map[schema.GroupVersionKind]*meta.RESTMapping{known: {}}})
			if len(got) != len(test.want) {
				t.Fatalf("got %v, want %q", got, test.want)
			}
			for i, want := range test.want {
				if !strings.Contains(got[i].String(), want) {
					t.Errorf("got %s, want %s", got[i], want)
				}
			}
		})
	}
}

func TestKindFinder_IgnoresGuessedKinds(t *testing.T) {
	deployment := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	allow := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "AllowList"}
	p, mapper := newTestController(nil, nil)
	// Like meta's mapper filled from discovery, the mapper contains two guesses for each kind.
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "List"}, meta.RESTScopeRoot)
	for _, kind := range []schema.GroupVersionKind{deployment, allow} {
		lower, list := kind, kind
		lower.Kind, list.Kind = strings.ToLower(kind.Kind), kind.Kind+"List"
		plural, singular := meta.UnsafeGuessKindToResource(kind)
		mapper.AddSpecific(lower, plural, singular, meta.RESTScopeNamespace)
		mapper.AddSpecific(kind, plural, singular, meta.RESTScopeNamespace)
		mapper.Add(list, meta.RESTScopeNamespace)
	}
	for reason, test := range map[string]struct {
		kind  schema.GroupVersionKind
		is    bool
		meant string
	}{
		"a kind":                           {kind: deployment, is: true},
		"a kind whose name ends with List": {kind: allow, is: true},
		"a kind in lower case": {
			schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "deployment"}, false, "Deployment in apps/v1",
		},
		"a list kind": {
			kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DeploymentList"},
		},
		"the generic list": {kind: schema.GroupVersionKind{Version: "v1", Kind: "List"}},
		"a kind of another group": {
			schema.GroupVersionKind{Version: "v1", Kind: "Deployment"}, false, "Deployment in apps/v1",
		},
		"a kind of a removed version": {
			schema.GroupVersionKind{Group: "extensions", Version: "v1beta1", Kind: "Deployment"}, false, "Deployment in apps/v1",
		},
	} {
		b := &blueprint.Blueprint{Spec: blueprint.Spec{Resources: []blueprint.Resource{{Template: map[string]any{
			"apiVersion": test.kind.GroupVersion().String(), "kind": test.kind.Kind}}}}}
		f, err := p.definitions.validator.inputsOf(t.Context(), b, claim{})
		if err != nil {
			t.Fatal(err)
		}
		if is := f.mappings[test.kind] != nil; is != test.is || !strings.HasPrefix(f.suggestions[test.kind], test.meant) ||
			test.meant == "" && f.suggestions[test.kind] != "" {
			t.Errorf("%s: known: %t, suggestion: %q", reason, is, f.suggestions[test.kind])
		}
		if got := fmt.Sprint(unknownKinds(b, f)); test.meant != "" && !strings.Contains(got, "did you mean "+test.meant) {
			t.Errorf("%s: got %s", reason, got)
		}
	}
}
