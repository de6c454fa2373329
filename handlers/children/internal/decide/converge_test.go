package decide

import (
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// A list leaves the child, and a client has set a field of one of its items. The API server refuses the child until the
// Reconciler owns the whole item.
func TestAvoidRefusal_TakesOverSharedItemsOfARemovedList(t *testing.T) {
	const (
		wholeItem = `{"f:spec":{"f:ports":{"k:{\"port\":80}":{".":{},"f:port":{}}}}}`
		itsName   = `{"f:spec":{"f:ports":{"k:{\"port\":80}":{"f:name":{}}}}}`
		another   = `{"f:spec":{"f:size":{}}}`
	)
	shared := fieldpath.MakePathOrDie("spec", "ports", fieldpath.KeyByFields("port", 80))
	name := append(shared.Copy(), fieldpath.FieldNameElement("name"))
	for when, test := range map[string]struct {
		config, others string
		want           []fieldpath.Path
	}{
		"a client owns a field of the item": {`{spec: {}}`, itsName, []fieldpath.Path{shared}},
		"a client owns the item":            {`{spec: {}}`, wholeItem, nil},
		"no client owns a part of it":       {`{spec: {}}`, another, nil},
		"the list stays":                    {`{spec: {ports: []}}`, itsName, nil},
		"the parent of the list leaves":     {`{}`, itsName, nil},
	} {
		t.Run(when, func(t *testing.T) {
			current := &unstructured.Unstructured{Object: parsed(t, `{spec: {ports: [{port: 80, name: web}]}}`)}
			current.SetManagedFields([]metav1.ManagedFieldsEntry{
				{
					Manager: "platform.example.com", Operation: metav1.ManagedFieldsOperationApply,
					FieldsV1: metav1.NewFieldsV1(wholeItem),
				},
				{
					Manager: "other", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(test.others),
				},
			})
			entries, err := ownership.Of(current)
			if err != nil {
				t.Fatal(err)
			}
			v := convergence{
				childDecision: &childDecision{
					Child: &Child{}, parent: testParent(), known: &Known{},
					config: &unstructured.Unstructured{Object: parsed(t, test.config)},
				},
				entries: entries,
			}
			repaired, moved := v.avoidRefusal(current, apierrors.NewInvalid(schema.GroupKind{Kind: "Widget"}, "a", nil))
			if !slices.EqualFunc(moved, test.want, fieldpath.Path.Equals) || (repaired == nil) != (test.want == nil) {
				t.Fatalf("moved %v, want %v; got the entries %v", moved, test.want, repaired)
			}
			for _, entry := range repaired {
				if isOurs := entry.Manager == "platform.example.com"; entry.Set.Has(name) != isOurs {
					t.Errorf("manager %s owns %v", entry.Manager, entry.Set)
				}
			}
		})
	}
}
