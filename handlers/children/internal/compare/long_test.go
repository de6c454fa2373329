package compare

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// longList returns an object with n ports, the entries of its managedFields, and a configuration that changes the name
// of the first port.
func longList(t testing.TB, n int) (entries ownership.Entries, config, object map[string]any) {
	t.Helper()
	var fields []string
	list := func(first string) map[string]any {
		var ports []any
		for i := range n {
			name := fmt.Sprint("p", i)
			if i == 0 {
				name = first
			}
			ports = append(ports, map[string]any{"name": name, "port": int64(1000 + i), "protocol": "TCP"})
		}
		return map[string]any{"spec": map[string]any{"ports": ports}}
	}
	for i := range n {
		fields = append(fields, fmt.Sprintf(
			`"k:{\"port\":%d,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{}}`, 1000+i))
	}
	owner := &unstructured.Unstructured{Object: map[string]any{}}
	owner.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "m", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:ports":{` + strings.Join(fields, ",") + `}}}`),
	}})
	entries, err := ownership.Of(owner)
	if err != nil {
		t.Fatal(err)
	}
	return entries, list("renamed"), list("p0")
}

// Everything that a reconcile compares, for a long list with keys.
func BenchmarkLongList(b *testing.B) {
	for _, n := range []int{275, 1100} {
		b.Run(fmt.Sprintf("items=%d", n), func(b *testing.B) {
			entries, config, object := longList(b, n)
			for b.Loop() {
				EditedItems(Edits{Entries: entries, Manager: "m", Again: true}, config, object)
				ForeignItems(entries, config, object)
				StoredDifferently(entries, "m", config, object)
				Emptied(entries, "m", config)
				Leftovers(entries, entries, "m", config, object)
			}
		})
	}
}

func TestLongList(t *testing.T) {
	entries, config, object := longList(t, 300)
	edited, kept := EditedItems(Edits{Entries: entries, Manager: "m", Again: true}, config, object)
	if len(edited) > 0 || len(kept) > 0 || len(ForeignItems(entries, config, object)) > 0 {
		t.Errorf("got the edited items %v, and %v", edited, kept)
	}
	if path := StoredDifferently(entries, "m", config, object); FieldOf(path) != "spec.ports.name" {
		t.Errorf("got the difference %v", path)
	}
	spec := config["spec"].(map[string]any)
	ports := spec["ports"].([]any)
	spec["ports"] = ports[:299]
	if foreign := ForeignItems(entries, config, object); len(foreign) != 1 {
		t.Errorf("got the foreign items %v", foreign)
	}
	spec["ports"] = []any{}
	want := fieldpath.MakePathOrDie("spec", "ports")
	if emptied := Emptied(entries, "m", config); len(emptied) != 1 || !emptied[0].Equals(want) {
		t.Errorf("emptied: %v", emptied)
	}
}
