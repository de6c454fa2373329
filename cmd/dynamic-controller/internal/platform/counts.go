package platform

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// countEvery is how often a Blueprint's instances are counted at most, and the number written.
const countEvery = time.Second

// count counts the instances in the cache, or says what the status says if that is not to be done yet, and when it is.
func (p *Platform) count(name string, object *unstructured.Unstructured, d decision) (counted map[string]any, wait time.Duration) {
	counted, _, _ = unstructured.NestedMap(object.Object, "status", "instances")
	if counted == nil {
		counted = map[string]any{"total": int64(0), "ready": int64(0), "failing": int64(0)}
	}
	if d.running == nil {
		return counted, 0
	}
	lister, err := p.engines.Instances.Lister(d.running.gvr)
	if err != nil {
		return counted, 0
	}
	if wait := p.counts.due(name, countEvery, time.Now()); wait > 0 {
		return counted, wait
	}
	d.running.uncounted.Store(false) // what happens from now on is counted the next time
	all, err := lister.List(labels.Everything())
	if err != nil {
		return counted, 0 // it has not synced, and is looked at again
	}
	var ready, failing int64
	for _, object := range all {
		if u, ok := object.(*unstructured.Unstructured); ok {
			switch is, reason := isReady(u); {
			case is:
				ready++
			case isFailing(reason):
				failing++
			}
		}
	}
	return map[string]any{"total": int64(len(all)), "ready": ready, "failing": failing}, 0
}

// isReady reads an instance's condition. One of another generation says nothing.
func isReady(instance *unstructured.Unstructured) (is bool, reason string) {
	status, _ := instance.Object["status"].(map[string]any)
	known, _ := conditionsOf(status, []metav1.Condition{{Type: ready}})
	if len(known) == 0 || known[0].ObservedGeneration != instance.GetGeneration() {
		return false, ""
	}
	return known[0].Status == metav1.ConditionTrue, known[0].Reason
}
