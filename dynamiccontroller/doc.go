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
// reconciles of the served type's objects. With [DynamicController.StartWatch], one function does this on behalf of all
// types.
//
// # Terms
//
// The documentation, the logs and the code use these terms:
//
//   - registration: a type while it is served. Its sources are the primary source, which is its own objects, and one
//     secondary for each [Watch] that [Owns], [Watches] or AddWatches describes.
//   - watch: a list-watch loop for some objects of a type, and its cache. All its subscriptions share it. It is open
//     while a watch request is.
//   - subscription: the use of a watch by a source of a registration, or by a standalone watch.
//   - swap: a call to StartServingGVK for a type that is served. It replaces the handler and the options, and keeps the
//     registration.
//   - replacement: a watch to which a subscription changes. A swap can require one. If the controller itself replaces a
//     watch, to store less, the subscription moves.
//   - run: a call to Run, during which objects are reconciled.
//   - shard: one of several parts of the types, which a hash divides; see [WithShard]. A run or a call to RunWatches
//     serves one shard, or all types.
//   - active: of a type, that a current run or call to RunWatches serves its shard. Only active types are watched.
//   - session: a period during which watches are running, because RunWatches or at least one run is active. It can span
//     many runs.
//   - term: a period of leadership; see package replica. A run usually lasts for one term.
//   - standby: a replica that runs only RunWatches.
//   - promotion: the start of a run on a standby, or again after an earlier run.
//   - initial sync: the period during which a type is not reconciled until the existing objects of all its sources are
//     queued, within the limits of D4. It begins with a run, with StartServingGVK and with a swap.
//   - state: of a watch, one of the values of [TypeState]; internally, this value is the phase of a state that also
//     contains times and messages.
//   - crew: the Config.Workers goroutines that call handlers for all runs, one for resyncs, and one for waits
//     for own writes.
//   - standalone watch: a watch of one type's objects that belongs to no registration; see
//     [DynamicController.StartWatch].
//   - type event: a report that the API server has started or stopped serving a type; see [WithTypeEvents].
//
// # Where to find what
//
//   - controller.go: construction. serving.go: starting, swapping and stopping a type, by its GVR. registration.go: the
//     life of a served type, and its teardown. registry.go and scopes.go: which types are served, by which runs, and
//     which are active.
//   - running.go: Run, promotion and shutdown. run.go: the calls of a run. workers.go: the goroutines that call
//     handlers. runwatches.go and sessions.go: watches without runs.
//   - shards.go: draining a shard, and its load. internal/typewatch/activity.go: the watches of a shard, which its
//     types use only while they are active, and the shard to which [WithBucketLabel] narrows them. internal/shards: the
//     shard and the bucket of a type.
//   - writewaits.go and ownwrites.go: waiting until the caches contain what the last call has written.
//   - outcome.go: calling a handler and settling the outcome; internal/attempts: failures, backoff and parked objects.
//   - target.go: from a registration to the queue. queue.go: options and rate limiters of the queue, which is in
//     internal/fairqueue. cause.go: why a handler is called.
//   - watch.go: Owns, Watches, AddWatches and RemoveWatches. standalone.go: standalone watches. eventhandler.go: events
//     without a queue. independent.go: what these two have in common. object.go: what predicates and MapFuncs receive.
//     internal/feed: a registration's subscriptions, its initial sync, and when a swap takes effect.
//   - internal/typewatch: watches, joining a shared one, replacing one, and delivering changes. internal/objects: their
//     caches. internal/recordclient: their requests.
//   - addindex.go: declaring an index while its watch is running. internal/typewatch/indexes.go: the indexes of a
//     subscription. internal/objects/index.go: building an index, and keeping it up to date.
//   - options.go: serve options and options of watches. config.go: Config and the controller's options. handler.go:
//     Handler and its errors. status.go, lister.go: reading states and caches. metrics.go, metrics/: what is reported
//     for each reconcile, and all metrics.
//
// # Promises
//
// Serving:
//
//   - S1: After StopServiceGVK returns nil, no handler for that registration is running or will be called again. The
//     registration's goroutines have exited, and its queue entries, retries, status, metrics and cache have been
//     removed. A watch that other subscriptions share keeps its cache. If the call's ctx is cancelled first, no new
//     handler starts and the error lists what is still running.
//   - S2: StartServingGVK either succeeds or changes nothing. It sends no requests and does not wait for a sync. A swap
//     replaces the handler and the options, and reconciles every object once. It removes the secondaries that it does
//     not list, unless [KeepWatches] is given. If the new options can use the current watch, they take effect
//     immediately. Otherwise, the previous handler and options stay in effect until a new watch has synced, unless the
//     current one never has, and [TypeStatus].Replacement reports the state of the new watch. Concurrent starts and
//     stops are serialized.
//   - S3: A type that hangs, fails or cannot sync does not affect starts, stops, events or reconciles of other types. A
//     predicate or MapFunc that hangs does not affect other types either, even on a shared watch. Its own type is still
//     reconciled because of the type's other sources. [TypeStatus].RunningFunction names the function. A function of a
//     standalone watch that hangs delays the first reconciles of a run by at most ten seconds. If the function of an
//     index hangs, only the calls to ByIndex for this index hang.
//   - S4: Types can be added and removed before, during and between runs, and on a standby.
//   - S5: A type is synced only while its watch is open, or was until less than five seconds ago; [TypeSynced]
//     describes two special cases. If the API server does not serve a type, forbids access to it, fails or does not
//     respond, [TypeStatus] reports the state and the API server's message within ten seconds. If the first list takes
//     longer, the message describes its progress, and the status contains the number of received items. The watch is
//     retried with a capped backoff and recovers without intervention. With [WithTypeEvents], it recovers as soon as
//     the type is served again. A 404 alone neither empties the cache nor causes reconciles. After a type event reports
//     that the type is gone, the cache is emptied and each object that it held is reconciled once more. For a NotFound
//     that a handler returns because the type is missing, see D9. There are two exceptions from the ten seconds: a type
//     that cannot be watched is listed every 30 seconds, and its state reports a failure of the next list. A proxy that
//     sends the headers of a watch and holds back the events is noticed after 90 seconds if a bookmark has arrived in
//     the watch, and otherwise at the timeout of the watch, which is 5 to 10 minutes.
//   - S6: Subscriptions to the same type share watches, whether the type is served, owned or watched. A watch is
//     identified by GVR, namespaces, selectors, with [WithBucketLabel] the shard, and projection: keys, metadata,
//     objects without managedFields, or complete objects. A subscription joins a watch that stores at least the
//     projection that the subscription needs. If a watch stores more than its remaining subscriptions need, these
//     subscriptions move to a watch that stores less. A watch is replaced only after its replacement has synced with a
//     list that is at least as recent as the old cache. No change is lost, and the difference between the two caches is
//     delivered once. If the new watch cannot sync, the old one keeps running. The caches of two watches of the same
//     type can be at different resourceVersions. A watch with a transform is not shared.
//
// Delivery:
//
//   - D1: While Run is running, every change is followed by a handler call that starts after the change is in the
//     cache, unless a predicate returns false for it. This includes changes caused by a new schema, such as a new
//     default, even though the object's resourceVersion and generation stay the same. Such changes are detected by
//     comparing objects with the cache. If a handler adds a watch, its object is reconciled once more when the watch
//     has synced, so that no deletion before the first list is lost. With [CacheMetadata], only such changes to the
//     metadata are detected, and with [CacheKeys], none are. Detection usually takes a few seconds; see Limitations.
//   - D2: There are never two concurrent handler calls for the same [ObjectIdentifiers], even across swaps,
//     registrations and runs.
//   - D3: Deletions that happened while a watch was interrupted are found by comparing the cache with the next list.
//     Each deletion is delivered with the last known state of the object, so that the owner of a deleted child is
//     reconciled. An object that was deleted and created again with the same name is delivered as a deletion and an
//     addition. An object that cannot be used, for example because a label is not a string or because JSON readers
//     refuse it, is skipped and counted in the status, in watches as in lists. Its last usable state stays in the
//     cache. A list is never older than the cache, so a lagging API server causes no false deletions. The only
//     exception is a restore of etcd from a backup, after which the cache reverts to the restored state.
//   - D4: All initial lists of a registration, including those of owned and watched types, together trigger only one
//     reconcile per object. If the list of an owned or watched type fails, the reconcile is delayed by about a second
//     at most. If the list or a MapFunc hangs, the reconcile is delayed by at most ten seconds.
//   - D5: Panics in user code (handlers, transforms, predicates and the like) and invalid return values never crash the
//     process. The stack of a panic is logged. A handler panic counts as a failure. A typed nil error, or an error with
//     a method that panics, counts as a panic. If a transform fails or returns an invalid object, the error is logged
//     and the untransformed object is stored. If a predicate panics, the change is processed. If the function of an
//     index panics, the object has no values; the first panic is logged as an error, the others at V(1). If a transport
//     or client panics, the request counts as failed. A call to [runtime.Goexit] counts as a panic.
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
//   - D10: Events, due retries and Enqueue precede initial lists, swaps, promotions and resyncs, but never starve them.
//   - D11: When Run's context is cancelled, the handlers' contexts are cancelled immediately, with a cause. Run waits
//     for handlers for at most Config.ShutdownTimeout, and for watches and other functions for at most a second more,
//     and its error lists what is still running. Other runs are not affected. The workers of calls that are still
//     running are replaced.
//   - D12: Between the return of a handler call and the next call for the same object, every cache that the type reads
//     (its own, those of owned and watched types, and standalone watches) contains the writes of the first call,
//     deletions included, or Config.MaxWriteLag has passed, which is counted. An object that waits occupies no worker
//     and delays no other object, and neither an event nor Enqueue ends its wait. The writes must be sent with the
//     context of the call, and with a config of package replica or of [RecordWrites]. The calls can belong to different
//     runs, also to those of two leaders if the first one has released its Lease: see L6 of package replica.
//
// Fairness, across all runs:
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
//   - F3: With [WithFlow], the waiting objects of a type take turns by flow. If only one object of a flow is waiting,
//     and the flow has not reached its limit, at most one reconcile of each other flow starts before that of the
//     object. This applies to the two classes of D10 separately: to events, due retries and Enqueue, and to all others.
//     [WithFlowConcurrency] limits the concurrent calls of each flow. A flow at its limit delays no other flow.
//
// Replicas (L1 to L4 and L6 are promises of package replica):
//
//   - L5: While RunWatches is running, a promotion sends no list request and opens no watch. Every object in the
//     cache is reconciled once, and new events take precedence.
//
// Shards (H2 to H4, H6 and H7 are promises of package replica):
//
//   - H1: A type, and with it each of its objects, belongs to one shard. The shard depends on the type's group and
//     resource and on the number of shards only. Current runs have the same number of shards and serve different ones.
//   - H5: Each run reconciles each object of its shard once, and D1 holds from then on. L5 holds for a shard that
//     RunWatches keeps warm. L6 of package replica holds for each shard.
//   - H8: [WithBucketLabel] only narrows a watch. An event reconciles objects of the type that declares the watch,
//     whatever the label of the object contains, and objects without the label are always received.
//   - H9: Only types of shards that are led or kept warm are watched. A watch that several types share runs as long as
//     one of them is active. When the last run or call to RunWatches for a shard has returned, the goroutines of its
//     watches have ended, and its caches, failures, delays and parked objects are gone. Its types remain registered and
//     can be changed. Listers return [ErrOtherShard] for types of shards that are neither led nor kept warm, and
//     [TypeStatus].OtherShard is true. Without shards, the caches are kept between runs.
//
// # Limitations
//
//   - A deletion that happens while Run is not running can be missed. Use a finalizer for cleanup that must not be
//     skipped. With shards, the process that served the type before does not pass on anything to the next one.
//   - Several changes to an object can result in a single handler call.
//   - D12 does not include deletions of collections, creations with a generated name whose response was lost, requests
//     that a handler sends after it has returned, types that cannot be watched, caches that have not synced because
//     requests fail, and servers whose resourceVersions cannot be compared. If the outcome of another request is
//     unknown, or its response does not contain the object, as for evictions, bindings and CBOR, the object is read
//     once. A write by way of one group is not waited for in the cache of another group that serves the same objects,
//     such as events. A scaled object is not waited for in a cache that does not contain it, because the response has
//     no labels. If a watch selects objects by a field other than the name and the namespace, a write to an object that
//     it does not select is waited for until the watch receives a later change. While a restore of etcd has not been
//     noticed, a write can be missing. When a run ends or a type is stopped, the writes of the last ten seconds are
//     remembered, at least the newest 5,000. Calls that return later, because the handler ignores its context, are not
//     waited for. Two controllers of [NewDynamicController] for different clusters must not run with the same Lease.
//   - If connections are lost repeatedly, a change to a type's schema can be detected up to five minutes late. Types
//     whose API group has no dot, such as core and apps, are not relisted to detect such changes.
//   - With NewDynamicController, client-go reads the objects. An object that JSON readers refuse ends a list, and a
//     watch that contains it: JSON readers accept a depth of 10,000, and a watch event adds one.
//   - A goroutine of net/http calls rest.Config.Dial and Proxy, and one of client-go reads the watches of a client that
//     was passed to NewDynamicController. Panics in Dial, in Proxy and in the response bodies of these watches end the
//     process.
//   - A handler that ignores its context keeps its worker until it returns, or until its run has ended. A transform
//     or a function of [WithFlow] that hangs blocks its watch, also for
//     the other types that share it.
//
// The page docs/library.md of the repository describes the limitations in detail, and docs/architecture.md the
// implementation.
package dynamiccontroller
