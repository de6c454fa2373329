package desire

import "k8s.io/apimachinery/pkg/runtime/schema"

// Groups is the number of groups in a stage. Groups are applied one after another.
const Groups = 3

// groupOf returns 0 for namespaces, 1 for kinds whose objects the API server looks up when it creates others, and 2 for
// all other kinds: a Pod is rejected while its ServiceAccount does not exist.
func groupOf(kind schema.GroupKind) int {
	switch kind {
	case schema.GroupKind{Kind: "Namespace"}:
		return 0
	case schema.GroupKind{Kind: "ServiceAccount"},
		schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "Role"},
		schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"},
		schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"},
		schema.GroupKind{Group: "node.k8s.io", Kind: "RuntimeClass"},
		schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		return 1
	}
	return 2
}
