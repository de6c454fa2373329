package restmapper

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestM4_PluralOrScopeChangeIsReported replaces a CRD within one publish, as a list after an interrupted watch
// does. The kind and its versions stay the same.
func TestM4_PluralOrScopeChangeIsReported(t *testing.T) {
	widget := func(plural string, namespaced bool) *crd {
		return &crd{
			name: plural + ".example.com", group: "example.com", established: true, versions: []string{"v1"},
			resource: &resource{name: plural, singular: "widget", kind: "Widget", namespaced: namespaced},
		}
	}
	for _, c := range []struct {
		name     string
		old, now *crd
		want     int // changes
	}{
		{"the plural changes", widget("widgets", true), widget("widgetries", true), 1},
		{"the scope changes", widget("widgets", true), widget("widgets", false), 1},
		{"nothing changes", widget("widgets", true), widget("widgets", true), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCatalog()
			w.setCRD(c.old.name, c.old, touchedGroups{})
			old := w.group("example.com")
			groups := touchedGroups{}
			if c.now.name != c.old.name {
				w.setCRD(c.old.name, nil, groups)
			}
			w.setCRD(c.now.name, c.now, groups)
			now := w.group("example.com")
			changes := difference(old, now, groups.in("example.com"))
			if len(changes) != c.want {
				t.Fatalf("got %d changes, want %d", len(changes), c.want)
			}
			if c.want == 0 {
				return
			}
			change := changes[0]
			if want := (schema.GroupKind{Group: "example.com", Kind: "Widget"}); change.kind != want {
				t.Errorf("got a change to %s, want %s", change.kind, want)
			}
			resource, scope := c.now.resource, meta.RESTScopeNamespace
			if !resource.namespaced {
				scope = meta.RESTScopeRoot
			}
			if len(change.now) != 1 || change.now[0].Resource.Resource != resource.name || change.now[0].Scope != scope {
				t.Errorf("got the new mappings %v, want plural %q and scope %s", change.now, resource.name, scope.Name())
			}
		})
	}
}
