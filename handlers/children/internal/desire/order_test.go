package desire

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestGroupOf(t *testing.T) {
	for kind, want := range map[string]int{
		"Namespace": 0, "Namespace.example.com": 2,
		"ServiceAccount": 1, "ServiceAccount.example.com": 2,
		"Role.rbac.authorization.k8s.io": 1, "ClusterRole.rbac.authorization.k8s.io": 1,
		"RoleBinding.rbac.authorization.k8s.io": 2,
		"PriorityClass.scheduling.k8s.io":       1, "RuntimeClass.node.k8s.io": 1,
		"CustomResourceDefinition.apiextensions.k8s.io": 1,
		"Pod": 2, "ConfigMap": 2,
	} {
		if got := groupOf(schema.ParseGroupKind(kind)); got != want || got >= Groups {
			t.Errorf("%s: got %d, want %d", kind, got, want)
		}
	}
}
