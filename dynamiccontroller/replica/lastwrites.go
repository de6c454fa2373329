package replica

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/lastwrites"
)

// recentFor is the time for which a write is remembered. A watch has usually received it long before.
const recentFor = 5 * time.Second

// lastWrites remembers the newest version of each resource that the holders of a Lease have written recently: this
// replica, or the one that has released the Lease. A nil lastWrites remembers nothing.
type lastWrites struct {
	mu     sync.Mutex // guards newest
	newest map[schema.GroupResource]lastWrite
}

type lastWrite struct {
	version uint64
	at      time.Time
}

func (w *lastWrites) add(resource schema.GroupResource, resourceVersion string) {
	version, ok := lastwrites.Number(resourceVersion)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newest == nil {
		w.newest = map[schema.GroupResource]lastWrite{}
	}
	w.newest[resource] = lastWrite{max(version, w.newest[resource].version), time.Now()}
}

// replace forgets all writes, and remembers those of another replica.
func (w *lastWrites) replace(versions lastwrites.Versions) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newest = make(map[schema.GroupResource]lastWrite, len(versions))
	for resource, version := range versions {
		w.newest[resource] = lastWrite{version, time.Now()}
	}
}

// recent returns the versions that the caches of the next leader must contain.
func (w *lastWrites) recent() lastwrites.Versions {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	recent := lastwrites.Versions{}
	for resource, last := range w.newest {
		if time.Since(last.at) < recentFor {
			recent[resource] = last.version
		}
	}
	return recent
}
