package decide

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// removal is the state of a Decision about a child that is deleted or released.
type removal struct {
	*asker
	parent *Parent
	// isChild is the rule that the object must meet.
	isChild func(*Parent, metav1.Object, Namespace) (bool, error)
	bucket  string // of the parent's type
}

// BeginDeletion begins the deletion of an object. It is deleted if it is still a child when it is deleted. If the
// parent no longer exists, it must be a child of exactly this parent. The decision must be stopped.
func BeginDeletion(parent *Parent, object *unstructured.Unstructured, parentIsGone bool, now time.Time) *Decision {
	return begin(now, func(a *asker) Verdict {
		r := removal{asker: a, parent: parent, isChild: IsChild}
		if parentIsGone {
			r.isChild = IsExactly
		}
		outcome, err := r.repeat(object, "it is not desired", r.delete)
		return Verdict{Outcome: outcome, Err: err}
	})
}

// BeginRelease begins the release of a marked child that is kept although its parent is deleted: it loses its mark, and
// the label with the bucket of the parent's type. The decision must be stopped.
func BeginRelease(parent *Parent, object *unstructured.Unstructured, bucket string, now time.Time) *Decision {
	return begin(now, func(a *asker) Verdict {
		r := removal{asker: a, parent: parent, isChild: IsChild, bucket: bucket}
		outcome, err := r.repeat(object, "the dependents of the parent are orphaned", r.release)
		return Verdict{Outcome: outcome, Err: err}
	})
}

// repeat removes an object if it is still a child. After a conflict, the object is read, and everything is decided
// again.
func (r *removal) repeat(
	object *unstructured.Unstructured, reason Reason, remove func(*unstructured.Unstructured, Reason) (bool, error),
) (Outcome, error) {
	current := object
	for attempt := 1; ; attempt++ {
		isChild, err := r.isChild(r.parent, current, r.namespaceUID)
		if err != nil || !isChild {
			return Unchanged, err
		}
		removed, err := remove(current, reason)
		switch {
		case err == nil && removed:
			return Removed, nil
		case IsGone(err):
			return Vanished, nil
		case !apierrors.IsConflict(err) || attempt == maxAttempts:
			return Unchanged, err
		}
		if current, err = r.readAfterConflict(object); err != nil {
			return Unchanged, err
		}
		if current == nil {
			return Vanished, nil
		}
	}
}

// delete deletes the given version of an object, unless it is being deleted already.
func (r *removal) delete(current *unstructured.Unstructured, reason Reason) (bool, error) {
	if current.GetDeletionTimestamp() != nil && !IsDeletionStuck(current) {
		return false, nil
	}
	return true, r.ask(Operation{
		Kind: Delete, Reason: reason, UID: current.GetUID(), ResourceVersion: current.GetResourceVersion(),
	}).Err
}

// release removes the mark of an object.
func (r *removal) release(current *unstructured.Unstructured, reason Reason) (bool, error) {
	p := r.parent
	labels := map[string]any{p.ParentLabel(): nil}
	if current.GetLabels()[p.BucketLabel()] == r.bucket {
		labels[p.BucketLabel()] = nil // also if buckets are no longer set
	}
	return true, r.ask(Operation{
		Kind: RemoveMark, Reason: reason, UID: current.GetUID(), ResourceVersion: current.GetResourceVersion(),
		Manager: string(p.Names),
		Patch: map[string]any{"metadata": map[string]any{
			"labels":      labels,
			"annotations": map[string]any{p.ParentLabel(): nil, p.Self(): nil, p.Restored(): nil},
		}},
	}).Err
}
