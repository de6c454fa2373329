package children

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A parent that waits for a deletion is reconciled again after a delay equal to the time that it has already waited,
// within these limits. Events from its children usually cause an earlier reconcile.
const minPollInterval, maxPollInterval = time.Second, 30 * time.Second

// applyCache holds the last writes of a run. It only saves requests: a reconcile with an empty cache has the same
// result.
type applyCache struct{ parents sync.Map } // the values are *parentEntry

// parentEntry holds the last writes for a parent. Only one call at a time uses it.
type parentEntry struct {
	inventory   inventory
	written     version   // the version of the parent with that inventory
	waitStarted time.Time // when the parent began to wait for a deletion; zero if it is not waiting
	children    map[dynamiccontroller.ObjectIdentifiers]appliedChild
}

// appliedChild describes the last apply of a child.
type appliedChild struct {
	hash      string  // of the configuration and the identity
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

// isAfter reports whether v is a later version of the object. It returns false if the two cannot be compared.
func (v version) isAfter(object metav1.Object) bool {
	if v.uid != object.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(v.resourceVersion, object.GetResourceVersion())
	return err == nil && order > 0
}

// entry returns the entry of a parent. It creates the entry if necessary.
func (a *applyCache) entry(parent dynamiccontroller.ObjectIdentifiers) *parentEntry {
	entry, _ := a.parents.LoadOrStore(parent, &parentEntry{
		children: map[dynamiccontroller.ObjectIdentifiers]appliedChild{},
	})
	return entry.(*parentEntry)
}

// pollInterval returns the time after which a parent that waits for a deletion is reconciled again.
func (e *parentEntry) pollInterval() time.Duration {
	if e.waitStarted.IsZero() {
		e.waitStarted = time.Now()
	}
	return min(max(time.Since(e.waitStarted), minPollInterval), maxPollInterval)
}
