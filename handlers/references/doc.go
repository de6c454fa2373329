// Package references reconciles an object when an object that it refers to changes. A handler declares the objects that
// it reads, by name or by label selector, while it reads them. The package watches their types, and keeps an index from
// the declared objects to the objects that refer to them.
//
//	tracker, err := references.New(references.Config{Controller: controller})
//	...
//	handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
//		refs := tracker.Begin(ctx, id)
//		defer refs.Abort() // has no effect after Commit
//		reader := refs.Reader(handlers.Live(client))
//		secret, err := reader.Get(ctx, secrets, id.Namespace(), "credentials")
//		...
//		refs.Commit()
//		return nil
//	}
//
// When the object itself is gone, the handler must call [Tracker.Forget].
//
// # References of an object
//
// A reconcile can only add references until it calls [References.Commit]. The set that it has declared then replaces
// the earlier set. If the reconcile fails midway, it has not declared all its references. Therefore, [References.Abort]
// keeps the earlier references as well as the new ones. So does a handler that panics or calls neither function. The
// references of aborted reconciles are kept until the next Commit. A handler can call Commit as soon as it has declared
// everything, for example before it writes the status of the object.
//
// # Delivery
//
// An object that has declared a reference is reconciled after each change to the referenced object: when it is created,
// updated or deleted and, for a selector, also when it begins or ceases to match. A declaration takes effect before the
// method returns. The handler must therefore declare a reference before it reads the object; [References.Reader] does
// this. Changes that [Config].WatchOptions excludes, for example with a predicate, are not delivered.
//
// The first reference to a type starts a watch of the type. A handler does not wait for it. When the watch has synced,
// all objects that refer to the type are reconciled once. This reconcile finds changes that happened before the sync,
// including deletions that the watch does not deliver. If the watch cannot sync, for example because the type does not
// exist, the objects are reconciled as soon as it can. The watch of a type ends when no object refers to the type.
//
// If changes arrive faster than they can be looked up, changes to the same object are combined, and states in between
// can be lost; see [dynamiccontroller.MapFunc]. All objects that refer to the type by a selector are then reconciled
// once, and those that refer by name to an object that does not exist. Without [Config].WatchOptions, a state is lost
// only if its metadata differs from that of the states that are looked up. With options, objects that refer to the type
// by name are reconciled as well, because the options can exclude changes.
//
// There is one limit. If the watch of the referenced type is interrupted, and an object is created, read by a handler
// from the API server, and deleted before the watch continues, the deletion is not delivered. The same applies to an
// object that matches a selector only during the interruption.
//
// # Reading from the cache
//
// The watches cache the metadata of objects. If [Config].WatchOptions returns WithCache(CacheFull), the objects can be
// read from the cache, without requests:
//
//	reader := refs.Reader(handlers.Cached(refs.Lister))
//	secret, err := reader.Get(ctx, secrets, id.Namespace(), "credentials")
//	if errors.Is(err, dynamiccontroller.ErrNotSynced) {
//		return nil // the object is reconciled when the watch has synced
//	}
//
// # Runs
//
// References are kept separately for each run of the controller, and dropped when the run ends, as the section State in
// the documentation of package handlers describes. The next run reconciles all objects, which declare their references
// again. The watches of the references end with the run, too, even if a handler does not return. A standby has no
// references. To keep its caches up to date for a promotion, call StartWatch for the referenced types on every replica,
// with the options of [Config].WatchOptions and a function that returns nil. The watches of the tracker then share
// these watches, and send no requests. A watch with a transform is not shared.
//
// # Cost
//
// A change costs one lookup for the references by name, one for each label of the object, and one match for each
// selector that is declared in the namespace of the object, or for all namespaces, and that can match the object. A
// selector with =, == or in requires a label. It can match only objects with this label; see BenchmarkSelectors. Other
// selectors are always matched. If a selector requires several labels, the one that the fewest other selectors require
// is used. An update that does not change the labels is matched once. The costs do not depend on the number of types or
// of other references. Equal selectors of several objects count once. The package needs memory for the references,
// which BenchmarkMemory measures, and for the caches of the watches.
//
// [Tracker.Stats] returns the numbers of references, watches and events, and [Config].Hooks are called when a watch
// starts or stops and for each event, so that a program can publish its own metrics.
package references
