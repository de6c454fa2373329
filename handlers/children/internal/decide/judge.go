package decide

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// judgementPeriod limits how often dry runs find out why the API server cannot apply the same desired state.
const judgementPeriod = time.Minute

// judge returns a ContentError if the API server could not apply the child because of its content, and err otherwise.
// current is nil if the object does not exist.
func (l *life) judge(current *unstructured.Unstructured, err error) error {
	switch {
	case isTooLarge(err):
		return &ContentError{err, true}
	case !isUnexplained(err) || isContentError(err):
		return err
	}
	last := &l.known.judgement
	if last.hash != l.Hash || l.now.Sub(last.made) > judgementPeriod {
		refuses, known := l.refusesContent(current)
		if !known {
			return err
		}
		*last = judgement{l.Hash, refuses, l.now}
	}
	if last.refuses {
		return &ContentError{err, false}
	}
	return err
}

// refusesContent reports whether the API server can apply the metadata of the child, but not the whole child, in dry
// runs. The first dry run shows that the storage is not the cause, and the second one that the managedFields of the
// object are not. known is false if they do not show the cause.
func (l *life) refusesContent(current *unstructured.Unstructured) (refuses, known bool) {
	if !isUnexplained(l.tryApply(current, l.config)) {
		return false, false
	}
	metadata := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": l.config.GetAPIVersion(), "kind": l.config.GetKind(), "metadata": l.config.Object["metadata"],
	}}
	err := l.tryApply(current, metadata)
	refuses = err == nil || IsRejection(err) // the metadata alone can be invalid
	return refuses, refuses || isUnexplained(err)
}

// tryApply applies a configuration of the child in a dry run, under the conditions under which the child is applied.
func (l *life) tryApply(current, config *unstructured.Unstructured) error {
	config = config.DeepCopy()
	if current == nil {
		config.SetResourceVersion(createOnlyVersion)
	} else {
		config.SetUID(current.GetUID())
		config.SetResourceVersion(current.GetResourceVersion())
	}
	return l.ask(Operation{
		Kind: TryApply, Reason: "an error of the API server does not show whether the content is the cause",
		Object: config, Manager: l.manager(), Force: current != nil,
	}).Err
}
