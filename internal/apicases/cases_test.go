package apicases_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/internal/apicases"
)

func TestAll_NamesAreUnique(t *testing.T) {
	names := sets.New[string]()
	for _, c := range apicases.All() {
		if c.Name == "" || names.Has(c.Name) {
			t.Errorf("the name %q is empty, or not unique", c.Name)
		}
		names.Insert(c.Name)
	}
	for name, reason := range apicases.Differences {
		if !names.Has(name) || reason == "" {
			t.Errorf("the difference %q has no reason, or is not that of a case", name)
		}
	}
}
