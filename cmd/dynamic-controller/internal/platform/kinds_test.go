package platform

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestKindsThatAreRefused(t *testing.T) {
	known := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	for name, test := range map[string]struct {
		made []string // apiVersion kind
		want []string
	}{
		"one that there is":           {made: []string{"v1 ConfigMap"}},
		"one that there is not":       {[]string{"v1 ConfigMip"}, []string{"spec.resources[0].template: there is no kind ConfigMip in v1"}},
		"one in two versions":         {[]string{"v1 ConfigMap", "v2 ConfigMap"}, []string{"there is no kind ConfigMap in v2", "spec.resources[1].template.apiVersion: is v2"}},
		"Blueprints":                  {[]string{"v1 ConfigMap", "platform.example.com/v1alpha1 Blueprint"}, []string{"spec.resources[1].template.kind: an instance cannot become a Blueprint"}},
		"types, in any version":       {[]string{"apiextensions.k8s.io/v9 CustomResourceDefinition"}, []string{"spec.resources[0].template.kind: an instance cannot become a CustomResourceDefinition"}},
		"but not others' of its name": {[]string{"example.com/v1 Blueprint"}, []string{"there is no kind Blueprint in example.com/v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{}
			for _, made := range test.made {
				apiVersion, kind, _ := strings.Cut(made, " ")
				b.Spec.Resources = append(b.Spec.Resources, blueprint.Resource{Template: map[string]any{"apiVersion": apiVersion, "kind": kind}})
			}
			// Those that are refused are there, as in any cluster.
			mapping := &meta.RESTMapping{}
			got := unknownKinds(b, map[schema.GroupVersionKind]*meta.RESTMapping{
				known: mapping, blueprint.GroupVersionKind: mapping,
				{Group: "apiextensions.k8s.io", Version: "v9", Kind: "CustomResourceDefinition"}: mapping,
			})
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
