package instances

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestInventoryNames_AssumesAllKindsIfOmitted(t *testing.T) {
	entries := "Brake.parts.example.com=v1/brakes"
	for name, test := range map[string]struct {
		inventory string
		bytes     int
		want      bool
	}{
		"an inventory that names the kind":                {entries + ",Wheel.parts.example.com=v1/wheels", 0, true},
		"an inventory with a stage and a namespace":       {"Wheel.parts.example.com:1@far", 0, true},
		"an inventory with packed namespaces":             {entries + ",Wheel.parts.example.com=v1/wheels:0;Uy4t", 0, true},
		"packed namespaces that look like the kind":       {entries + ";,Wheel.parts.example.com", 0, false},
		"an inventory without the kind":                   {entries, 0, false},
		"an inventory with a longer kind":                 {"Wheel.parts.example.com.x=v1/wheels", 0, false},
		"no inventory":                                    {"", 0, false},
		"a large instance with an inventory that is kept": {entries, maxCachedBytes, false},
		"a large instance with a large inventory": {
			strings.Repeat(entries+",", maxKeptBytes/len(entries)), maxCachedBytes, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			instance := configMap(test.bytes)
			instance.SetAnnotations(map[string]string{resourceAnnotation: "a", appliedAnnotation: "hash"})
			if test.inventory != "" {
				instance.SetAnnotations(map[string]string{resourceAnnotation: "a", appliedAnnotation: "hash",
					inventoryAnnotation: test.inventory})
			}
			wheel := schema.GroupKind{Group: "parts.example.com", Kind: "Wheel"}
			if got := InventoryNames(transformed(t, instance), wheel); got != test.want {
				t.Errorf("InventoryNames = %t", got)
			}
		})
	}
}
