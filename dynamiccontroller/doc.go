// Package dynamiccontroller is a controller engine for platforms that let users define resource types at runtime. One
// [DynamicController] watches and reconciles any number of types. Types can be added and removed without a restart, and
// load, failures and hung handlers of one type do not affect the others, within the limits described below.
//
// # Overview
//
//	NewForConfig ──▶ StartServingGVK and StopServiceGVK, at any time
//	      │
//	      ├──▶ RunWatches(ctx)    on every replica: keeps caches up to date, does not reconcile
//	      └──▶ Run(ctx)           on the leader: runs the workers
//	               │ ctx is cancelled: the contexts of handlers are cancelled, Run waits for them
//	               ▼
//	           Run(ctx) again     promotion: every object in the cache is reconciled once
//
// Each type is watched by a reflector that fills a cache. Changes go into one workqueue for all types. The queue holds
// [ObjectIdentifiers] and no objects. Config.Workers goroutines take items from it and call the [Handler] of the type.
// With [Owns], [Watches] and [DynamicController.AddWatches], changes to objects of other types also cause reconciles of
// objects of the served type. All subscribers of the same objects share one watch.
//
// While a type is being served, it is called a registration. Calling StartServingGVK again for a served type is called
// a swap. A replica that runs only RunWatches is called a standby. When it starts Run, this is called a promotion. Type
// events report that the API server has started or stopped serving a type; see [WithTypeEvents].
//
// # Promises
//
// Serving:
//
//   - S1: After StopServiceGVK returns nil, no handler for that registration is running or will be called again, its
//     goroutines have exited, and its queue entries, retries, status, metrics and cache have been removed. If ctx is
//     cancelled first, the error lists what is still running, and no new handler starts.
//   - S2: StartServingGVK either succeeds or changes nothing. It makes no request and does not wait for a sync. Calling
//     it again replaces the handler and the options, and reconciles every object once. If the new options can use the
//     current watch, they take effect immediately. Otherwise the previous handler and options stay in effect until a
//     new watch has synced, and [TypeStatus].Replacement reports its state. Concurrent starts and stops take effect as
//     if called one after another.
//   - S3: A type that cannot sync, hangs or fails does not affect the start, stop, events and reconciles of other
//     types.
//   - S4: Types can be started and stopped before, during and between runs, and on a standby.
//   - S5: If the API server does not serve a type, forbids access to it or fails, [TypeStatus] reports the state and
//     the message of the API server. The watch is retried with capped backoff and recovers without intervention. With
//     [WithTypeEvents], it recovers as soon as the type is served again. A 404 alone neither empties its cache nor
//     calls its handler. When a type event reports that the type is gone, each object in its cache is reconciled one
//     last time. If a handler returns a NotFound that is caused by the missing type, the object is not retried.
//   - S6: Served, owned and watched types share watches. A watch is identified by GVR, namespace, selectors and
//     projection (keys, metadata or whole objects). A subscription joins a watch that stores at least the projection
//     that the subscription needs. When no other subscription needs the deeper projection of that watch any more, the
//     subscription moves to a watch with exactly its own projection. A watch is replaced only after the new one has
//     synced, and the list of the new watch is not older than the cache of the old one. No change is lost, and the
//     difference between the two caches is delivered once. If the new watch cannot sync, the old one continues. Two
//     watches of the same type can be at different resourceVersions. A watch with a transform is not shared.
//
// Delivery:
//
//   - D1: While Run is running, every change is followed by a call to the handler that starts after the change is in
//     the cache. If a change to the type's schema alters objects, for example by adding a field with a default, every
//     altered object counts as changed, although its resourceVersion and generation stay the same. Predicates then
//     receive two objects with equal resourceVersions. Only the contents of the cache are compared: with
//     [CacheMetadata], only changes to the metadata are detected, and with [CacheKeys], none are. A schema change is
//     usually detected within seconds; see Limitations.
//   - D2: There are never two concurrent handler calls for the same [ObjectIdentifiers], even across swaps,
//     registrations and runs.
//   - D3: Deletions that happened while the watch was down are found by comparing the cache with the next list. Each
//     deletion is delivered with the last known state of the object, so that the owner of a deleted child is
//     reconciled. A list is never older than the cache, so a lagging API server causes no false deletions. There is one
//     exception: if etcd is restored from a backup, the cache reverts to the restored state.
//   - D4: Each object is reconciled once for all initial lists together: that of its own type and those of the types
//     that it owns or watches. An owned or watched type whose list fails delays this by at most about a second. If its
//     list hangs, the delay is ten seconds.
//   - D5: Panics in user code (handlers, transforms, predicates and the like) and invalid values that it returns never
//     end the process. A panic counts as a failure of its item, and its stack is logged. An error that is a typed nil,
//     or that has a method that panics, counts as a panic. If a transform returns an invalid object, the transform
//     counts as failed and the object is kept. If a predicate panics, the change is processed.
//   - D6: [RequeueAfter], [Terminal] and [Interrupted] are recognized in wrapped errors. A requeue without a delay
//     backs off. An interrupted call does not count as a failure.
//   - D7: Failures of one type never delay the first reconcile or the retries of another type.
//   - D8: An object that fails more than Config.QueueMaxRetries times in a row is parked. It is counted in the
//     status, and reconciled again with its next event, by Enqueue, at its resync and in the next run.
//   - D9: An object is not retried after a NotFound for the object itself, or after an error that its namespace is
//     terminating. For a type that is gone, the API server returns a NotFound without a name. While the type is
//     [TypeNotFound] and the cache does not hold the object, that counts as a NotFound for the object itself.
//   - D10: Events, retries that are due and Enqueue take precedence over initial lists, promotions and resyncs. The
//     latter never starve.
//   - D11: When the context of Run is cancelled, the contexts of handlers are cancelled immediately, with a cause.
//     Run waits for at most Config.ShutdownTimeout, and its error lists what is still running.
//
// Fairness:
//
//   - F1: Types with waiting objects take turns by weight. A type with one waiting object waits for at most one round.
//   - F2: A type that uses n workers gets another one while n is less than alpha times the number of idle workers, and
//     the last idle worker is reserved for types that use no worker. Alpha is 8, with two exceptions: it is 1 until one
//     of the type's handler calls has returned, and also while the type's oldest call has been running for more than a
//     second. A busy type on an otherwise idle controller therefore uses 9 of 10 workers, and three types whose
//     handlers hang from the start leave one of 10 workers to the other types. A type that starts to hang after it has
//     been fast keeps its workers until the reconcile timeout, 5 minutes by default. [WithConcurrency] sets a hard cap.
//
// Replicas (L1 to L4 are promises of package replica):
//
//   - L5: While RunWatches is running, a promotion sends no list request and opens no watch. Every object in the cache
//     is reconciled once, and new events take precedence.
//
// # Limitations
//
//   - A deletion is not replayed if it happens while Run is not running. If Run starts the watches itself, it finds the
//     deletions that happened since its process last ran the watches. The cache of a standby, which RunWatches keeps up
//     to date, no longer holds deleted objects. Use a finalizer for cleanup that must not be skipped.
//   - There is not one call for each change: several changes can be followed by a single call.
//   - After a change to a type's schema, the API server closes the type's watches before their timeout. The controller
//     then lists the type again, and so finds the change. A lost connection cannot be distinguished from this. To limit
//     the cost, at most 20 such lists are sent per second for all types together. For each type, 10 can be sent in a
//     row, and then one every five minutes. While connections are lost repeatedly, a schema change can therefore be
//     found up to five minutes late. Types whose API group has no dot (such as core and apps) are not listed again.
//   - AllInformerHaveSynced stays false while one type cannot sync. It is not suitable as a readiness check.
//   - A handler that ignores its context keeps its worker until it returns. With a single worker, it blocks all types.
//   - A predicate, transform or MapFunc that hangs blocks all subscribers of the watch.
//   - If the list of an owned or watched type fails when a run starts and succeeds later, the owners of the listed
//     objects are reconciled once more.
//
// # Implementation
//
//   - controller.go: StartServingGVK and StopServiceGVK. options.go: the options of StartServingGVK.
//   - registration.go: one type being served, from its start until everything that belongs to it has ended.
//   - subscriptions.go: the subscriptions of a registration. initialsync.go: the wait for their initial lists. watch.go:
//     watches of other types.
//   - events.go: event handlers, which turn changes to objects into keys in the queue. records.go: failures, backoff
//     and parking of keys.
//   - run.go: workers, promotion and shutdown. outcome.go: settling the outcome of a reconcile.
//   - lister.go and status.go: reading caches and states.
//   - internal/typewatch: shared watches. Its pool.go lets subscriptions share watches, and replacement.go replaces one
//     watch with another.
//   - internal/fairqueue: the queue. internal/resync: the schedule of resyncs. internal/listwatch: list and watch
//     requests.
package dynamiccontroller
