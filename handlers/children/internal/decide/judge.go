package decide

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// judgementPeriod limits how often dry runs find out why the API server cannot apply the same desired state.
const judgementPeriod = time.Minute

// judge returns a ContentError if the API server could not apply the child because of its content, and err otherwise.
// current is nil if the object does not exist.
func (d *childDecision) judge(current *unstructured.Unstructured, err error) error {
	switch {
	case isTooLarge(err):
		return &ContentError{err, true}
	case !isUnexplained(err) || isContentError(err):
		return err
	}
	last := &d.known.judgement
	if last.hash != d.Hash || d.now.Sub(last.made) > judgementPeriod {
		refuses, known := d.refusesContent(current)
		if !known {
			return err
		}
		*last = judgement{d.Hash, refuses, d.now}
	}
	if last.refuses {
		return &ContentError{err, false}
	}
	return err
}

// refusesContent reports whether the API server can apply the metadata of the child, but not the whole child, in dry
// runs. The first dry run shows that the storage is not the cause, and the second one that the managedFields of the
// object are not. known is false if they do not show the cause.
func (d *childDecision) refusesContent(current *unstructured.Unstructured) (refuses, known bool) {
	if !isUnexplained(d.tryApply(current, d.config)) {
		return false, false
	}
	metadata := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": d.config.GetAPIVersion(), "kind": d.config.GetKind(), "metadata": d.config.Object["metadata"],
	}}
	err := d.tryApply(current, metadata)
	refuses = err == nil || IsRejection(err) // the metadata alone can be invalid
	return refuses, refuses || isUnexplained(err)
}

// tryApply applies a configuration of the child in a dry run, under the conditions under which the child is applied.
func (d *childDecision) tryApply(current, config *unstructured.Unstructured) error {
	config = config.DeepCopy()
	if current == nil {
		config.SetResourceVersion(createOnlyVersion)
	} else {
		config.SetUID(current.GetUID())
		config.SetResourceVersion(current.GetResourceVersion())
	}
	return d.ask(Operation{
		Kind: TryApply, Reason: "an error of the API server does not show whether the content is the cause",
		Object: config, Manager: d.manager(), Force: current != nil,
	}).Err
}
