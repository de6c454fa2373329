// Package typewatch keeps types' objects in memory and says what changed: a [cache.Reflector] on a store of its own, at about
// four goroutines a type where a shared informer takes ten, and keeping no more of an object than is asked for.
//
// Who needs a type's objects acquires a [Need] from the [Pool]. All needs of the same type, namespace and selector share a
// watch, which keeps the deepest of what they ask for and ends with the last of them:
//
//	Pool ──▶ shared, a type, namespace and selector ──▶ feed ──▶ Need ──▶ Sink
//	             │                                        ▲
//	             ├── current keeper: watch ──▶ store ─────┤
//	             └── coming keeper, while it keeps more or less than is needed: watch ──▶ store, to take over
//
// The stores are filled by their reflectors, one goroutine each. The feed has one lock over changes and what is told of
// them: what a sink hears of is in the cache already, and in the order in which it happened. It tells of the current store.
// From the first list of the coming one on nothing is told until that has seen all that was; then the difference is, and it
// is current.
//
// Watches can be run again and again, from [Pool.Begin] to [Pool.End]. They keep their stores in between, so that
// deletions in the meantime are found by comparing the store with the next list. A list is never older than the store,
// unless the API server has lost that version because its etcd was restored. The store then goes back to the restored
// state.
//
// A change of a CRD's schema alters objects without events and without new resourceVersions. The API server closes the
// type's watches afterwards, so a watch that was closed before its timeout is followed by a relist, within limits. A list
// that returns different content at an equal resourceVersion is stored and delivered as a change, except by a store that
// holds only keys.
//
// Locks are taken in this order: a feed's deliver, a watch's health, the pool's, a feed's mu. A sink is called under the first
// and an observer under the second.
package typewatch
