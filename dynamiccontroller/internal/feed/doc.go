// Package feed feeds the keys of one type's objects to the workqueue. A [Feed] holds the subscriptions of a served
// type: a primary one to the type's own objects, and a secondary one for each other watch of the type. It knows options
// as values, and passes keys to a [Target]. It does not know handlers, runs or the queue.
//
//	typewatch.Pool ──▶ primary ─────────▶ Feed ──▶ Target (pause, resume, keys)
//	               ──▶ secondary ───────▶
//	               ──▶ secondary ───────▶
//
// The states of a feed:
//
//	             Attach                       initial sync done
//	detached ─────────────▶ initial sync ───────────────────────────▶ delivering
//	    ▲               (the target is paused) ◀──────────────────────────┤
//	    │                         │              a swap takes effect      │
//	    └─────────────────────────┴────── Detach: the run ends ───────────┘
//
// While a feed is detached, its subscriptions keep the caches up to date, but no keys are passed on. During the initial
// sync, keys are passed on, and the target does not process them. A feed that is not active, because its type belongs
// to a shard of another process, watches nothing; see [Feed.SetActive]. [Feed.Swap], [Feed.AddWatches] and
// [Feed.RemoveWatches] change a feed in any state, and [Feed.Close] ends it.
//
// Where to find what:
//
//   - feed.go: attaching, detaching and closing a feed
//   - changes.go: the order of changes to a feed
//   - source.go: what is watched, as a value
//   - secondary.go: adding, replacing and removing the watches of other types
//   - swap.go: replacing all options of a type, and its states
//   - initialsync.go: pausing the target until the existing objects have been passed on
//   - events.go: from the change of an object to keys
//   - losses.go: whether a state is lost that was not delivered, because changes were combined
package feed
