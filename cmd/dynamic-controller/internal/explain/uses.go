package explain

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// readVerbs are the verbs that a ServiceAccount needs on existing objects that instances refer to.
var readVerbs = []string{"get", "list", "watch"}

// uses are the objects that a Blueprint creates and refers to. The resources are guessed from the kinds, so those with
// irregular plurals are missing.
type uses struct {
	created, read map[schema.GroupResource]bool
	namespaces    []string // that templates set literally
}

func usesOf(b *blueprint.Blueprint) uses {
	u := uses{created: map[schema.GroupResource]bool{}, read: map[schema.GroupResource]bool{}}
	for _, r := range b.Spec.Resources {
		if ref := r.ExternalRef; ref != nil {
			u.read[resourceFor(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))] = true
			continue
		}
		template := &unstructured.Unstructured{Object: r.Template}
		u.created[resourceFor(template.GroupVersionKind())] = true
		if namespace := template.GetNamespace(); namespace != "" {
			u.namespaces = append(u.namespaces, namespace)
		}
	}
	return u
}

func resourceFor(kind schema.GroupVersionKind) schema.GroupResource {
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	return plural.GroupResource()
}

// includes reports whether instances in the given namespace need the denied permission.
func (u uses) includes(d denial, namespace string) bool {
	resource := schema.GroupResource{Group: d.group, Resource: d.resource}
	writes := slices.Contains(childVerbs, d.verb) && u.created[resource]
	reads := slices.Contains(readVerbs, d.verb) && u.read[resource]
	return d.subresource == "" && (writes || reads) && d.namespace != "" &&
		(d.namespace == namespace || slices.Contains(u.namespaces, d.namespace))
}
