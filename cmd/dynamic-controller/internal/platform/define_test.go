package platform

import (
	"testing"
	"time"

	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// A cache may show a Blueprint that is gone. No definition is made for it, which nobody would delete.
func TestADefinitionIsMadeForABlueprintThatIsThere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(live *unstructured.Unstructured) // nil if there is none
		fails  error
		made   bool
	}{
		"it is there":         {change: func(*unstructured.Unstructured) {}, made: true},
		"it is gone":          {},
		"another is":          {change: func(live *unstructured.Unstructured) { live.SetUID("another") }},
		"it is being deleted": {change: func(live *unstructured.Unstructured) { live.SetDeletionTimestamp(&metav1.Time{Time: time.Now()}) }},
		"nobody can tell":     {change: func(*unstructured.Unstructured) {}, fails: apierrors.NewServiceUnavailable("etcd is down")},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{Spec: making("Wheel")}
			b.Name, b.UID = "websites", "u"
			p, _ := fakePlatform(nil, nil)
			server := newFakeServer(nil)
			if c.change != nil {
				live := asObject(t, b)
				live.SetGroupVersionKind(blueprint.GroupVersionKind)
				c.change(live)
				if err := server.Tracker().Add(live); err != nil {
					t.Fatal(err)
				}
			}
			if c.fails != nil {
				server.fails("get", b.Name, c.fails)
			}
			crds := crdfake.NewClientset()
			p.client, p.crds = server, crds
			err := p.define(t.Context(), b, decision{judgement: judgement{definition: madeFor(t, b, "u")}})
			if (err != nil) != (c.fails != nil) {
				t.Errorf("define: %v", err)
			}
			if made := len(crds.Actions()) > 0; made != c.made {
				t.Errorf("it was made: %t, want %t", made, c.made)
			}
		})
	}
}
