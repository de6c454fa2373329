// Package dynamiccontroller is an engine for platforms whose users define resource types at runtime: it starts and stops
// serving types while it runs, and work on one type never disturbs another.
//
// # Life of a controller
//
//	NewForConfig ──▶ StartServingGVK / StopServiceGVK, at any time
//	      │
//	      ├──▶ RunWatches(ctx)    every replica: the caches of all served types are kept warm, nothing is queued
//	      └──▶ Run(ctx)           one replica: workers reconcile; it watches for itself unless RunWatches does. Whichever
//	               │              begins first, the watches are RunWatches' once that runs.
//	               │ ctx ends: handlers' contexts end, Run waits for them
//	               ▼
//	           Run(ctx) again     every object in the cache is reconciled once
//
// A type is watched by a reflector into a cache. What changes goes into one workqueue for all types, which holds
// [ObjectIdentifiers] and nothing else, and is handed to the type's [Handler] by one of Config.Workers goroutines. What
// happens to other types that it [Owns] or [Watches], from the start or from [DynamicController.AlsoWatch] on, calls for the
// objects concerned. Whoever needs the same objects shares their watch.
//
// # What it promises
//
// Serving:
//
//   - S1: when StopServiceGVK returns nil, no handler of that registration runs or ever will, its goroutines have ended
//     and nothing of it is left in queue, retries, status, metrics and cache. If its context ends first, its error names
//     what still runs; nothing new starts.
//   - S2: StartServingGVK registers whole or not at all, makes no request and waits for no sync. Called again it swaps
//     handler and options and reconciles everything once. Concurrent starts and stops of a type end as if made one after
//     another.
//   - S3: a type that cannot sync, hangs or fails leaves every other type's start, stop, events and reconciles alone.
//   - S4: types can be started and stopped before, during and between runs, and on a standby.
//   - S5: a type that is not served by the API server, forbidden or failing says so in [TypeStatus] with the server's
//     words, is retried with capped backoff and recovers by itself; with [WithTypeEvents], the moment it is back. A 404
//     alone neither empties its cache nor calls its handler: when a type event says that the type is gone, each object
//     that the cache held gets a last call. A NotFound because the type is gone ends the retries of its objects.
//   - S6: who needs the same type, namespace and selector, because it serves, owns or watches it, shares one watch, which
//     keeps the deepest that any of them asks for and ends with the last. When that becomes more or less another watch is
//     started beside it and takes its place once it has synced: no change is lost or told twice, two are open at most, and
//     if the new one cannot sync the old one goes on. A reader sees what its own registration asked for. A type with a
//     transform has a watch of its own, as functions cannot be compared.
//
// Delivery:
//
//   - D1: while Run runs, every change is followed by a call of the handler that began after the change was in the
//     cache. If a change of the type's schema alters objects, for example by a new field with a default, every altered
//     object counts as changed, although its resourceVersion and generation stay the same. Predicates then get two
//     objects with equal resourceVersions. Only the contents of the cache are compared: [CacheMetadata] does not detect
//     changes of the spec, and [CacheKeys] detects no such change.
//     A schema change is found within seconds by a list that follows each watch which the API server has closed before its
//     timeout. A cut connection looks the same, and costs one list for each custom resource. To limit that, there are at
//     most 20 such lists per second for all types, and for each type 10 in a row and then one every five minutes. A schema
//     change is therefore found up to five minutes late while the API server's watches are cut all the time. Types whose API
//     group has no dot, which are built in, are not listed again.
//   - D2: there are never two calls at once for the same object, over swaps, registrations and runs too.
//   - D3: Deletions that happened while the watch was down are found by comparing the cache with the next list. They
//     are delivered with the last known state, so that the owner of a deleted child is reconciled. A list is never
//     older than the cache, so a lagging API server causes no false deletions. If etcd was restored from a backup, the
//     cache goes back to the restored state.
//   - D4: there is one call an object for the initial lists, of its type and of those watched beside it. One of these that
//     cannot be had is not waited for, one that hangs for ten seconds.
//   - D5: Panics and invalid return values of user code (handlers, transforms, predicates and the like) never end the
//     process. A panic counts as a failure of its item, and its stack is logged. An error that is a typed nil, or that
//     has a method that panics, counts as a panic. If a transform returns an invalid object, the transform has failed
//     and the object is kept. A predicate that panics counts as true.
//   - D6: outcomes are recognized wrapped, and an immediate requeue backs off. An interruption is no failure.
//   - D7: a type's failures never delay another type's first run or retry.
//   - D8: an object that fails more than Config.QueueMaxRetries times in a row is parked, not forgotten: it is counted in
//     status and reconciled again with its next event, by Enqueue, at its resync and in the next run.
//   - D9: A NotFound for the object itself ends its retries, and so does the termination of its namespace. While the
//     type is [TypeNotFound], a NotFound that names no other object counts as one for the object itself if the cache
//     does not hold the object.
//   - D10: events, retries that are due and Enqueue go before initial lists, promotions and resyncs, which never starve.
//   - D11: when Run's context ends, handlers' contexts end at once with a cause; Run waits for at most
//     Config.ShutdownTimeout and names what did not return.
//
// Fairness:
//
//   - F1: types with work waiting take turns by weight: a type with one object waiting waits at most one round.
//   - F2: with the defaults a type whose handlers hang or are slow leaves workers to the others, and a hung handler's
//     context ends after 5 minutes.
//
// Two halves (package replica has the rest, L1 to L4):
//
//   - L5: beside RunWatches a Run makes no list and opens no watch: every object in the cache is reconciled once, events
//     that come in go first.
//
// # What it does not promise
//
//   - A deletion that happens while no Run runs is not replayed. A Run that watches for itself finds what its process had
//     in the cache before; a standby's cache, which RunWatches keeps up to date, forgets what is deleted. What must be
//     cleaned up needs a finalizer.
//   - Changes are not counted: several may be followed by one call.
//   - AllInformerHaveSynced stays false while one type cannot sync, so that it is no readiness check.
//   - With k types whose handlers all hang for ever, Workers must exceed k times their concurrency.
//   - A handler that ignores its context keeps its worker until it returns.
//   - A predicate, transform or MapFunc that hangs holds up all who share the watch.
//   - A list of children that fails when a run begins, and comes a moment later, calls for its owners once more.
package dynamiccontroller
