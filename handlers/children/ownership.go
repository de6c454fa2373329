package children

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// Selector returns a selector for the children of a parent, including those in other namespaces, by their label
// <name>/parent. The name is the [Config].Name of the parent's [Reconciler]. Anyone who can update an object can set
// the label.
func Selector(parent metav1.Object, kind schema.GroupKind, name string) labels.Selector {
	return decide.Names(name).Selector(parent, kind)
}

// BucketLabel returns the label that contains the bucket of the parent's type on the children of Reconcilers with the
// given [Config.Name], if [Config.LabelBuckets] is set. It is the argument of [dynamiccontroller.WithBucketLabel].
func BucketLabel(name string) string { return decide.Names(name).BucketLabel() }
