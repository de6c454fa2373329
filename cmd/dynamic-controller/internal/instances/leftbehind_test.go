package instances

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Another finalizer can keep an instance after the platform's finalizer has been removed.
func TestDeletion_KeepsTheConditionAboutChildrenLeftBehind(t *testing.T) {
	for reason, want := range map[string]string{
		reasonLeftBehind: "some are left",
		reasonDeleting:   "waiting for the instance to be released",
	} {
		now, self := metav1.Now(), &unstructured.Unstructured{Object: map[string]any{
			"status": map[string]any{"conditions": []any{map[string]any{
				"type": conditionReady, "status": "False", "reason": reason, "message": "some are left",
				"lastTransitionTime": "2026-01-01T12:00:00Z",
			}}},
		}}
		self.SetDeletionTimestamp(&now)
		self.SetFinalizers([]string{"example.com/other"})
		if got := deletion(self, nil, nil, nil); got.Reason != reason || !strings.HasPrefix(got.Message, want) {
			t.Errorf("after %s: got %+v, want %s", reason, got, want)
		}
	}
}
