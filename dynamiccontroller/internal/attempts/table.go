package attempts

import (
	"cmp"
	"container/list"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Table holds the entries of one type's objects. Its methods are safe for concurrent use. A closed table is empty and
// ignores changes.
type Table struct {
	mu      sync.Mutex // guards the fields below
	entries map[string]entry
	absent  list.List // keys of parked objects that are not in the cache, in the order in which they were parked
	closed  bool
}

// entry holds the outcome of a key's most recent reconciles. A key has no entry if its last reconcile succeeded and
// the next run need not reconcile it.
type entry struct {
	failures    int       // consecutive failures
	requeues    int       // consecutive requeues without a positive delay
	lastError   string    // text of the last failure
	parkedSince time.Time // zero unless the object is parked
	kept        bool      // the next run must reconcile the key even if it is not in the cache
	deleted     bool      // the predicate filtered out the delete event
	// absent is the key's element in the list of parked objects that are not in the cache; otherwise nil.
	absent *list.Element
}

// maxAbsent limits the parked entries of objects that are not in the cache. Such an entry would otherwise stay until
// the object is created again or the type is stopped. The entry that was parked first is dropped. Whether the object
// is in the cache is determined when it is parked. If it is in the queue again when its entry is dropped, it can be
// retried although its delete event was filtered out. Failing objects have no such limit.
const maxAbsent = 1000

// maxErrorLength limits the memory that a type with many parked objects uses for errors.
const maxErrorLength = 1024

// NewTable returns an empty table.
func NewTable() *Table { return &Table{entries: map[string]entry{}} }

// update replaces the entry of a key with the result of change, and returns the new entry.
func (t *Table) update(key string, change func(entry) entry) entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.updateLocked(key, change)
}

func (t *Table) updateLocked(key string, change func(entry) entry) entry {
	if t.closed {
		return entry{}
	}
	before := t.entries[key]
	e := change(before)
	if before.absent != nil && e.absent != before.absent {
		t.absent.Remove(before.absent)
	}
	if e == (entry{}) {
		delete(t.entries, key)
	} else {
		t.entries[key] = e
	}
	return e
}

// Started must be called when a reconcile starts. It resets the failures of a parked object. It returns the number of
// consecutive failures, and whether the key was kept by an earlier run.
func (t *Table) Started(key string) (failures int, kept bool) {
	t.update(key, func(e entry) entry {
		kept = e.kept
		if !e.parkedSince.IsZero() {
			return entry{}
		}
		failures, e.kept = e.failures, false
		return e
	})
	return failures, kept
}

// Failed records a failure and returns the number of consecutive failures. The text of the error is truncated.
func (t *Table) Failed(key, text string) (failures int) {
	if len(text) > maxErrorLength {
		text = text[:maxErrorLength] + "..."
	}
	return t.update(key, func(e entry) entry {
		e.failures, e.requeues, e.lastError = e.failures+1, 0, text
		return e
	}).failures
}

// Requeued records that the handler asked for another reconcile. It resets the failures. If atOnce is true, the handler
// asked for no delay; such requeues count toward the backoff.
func (t *Table) Requeued(key string, atOnce bool) {
	t.update(key, func(e entry) entry {
		next := entry{kept: e.kept, deleted: e.deleted}
		if atOnce {
			next.requeues = e.requeues + 1
		}
		return next
	})
}

// Succeeded resets the failures.
func (t *Table) Succeeded(key string) { t.update(key, entry.reset) }

// reset returns the entry without failures and requeues.
func (e entry) reset() entry { return entry{kept: e.kept} }

// Park records that the object must not be retried. If absent is true, the object is not in the cache. The number of
// such entries is limited. Park returns the keys whose entries were dropped for that reason.
func (t *Table) Park(key string, absent bool) (dropped []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.updateLocked(key, func(e entry) entry {
		e.parkedSince, e.absent = time.Now(), nil
		if absent {
			e.absent = t.absent.PushBack(key)
		}
		return e
	})
	for t.absent.Len() > maxAbsent {
		oldest := t.absent.Front().Value.(string)
		t.updateLocked(oldest, entry.reset)
		dropped = append(dropped, oldest)
	}
	return dropped
}

// Deleted must be called when an object has been deleted. If filtered is true, the predicate filtered out the delete
// event. A parked object is then unparked, because no later event would do so. If the object is also still queued,
// FilteredOut returns true for it, until its entry is reset.
func (t *Table) Deleted(key string, filtered, queued bool) {
	t.update(key, func(e entry) entry {
		if filtered && !e.parkedSince.IsZero() {
			e = entry{}
		}
		e.deleted = filtered && queued
		return e
	})
}

// FilteredOut reports whether the object was deleted while it was queued and the predicate filtered out the event.
func (t *Table) FilteredOut(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.entries[key].deleted
}

// Keep makes the next run reconcile the keys even if they are not in the cache.
func (t *Table) Keep(keys ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		t.updateLocked(key, func(e entry) entry {
			e.kept = true
			return e
		})
	}
}

// Keys returns the keys that have an entry, in no particular order.
func (t *Table) Keys() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.entries))
}

// Len returns the number of keys that have an entry.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries)
}

// Count returns the number of consecutive failures and requeues without a delay, which determines the backoff.
func (t *Table) Count(key string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[key]
	return e.failures + e.requeues
}

// Reset removes all entries.
func (t *Table) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.entries) > 0 {
		t.entries = map[string]entry{}
		t.absent.Init()
	}
}

// Close removes all entries. Later changes are ignored.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed, t.entries = true, nil
	t.absent.Init()
}

// Parked describes a parked object.
type Parked struct {
	Key       string
	Failures  int    // consecutive failures
	LastError string // truncated
	Since     time.Time
}

// Summary returns the number of failing objects, the number of parked objects, and at most the given number of parked
// objects, which must be positive: the most recently parked ones, oldest first.
func (t *Table) Summary(details int) (failing, parked int, newest []Parked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, e := range t.entries {
		switch {
		case !e.parkedSince.IsZero():
			parked++
			newest = insertParked(newest, Parked{key, e.failures, e.lastError, e.parkedSince}, details)
		case e.failures > 0:
			failing++
		}
	}
	return failing, parked, newest
}

// insertParked inserts an object into the limited list of those that were parked most recently, oldest first. Objects
// that were parked at the same time are sorted by key.
func insertParked(newest []Parked, object Parked, limit int) []Parked {
	at, _ := slices.BinarySearchFunc(newest, object, func(a, b Parked) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Key, b.Key))
	})
	if len(newest) < limit {
		return slices.Insert(newest, at, object)
	}
	if at > 0 { // newer than the oldest one, which it displaces
		copy(newest, newest[1:at])
		newest[at-1] = object
	}
	return newest
}
