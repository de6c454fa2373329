// Package dynamiccontroller is a controller engine for platforms that let users define resource types at runtime. One
// [DynamicController] watches and reconciles any number of types. Types can be added and removed without a restart,
// and load, failures and hung handlers of one type do not affect the others, within the limits described below.
//
// # Overview
//
//	NewForConfig ──▶ StartServingGVK and StopServiceGVK, at any time
//	      │
//	      ├──▶ RunWatches(ctx)    on every replica: keeps caches up to date, does not reconcile
//	      └──▶ Run(ctx)           on the leader: runs the workers, and the watches unless RunWatches is running
//	               │ ctx is cancelled: handler contexts are cancelled, Run waits for the handlers
//	               ▼
//	           Run(ctx) again     promotion: every object in the cache is reconciled once
//
// Each type has a watch that fills a cache. Changed objects are added to one workqueue for all types, as
// [ObjectIdentifiers]. Config.Workers sets the number of goroutines that take items from the queue and call the type's
// [Handler]. With [Owns], [Watches] and [DynamicController.AddWatches], changes to objects of other types also trigger
// reconciles of the served type's objects.
//
// The promises use these terms:
//
//   - registration: a type while it is served. Serving it again with StartServingGVK is called a swap and keeps the
//     registration.
//   - subscription: a registration has one to the served type and one for each of its other watches. Subscriptions to
//     the same objects share one watch.
//   - standby: a replica that runs only RunWatches.
//   - promotion: starting Run on a standby, or again after an earlier run.
//   - type event: a report that the API server has started or stopped serving a type; see [WithTypeEvents].
//
// # Promises
//
// Serving:
//
//   - S1: After StopServiceGVK returns nil, no handler for that registration is running or will be called again. The
//     registration's goroutines have exited, and its queue entries, retries, status, metrics and cache have been
//     removed. If the call's ctx is cancelled first, no new handler starts and the error lists what is still running.
//   - S2: StartServingGVK either succeeds or changes nothing. It sends no requests and does not wait for a sync. A swap
//     replaces the handler and the options, and reconciles every object once. If the new options can use the current
//     watch, they take effect immediately. Otherwise, the previous handler and options stay in effect until a new watch
//     has synced, and [TypeStatus].Replacement reports the state of the new watch. Concurrent starts and stops are
//     serialized.
//   - S3: A type that hangs, fails or cannot sync does not affect starts, stops, events or reconciles of other types.
//   - S4: Types can be added and removed before, during and between runs, and on a standby.
//   - S5: A type is synced only while its watch is open, or was until less than five seconds ago. If the API server
//     does not serve a type, forbids access to it, fails or does not respond, [TypeStatus] reports the state and the
//     API server's message within ten seconds. The watch is retried with a capped backoff and recovers without
//     intervention. With [WithTypeEvents], it recovers as soon as the type is served again. A 404 alone neither empties
//     the cache nor causes reconciles. After a type event reports that the type is gone, the cache is emptied and each
//     object that it held is reconciled once more. For a NotFound that a handler returns because the type is missing,
//     see D9. There are two exceptions from the ten seconds: a type that cannot be watched is listed every 30 seconds,
//     and its state reports a failure of the next list. A proxy that sends the headers of a watch and holds back the
//     events is noticed after 90 seconds if a bookmark has arrived in the watch, and otherwise at the timeout of the
//     watch, which is 5 to 10 minutes.
//   - S6: Subscriptions to the same type share watches, whether the type is served, owned or watched. A watch is
//     identified by GVR, namespaces, selectors and projection: keys, metadata, objects without managedFields, or
//     complete objects. A subscription joins a watch that stores at least the projection that the subscription needs.
//     If a watch stores more than its remaining subscriptions need, these subscriptions move to a watch that stores
//     less. A watch is replaced only after its replacement has synced with a list that is at least as recent as the old
//     cache. No change is lost, and the difference between the two caches is delivered once. If the new watch cannot
//     sync, the old one keeps running. The caches of two watches of the same type can be at different resourceVersions.
//     A watch with a transform is not shared.
//
// Delivery:
//
//   - D1: While Run is running, every change is followed by a handler call that starts after the change is in the
//     cache. This includes changes caused by a new schema, such as a new default, even though the object's
//     resourceVersion and generation stay the same. Such changes are detected by comparing objects with the cache. With
//     [CacheMetadata], only changes to the metadata are detected, and with [CacheKeys], none are. Detection usually
//     takes a few seconds; see Limitations.
//   - D2: There are never two concurrent handler calls for the same [ObjectIdentifiers], even across swaps,
//     registrations and runs.
//   - D3: Deletions that happened while a watch was interrupted are found by comparing the cache with the next list.
//     Each deletion is delivered with the last known state of the object, so that the owner of a deleted child is
//     reconciled. An object that was deleted and created again with the same name is delivered as a deletion and an
//     addition. An object that cannot be used, for example because a label is not a string, is skipped and counted in
//     the status, and its last usable state stays in the cache. A list is never older than the cache, so a lagging API
//     server causes no false deletions. The only exception is a restore of etcd from a backup, after which the cache
//     reverts to the restored state.
//   - D4: All initial lists of a registration, including those of owned and watched types, together trigger only one
//     reconcile per object. If the list of an owned or watched type fails, the reconcile is delayed by about a second
//     at most. If the list hangs, the reconcile is delayed by at most ten seconds.
//   - D5: Panics in user code (handlers, transforms, predicates and the like) and invalid return values never crash the
//     process. The stack of a panic is logged. A handler panic counts as a failure. A typed nil error, or an error with
//     a method that panics, counts as a panic. If a transform fails or returns an invalid object, the error is logged
//     and the untransformed object is stored. If a predicate panics, the change is processed.
//   - D6: [RequeueAfter], [Terminal] and [Interrupted] are recognized in wrapped errors. A RequeueAfter without a
//     positive delay leads to a retry with backoff. An interrupted call does not count as a failure.
//   - D7: Failures of one type never delay the first reconcile or the retries of another type.
//   - D8: An object that fails more than Config.QueueMaxRetries times in a row is parked. It is counted in the status
//     and reconciled again on its next event, Enqueue or resync, or in the next run. For each type, the newest 1000
//     objects that were not in the cache when they were parked are kept. Older ones are forgotten. Objects that fail
//     but are not parked are not limited in this way: with unlimited retries, an object whose deletion was not
//     delivered keeps its record until a reconcile succeeds.
//   - D9: An object that is not in the cache is not retried after a NotFound for the object itself. If a create is
//     rejected because the object's namespace is terminating, the object is not retried. If a type is gone, the API
//     server returns a NotFound without a name. While the state of the object's type is [TypeNotFound], such an error
//     is treated like a NotFound for the object itself.
//   - D10: Events, due retries and Enqueue precede initial lists, promotions and resyncs, but never starve them.
//   - D11: When Run's context is cancelled, the handlers' contexts are cancelled immediately, with a cause. Run waits
//     for at most Config.ShutdownTimeout, and its error lists what is still running.
//
// Fairness:
//
//   - F1: Types with waiting objects take turns in a weighted round robin. If a type has only one waiting object, that
//     object waits for at most one round.
//   - F2: A type that uses n workers gets another worker as long as n is less than alpha times the number of idle
//     workers. The last idle worker is reserved for types that are not using a worker. Alpha is 1 until the first
//     handler call for the type returns, and while any call for the type has been running for more than a second.
//     Otherwise, alpha is 8. A busy type on an otherwise idle controller therefore uses 9 of 10 workers, and three
//     types whose handlers hang from the start leave one of 10 workers for other types. If a type's handlers begin to
//     hang later, the type keeps its workers until the reconcile timeout, which is 5 minutes by default.
//     [WithConcurrency] sets a hard cap.
//
// Replicas (L1 to L4 are promises of package replica):
//
//   - L5: While RunWatches is running, a promotion sends no list request and opens no watch. Every object in the
//     cache is reconciled once, and new events take precedence.
//
// # Limitations
//
//   - A deletion that happens while Run is not running can be missed. Use a finalizer for cleanup that must not be
//     skipped.
//   - Several changes to an object can result in a single handler call.
//   - If connections are lost repeatedly, a change to a type's schema can be detected up to five minutes late. Types
//     whose API group has no dot, such as core and apps, are not relisted to detect such changes.
//   - A handler that ignores its context keeps its worker until it returns. A predicate, transform or MapFunc that
//     hangs blocks all subscribers to the watch.
//
// The page docs/library.md of the repository describes the limitations in detail, and docs/architecture.md the
// implementation.
package dynamiccontroller
