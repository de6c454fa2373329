package children

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Limits for the delay before a parent that waits for a deletion is reconciled again. The delay equals the time that
// the parent has already waited. Events for the children usually cause an earlier reconcile.
const minPollInterval, maxPollInterval = time.Second, 30 * time.Second

// maxLag is how long a cache is assumed to lack a write. Afterwards, an object with an older version is the current
// one: etcd may have been restored from a backup, and its versions may have overtaken those from before the restore.
const maxLag = 30 * time.Second

// applyCache stores the last writes of a run, until etcd is restored from a backup. With an empty cache, a reconcile
// has the same result as soon as the caches contain the last writes.
type applyCache struct {
	parents sync.Map // maps identifiers to *parentEntry

	mu      sync.Mutex // guards history
	history int64      // the history of the versions; see dynamiccontroller.HistoryOf
}

// parentEntry stores the last writes for a parent. It is used by one call at a time.
type parentEntry struct {
	inventory   inventory
	written     version   // the version of the parent after the inventory was written
	waitStarted time.Time // when the parent began to wait for a deletion, or zero
	namespace   namespaceOfParent
	witness     types.UID // the UID of the parent whose witness this run has created
	notOrphaned types.UID // the UID of the parent that is being deleted without orphaning its dependents
	children    map[childID]*childEntry
	own         ownWrites // what the cache of the children can lack
}

// childID identifies a child.
type childID = dynamiccontroller.ObjectIdentifiers

// namespaceOfParent is the UID of the namespace of the parent with the given UID.
type namespaceOfParent struct{ parent, uid types.UID }

// childEntry is what a run knows about a child.
type childEntry struct {
	// known is set if the run has applied the child, or has failed to create it.
	known   bool
	applied lastApply
	kept    othersPaths // items that can be edited items of the child, and stay
	earlier othersPaths // fields that other managers had set before the object was adopted or restored
	// futile is the hash of a desired child that the API server refuses even with repaired managedFields.
	futile     string
	fights     fights     // limits what other clients undo
	recreation recreation // of a child with OnImmutableRecreate
	judgement  judgement  // of a child that the API server could not apply
}

// reset forgets the object that had the name of the child. The limits apply to the next object, too.
func (e *childEntry) reset() {
	*e = childEntry{fights: e.fights, recreation: e.recreation, judgement: e.judgement}
}

// lastApply describes the last apply of a child.
type lastApply struct {
	hash      string  // a hash of the configuration and the identity
	written   version // the resulting version
	signature signature
	foreign   map[string]bool // the items of others in lists with keys
	finding   finding         // what the API server stores with another value
}

// lacksOwners reports whether the object was changed after the last apply and has no managedFields, although it had
// some: someone has cleared them, or a cache leaves them out. Without them, a field that leaves the child would stay.
func (a *lastApply) lacksOwners(object *unstructured.Unstructured) bool {
	return a.signature.owned != "" && a.written.uid == object.GetUID() &&
		a.written.resourceVersion != object.GetResourceVersion() && len(managedFields(object)) == 0
}

// managedFields returns the entries as they are. Unlike GetManagedFields, it does not convert them.
func managedFields(object *unstructured.Unstructured) []any {
	fields, _, _ := unstructured.NestedFieldNoCopy(object.Object, "metadata", "managedFields")
	list, _ := fields.([]any)
	return list
}

// version identifies a state of an object that was written.
type version struct {
	uid             types.UID
	resourceVersion string
	written         time.Time
}

func versionOf(object metav1.Object) version {
	return version{uid: object.GetUID(), resourceVersion: object.GetResourceVersion(), written: time.Now()}
}

// isAfter reports whether v is a later version of the same object, which the cache may lack. It returns false if the
// versions cannot be compared.
func (v version) isAfter(object metav1.Object) bool {
	if v.uid != object.GetUID() || time.Since(v.written) > maxLag {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(v.resourceVersion, object.GetResourceVersion())
	return err == nil && order > 0
}

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
		children: map[childID]*childEntry{},
	})
	return entry.(*parentEntry)
}

// child returns the entry of a child, creating it if necessary.
func (e *parentEntry) child(id childID) *childEntry {
	if e.children[id] == nil {
		e.children[id] = &childEntry{}
	}
	return e.children[id]
}

// deleted updates the entry of a child that is being deleted.
func (e *parentEntry) deleted(id childID) {
	if entry := e.children[id]; entry != nil {
		entry.reset()
		entry.fights.exists = false
	}
}

// pollInterval returns the delay before a parent that waits for a deletion is reconciled again.
func (e *parentEntry) pollInterval() time.Duration {
	if e.waitStarted.IsZero() {
		e.waitStarted = time.Now()
	}
	return min(max(time.Since(e.waitStarted), minPollInterval), maxPollInterval)
}
