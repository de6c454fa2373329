package decide

import (
	"testing"
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
	later := start.Add(2 * contestedPeriod)
	config, scaled := sized(1), sized(16, owner("scaler", "Update"))
	for name, test := range map[string]struct {
		change func(*fights) time.Time
		want   bool
	}{
		"changed twice": {func(f *fights) time.Time {
			f.note(config, scaled, manager, start)
			f.correctedAll()
			f.note(config, scaled, manager, start)
			return start
		}, true},
		"changed once": {func(f *fights) time.Time {
			f.note(config, scaled, manager, start)
			return start
		}, false},
		"one change that is seen twice": {func(f *fights) time.Time {
			f.note(config, scaled, manager, start)
			f.note(config, scaled, manager, start)
			return start
		}, false},
		"changed long ago": {func(f *fights) time.Time {
			f.note(config, scaled, manager, start)
			f.correctedAll()
			f.note(config, scaled, manager, start)
			return later
		}, false},
		"one change long ago and one now": {func(f *fights) time.Time {
			f.note(config, scaled, manager, start)
			f.correctedAll()
			f.note(config, scaled, manager, later)
			return later
		}, false},
		"stored differently, and still owned": {func(f *fights) time.Time {
			for range 3 {
				f.note(config, sized(16, owner(manager, "Apply")), manager, start)
				f.correctedAll()
			}
			return start
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var f fights
			now, got := test.change(&f), false
			for _, field := range f.contested {
				got = got || field.isContested(now)
			}
			if got != test.want {
				t.Errorf("the field is contested: %t", got)
			}
		})
	}
}
