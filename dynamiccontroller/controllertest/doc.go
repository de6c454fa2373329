// Package controllertest helps to unit-test handlers and controllers without an API server. It is for the tests of
// programs that use package dynamiccontroller.
//
// A [Server] is an API server in memory. It implements [dynamic.Interface], so handlers and controllers use it as their
// client. The test acts as the user: it calls Apply and Delete, and compares the results of Get and TakeWrites with the
// expected ones.
//
// # Testing a controller
//
//	func TestGreet(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			server := controllertest.NewServer(controllertest.Type{GVR: greetings, Kind: "Greeting"})
//			controller := controllertest.NewController(t, server, dynamiccontroller.Config{})
//			if err := controller.StartServingGVK(t.Context(), greetings, greet(controller, server)); err != nil {
//				t.Fatal(err)
//			}
//			controllertest.Run(t, controller.Run)
//
//			id := server.Apply(greeting) // an *unstructured.Unstructured
//			controllertest.WaitIdle(t, controller)
//			// compare server.Get(id) and server.TakeWrites() with what is expected
//		})
//	}
//
// The test runs in a bubble of [testing/synctest]. [WaitIdle] therefore returns as soon as all changes have been
// reconciled, and takes no real time. Handlers and retries use the clock of the bubble: after time.Sleep(time.Hour) in
// the test, everything that is due within an hour has begun. After WaitIdle, the test can read variables that handlers
// have written, without a lock. A variable that the test changes and that a handler or a reactor reads must be atomic,
// because a retry can begin at any time.
//
// A program that creates its own controller can be tested if the client is a parameter. It then passes the server to
// [dynamiccontroller.NewDynamicController], and [Server.MetadataClient] to [dynamiccontroller.WithMetadataClient].
//
// The directory examples/hello of the repository has a complete test.
//
// # Caches that lag
//
// In production, a handler can read a cache that does not contain its own last write. [Server.DelayWatches] and
// [Server.HoldWatches] make the caches lag, so that a test proves that the handler is right nevertheless:
//
//	release := server.HoldWatches(configMaps)
//	id := server.Apply(greeting)
//	controllertest.WaitIdle(t, controller) // the handler has created a ConfigMap, which the cache does not contain
//	controller.Enqueue(id)
//	controllertest.WaitIdle(t, controller) // a handler that trusts its cache creates another one
//	release()
//
// # Testing a handler alone
//
// A handler that uses only a client can be called without a controller, as in the example below. Such a test needs no
// bubble. A handler that reads from a lister needs a running controller that serves the type. After WaitIdle, the test
// can also call such a handler itself. [dynamiccontroller.CauseOf] then returns the zero Cause. For calls by a
// controller, it returns the same as in production.
//
// # What the server simulates
//
// The server answers like kube-apiserver 1.37. A table of almost 300 operations is run against both, with the same
// answers except in the cases below. Every type behaves like that of a CustomResourceDefinition with the subresource
// status and with a schema that preserves unknown fields:
//
//   - Create, get, list, update, delete, JSON patch, merge patch and server-side apply, with dry runs. Lists and
//     watches support label selectors, and field selectors for the name and the namespace. Lists have pages.
//   - Metadata is validated: names, labels, annotations, owners, finalizers, field managers and sizes.
//   - UIDs, resourceVersions, generations, creationTimestamps and generated names. A write without changes does not
//     change the resourceVersion.
//   - Conflicts: an update or patch with an old resourceVersion, an update with another UID, a deletion whose
//     preconditions are not met, and an apply of a field that another manager owns.
//   - Ownership of fields in managedFields. Server-side apply merges the finalizers and the ownerReferences of several
//     managers, and replaces all other lists.
//   - Finalizers: a deleted object with finalizers remains until they have been removed, and no finalizer can be added.
//   - The status is changed only by requests for the subresource, and all other fields only by other requests.
//   - Watches from any earlier resourceVersion, until the timeout in the request. Their events can be delayed.
//   - A NotFound without a name for types that are not served.
//
// Built-in types of common groups can be updated without a resourceVersion. ConfigMaps, Secrets, Services, RBAC types
// and other well-known ones have no generation or no status if the real ones have none.
//
// # What the server does not simulate
//
// Test what depends on the following with a real API server, for example with envtest. The first six rows are the
// operations of the table whose answers differ:
//
//	operation                               difference, and its reason
//	create in a missing namespace           succeeds: tests need not create namespaces, which are ordinary objects
//	create a namespace                      sets no label with its name: built-in types have no defaults
//	strategic merge patch                   is refused for all types: no type has a schema
//	apply to a built-in type                managedFields also contain the maps themselves: no type has a schema
//	watch from an expired resourceVersion   returns all later changes: the server keeps every change
//	watch that streams a list               is refused: reflectors use plain lists with this server
//	schemas                                 no defaults, no validation, no pruning, no conversion between versions
//	update of a missing object              is refused for all types: some built-in ones, such as Leases, are created
//	built-in types                          no immutable fields, and no subresources except status; Pods do not run
//	garbage collection                      children of a deleted object remain; the propagation policy is ignored
//	deletion of a namespace                 does not delete its objects
//	admission, permissions, rate limits     none; [Server.PrependReactor] makes requests fail
//	bookmarks                               are not sent
//	types                                   cannot appear or disappear
//	wire format                             objects are decoded as with any dynamic client, and not as with
//	                                        [dynamiccontroller.NewForConfig]
//
// # The network
//
// In a bubble, a goroutine that waits for a network connection does not count as blocked. [WaitIdle] can then never
// return, and ends the process after five seconds with the reason. Use a fake of the client that connects, or a
// [net.Pipe] in place of the connection.
package controllertest
