// Package handlers contains building blocks for handlers. Each of them can be used alone. A handler composed of several
// of them is an ordinary [dynamiccontroller.Handler].
//
//   - [Chain] combines middlewares, such as [Logging]. To limit the duration of a handler call, use
//     [dynamiccontroller.WithReconcileTimeout].
//   - [Object] reads the object from a [Reader] and calls one handler if the object exists, and a different one if it
//     has been deleted. [Typed] decodes the object into a Go type.
//   - [Cached] reads objects from the cache, and [Live] reads them from the API server. [Fresh] reads an object from
//     the cache once the cache has caught up with the previous leader.
//   - [Finalizer] runs a cleanup before an object is removed.
//   - [Conditions] reports the state of an object in its status.
//   - [Claimer] adopts and releases children by their labels.
//   - [Expectations] creates and deletes children without fixed names, even if the cache lags.
//   - Package [github.com/dynamic-controller/engine/handlers/children] creates, corrects and deletes children with
//     fixed names.
//   - Package [github.com/dynamic-controller/engine/handlers/references] reconciles an object when an object that it
//     refers to changes.
//
// # Composition
//
//	handler := handlers.Logging()(handlers.Object(
//		handlers.Fresh(client, handlers.Cached(controller.Lister)),
//		handlers.Finalizer(handlers.FinalizerConfig{
//			Client: client, Name: "platform.example.com/bucket", Reconcile: reconcile, Cleanup: deleteBucket,
//		}),
//		forget,
//	))
//	err := controller.StartServingGVK(ctx, widgets, handler, dynamiccontroller.WithManagedFields())
//
// For a complete handler, see the package example.
//
// # Configuration
//
// Parts with required fields are configured with a Config struct. The functions NewClaimer, NewConditions and
// NewExpectations return an error that lists all invalid fields. The handler that [Finalizer] returns reports such an
// error when it is called. All parts are safe for concurrent use.
//
// # State
//
// Parts that keep state in memory keep it separately for each run of the controller. [dynamiccontroller.RunContext]
// identifies the run. State from an earlier run is never used, because another replica may have been the leader since
// then. All state is dropped when the run has ended, so nothing has to be reset between runs. Handler calls outside of
// a controller, for example in tests, share one state.
//
// # Writes
//
// All writes use the dynamic.Interface of the config. With a client that uses the fenced config of package replica,
// nothing is written once another replica may have become the leader. The documentation of each part describes what it
// writes and which permissions it needs.
//
// Each part acts on the current state, not on events. A process can therefore crash between two requests, or lose the
// response to one. The next call, in this process or another, continues from the current state.
//
// If a write depends on an object that was read, and could otherwise overwrite someone else's change, the write
// contains the object's resourceVersion or UID. The API server rejects the write if the object has changed. The part
// then reads the object from the API server and decides again.
package handlers
