// Package events writes Kubernetes Events about Blueprints and instances. In the output of kubectl describe, they show
// users what the platform did and why something failed.
//
//	status write, or writes to children ─▶ Recorder.Record ─▶ queue ─▶ one goroutine per term ─▶ API server
//
// An Event is recorded when a condition changes, but not when a reconcile is repeated. Package handlers reports each
// change to a condition exactly once, so nothing is recorded again after a restart or a change of leader. Delivery is
// not guaranteed: an Event is dropped if there are too many, if the API server does not respond, or if the process
// exits before writing it. Everything important is therefore also in a status.
//
// # Why not client-go
//
// The broadcaster of k8s.io/client-go/tools/events has other goals:
//
//   - It starts goroutines for each event and does not wait for them to exit. Here, all goroutines must exit with the
//     leader's term.
//   - It combines events that differ only in their notes, and keeps the first note for at least six minutes. After a
//     user fixes one problem, the next one would not be visible.
//   - It does not preserve the order of events, does not limit their number, and logs an error for each rejected event.
//   - It tracks recurring events as series and updates them periodically. The platform records only state changes.
package events
