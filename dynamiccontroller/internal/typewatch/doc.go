// Package typewatch keeps the objects of any number of types in memory and notifies event handlers of changes. Each
// watch is a [cache.Reflector] with its own store. It needs about four goroutines, whereas a shared informer needs ten.
//
// A [Pool] holds the watches. A watch is identified by its [Key]: GVR, namespace, selectors and projection. The key
// never changes. A [Subscription] uses a watch with its own projection or with a deeper one. Subscriptions with the
// same requirements share a watch, which ends when no subscription uses it any more. Two watches of the same type can
// exist at the same time, and can be at different resourceVersions.
//
//	Subscription ──▶ View ──▶ watch ──▶ store ◀── reflector ◀── package listwatch ◀── API server
//	      │                                                      Pool.Start ... stop: a term
//	      └── replacement ──▶ watch ──▶ store ◀── reflector
//
// There is one way to move a subscription to another watch, [Subscription.Replace]. The pool uses the same mechanism.
// When no subscription needs the projection of a watch any more, or when the watch fails before it has synced, the
// subscriptions with a shallower projection move to a watch of their own. The states of a subscription:
//
//	Subscribe ──▶ waiting ── first list ──▶ synced ── Replace ──▶ replacing ── new watch synced ──▶ synced
//	                │  ▲                    │    ▲                    │         and caught up
//	                │  └──── last stop ─────┘    └── CancelReplace ───┘
//	                └── Replace ──▶ waiting for the new watch      Close is possible in every state.
//
// While replacing, the subscription reads from the old watch, and its event handler is called for the changes there.
// When the subscription switches, the handler is called once with each difference between the two stores, while the
// locks of both watches are held. The new store is not older than the old one.
//
// A term is the period from the first call to [Pool.Start] until the last call to the function that it returns. Stores
// are kept between terms, so that the first list of the next term finds deletions. A list is never older than the
// store, unless the API server has lost the version of the store because its etcd was restored. The store then reverts
// to the restored state.
//
// A change to a CRD's schema alters objects without events and without new resourceVersions. The API server closes the
// type's watches afterwards. For this reason, a watch that was closed before its timeout is followed by a relist,
// within limits. If a listed object has the same resourceVersion as the stored one but different content, it is stored
// and delivered as a change, except with [Keys].
//
// Locks are taken in this order: the lock deliver of one watch, or of two watches in the order of their creation; mu of
// a watch's state; mu of the pool; the lock of a store. Event handlers, and the functions that are passed to Replace,
// are called while deliver is held. Observers are also called while mu of the state is held. No lock is held across a
// request, a wait or a channel operation that can block.
package typewatch
