package instances

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Counts holds the number of instances, in total and by state.
type Counts struct{ Total, Ready, Failing int64 }

// requestCount enqueues the Blueprint so that its instances are counted. Further calls have no effect until the count
// begins.
func (r *Reconciler) requestCount() {
	if !r.uncounted.Swap(true) {
		r.engine.Enqueue(BlueprintID(r.Blueprint))
	}
}

// Count counts the instances in the cache, and calls Survey to move further instances to the newest revision. It
// returns false if the cache has not synced. Once the cache has synced, the Blueprint is reconciled again.
func (r *Reconcilers) Count() (counts Counts, ok bool) {
	lister, err := r.newest.engine.Lister(r.newest.GVR)
	if err != nil {
		return Counts{}, false
	}
	all, err := dynamiccontroller.NewTypedLister[countedInstance](lister)
	if err != nil {
		return Counts{}, false
	}
	began := time.Now()
	r.newest.uncounted.Store(false) // later changes request another count
	var found []rollout.Instance
	for instance, err := range all.All("", nil) {
		if errors.Is(err, dynamiccontroller.ErrNotSynced) || errors.Is(err, dynamiccontroller.ErrNotServed) {
			return Counts{}, false
		}
		counts.Total++
		if err != nil {
			continue // the instance cannot be decoded
		}
		switch instance.health() {
		case rollout.Ready:
			counts.Ready++
		case rollout.Failing:
			counts.Failing++
		}
		if instance.Metadata.DeletionTimestamp == nil {
			found = append(found, instance.state())
		}
	}
	r.Survey(found)
	r.took.Store(int64(time.Since(began)))
	return counts, true
}

// countedInstance contains the fields of an instance that are needed to count it. Decoding only these fields takes a
// fraction of the time needed to decode the whole instance.
type countedInstance struct {
	Metadata struct {
		Namespace         string       `json:"namespace"`
		Name              string       `json:"name"`
		Generation        int64        `json:"generation"`
		CreationTimestamp metav1.Time  `json:"creationTimestamp"`
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		Annotations       struct {
			Paused string `json:"platform.example.com/paused"`
		} `json:"annotations"`
	} `json:"metadata"`
	Status countedStatus `json:"status"`
}

type countedStatus struct {
	Conditions []metav1.Condition `json:"conditions"`
	Revision   any                `json:"revision"` // an existing schema can declare any type
}

// UnmarshalJSON ignores malformed conditions, so that they do not exclude the instance from a rollout.
func (s *countedStatus) UnmarshalJSON(data []byte) error {
	type fields countedStatus
	if err := json.Unmarshal(data, (*fields)(s)); err == nil {
		return nil
	}
	var lenient struct {
		Revision any `json:"revision"`
	}
	_ = json.Unmarshal(data, &lenient) // on error, the revision remains empty
	*s = countedStatus{Revision: lenient.Revision}
	return nil
}

// ready returns the Ready condition, or nil if it describes an earlier generation of the instance.
func (i *countedInstance) ready() *metav1.Condition {
	condition := meta.FindStatusCondition(i.Status.Conditions, conditionReady)
	if condition == nil || condition.ObservedGeneration != i.Metadata.Generation {
		return nil
	}
	return condition
}

func (i *countedInstance) health() rollout.Health {
	if ready := i.ready(); ready != nil {
		return healthOf(ready)
	}
	return rollout.Waiting
}

func (i *countedInstance) state() rollout.Instance {
	revision, _ := i.Status.Revision.(string)
	state := rollout.Instance{
		Key:      cache.NewObjectName(i.Metadata.Namespace, i.Metadata.Name).String(),
		Revision: revision, Created: i.Metadata.CreationTimestamp.Time, Health: i.health(), Reason: reasonWaiting,
		Regressed: meta.IsStatusConditionTrue(i.Status.Conditions, ConditionRegressed),
		Paused:    i.Metadata.Annotations.Paused == "true",
	}
	for _, c := range i.Status.Conditions {
		if c.Status == metav1.ConditionTrue && (c.Type == conditionReady || c.Type == ConditionRegressed) {
			state.Changed = c.LastTransitionTime.Time // an instance is never both ready and regressed
		}
	}
	if state.Health == rollout.Failing {
		state.Reason = i.ready().Reason
	}
	return state
}
