package children

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Limits for the delay before a parent that waits for a deletion is reconciled again. The delay equals the time that
// the parent has already waited. Events for the children usually cause an earlier reconcile.
const minPollInterval, maxPollInterval = time.Second, 30 * time.Second

// applyCache stores the last writes of a run. It only saves requests: with an empty cache, a reconcile has the same
// result.
type applyCache struct{ parents sync.Map } // maps identifiers to *parentEntry

// parentEntry stores the last writes for a parent. It is used by one call at a time.
type parentEntry struct {
	inventory   inventory
	written     version   // the version of the parent after the inventory was written
	waitStarted time.Time // when the parent began to wait for a deletion, or zero
	namespace   namespaceOfParent
	witness     types.UID // the UID of the parent whose witness this run has created
	notOrphaned types.UID // the UID of the parent that is being deleted without orphaning its dependents
	children    map[dynamiccontroller.ObjectIdentifiers]appliedChild
}

// namespaceOfParent is the UID of the namespace of the parent with the given UID.
type namespaceOfParent struct{ parent, uid types.UID }

// appliedChild describes the last apply of a child.
type appliedChild struct {
	hash      string  // a hash of the configuration and the identity
	written   version // the resulting version
	signature signature
}

// version identifies a state of an object.
type version struct {
	uid             types.UID
	resourceVersion string
}

func versionOf(object metav1.Object) version {
	return version{uid: object.GetUID(), resourceVersion: object.GetResourceVersion()}
}

// isAfter reports whether v is a later version of the same object. It returns false if the versions cannot be compared.
func (v version) isAfter(object metav1.Object) bool {
	if v.uid != object.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(v.resourceVersion, object.GetResourceVersion())
	return err == nil && order > 0
}

// entry returns the entry of a parent, creating it if necessary.
func (a *applyCache) entry(parent dynamiccontroller.ObjectIdentifiers) *parentEntry {
	entry, _ := a.parents.LoadOrStore(parent, &parentEntry{
		children: map[dynamiccontroller.ObjectIdentifiers]appliedChild{},
	})
	return entry.(*parentEntry)
}

// pollInterval returns the delay before a parent that waits for a deletion is reconciled again.
func (e *parentEntry) pollInterval() time.Duration {
	if e.waitStarted.IsZero() {
		e.waitStarted = time.Now()
	}
	return min(max(time.Since(e.waitStarted), minPollInterval), maxPollInterval)
}
