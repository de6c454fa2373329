package children

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
)

func TestRecordedKinds(t *testing.T) {
	parent := &metav1.ObjectMeta{Annotations: map[string]string{
		"platform.example.com/inventory": "Widget.example.com=v1/widgets:2@far@near,ConfigMap,Not=/valid:0",
		"other.example.com/inventory":    "Secret=v1/secrets:0",
	}}
	want := []RecordedKind{
		{
			GroupKind:  schema.GroupKind{Group: "example.com", Kind: "Widget"},
			GVR:        schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
			Namespaces: []string{"far", "near"},
		},
	}
	if diff := cmp.Diff(want, RecordedKinds(parent, "platform.example.com")); diff != "" {
		t.Error(diff)
	}
	if got := RecordedKinds(&metav1.ObjectMeta{}, "platform.example.com"); got != nil {
		t.Errorf("without an inventory: got %v", got)
	}
}

func TestRecordedKinds_OfManyNamespaces(t *testing.T) {
	var all inventory.Inventory
	namespaces := make([]string, 1000)
	for i := range namespaces {
		namespaces[i] = fmt.Sprintf("test-%04d", i)
	}
	for _, kind := range []string{"Kind000", "Kind001"} {
		entry := inventory.New(schema.GroupKind{Kind: kind}, configMaps)
		entry.Namespaces = namespaces
		all = append(all, entry)
	}
	text, _ := all.Annotation(nil, inventory.MaxBytes).(string)
	if !strings.Contains(text, ";") {
		t.Fatalf("the inventory is not packed: %.100s", text)
	}
	parent := newWidget()
	parent.SetAnnotations(map[string]string{"platform.example.com/inventory": text})
	for _, kind := range RecordedKinds(parent, "platform.example.com") {
		if !slices.Equal(kind.Namespaces, namespaces) {
			t.Errorf("%s has %d namespaces", kind.GroupKind, len(kind.Namespaces))
		}
	}
	recorded := newReconciler(t, Config{Client: newFakeServer()}).Recorded(parent)
	for namespace, want := range map[string]bool{namespaces[0]: true, namespaces[999]: true, "theirs": false} {
		if got := recorded(schema.GroupKind{Kind: "Kind001"}, namespace); got != want {
			t.Errorf("%s: got %t", namespace, got)
		}
	}
}
