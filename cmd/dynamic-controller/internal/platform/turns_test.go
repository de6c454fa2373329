package platform

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
	"github.com/dynamic-controller/engine/handlers"
)

// chain is a Blueprint of which an instance becomes so many ConfigMaps, each of which needs the one before. With a text of
// 100,000 letters each costs about 1/100 of what a step may, which is more than it takes.
func chain(length int) *blueprint.Blueprint {
	b := &blueprint.Blueprint{Spec: making("Wheel")}
	b.Name, b.Spec.Resources = "websites", nil
	b.Spec.Type.Schema = map[string]any{"properties": map[string]any{"spec": map[string]any{"type": "object", "properties": map[string]any{
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

// bringing is what is done with the instances of a Blueprint, by a leader whose cache shows at once what is applied.
func bringing(t *testing.T, b *blueprint.Blueprint) (*instances, *fakeServer) {
	t.Helper()
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	kinds := append(compiled.Kinds(), website)
	p, mapper := fakePlatform(nil, nil, kinds...)
	server, engine := newFakeServer(kinds), newFakeEngine()
	server.applied = func(object *unstructured.Unstructured) {
		if object.GetLabels()[parentKey] != "" {
			_ = engine.secondary.Add(object)
		}
	}
	f := facts{kinds: map[schema.GroupVersionKind]*meta.RESTMapping{}}
	for _, gvk := range compiled.Kinds() {
		if f.kinds[gvk], err = mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
			t.Fatal(err)
		}
	}
	running := &program{gvr: websites, spec: b.Spec, compiled: compiled, kinds: childKinds(b, compiled, f)}
	running.children, err = handlers.NewChildren(handlers.ChildrenConfig{Client: server, Mapper: mapper, Name: Name, Cache: handlers.Live(server), Kinds: p.followedKinds(b, running, nil)})
	if err != nil {
		t.Fatal(err)
	}
	reader := whole{Reader: handlers.Cached(running.listerOf(engine)), live: handlers.Live(server)}
	return &instances{program: running, engine: engine, reader: reader, status: statusWriter{client: server}}, server
}

var (
	website     = schema.GroupVersionKind{Group: "shop.example.com", Version: "v1", Kind: "Website"}
	websites, _ = meta.UnsafeGuessKindToResource(website)
	flowers     = dynamiccontroller.ObjectIdentifiers{GVR: websites, NamespacedKey: "shop/flowers"}
)

// newFlowers is an instance that the server has.
func newFlowers(t *testing.T, server *fakeServer) *unstructured.Unstructured {
	t.Helper()
	self := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"text": strings.Repeat("a", 100_000)}}}
	self.SetGroupVersionKind(website)
	self.SetNamespace(flowers.Namespace())
	self.SetName(flowers.Name())
	self.SetUID("flowers")
	if err := server.Tracker().Add(self); err != nil {
		t.Fatal(err)
	}
	return self
}

// Each step costs less than one may, and all of them together many times that: others have their turn in between, and it is
// no failure.
func TestALongChainOfCostlyResourcesIsMadeInSeveralTurns(t *testing.T) {
	const length = 60
	k, server := bringing(t, chain(length))
	self := newFlowers(t, server)
	made, calls := 0, 0
	for {
		step, err := k.bringAbout(t.Context(), flowers, self)
		calls++
		if err == nil && step.Ready {
			break
		}
		if !errors.Is(err, errGoesOn) || len(step.Problems) > 0 {
			t.Fatalf("call %d ended with %v and %v", calls, step.Problems, err)
		}
		if _, requeue := dynamiccontroller.RequeueDelay(err); !requeue {
			t.Fatalf("it is a failure: %v", err)
		}
		now := len(server.writes)
		if now <= made {
			t.Fatalf("call %d wrote nothing", calls)
		}
		made = now
	}
	// The n-th step costs some n/90 of what one may: the calls do ever less, and never less than one step.
	if calls < 10 || calls > length {
		t.Errorf("it took %d calls", calls)
	}
	if writes := server.took(); len(writes) != length+1 {
		t.Errorf("there were %d writes of %d children and an inventory", len(writes), length)
	}
	if _, err := k.bringAbout(t.Context(), flowers, self); err != nil || len(server.took()) > 0 {
		t.Errorf("once all is there it ends with %v, or writes", err)
	}
}

// What kinds there may be is known before there are any: they are recorded on the instance at once.
func TestTheKindsOfAllResourcesAreRecordedInOneWrite(t *testing.T) {
	b := chain(2)
	b.Spec.Resources[1].Template["kind"] = "Secret"
	k, server := bringing(t, b)
	if _, err := k.bringAbout(t.Context(), flowers, newFlowers(t, server)); err != nil {
		t.Fatal(err)
	}
	if got := server.took(); !slices.Equal(got, []string{"patch websites flowers", "patch configmaps r0", "patch secrets r1"}) {
		t.Errorf("written: %q", got)
	}
}
