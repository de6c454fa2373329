// Package webhook handles admission requests for Blueprints. Every replica can serve them, because a review needs only
// the replica's caches. The webhook does not write anything.
//
// A Blueprint is rejected only for problems that remain until its spec is changed. Other problems are returned as
// warnings. A Blueprint that cannot be reviewed, or cannot be reviewed in time, is allowed with a warning. Its Accepted
// condition shows any problems later. The webhook is therefore only a convenience for authors; nothing relies on it.
//
// The number of concurrent requests is limited, and Blueprints are reviewed one at a time. Authors therefore cannot
// exhaust the memory and CPU time that a replica needs for reconciling.
package webhook
