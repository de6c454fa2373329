package acceptance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

func childKindOf(kind string, elsewhere bool) children.Kind {
	return children.Kind{GroupKind: schema.GroupKind{Group: "parts.example.com", Kind: kind}, CrossNamespace: elsewhere}
}

func TestFollowed_IncludesKindsOfAllRevisions(t *testing.T) {
	all := generations("Wheel", "Brake", "Spoke", "Missing")
	all[1].Spec.Resources[0].Template["metadata"].(map[string]any)["namespace"] = "elsewhere"
	earlier := generations("Engine")[0]
	earlier.UID = "earlier"
	spoke, engine, other := wheel, wheel, wheel
	spoke.Kind, engine.Kind, other.Kind = "Spoke", "Engine", "Other"
	revisions := func() []*revision {
		return []*revision{stored(t, all[0], 1), stored(t, all[1], 2), stored(t, all[2], 3), stored(t, earlier, 9)}
	}
	want := []children.Kind{
		childKindOf("Brake", true), childKindOf("Engine", false),
		childKindOf("Spoke", true), childKindOf("Wheel", false),
	}
	for name, test := range map[string]struct {
		newest *blueprint.Blueprint
		cleans bool
	}{
		"newest generation served":   {all[2], false},
		"newest generation rejected": {all[3], false},
		"all generations rejected":   {all[3], true},
		"Blueprint being deleted":    {all[2], true},
	} {
		t.Run(name, func(t *testing.T) {
			want := slices.Clone(want)
			object := asObject(t, test.newest)
			p, mapper := newTestController(nil, []*apiextensionsv1.CustomResourceDefinition{madeFor(t, test.newest, "u")}, wheel,
				brake, engine)
			mapper.Add(spoke, meta.RESTScopeRoot)
			if test.cleans && test.newest == all[3] {
				p.allow(&answers{})
			} else if test.cleans {
				object.SetDeletionTimestamp(&metav1.Time{Time: deletedAt})
				if err := unstructured.SetNestedField(object.Object, "Delete", "spec", "deletionPolicy"); err != nil {
					t.Fatal(err)
				}
			}
			_ = p.engine.Objects.Add(object)
			add(t, p, revisions()...)
			if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil && !isRequeue(err) {
				t.Fatal(err)
			}
			d, _ := p.registry.get("websites")
			if d.running == nil || d.cleansUpOnly() != test.cleans {
				t.Fatalf("got decision %+v", d)
			}
			if !slices.Equal(d.running.Followed, want) {
				t.Errorf("got followed kinds %v, want %v", d.running.Followed, want)
			}
			added := stored(t, earlier, 10)
			added.Name, added.kinds = "added", []templateKind{{GroupVersionKind: other}}
			checkAddedKind(t, p, added, d.running)
		})
	}
}

// checkAddedKind adds a stored revision with the kind Other and removes it. The kind must be followed immediately. The
// served revision must not be restarted when the kind is no longer needed.
func checkAddedKind(t *testing.T, p *testController, added *revision, running *servedRevision) {
	t.Helper()
	for _, step := range []struct {
		change func()
		same   bool
	}{
		{func() { add(t, p, added) }, false},
		{func() { _ = p.engine.Secondary.Delete(added) }, true},
	} {
		step.change()
		if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil && !isRequeue(err) {
			t.Fatal(err)
		}
		d, _ := p.registry.get("websites")
		if (d.running == running) != step.same || !slices.Contains(d.running.Followed, childKindOf("Other", true)) {
			t.Errorf("got followed kinds %v; same served revision: %t", d.running.Followed, d.running == running)
		}
		running = d.running
	}
}

func TestTrim_KeepsRevisionsWhoseKindsAreInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := generations("Wheel", "Brake", "Wheel", "Brake")
		s := newStoring(t, all[0])
		d := decision{running: &servedRevision{
			Revision: instances.Revision{GVR: websites, Compiled: &blueprint.Compiled{}}, started: time.Now(),
		}}
		inventory := func(text string) {
			instance := &unstructured.Unstructured{Object: map[string]any{}}
			instance.SetName("flowers")
			instance.SetAnnotations(map[string]string{instances.Name + "/inventory": text})
			_ = s.instances.Objects.Add(instance)
		}
		trim := func(b *blueprint.Blueprint, wantKinds string, wantRetry time.Duration) {
			t.Helper()
			b.Spec.RevisionHistoryLimit = ptr.To[int32](0)
			s.see()
			err := s.blueprints.store.trim(t.Context(), b, d)
			retry, again := dynamiccontroller.RequeueDelay(err)
			if err != nil && !again {
				t.Fatal(err)
			}
			kinds := strings.Join(slices.Sorted(maps.Keys(s.see())), " ")
			if kinds != wantKinds || retry != wantRetry {
				t.Errorf("got revisions of %s and a retry after %s; want %s and %s",
					kinds, retry, wantKinds, wantRetry)
			}
		}
		for i, b := range all[:2] {
			if err := s.store(b); err != nil {
				t.Fatal(err)
			}
			s.see()
			d.running.Name, _ = revisionName(all[i])
		}
		inventory("Wheel.parts.example.com=v1/wheels")
		trim(all[1], "Brake Wheel", trimDelay)
		inventory("")
		time.Sleep(trimDelay - time.Second)
		trim(all[1], "Brake Wheel", time.Second) // a reconcile with the earlier revision can still be running
		time.Sleep(time.Second)
		inventory("Wheel.parts.example.com=v1/wheels")
		trim(all[1], "Brake Wheel", trimDelay)
		inventory("Brake.parts.example.com=v1/brakes")
		running := d.running
		d.running = &servedRevision{Revision: running.Revision, started: running.started}
		d.running.Name = "earlier"
		trim(all[1], "Brake Wheel", 0)
		d.running = cleaningUp
		trim(all[1], "Brake Wheel", 0)
		d.running = running
		trim(all[1], "Brake", 0)
	})
}

func TestTrim_DeletesRevisionsWithoutUniqueKinds(t *testing.T) {
	all := generations("Wheel", "Wheel", "Wheel")
	s := newStoring(t, all[0])
	for i, b := range all {
		b.Spec.RevisionHistoryLimit, b.Spec.AllowedNamespaces = ptr.To[int32](1), []string{fmt.Sprint("ns-", i)}
		if err := s.store(b); err != nil {
			t.Fatal(err)
		}
		s.see()
	}
	if err := s.blueprints.store.trim(t.Context(), all[2], decision{}); err != nil {
		t.Fatal(err)
	}
	s.see()
	if h, err := s.definitions.cache.history("websites"); err != nil || len(h) != 2 {
		t.Errorf("got %d revisions (%v), want 2", len(h), err)
	}
}
