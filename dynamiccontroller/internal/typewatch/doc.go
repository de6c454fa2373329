// Package typewatch keeps the objects of any number of types in memory and notifies event handlers of changes. Each
// watch has its own store. The store is filled by one reflector or, if the watch is restricted to certain namespaces,
// by one per namespace. A reflector runs a [listwatch.Loop], which needs one goroutine. The HTTP client needs another
// one for each open watch.
//
// A [Pool] holds the watches. A watch is identified by its [Key]: GVR, namespaces, selectors and projection. A watch's
// key never changes. A watch has synced when all of its reflectors have synced. A [Subscription] uses a watch with the
// projection that it requests or with a wider one. Subscriptions with the same requirements share a watch. The watch
// ends when no subscription uses it any longer. Two watches of the same type can exist at the same time, and can be at
// different resourceVersions.
//
// The types use each other in one direction, so that a watch can be understood without the types to the left of it.
// The exceptions are a Pool and its Subscriptions, and a watch and its reflectors:
//
//	Activity ──▶ Pool ◀──▶ Subscription ──▶ place ──▶ watch ◀──▶ reflector ◀── listwatch.Loop ◀── API server
//	                         │  │             ▲         │
//	                         │  └─▶ replacement ┘       ├──▶ contents, with the store ◀── View
//	                         └──────────────────────────┴──▶ listener ──▶ inbox
//
// A watch fills its store and delivers changes to its listeners. It notifies its owner when it has synced or failed,
// and its waiters when it has received something. The owner is the Pool, which decides which watch each Subscription
// uses: its place. A Subscription is a listener with a place. A replacement is a waiter, which makes its Subscription
// attempt to switch to another place.
//
// [Subscription.Replace] moves a subscription to another watch. The pool uses the same mechanism in two cases: when no
// subscription needs a watch's projection any longer, and when a watch fails before it has synced. It then moves the
// subscriptions that need only a narrower projection to another watch. The states of a subscription:
//
//	Subscribe ──▶ waiting ── first list ──▶ synced ── Replace ──▶ replacing ── new watch synced ──▶ synced
//	                │  ▲                    │    ▲                    │         and caught up
//	                │  └── session ends ────┘    └── CancelReplace ───┘
//	                └── Replace ──▶ waiting for the new watch      Close is possible in every state.
//
// A subscription that belongs to an [Activity] can also be inactive. It then has no watch in the pool.
//
// While replacing, the subscription reads from the old watch, and its event handler receives the changes from that
// watch. When the subscription switches, the difference between the two stores is delivered. The new store is at least
// as recent as the old one.
//
// # Delivery
//
// A change is delivered to each listener of the watch as soon as it is stored. There are two ways:
//
//	change ──▶ store ──┬──▶ event handler         options are not Blocking: called at once, under the delivery lock
//	                   └──▶ inbox ──▶ event handler   Blocking: called by a goroutine of the subscription, without a lock
//
// A handler that can call user code must be Blocking, because user code can hang. If many changes wait, those of the
// same object are combined, so that an inbox is bounded. The states in between are dropped. The handler decides which
// of them are lost, and is notified once; see [EventHandler].Loses. The goroutine of an inbox exists only while the
// inbox is not empty. Detach and Close wait for the running function of their own subscription only.
//
// Existing objects are delivered in a pass over a snapshot of the store. All listeners that wait when the pass begins
// take part. Listeners that are attached later wait for the next pass; see [Pool.Hold]. Changes during the pass are
// delivered after it.
//
// Each [Object] contains the [View] under which it was stored: the watch's contents and the subscription's options. A
// state and its options therefore always match, also while the subscription is moved to another watch. All
// subscriptions share the decoded parts of a state.
//
// A session of the pool is the period from a call to [Pool.Start] until its stop function is called. It can span
// several runs of the controller. Stores are kept between sessions, so that the first list of the next one reveals
// deletions. A list is never older than the store, with one exception: if etcd was restored from a backup, the API
// server may no longer have the store's version. The store then reverts to the restored state.
//
// A change to a CRD's schema can alter objects without causing events or new resourceVersions. After such a change, the
// API server closes the type's watches. For this reason, objects are relisted after a watch request ends before its
// timeout, subject to rate limits. If a listed object has the same resourceVersion as the stored one but different
// content, it is stored and delivered as a change, except with [objects.Keys].
//
// An object that cannot be used, for example because it has no name, is counted, and its last usable state stays in the
// store. It is identified by its key and UID. If neither is known, the object can be any stored one. The list that
// contains it then deletes nothing, no subscription moves to the watch, and the reflector lists again after a delay. If
// a deletion cannot be identified, the reflector lists at once.
//
// # Indexes
//
// The options of a subscription can declare indexes; see [View.ByIndex]. An index belongs to the view, because two
// subscriptions that share a watch can have different functions and projections:
//
//	change ──▶ store ──▶ pending changes of each index ── ByIndex ──▶ function ──▶ contents of the index
//
// The function is user code, so the store only collects changes, and the next caller of ByIndex evaluates them. When
// the subscription is closed or gets a view with another watch or other indexes, the indexes of the former view are
// dropped.
//
// # Locks
//
// Locks are taken in this order: a watch's delivery lock, a watch state's mu, the pool's mu, the lock of the
// histories, a store's lock, an inbox's lock. A goroutine that takes the delivery locks of two watches never waits for
// one while holding the other. Event handlers that are not Blocking are called while the delivery lock is held. So is
// the callback onReplace, unless the watch stays the same. Observers are called while the watch state's mu is held. No
// lock is held across user code, a request, a wait or a channel operation that can block. There are two exceptions:
//
//   - The functions that assign objects to flows, which event handlers and onReplace can call.
//   - The function of an index. A call to ByIndex holds the lock of its index, which no other operation takes.
package typewatch
