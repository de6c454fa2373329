package instances

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/handlers/children"
)

// depths returns the stage of each resource. The stage is 0 if the template refers to no other child. Otherwise, it is
// one more than the highest stage of the children that the template refers to, directly or through references to
// existing objects.
func (r Revision) depths() map[string]int {
	depth, next := map[string]int{}, map[string]int{} // next[id] is the lowest stage of resources that need id
	for _, t := range r.templates() {
		depth[t.ID] = 0
		for _, id := range t.Needs {
			depth[t.ID] = max(depth[t.ID], next[id])
		}
		if next[t.ID] = depth[t.ID]; !t.Reference {
			next[t.ID]++
		}
	}
	return depth
}

// stages returns the rendered children by stage. It includes the stages of waiting resources as empty stages, so that
// one write adds both the finalizer and the inventory to the instance.
func (r *Reconciler) stages(
	self *unstructured.Unstructured, step blueprint.Step, budget int,
) ([][]children.Child, error) {
	last := 0
	for _, rendered := range step.Rendered {
		last = max(last, r.stageOf[rendered.ID])
	}
	for _, waiting := range step.Waiting {
		last = max(last, r.stageOf[waiting.ID])
	}
	stages := make([][]children.Child, last+1)
	ofResource := r.share(budget)
	for _, rendered := range step.Rendered {
		n, share := r.stageOf[rendered.ID], ofResource
		if items, is := step.Collections[rendered.ID]; is {
			share = itemShare(share, items)
		}
		object := r.marked(self, rendered, share)
		if err := generate(object, rendered.Generate); err != nil {
			return nil, err
		}
		stages[n] = append(stages[n], children.Child{
			Object: object, Adopt: rendered.Adopt, KeepExisting: kept(rendered),
			Retain: rendered.DeletionPolicy == blueprint.Retain, OnImmutable: children.OnImmutable(rendered.OnImmutable),
		})
	}
	return stages, nil
}

// marked returns a rendered object with the labels and annotations that the platform adds to children. They take
// precedence over those in the template, except for managedByLabel.
func (r *Reconciler) marked(
	self *unstructured.Unstructured, rendered blueprint.Rendered, share int,
) *unstructured.Unstructured {
	object := rendered.Object.DeepCopy()
	labels := map[string]string{managedByLabel: Name}
	maps.Copy(labels, object.GetLabels())
	labels[instanceNameLabel], labels[instanceKindLabel] = LabelValue(self.GetName()), LabelValue(self.GetKind())
	labels[resourceLabel] = LabelValue(rendered.ID)
	instance := self.GetName()
	if namespace := self.GetNamespace(); namespace != "" {
		labels[instanceNamespaceLabel] = LabelValue(namespace)
		instance = namespace + "/" + instance
	}
	object.SetLabels(labels)
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourceAnnotation], annotations[instanceAnnotation] = rendered.ID, instance
	delete(annotations, budgetAnnotation)
	if r.hasCRD(object.GroupVersionKind()) {
		annotations[budgetAnnotation] = strconv.Itoa(share)
	}
	object.SetAnnotations(annotations)
	return object
}

// LabelValue converts a name to a label value. A name that is not a valid label value, for example because it is too
// long, is replaced with a prefix of the name and a hash.
func LabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	const kept, hashed = 30, 16
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:min(kept, len(name))], "._-") + "-" + hex.EncodeToString(sum[:hashed])
}
