package restmapper

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// tombstoneLifetime is how long discovery documents are ignored for a version after a watch has reported its removal.
// The documents of an API server lag behind its watches, usually by less than a second.
const tombstoneLifetime = 30 * time.Second

// tombstones marks versions whose removal the watches have reported, so that an outdated discovery document does not
// restore them. Tombstones expire, because another API may begin to serve the version. The number of tombstones never
// exceeds the number of versions that were removed within one lifetime.
type tombstones struct {
	lifetime time.Duration
	entries  map[schema.GroupVersion]tombstone
	queue    []queuedTombstone // in the order of their expiration
	// added counts all tombstones that have been added. A discovery document that was received before the newest tombstone
	// was added must not be reused, because versions that belonged to CRDs at that time were ignored; see catalog.epoch.
	added int
}

type tombstone struct {
	expires time.Time
	listed  bool // a discovery document has listed the version
}

type queuedTombstone struct {
	gv      schema.GroupVersion
	expires time.Time
}

func newTombstones() tombstones {
	return tombstones{lifetime: tombstoneLifetime, entries: map[schema.GroupVersion]tombstone{}}
}

func (t *tombstones) add(gv schema.GroupVersion, now time.Time) {
	t.expire(now)
	t.added++
	expires := now.Add(t.lifetime)
	t.entries[gv] = tombstone{expires: expires}
	t.queue = append(t.queue, queuedTombstone{gv, expires})
}

func (t *tombstones) remove(gv schema.GroupVersion) { delete(t.entries, gv) }

func (t *tombstones) has(gv schema.GroupVersion) bool {
	_, ok := t.entries[gv]
	return ok
}

// list records that a discovery document has listed the version. It reports whether the version has a tombstone.
func (t *tombstones) list(gv schema.GroupVersion) bool {
	entry, ok := t.entries[gv]
	if ok {
		entry.listed = true
		t.entries[gv] = entry
	}
	return ok
}

// expire removes the tombstones that have expired, except those of versions that a document has listed. nextCheck needs
// those until the documents are read again.
func (t *tombstones) expire(now time.Time) {
	for len(t.queue) > 0 && !t.queue[0].expires.After(now) {
		next := t.queue[0]
		t.queue = t.queue[1:]
		if entry := t.entries[next.gv]; entry.expires.Equal(next.expires) && !entry.listed {
			delete(t.entries, next.gv)
		}
	}
}

// expireAll removes all tombstones that have expired. It must be called before the discovery documents are read.
func (t *tombstones) expireAll(now time.Time) {
	t.expire(now)
	maps.DeleteFunc(t.entries, func(_ schema.GroupVersion, entry tombstone) bool { return !entry.expires.After(now) })
}
