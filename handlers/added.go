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
	isGone bool                       // whether the object did not exist in the cache
}

// add adds an object, and drops those that were added long ago.
func (a *addedFinalizers) add(id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.order) > 0 && time.Since(a.order[0].at) > addedPeriod {
		if first := a.order[0]; a.objects[first.id] == first && !first.isGone {
			delete(a.objects, first.id)
		}
		a.order = a.order[1:]
	}
	if a.objects == nil {
		a.objects = map[dynamiccontroller.ObjectIdentifiers]*addedFinalizer{}
	}
	added := &addedFinalizer{id: id, at: time.Now(), object: withoutManagedFields(object)}
	a.objects[id], a.order = added, append(a.order, added)
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
	if added := a.objects[id]; added != nil {
		return added.object
	}
	return nil
}

// keep keeps an object that is gone until it is removed.
func (a *addedFinalizers) keep(id dynamiccontroller.ObjectIdentifiers) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if added := a.objects[id]; added != nil {
		added.isGone = true
	}
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
