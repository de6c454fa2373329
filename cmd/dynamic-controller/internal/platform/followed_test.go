package platform

import (
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

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

func childKindOf(kind string, elsewhere bool) handlers.ChildKind {
	return handlers.ChildKind{GroupKind: schema.GroupKind{Group: "parts.example.com", Kind: kind}, Elsewhere: elsewhere}
}

func TestKindsOfAllRevisionsAreFollowed(t *testing.T) {
	all := generations("Wheel", "Brake", "Spoke", "Missing")
	all[1].Spec.Resources[0].Template["metadata"].(map[string]any)["namespace"] = "elsewhere"
	earlier := generations("Engine")[0]
	earlier.UID = "of an earlier Blueprint"
	spoke, engine, other := wheel, wheel, wheel
	spoke.Kind, engine.Kind, other.Kind = "Spoke", "Engine", "Other"
	revisions := func() []*revision {
		carrying := stored(t, all[1], 2)
		carrying.former = []handlers.ChildKind{childKindOf("Former", true), childKindOf("Wheel", false)}
		return []*revision{stored(t, all[0], 1), carrying, stored(t, all[2], 3), stored(t, earlier, 9)}
	}
	want := []handlers.ChildKind{
		childKindOf("Brake", true), childKindOf("Engine", false), childKindOf("Former", true), childKindOf("Spoke", true), childKindOf("Wheel", false),
	}
	for name, test := range map[string]struct {
		newest *blueprint.Blueprint
		cleans bool
	}{
		"by the newest generation":                       {all[2], false},
		"by the one before, while the newest is refused": {all[3], false},
		"by what only cleans up, while all are refused":  {all[3], true},
		"by what only cleans up, at the Blueprint's end": {all[2], true},
	} {
		t.Run(name, func(t *testing.T) {
			want := slices.Clone(want)
			if test.newest == all[3] {
				want = slices.Insert(want, 3, childKindOf("Missing", true)) // its scope is unknown
			}
			object := asObject(t, test.newest)
			p, mapper := fakePlatform(nil, []*apiextensionsv1.CustomResourceDefinition{madeFor(t, test.newest, "u")}, wheel, brake, engine)
			mapper.Add(spoke, meta.RESTScopeRoot)
			if test.cleans && test.newest == all[3] {
				p.rights = newRights(&answers{})
			} else if test.cleans {
				object.SetDeletionTimestamp(&metav1.Time{Time: deletedAt})
				if err := unstructured.SetNestedField(object.Object, "Delete", "spec", "deletionPolicy"); err != nil {
					t.Fatal(err)
				}
			}
			_ = p.engines.Definitions.(*fakeEngine).objects.Add(object)
			add(t, p, revisions()...)
			if err := p.decide(t.Context(), blueprintID("websites")); err != nil && !isRequeue(err) {
				t.Fatal(err)
			}
			d, _ := p.registry.get("websites")
			if d.running == nil || d.onlyCleans() != test.cleans {
				t.Fatalf("the decision is %+v", d)
			}
			if !slices.Equal(d.running.followed, want) {
				t.Errorf("followed are %v, want %v", d.running.followed, want)
			}
			// A new kind is followed at once. That one is no longer needed is not worth a restart.
			running := d.running
			added := stored(t, earlier, 10)
			added.Name, added.kinds = "added", []templateKind{{GroupVersionKind: other}}
			for _, step := range []struct {
				change func()
				same   bool
			}{
				{func() { add(t, p, added) }, false},
				{func() { _ = p.engines.Definitions.(*fakeEngine).secondary.Delete(added) }, true},
			} {
				step.change()
				if err := p.decide(t.Context(), blueprintID("websites")); err != nil && !isRequeue(err) {
					t.Fatal(err)
				}
				d, _ := p.registry.get("websites")
				if (d.running == running) != step.same || !slices.Contains(d.running.followed, childKindOf("Other", true)) {
					t.Errorf("followed are %v, by the same program: %t", d.running.followed, d.running == running)
				}
				running = d.running
			}
		})
	}
}

func TestKindsOfTrimmedRevisionsAreKept(t *testing.T) {
	all := generations("Wheel", "Brake", "Wheel")
	s := newStoring(t, all[0])
	limit := int32(0)
	for i, b := range all[:2] {
		b.Spec.RevisionHistoryLimit = &limit
		if err := s.store(b); err != nil {
			t.Fatal(err)
		}
		if s.see(); i == 0 {
			continue
		}
		s.server.took()
		if err := s.trimHistory(t.Context(), b, decision{}); err != nil {
			t.Fatal(err)
		}
	}
	// What is lost must have been recorded before.
	writes := s.server.took()
	if len(writes) != 2 || !strings.HasPrefix(writes[0], "patch controllerrevisions") || !strings.HasPrefix(writes[1], "delete controllerrevisions") {
		t.Errorf("written: %q", writes)
	}
	s.see()
	h, err := s.historyOf("websites")
	if err != nil || len(h) != 1 || !slices.Equal(h[0].former, []handlers.ChildKind{childKindOf("Wheel", false)}) {
		t.Fatalf("the history is %+v, %v", h, err)
	}
	// Its own kinds are not former ones.
	all[2].Spec.RevisionHistoryLimit = &limit
	if err := s.store(all[2]); err != nil {
		t.Fatal(err)
	}
	s.see()
	if err := s.trimHistory(t.Context(), all[2], decision{}); err != nil {
		t.Fatal(err)
	}
	s.see()
	if h, err = s.historyOf("websites"); err != nil || len(h) != 1 || !slices.Equal(h[0].former, []handlers.ChildKind{childKindOf("Brake", false)}) {
		t.Errorf("the history is %+v, %v", h[0], err)
	}
}

func TestFormerKindsAreKeptWhileAnInventoryNamesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := generations("Wheel")[0]
		s := newStoring(t, b)
		if err := s.store(b); err != nil {
			t.Fatal(err)
		}
		s.see()
		h, err := s.historyOf("websites")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.setFormerKinds(t.Context(), h[0], []handlers.ChildKind{childKindOf("Brake", true), childKindOf("Spoke", false)}); err != nil {
			t.Fatal(err)
		}
		instances := newFakeEngine()
		s.engines.Instances = instances
		d := decision{running: &program{gvr: websites, compiled: &blueprint.Compiled{}, revision: h[0].Name}}
		inventory := func(text string) {
			instance := &unstructured.Unstructured{Object: map[string]any{}}
			instance.SetName("flowers")
			instance.SetAnnotations(map[string]string{inventoryKey: text})
			_ = instances.objects.Add(instance)
		}
		pass := func() (former []handlers.ChildKind, wait time.Duration) {
			t.Helper()
			s.see()
			err := s.trimHistory(t.Context(), b, d)
			wait, again := dynamiccontroller.RequeueDelay(err)
			if err != nil && !again {
				t.Fatal(err)
			}
			s.see()
			h, err := s.historyOf("websites")
			if err != nil {
				t.Fatal(err)
			}
			return h[0].former, wait
		}
		inventory("Brake.parts.example.com=v1/brakes,Spoke.parts.example.com=v1/spokes,Wheel.parts.example.com=v1/wheels")
		if former, wait := pass(); len(former) != 2 || wait != 0 {
			t.Errorf("with both kinds in an inventory, former are %v, and it looks again in %s", former, wait)
		}
		inventory("Brake.parts.example.com=v1/brakes")
		if former, wait := pass(); len(former) != 2 || wait != formerKindsKept {
			t.Errorf("just after one was pruned, former are %v, and it looks again in %s", former, wait)
		}
		time.Sleep(formerKindsKept - time.Second)
		inventory("Spoke.parts.example.com=v1/spokes")
		if former, wait := pass(); len(former) != 2 || wait != formerKindsKept {
			t.Errorf("when it comes back and the other goes, former are %v, and it looks again in %s", former, wait)
		}
		inventory("Brake.parts.example.com=v1/brakes")
		pass()
		time.Sleep(formerKindsKept)
		if former, _ := pass(); !slices.Equal(former, []handlers.ChildKind{childKindOf("Brake", true)}) {
			t.Errorf("long after one was pruned, former are %v", former)
		}
		d.running.compiled = nil
		inventory("")
		pass()
		time.Sleep(2 * formerKindsKept)
		if former, wait := pass(); len(former) != 1 || wait != 0 {
			t.Errorf("while nothing is served, former are %v, and it looks again in %s", former, wait)
		}
	})
}

func TestAnInventoryThatIsNotCachedNamesEveryKind(t *testing.T) {
	entries := "Brake.parts.example.com=v1/brakes"
	for name, test := range map[string]struct {
		inventory string
		bytes     int
		want      bool
	}{
		"an inventory that names the kind":                {entries + ",Wheel.parts.example.com=v1/wheels", 0, true},
		"an inventory without the kind":                   {entries, 0, false},
		"no inventory":                                    {"", 0, false},
		"a large instance with an inventory that is kept": {entries, maxCachedBytes, false},
		"a large instance with a large inventory":         {strings.Repeat(entries+",", maxKeptBytes/len(entries)), maxCachedBytes, true},
	} {
		t.Run(name, func(t *testing.T) {
			instance := configMap(test.bytes)
			instance.SetAnnotations(map[string]string{resourceKey: "a", appliedKey: "hash"})
			if test.inventory != "" {
				instance.SetAnnotations(map[string]string{resourceKey: "a", appliedKey: "hash", inventoryKey: test.inventory})
			}
			if got := namesKind(transformed(t, instance), wheel.GroupKind()); got != test.want {
				t.Errorf("it names the kind: %t", got)
			}
		})
	}
}

func TestMalformedFormerKindsAreIgnored(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "x": 0, "{}": 0, `[{"kind":3}]`: 0, `[{"kind":""},{"kind":"Secret"}]`: 1, `[{"group":"a","kind":"B","elsewhere":true}]`: 1,
	} {
		if got := decodeKinds(text); len(got) != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// Versions that did not store revisions have left instances with children, and Blueprints that are refused now.
func TestKindsOfABlueprintWithoutRevisionsAreFollowed(t *testing.T) {
	want := []handlers.ChildKind{childKindOf("Wheel", true)}
	for name, change := range map[string]func(*Platform, *unstructured.Unstructured){
		"refused because of its type": func(_ *Platform, object *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(object.Object, "", "spec", "type", "version")
		},
		"refused because of permissions": func(p *Platform, _ *unstructured.Unstructured) { p.rights = newRights(&answers{}) },
		"being deleted": func(_ *Platform, object *unstructured.Unstructured) {
			object.SetDeletionTimestamp(&metav1.Time{Time: deletedAt})
			_ = unstructured.SetNestedField(object.Object, "Delete", "spec", "deletionPolicy")
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			b.Spec.Resources[0].Template["metadata"].(map[string]any)["namespace"] = "elsewhere"
			p, _ := fakePlatform(nil, []*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "u")}, wheel)
			object := asObject(t, b)
			change(p, object)
			_ = p.engines.Definitions.(*fakeEngine).objects.Add(object)
			if err := p.decide(t.Context(), blueprintID("websites")); err != nil && !isRequeue(err) {
				t.Fatal(err)
			}
			d, _ := p.registry.get("websites")
			if d.running == nil || !d.onlyCleans() {
				t.Fatalf("the decision is %+v", d)
			}
			if !slices.Equal(d.running.followed, want) {
				t.Errorf("followed are %v, want %v", d.running.followed, want)
			}
		})
	}
}
