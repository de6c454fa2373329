package children

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
)

// Limits for the delay before a parent that waits for a deletion is reconciled again. The delay equals the time that
// the parent has already waited. Events for the children usually cause an earlier reconcile.
const minPollInterval, maxPollInterval = time.Second, 30 * time.Second

// applyCache stores the last writes of a run, until etcd is restored from a backup. With an empty cache, a reconcile
// has the same result as soon as the caches contain the last writes.
type applyCache struct {
	parents sync.Map // maps identifiers to *parentEntry

	mu      sync.Mutex // guards history
	history int64      // the history of the versions; see dynamiccontroller.HistoryOf
}

// parentEntry stores the last writes for a parent. It is used by one call at a time.
type parentEntry struct {
	inventory   inventory.Inventory
	written     decide.Version // the version of the parent after the inventory was written
	waitStarted time.Time      // when the parent began to wait for a deletion, or zero
	namespace   namespaceOfParent
	witness     types.UID // the UID of the parent whose witness this run has created
	notOrphaned types.UID // the UID of the parent that is being deleted without orphaning its dependents
	children    map[childID]*decide.Known
	own         ownWrites // what the cache of the children can lack
}

// childID identifies a child.
type childID = dynamiccontroller.ObjectIdentifiers

// namespaceOfParent is the UID of the namespace of the parent with the given UID.
type namespaceOfParent struct{ parent, uid types.UID }

// forHistory drops all entries if a new history has begun.
func (a *applyCache) forHistory(history int64) *applyCache {
	a.mu.Lock()
	defer a.mu.Unlock()
	if history > a.history {
		a.history = history
		a.parents.Clear()
	}
	return a
}

// entry returns the entry of a parent, creating it if necessary.
func (a *applyCache) entry(parent dynamiccontroller.ObjectIdentifiers) *parentEntry {
	entry, _ := a.parents.LoadOrStore(parent, &parentEntry{
		children: map[childID]*decide.Known{},
	})
	return entry.(*parentEntry)
}

// child returns the entry of a child, creating it if necessary.
func (e *parentEntry) child(id childID) *decide.Known {
	if e.children[id] == nil {
		e.children[id] = &decide.Known{}
	}
	return e.children[id]
}

// deleted updates the entry of a child that is being deleted.
func (e *parentEntry) deleted(id childID) {
	if entry := e.children[id]; entry != nil {
		entry.Deleted()
	}
}

// pollInterval returns the delay before a parent that waits for a deletion is reconciled again.
func (e *parentEntry) pollInterval() time.Duration {
	if e.waitStarted.IsZero() {
		e.waitStarted = time.Now()
	}
	return min(max(time.Since(e.waitStarted), minPollInterval), maxPollInterval)
}

// copyOf returns a copy of the entry of a parent, for a call that writes nothing.
func (s *settings) copyOf(ctx context.Context, parent dynamiccontroller.ObjectIdentifiers) *parentEntry {
	entry, has := s.memory.caches.For(ctx).forHistory(dynamiccontroller.HistoryOf(ctx)).parents.Load(parent)
	if !has {
		return &parentEntry{children: map[childID]*decide.Known{}}
	}
	return entry.(*parentEntry).clone(time.Now())
}

// clone returns a copy.
func (e *parentEntry) clone(now time.Time) *parentEntry {
	clone := &parentEntry{
		inventory: e.inventory, written: e.written, waitStarted: e.waitStarted, namespace: e.namespace, witness: e.witness,
		notOrphaned: e.notOrphaned, children: make(map[childID]*decide.Known, len(e.children)),
	}
	for id, known := range e.children {
		clone.children[id] = known.Clone(now)
	}
	e.own.mu.Lock()
	defer e.own.mu.Unlock()
	clone.own.children = maps.Clone(e.own.children)
	return clone
}
