package instances

import (
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Counts are the numbers of instances.
type Counts struct{ Total, Ready, Failing int64 }

// requestCount enqueues the Blueprint, so that its instances are counted. Further requests have no effect until then.
func (r *Reconciler) requestCount() {
	if !r.uncounted.Swap(true) {
		r.engine.Enqueue(BlueprintID(r.Blueprint))
	}
}

// Count counts the instances in the cache. It returns false if the cache has not synced. In that case, the Blueprint is
// reconciled after the cache has synced.
func (r *Reconciler) Count() (counts Counts, ok bool) {
	lister, err := r.engine.Lister(r.GVR)
	if err != nil {
		return Counts{}, false
	}
	all, err := dynamiccontroller.NewTypedLister[countedInstance](lister)
	if err != nil {
		return Counts{}, false
	}
	r.uncounted.Store(false) // later changes cause another count
	for instance, err := range all.All("", nil) {
		if errors.Is(err, dynamiccontroller.ErrNotSynced) || errors.Is(err, dynamiccontroller.ErrNotServed) {
			return Counts{}, false
		}
		counts.Total++
		if err != nil {
			continue // the status is malformed
		}
		switch isReady, reason := instance.readiness(); {
		case isReady:
			counts.Ready++
		case isFailing(reason):
			counts.Failing++
		}
	}
	return counts, true
}

// countedInstance has the fields of an instance that are needed to count it. Decoding only these fields takes a
// fraction of the time needed to decode the whole instance.
type countedInstance struct {
	Metadata struct {
		Generation int64 `json:"generation"`
	} `json:"metadata"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// readiness returns the status and the reason of the Ready condition, if it belongs to the instance's generation.
func (i *countedInstance) readiness() (isReady bool, reason string) {
	condition := meta.FindStatusCondition(i.Status.Conditions, conditionReady)
	if condition == nil || condition.ObservedGeneration != i.Metadata.Generation {
		return false, ""
	}
	return condition.Status == metav1.ConditionTrue, condition.Reason
}
