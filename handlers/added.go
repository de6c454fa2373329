package handlers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

const (
	// addedPeriod is longer than a deletion can take that began before a finalizer was added. API servers end requests
	// after a minute by default.
	addedPeriod = 10 * time.Minute
	// lagInterval is the delay before an object that the cache does not hold, but that exists, is reconciled again.
	lagInterval = time.Second
)

// addedFinalizers holds the objects to which a run has recently added a finalizer.
type addedFinalizers struct {
	mu      sync.Mutex // guards the fields below
	objects map[dynamiccontroller.ObjectIdentifiers]*addedFinalizer
	order   []*addedFinalizer // by time; some have been removed from objects
}

type addedFinalizer struct {
	id     dynamiccontroller.ObjectIdentifiers
	at     time.Time
	object *unstructured.Unstructured // without managedFields
	goneAt time.Time                  // when the object was found to be gone, or zero
}

// add adds an object.
func (a *addedFinalizers) add(id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expireLocked()
	if a.objects == nil {
		a.objects = map[dynamiccontroller.ObjectIdentifiers]*addedFinalizer{}
	}
	added := &addedFinalizer{id: id, at: time.Now(), object: withoutManagedFields(object)}
	a.objects[id], a.order = added, append(a.order, added)
}

// expireLocked drops the objects that were added long ago, except those that are gone and not yet cleaned up.
func (a *addedFinalizers) expireLocked() {
	for len(a.order) > 0 && time.Since(a.order[0].at) > addedPeriod {
		if first := a.order[0]; a.objects[first.id] == first && first.goneAt.IsZero() {
			delete(a.objects, first.id)
		}
		a.order[0] = nil
		a.order = a.order[1:]
	}
}

// update replaces the state of an object, if it is held.
func (a *addedFinalizers) update(id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if added := a.objects[id]; added != nil && added.object.GetUID() == object.GetUID() {
		added.object = withoutManagedFields(object)
	}
}

// of returns the last known state of an object with the identifiers, or nil.
func (a *addedFinalizers) of(id dynamiccontroller.ObjectIdentifiers) *unstructured.Unstructured {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expireLocked()
	if added := a.objects[id]; added != nil {
		return added.object
	}
	return nil
}

// keep keeps an object that is gone until it is removed. It returns the time of the first call for the object.
func (a *addedFinalizers) keep(id dynamiccontroller.ObjectIdentifiers) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	added := a.objects[id]
	if added == nil {
		return time.Now()
	}
	if added.goneAt.IsZero() {
		added.goneAt = time.Now()
	}
	return added.goneAt
}

func (a *addedFinalizers) remove(id dynamiccontroller.ObjectIdentifiers) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.objects, id)
}

func withoutManagedFields(object *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	return object
}
