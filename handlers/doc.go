// Package handlers is what handlers are made of. Each part can be used alone, and what comes of composing them is an
// ordinary dynamiccontroller.Handler.
//
//	Chain         middlewares as one: Timeout, Logging, Concurrency
//	Object        reads the object, from the cache or live, and calls with it, or with its absence
//	Fresh         reads from the cache what is no older than this process's leading
//	Finalizer     runs a cleanup before an object goes
//	Children      keeps named children as they are wanted, and deletes those that are no longer
//	Claim         adopts and releases children by their labels
//	Expectations  makes and deletes children without names, none twice because a cache lags
//	Conditions    tells in the status what is going on
//
// # Composed
//
//	handler := handlers.Chain(
//		handlers.Logging(),
//		handlers.Concurrency(4, dynamiccontroller.ObjectIdentifiers.Namespace),
//	)(handlers.Object(handlers.NewFresh(client, handlers.Cached(controller.Lister)),
//		handlers.Finalizer(client, "platform.example.com/bucket", deleteBucket,
//			func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, widget *unstructured.Unstructured) error {
//				_, err := children.Reconcile(ctx, id, widget, handlers.Desired{Stages: childrenOf(widget)})
//				_, statusErr := conditions.Set(ctx, id, widget, ready(err))
//				return cmp.Or(err, statusErr)
//			}),
//		func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
//			children.Forget(id)
//			return nil
//		}))
//	err := controller.StartServingGVK(ctx, widgets, handler)
//
// # Trust
//
// The config and the desired children come from the author of a controller, and are trusted. Parents and children can
// be changed by anyone with permission to do so, and are not trusted. In particular:
//
//   - [Children] looks only for children of kinds that the author names, regardless of the inventory annotation of a
//     parent. It reads at most 64 KiB and 1,000 entries of the annotation. Entries of other kinds cost no requests, do
//     not delay the deletion of the parent, and never cause a write to it.
//   - It lists children across namespaces only if the author declares their kind with [ChildKind].Elsewhere. If anyone
//     else adds the finalizer to a parent, it is removed when the parent is deleted.
//   - It changes and deletes an object only if the object has the parent as its controller or, in another namespace,
//     the parent's mark. An annotation alone is never sufficient.
//
// Users who can update a parent can still hide its children: without the entry in the inventory, children of a kind that is
// no longer wanted are not pruned, and without the finalizer children elsewhere outlive the parent. Users who can update
// a child can take it out of the parent's control by removing the owner reference or the mark.
//
// An author whose [Children] have children outside their parent's namespace calls Reconcile for a parent that is being
// deleted too, from the cleanup of a [Finalizer] or without one.
//
// # Writes
//
// Everything is written through the dynamic.Interface that the author gives: a client made of the replica's fenced config
// writes nothing once another replica may lead. Each part says what it writes and the rights that it needs.
//
// Each part looks at what is there, and never at what happened. So a process may die between any two requests, or
// not see the answer to one: the next call, in this process or another, goes on from what it finds.
//
// A write that follows from what was read carries the resourceVersion or the UID of that, wherever somebody else's
// work could be lost. The API server then refuses it if the cache was stale, the object is read live, and what is to be
// written is decided again.
package handlers
