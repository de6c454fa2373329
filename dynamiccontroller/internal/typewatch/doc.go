// Package typewatch keeps the objects of any number of types in memory and notifies event handlers of changes. Each
// watch is a [cache.Reflector] with its own store and needs about four goroutines, where a shared informer needs ten.
//
// A [Pool] holds the watches. A watch is identified by its [Key]: GVR, namespace, selectors and projection. The key
// never changes. A [Subscription] uses the watch of its own projection or of a deeper one. Subscriptions with the same
// requirements share a watch, which ends with the last of them. Two watches of one type can exist at once, at different
// resourceVersions.
//
//	Subscription ──▶ View ──▶ watch ──▶ store ◀── reflector ◀── package listwatch ◀── API server
//	      │                                                      Pool.Start ... stop: a term
//	      └── replacement ──▶ watch ──▶ store ◀── reflector
//
// There is one way to move a subscription to another watch, [Subscription.Replace]. The pool uses it too: when the
// projection of a watch is no longer needed, or when the watch fails before it has synced, the shallower subscriptions
// move to a watch of their own. The states of a subscription:
//
//	Subscribe ──▶ waiting ── first list ──▶ synced ── Replace ──▶ replacing ── new watch synced ──▶ synced
//	                │  ▲                    │    ▲                    │         and caught up
//	                │  └──── last stop ─────┘    └── CancelReplace ───┘
//	                └── Replace ──▶ waiting for the new watch      Close is possible in every state.
//
// While replacing, the subscription reads from the old watch, and its event handler is called for the changes there. At
// the switch, the handler is called once with the difference between the two stores, under the locks of both watches.
// The new store is not older than the old one.
//
// Stores are kept between terms, so that the first list of the next term finds deletions. A list is never older than
// the store, unless the API server has lost that version because its etcd was restored. The store then reverts to the
// restored state.
//
// A change of a CRD's schema alters objects without events and without new resourceVersions. The API server closes the
// type's watches afterwards, so a watch that was closed before its timeout is followed by a relist, within limits. A
// list with different content at an equal resourceVersion is stored and delivered as a change, except with [Keys].
//
// Locks are taken in this order: deliver of one watch, or of two in the order of their creation; mu of a watch's state;
// mu of the pool; the lock of a store. Event handlers and replaced functions are called while deliver is held, and
// observers also while mu of the state is held. No lock is held across a request, a wait or a channel operation that
// can block.
package typewatch
