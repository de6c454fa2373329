package acceptance

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// referring returns generations of a Blueprint with a Wheel and a reference. The kind of the reference differs between
// the generations.
func referring(kinds ...string) (all []*blueprint.Blueprint) {
	for i, kind := range kinds {
		b := generations("Wheel")[0]
		b.Generation = int64(i + 1)
		b.Spec.Resources = append(b.Spec.Resources, blueprint.Resource{ID: "existing", ExternalRef: &blueprint.ExternalRef{
			APIVersion: wheel.GroupVersion().String(), Kind: kind, Metadata: blueprint.ExternalRefMetadata{Name: "a"},
		}})
		all = append(all, b)
	}
	return all
}

func TestReferences_AreWatchedButNotPruned(t *testing.T) {
	b := referring("Brake")[0]
	d, p := decided(t, b, []*revision{stored(t, b, 1)}, wheel, brake)
	if d.rejection != nil || d.running == nil {
		t.Fatalf("got decision %+v", d)
	}
	if r := d.running.References; len(r) != 1 || r[0].GVK != brake || r[0].GVR.Resource != "brakes" ||
		r[0].Path != "spec.resources[1].externalRef" {
		t.Errorf("got references %+v", r)
	}
	if c := d.running.Children; len(c) != 1 || c[0].GVK != wheel {
		t.Errorf("got children %+v", c)
	}
	if f := d.running.Followed; len(f) != 1 || f[0].Kind != wheel.Kind {
		t.Errorf("followed are %+v", f)
	}
	if names := p.registry.dependentsOfKind(brake.GroupKind()); len(names) != 1 {
		t.Errorf("got Blueprints %q that depend on the kind", names)
	}
}

func TestReferences_AreRejectedUntilTheirKindExists(t *testing.T) {
	all := referring("Brake", "Missing")
	d, p := decided(t, all[1], []*revision{stored(t, all[0], 1)}, wheel)
	if d.rejection == nil ||
		!strings.HasPrefix(d.rejection.message, "spec.resources[1].externalRef: unknown kind Missing in ") {
		t.Fatalf("got rejection %+v", d.rejection)
	}
	for _, kind := range []string{"Missing", "Brake"} { // the kinds of the newest generation and of the stored one
		names := p.registry.dependentsOfKind(schema.GroupKind{Group: wheel.Group, Kind: kind})
		if len(names) != 1 || names[0] != "websites" {
			t.Errorf("%q depend on %s", names, kind)
		}
	}
}

func TestReferences_StoredRevisionIsServed(t *testing.T) {
	all := referring("Brake", "Missing")
	d, _ := decided(t, all[1], []*revision{stored(t, all[0], 1)}, wheel, brake)
	if d.rejection == nil || d.running == nil || d.running.Compiled == nil {
		t.Fatalf("got decision %+v", d)
	}
	if r := d.running.References; len(r) != 1 || r[0].GVK != brake {
		t.Errorf("got references %+v", r)
	}
}

func TestReferences_RequireWatchPermission(t *testing.T) {
	b := referring("Brake")[0]
	p, _ := newTestController(nil, nil, wheel, brake)
	_ = p.engine.Objects.Add(asObject(t, b))
	p.allow(&answers{allowed: map[string]bool{"get": true, "patch": true, "create": true, "delete": true}})
	if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil && !isRequeue(err) {
		t.Fatal(err)
	}
	d, _ := p.registry.get(b.Name)
	if want := "spec.resources[1].externalRef: the platform has no permission to list, watch brakes"; d.rejection == nil ||
		!strings.Contains(d.rejection.message, want) {
		t.Errorf("got rejection %+v, want %q", d.rejection, want)
	}
}
