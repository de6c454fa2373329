package children

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A field is handed over only if another client has changed it more than once, lately, each time after a correction.
func TestFights_FieldsAreContested(t *testing.T) {
	const manager = "test.example.com"
	sized := func(n int64, managers ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "A", "metadata": map[string]any{"managedFields": managers},
			"spec": map[string]any{"n": n},
		}}
	}
	owner := func(manager, operation string) any {
		return map[string]any{
			"apiVersion": "v1", "manager": manager, "operation": operation, "fieldsType": "FieldsV1",
			"fieldsV1": map[string]any{"f:spec": map[string]any{"f:n": map[string]any{}}},
		}
	}
	config, scaled := sized(1), sized(16, owner("scaler", "Update"))
	for name, test := range map[string]struct {
		change func(*fights)
		want   bool
	}{
		"changed twice": {func(f *fights) {
			f.note(config, scaled, manager)
			f.correctedAll()
			f.note(config, scaled, manager)
		}, true},
		"changed once": {func(f *fights) { f.note(config, scaled, manager) }, false},
		"one change that is seen twice": {func(f *fights) {
			f.note(config, scaled, manager)
			f.note(config, scaled, manager)
		}, false},
		"changed long ago": {func(f *fights) {
			f.note(config, scaled, manager)
			f.correctedAll()
			f.note(config, scaled, manager)
			time.Sleep(2 * contestedPeriod)
		}, false},
		"one change long ago and one now": {func(f *fights) {
			f.note(config, scaled, manager)
			f.correctedAll()
			time.Sleep(2 * contestedPeriod)
			f.note(config, scaled, manager)
		}, false},
		"stored differently, and still owned": {func(f *fights) {
			for range 3 {
				f.note(config, sized(16, owner(manager, "Apply")), manager)
				f.correctedAll()
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f fights
				test.change(&f)
				got := false
				for _, field := range f.contested {
					got = got || field.isContested()
				}
				if got != test.want {
					t.Errorf("the field is contested: %t", got)
				}
			})
		})
	}
}
