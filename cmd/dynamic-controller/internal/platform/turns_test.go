package platform

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
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

// Each step costs less than one may, and all of them together many times that: others have their turn in between, and it is
// no failure.
func TestALongChainOfCostlyResourcesIsMadeInSeveralTurns(t *testing.T) {
	const length = 60
	b := chain(length)
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	website := schema.GroupVersionKind{Group: "shop.example.com", Version: "v1", Kind: "Website"}
	p, mapper := fakePlatform(nil, nil, website, page)
	self := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"text": strings.Repeat("a", 100_000)}}}
	self.SetGroupVersionKind(website)
	self.SetNamespace("shop")
	self.SetName("flowers")
	self.SetUID("flowers")
	server := newFakeServer([]schema.GroupVersionKind{website, page}, self)
	engine := newFakeEngine()
	server.applied = func(object *unstructured.Unstructured) {
		if object.GetKind() == page.Kind {
			_ = engine.secondary.Add(object)
		}
	}
	p.client, p.engines.Instances = server, engine
	mapping, err := mapper.RESTMapping(page.GroupKind(), page.Version)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := meta.UnsafeGuessKindToResource(website)
	running := &program{gvr: own, spec: b.Spec, compiled: compiled,
		kinds: childKinds(b, compiled, facts{kinds: map[schema.GroupVersionKind]*meta.RESTMapping{page: mapping}})}
	if err := p.equip(running); err != nil {
		t.Fatal(err)
	}
	k := &instances{program: running, engine: engine, status: statusWriter{client: server}}
	id := dynamiccontroller.ObjectIdentifiers{GVR: own, NamespacedKey: "shop/flowers"}

	made, calls := 0, 0
	for {
		step, err := k.bringAbout(t.Context(), id, self)
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
		if now := len(engine.secondary.List()); now <= made {
			t.Fatalf("call %d made nothing of what there are %d", calls, now)
		} else {
			made = now
		}
	}
	// The n-th step costs some n/90 of what one may: the calls do ever less, and never less than one step.
	if calls < 10 || calls > length {
		t.Errorf("it took %d calls", calls)
	}
	before := server.writes
	if _, err := k.bringAbout(t.Context(), id, self); err != nil || server.writes != before {
		t.Errorf("once it is there it ends with %v and %d writes", err, server.writes-before)
	}
}
