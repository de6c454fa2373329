package platform

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// making is a spec whose instances become one object of the kind.
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

// asObject is the Blueprint as a cache has it.
func asObject(t *testing.T, b *blueprint.Blueprint) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

// madeFor is the definition that the platform made for a Blueprint.
func madeFor(t *testing.T, b *blueprint.Blueprint, uid string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd, err := blueprint.Definition(b)
	if err != nil {
		t.Fatal(err)
	}
	crd.Annotations = map[string]string{madeForKey: b.Name, madeByKey: uid}
	return crd
}

func TestWhatRanBeforeRunsWhenWhatItLackedIsThere(t *testing.T) {
	b := &blueprint.Blueprint{Spec: making("Missing")}
	b.Name, b.UID, b.Generation = "websites", "u", 2
	b.Status.Served = &blueprint.Served{Generation: 1, Spec: making("Wheel")}
	p, mapper := fakePlatform([]*unstructured.Unstructured{asObject(t, b)}, []*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "u")})
	wheel := schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Wheel"}

	if err := p.decide(t.Context(), blueprintID(b.Name)); err != nil {
		t.Fatal(err)
	}
	d, _ := p.registry.get(b.Name)
	if d.refusal == nil || d.running == nil || !d.onlyCleans() {
		t.Fatalf("before there is the kind %+v is decided", d)
	}
	if names := p.registry.inKind(wheel.GroupKind()); !slices.Contains(names, b.Name) {
		t.Error("that the kind comes is not told")
	}
	mapper.Add(wheel, meta.RESTScopeNamespace)
	if err := p.decide(t.Context(), blueprintID(b.Name)); err != nil {
		t.Fatal(err)
	}
	if d, _ = p.registry.get(b.Name); d.refusal == nil || d.onlyCleans() || d.running.generation != 1 {
		t.Errorf("when there is the kind %+v is decided", d)
	}
}

func TestWhatTheStatusSaysIsServed(t *testing.T) {
	compiled := &program{compiled: &blueprint.Compiled{}, generation: 3, spec: making("Wheel")}
	there := map[string]any{"generation": int64(3), "spec": map[string]any{"as": "it was"}}
	refused := judgement{refusal: &refusal{reasonInvalid, "x"}}
	for name, test := range map[string]struct {
		decided decision
		there   map[string]any
		want    string // the generation, or nothing
	}{
		"nothing while the newest is served":              {decision{generation: 3, running: compiled}, there, ""},
		"what is served while the newest is refused":      {decision{generation: 4, running: compiled, judgement: refused}, nil, "3"},
		"the same as long as that is it":                  {decision{generation: 4, running: compiled, judgement: refused}, there, "3 as it was"},
		"what was while nothing can be":                   {decision{generation: 4, judgement: refused}, there, "3 as it was"},
		"what was while instances are let go":             {decision{generation: 4, running: &program{}, judgement: refused}, there, "3 as it was"},
		"nothing while nothing is and nothing was":        {decision{generation: 4, judgement: refused}, nil, ""},
		"nothing while the type of an accepted one lacks": {decision{generation: 4}, there, ""},
	} {
		t.Run(name, func(t *testing.T) {
			served, err := wantedServed(test.decided, test.there)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if served != nil {
				got = fmt.Sprint(served["generation"])
			}
			if served != nil && reflect.DeepEqual(served, there) {
				got += " as it was"
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
