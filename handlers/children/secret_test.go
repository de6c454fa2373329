package children

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
)

// The error contains the child and the field. It does not contain the key or the value.
func TestReconcile_InvalidStringDataIsRejected(t *testing.T) {
	kinds := []Kind{{GroupKind: desire.SecretKind.GroupKind()}}
	reconciler := newReconciler(t, Config{Client: newFakeServer(newWidget()), Kinds: kinds})
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(desire.SecretKind, meta.RESTScopeNamespace)
	reconciler.config.Mapper = mapper
	secret := newObject("v1", "Secret", "", "login")
	secret.Object["stringData"] = map[string]any{"pin": int64(1234)}
	_, err := reconciler.Reconcile(t.Context(), first, newWidget(), oneStage(secret))
	if err == nil {
		t.Fatal("no error")
	}
	for text, want := range map[string]bool{"Secret login": true, "stringData": true, "pin": false, "1234": false} {
		if strings.Contains(err.Error(), text) != want {
			t.Errorf("the error %v contains %q: %t", err, text, !want)
		}
	}
}
