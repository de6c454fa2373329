package handlers

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// expectation is a child that is expected to appear in the cache or to disappear from it.
type expectation struct {
	deleted   bool
	uid       types.UID                  // empty until the response to the create arrives
	create    *unstructured.Unstructured // the create to send again, or nil once its response has arrived
	since     time.Time
	confirmed time.Time // the time of the last read from the API server, initially equal to since
}

// isMetBy reports whether the expectation is met by the cached object with the child's name.
func (e *expectation) isMetBy(cached *unstructured.Unstructured) bool {
	if e.deleted {
		return cached.GetUID() != e.uid || cached.GetDeletionTimestamp() != nil
	}
	return e.uid == "" || cached.GetUID() == e.uid
}

// expectedChildren stores the expectations of a run. The zero value is empty and ready to use.
type expectedChildren struct {
	mu        sync.Mutex // guards the fields below
	owners    map[dynamiccontroller.ObjectIdentifiers]map[dynamiccontroller.ObjectIdentifiers]expectation
	lastSweep time.Time
	// caughtUp maps owners to the types for which CatchUp has been called.
	caughtUp map[dynamiccontroller.ObjectIdentifiers]map[schema.GroupVersionResource]bool
}

// of returns a copy of an owner's expectations, keyed by child.
func (e *expectedChildren) of(
	owner dynamiccontroller.ObjectIdentifiers,
) map[dynamiccontroller.ObjectIdentifiers]expectation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.owners[owner])
}

// add adds an expectation that starts now. It also removes all expectations that have timed out, for all owners.
func (e *expectedChildren) add(
	owner, child dynamiccontroller.ObjectIdentifiers, added expectation, timeout time.Duration,
) {
	now := time.Now()
	added.since, added.confirmed = now, now
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweepLocked(now, timeout)
	if e.owners == nil {
		e.owners = map[dynamiccontroller.ObjectIdentifiers]map[dynamiccontroller.ObjectIdentifiers]expectation{}
	}
	if e.owners[owner] == nil {
		e.owners[owner] = map[dynamiccontroller.ObjectIdentifiers]expectation{}
	}
	e.owners[owner][child] = added
}

// update replaces an expectation. It does nothing if the child is no longer expected.
func (e *expectedChildren) update(owner, child dynamiccontroller.ObjectIdentifiers, expectation expectation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.owners[owner][child]; ok {
		e.owners[owner][child] = expectation
	}
}

func (e *expectedChildren) remove(owner, child dynamiccontroller.ObjectIdentifiers) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.owners[owner], child); len(e.owners[owner]) == 0 {
		delete(e.owners, owner)
	}
}

func (e *expectedChildren) hasCaughtUp(
	owner dynamiccontroller.ObjectIdentifiers, gvr schema.GroupVersionResource,
) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.caughtUp[owner][gvr]
}

func (e *expectedChildren) setCaughtUp(owner dynamiccontroller.ObjectIdentifiers, gvr schema.GroupVersionResource) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.caughtUp == nil {
		e.caughtUp = map[dynamiccontroller.ObjectIdentifiers]map[schema.GroupVersionResource]bool{}
	}
	if e.caughtUp[owner] == nil {
		e.caughtUp[owner] = map[schema.GroupVersionResource]bool{}
	}
	e.caughtUp[owner][gvr] = true
}

func (e *expectedChildren) forget(owner dynamiccontroller.ObjectIdentifiers) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owners, owner)
	delete(e.caughtUp, owner)
}

// sweepLocked removes expectations that have timed out, at most once per timeout.
func (e *expectedChildren) sweepLocked(now time.Time, timeout time.Duration) {
	if now.Sub(e.lastSweep) < timeout {
		return
	}
	e.lastSweep = now
	for owner, children := range e.owners {
		maps.DeleteFunc(children, func(_ dynamiccontroller.ObjectIdentifiers, expectation expectation) bool {
			return now.Sub(expectation.since) >= timeout
		})
		if len(children) == 0 {
			delete(e.owners, owner)
		}
	}
}
