package acceptance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// making returns a spec with one template of the given kind.
func making(kind string) blueprint.Spec {
	return blueprint.Spec{
		Type: blueprint.Type{Group: "shop.example.com", Version: "v1", Kind: "Website", Schema: map[string]any{
			"properties": map[string]any{"spec": map[string]any{"type": "object"}},
		}},
		Resources: []blueprint.Resource{{ID: "a", Template: map[string]any{
			"apiVersion": "parts.example.com/v1", "kind": kind, "metadata": map[string]any{"name": "a"},
		}}},
	}
}

// asObject returns the Blueprint in the form in which it is cached.
func asObject(t *testing.T, b *blueprint.Blueprint) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

// madeFor returns the CustomResourceDefinition that the platform creates for a Blueprint.
func madeFor(t *testing.T, b *blueprint.Blueprint, uid string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	crd := compiled.Definition()
	crd.Annotations = map[string]string{ownerNameAnnotation: b.Name, ownerUIDAnnotation: uid}
	return crd
}

// stored returns the revision of the Blueprint in the form in which it is cached.
func stored(t *testing.T, b *blueprint.Blueprint, number int64) *revision {
	t.Helper()
	name, err := revisionName(b)
	if err != nil {
		t.Fatal(err)
	}
	object, err := newRevision("system", name, b, number)
	if err != nil {
		t.Fatal(err)
	}
	object.SetUID(types.UID(name))
	storedObjects.Store(object.GetUID(), object.DeepCopy())
	r, err := readRevision(object)
	if err != nil {
		t.Fatal(err)
	}
	return r.(*revision)
}

// add adds revisions to the cache.
func add(t *testing.T, p *testController, revisions ...*revision) {
	t.Helper()
	for _, r := range revisions {
		if err := p.engine.Secondary.Add(r); err != nil {
			t.Fatal(err)
		}
	}
}

var (
	wheel = schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Wheel"}
	brake = schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Brake"}
)

// generations returns generations of a Blueprint, each with one template of the given kind.
func generations(kinds ...string) (all []*blueprint.Blueprint) {
	for i, kind := range kinds {
		b := &blueprint.Blueprint{Spec: making(kind)}
		b.Name, b.UID, b.Generation = "websites", "u", int64(i+1)
		all = append(all, b)
	}
	return all
}

// decided returns the decision on a Blueprint after a restart with these stored revisions.
func decided(t *testing.T, b *blueprint.Blueprint, revisions []*revision, kinds ...schema.GroupVersionKind) (decision,
	*testController) {
	t.Helper()
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, string(b.UID))}, kinds...)
	add(t, p, revisions...)
	if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
		if _, again := dynamiccontroller.RequeueDelay(err); !again {
			t.Fatal(err)
		}
	}
	d, _ := p.registry.get(b.Name)
	return d, p
}

func TestServe_StoredRevisionWaitsForItsKind(t *testing.T) {
	all := generations("Wheel", "Missing")
	p, mapper := newTestController([]*unstructured.Unstructured{asObject(t, all[1])},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, all[1], "u")})
	add(t, p, stored(t, all[0], 1))

	if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
		t.Fatal(err)
	}
	d, _ := p.registry.get("websites")
	if d.rejection == nil || d.running == nil || !d.cleansUpOnly() || d.loadRejection == nil {
		t.Fatalf("got decision %+v while the kind is unknown", d)
	}
	if serving, _ := p.blueprints.status.serving(d); !strings.Contains(serving.Message, "unknown kind") &&
		!strings.Contains(serving.Message, "unknown kind Wheel") {
		t.Errorf("got Serving condition %+v", serving)
	}
	if names := p.registry.dependentsOfKind(wheel.GroupKind()); !slices.Contains(names, "websites") {
		t.Error("the Blueprint does not depend on the kind")
	}
	mapper.Add(wheel, meta.RESTScopeNamespace)
	if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
		t.Fatal(err)
	}
	if d, _ = p.registry.get("websites"); d.rejection == nil || d.cleansUpOnly() || d.running.generation != 1 ||
		d.loadRejection != nil {
		t.Errorf("got decision %+v after the kind was added", d)
	}
}

// undiscoveredMapper returns the error of restmapper.Mapper for kinds of a group whose discovery fails.
type undiscoveredMapper struct{ meta.RESTMapper }

func (undiscoveredMapper) RESTMapping(gk schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	return nil, fmt.Errorf("no matches for %s: %w", gk, &discovery.ErrGroupDiscoveryFailed{
		Groups: map[schema.GroupVersion]error{{Group: gk.Group, Version: "v1"}: errors.New("unavailable")},
	})
}

// After a restart, instances can be deleted although the API server of a child's kind is not available.
func TestServe_CleansUpWhileTheDiscoveryOfAKindFails(t *testing.T) {
	b := generations("Wheel")[0]
	p, mapper := newTestController([]*unstructured.Unstructured{asObject(t, b)},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "u")}, wheel)
	add(t, p, stored(t, b, 1))
	p.definitions.validator.kinds.mapper = undiscoveredMapper{mapper}
	if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
		t.Fatal(err)
	}
	d, _ := p.registry.get("websites")
	if d.running == nil || !d.cleansUpOnly() || d.rejection == nil ||
		!strings.Contains(d.rejection.message, "the discovery of its group fails") {
		t.Fatalf("got decision %+v while the discovery fails", d)
	}
	p.definitions.validator.kinds.mapper = mapper
	if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
		t.Fatal(err)
	}
	if d, _ = p.registry.get("websites"); d.rejection != nil || d.cleansUpOnly() {
		t.Errorf("got decision %+v once the discovery succeeds", d)
	}
}

func TestServe_OnlyStoredSpecs(t *testing.T) {
	all := generations("Wheel", "Brake", "Missing")
	other := generations("Wheel")[0]
	other.UID = "earlier"
	again := generations("Wheel", "Brake", "Wheel")[2]
	for name, test := range map[string]struct {
		newest  *blueprint.Blueprint
		stored  []*revision
		served  int64 // generation, or 0
		refused bool
	}{
		"first generation not stored yet": {newest: all[0]},
		"first generation stored": {
			newest: all[0],
			stored: []*revision{stored(t, all[0], 1)},
			served: 1,
		},
		"newest generation not stored yet": {
			newest: all[1],
			stored: []*revision{stored(t, all[0], 1)},
			served: 1,
		},
		"newest generation stored": {
			newest: all[1],
			stored: []*revision{stored(t, all[0], 1), stored(t, all[1], 2)},
			served: 2,
		},
		"newest generation rejected": {
			newest:  all[2],
			stored:  []*revision{stored(t, all[1], 2), stored(t, all[0], 1)},
			served:  2,
			refused: true,
		},
		"revision of another Blueprint with the same name": {
			newest:  all[2],
			stored:  []*revision{stored(t, other, 9)},
			refused: true,
		},
		"equal spec of another Blueprint": {newest: all[0], stored: []*revision{stored(t, other, 9)}},
		"old spec applied again, not renumbered yet": {
			newest: again,
			stored: []*revision{stored(t, all[0], 1), stored(t, all[1], 2)},
			served: 2,
		},
		"old spec applied again": {
			newest: again,
			stored: []*revision{stored(t, again, 3), stored(t, all[1], 2)},
			served: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := decided(t, test.newest, test.stored, wheel, brake)
			var served int64
			if !d.cleansUpOnly() {
				served = d.running.generation
			}
			if served != test.served || (d.rejection != nil) != test.refused {
				t.Errorf("got served generation %d and rejection %+v, want generation %d", served, d.rejection, test.served)
			}
		})
	}
}

// Another version of the platform may name the revision differently.
func TestServe_LoadsARevisionOnce(t *testing.T) {
	all := generations("Wheel", "Missing")
	r := stored(t, all[0], 1)
	r.Name = "of-another-version"
	d, p := decided(t, all[1], []*revision{r}, wheel)
	if d.cleansUpOnly() || d.running.Name != r.Name {
		t.Fatalf("got decision %+v", d)
	}
	if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
		t.Fatal(err)
	}
	if again, _ := p.registry.get("websites"); again.running != d.running {
		t.Error("the revision was loaded again")
	}
}

func TestServe_RetriesARevisionThatCannotBeRead(t *testing.T) {
	all := generations("Wheel", "Missing")
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, all[1])},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, all[1], "u")}, wheel)
	r := stored(t, all[0], 1)
	add(t, p, r)
	object, err := newRevision("system", r.Name, all[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	replaced := object.DeepCopy()
	replaced.SetUID("another")
	malformed := object.DeepCopy()
	malformed.SetUID(r.UID)
	delete(malformed.Object, "data")
	for name, server := range map[string]*platformtest.Server{
		"deleted": platformtest.NewServer(nil), "replaced": platformtest.NewServer(nil, replaced),
		"malformed": platformtest.NewServer(nil, malformed),
	} {
		p.use(server, nil)
		err := p.decide(t.Context(), instances.BlueprintID("websites"))
		if _, again := dynamiccontroller.RequeueDelay(err); err == nil || again {
			t.Errorf("%s: got error %v", name, err)
		}
		d, _ := p.registry.get("websites")
		if d.undecided == nil || d.running != nil || !strings.Contains(d.undecided.message, r.Name) {
			t.Errorf("%s: got decision %+v", name, d)
		}
		c, err := p.blueprints.status.conditionsFor(all[1], d)
		if err != nil || c.accepted.Status != metav1.ConditionUnknown ||
			c.serving.Status != metav1.ConditionFalse || c.serving.Reason != reasonUndecided {
			t.Errorf("%s: got conditions %+v, %v", name, c, err)
		}
	}
	object.SetUID(r.UID)
	p.use(platformtest.NewServer(nil, object), nil)
	if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
		t.Fatal(err)
	}
	if d, _ := p.registry.get("websites"); d.cleansUpOnly() || d.running.generation != 1 {
		t.Errorf("got decision %+v for a readable revision", d)
	}
}

func TestServe_IgnoresSpecsInTheStatus(t *testing.T) {
	newest := generations("Wheel", "Missing")[1]
	p, _ := newTestController(nil, []*apiextensionsv1.CustomResourceDefinition{madeFor(t, newest, "u")}, wheel)
	object := asObject(t, newest)
	forged := map[string]any{"generation": int64(1), "revision": "forged",
		"spec": asObject(t, generations("Wheel")[0]).Object["spec"]}
	if err := unstructured.SetNestedMap(object.Object, forged, "status", "served"); err != nil {
		t.Fatal(err)
	}
	if err := p.engine.Objects.Add(object); err != nil {
		t.Fatal(err)
	}
	if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
		t.Fatal(err)
	}
	if d, _ := p.registry.get("websites"); !d.cleansUpOnly() {
		t.Errorf("a spec from the status is served: %+v", d.running)
	}
}

func TestServe_ChecksPermissionsForStoredRevisions(t *testing.T) {
	all := generations("Wheel", "Missing")
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, all[1])},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, all[1], "u")}, wheel)
	add(t, p, stored(t, all[0], 1))
	permissions := &answers{allowed: map[string]bool{"get": true}}
	p.allow(permissions)
	if _, again := dynamiccontroller.RequeueDelay(p.decide(t.Context(), instances.BlueprintID("websites"))); !again {
		t.Error("missing permissions are not checked again")
	}
	d, _ := p.registry.get("websites")
	if !d.cleansUpOnly() || d.loadRejection == nil || d.loadRejection.reason != reasonPermission {
		t.Errorf("without permissions: got decision %+v with rejection %+v", d, d.loadRejection)
	}
	permissions.allowed = everything
	if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
		t.Fatal(err)
	}
	if d, _ = p.registry.get("websites"); d.cleansUpOnly() || d.running.generation != 1 {
		t.Errorf("with all permissions: got decision %+v", d)
	}
}

func TestServe_DeletedRevision(t *testing.T) {
	all := generations("Wheel", "Missing")
	d, p := decided(t, all[0], []*revision{stored(t, all[0], 1)}, wheel)
	if d.cleansUpOnly() {
		t.Fatal("the first generation is not served")
	}
	engine := p.engine
	decideAgain := func(b *blueprint.Blueprint) decision {
		t.Helper()
		if err := engine.Objects.Update(asObject(t, b)); err != nil {
			t.Fatal(err)
		}
		if err := p.decide(t.Context(), instances.BlueprintID("websites")); err != nil {
			t.Fatal(err)
		}
		d, _ := p.registry.get("websites")
		return d
	}
	if err := engine.Secondary.Delete(stored(t, all[0], 1)); err != nil {
		t.Fatal(err)
	}
	if d := decideAgain(all[0]); d.cleansUpOnly() {
		t.Error("an accepted spec is no longer served while it is stored again")
	}
	if d := decideAgain(all[1]); !d.cleansUpOnly() {
		t.Error("a deleted revision is served while the newest generation is rejected")
	}
}

// A decision that ignored the stored revisions could stop serving an accepted spec.
func TestServe_WaitsForTheStoredRevisions(t *testing.T) {
	for name, test := range map[string]struct {
		state   dynamiccontroller.TypeState
		decided bool
	}{
		"syncing":   {dynamiccontroller.TypeSyncing, false},
		"forbidden": {dynamiccontroller.TypeForbidden, true},
		"failing":   {dynamiccontroller.TypeFailing, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
				[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "u")}, wheel)
			engine := p.engine
			engine.SecondaryErr = dynamiccontroller.ErrNotSynced
			engine.Statuses = []dynamiccontroller.TypeStatus{{GVR: blueprints, Secondaries: []dynamiccontroller.SecondaryStatus{
				{
					WatchKey:    dynamiccontroller.WatchKey{GVR: definitions},
					WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeForbidden},
				},
				{
					WatchKey:    dynamiccontroller.WatchKey{GVR: controllerRevisions},
					WatchStatus: dynamiccontroller.WatchStatus{State: test.state, Message: "the server's message"},
				},
			}}}
			if _, again := dynamiccontroller.RequeueDelay(p.decide(t.Context(), instances.BlueprintID(b.Name))); !again {
				t.Error("the Blueprint is not requeued")
			}
			d, known := p.registry.get(b.Name)
			if known != test.decided || d.running != nil {
				t.Fatalf("got decision %+v", d)
			}
			if !test.decided {
				return
			}
			serving, _ := p.blueprints.status.serving(d)
			for _, want := range []string{"the server's message", "controllerrevisions.apps in namespace system"} {
				if !strings.Contains(serving.Message, want) {
					t.Errorf("got Serving condition %+v, want %q", serving, want)
				}
			}
			id := instances.BlueprintID(b.Name)
			object := asObject(t, b)
			object.SetDeletionTimestamp(&metav1.Time{Time: deletedAt})
			if _, again := dynamiccontroller.RequeueDelay(p.blueprints.teardown.cleanUp(t.Context(), id, object)); !again {
				t.Error("the Blueprint is cleaned up before its revisions have been read")
			}
		})
	}
}
