// Package rollout decides when the instances of a Blueprint move to its newest revision.
//
// New instances are created with the newest revision. The others move in steps: at first one instance, and then as many
// as have become ready with the newest revision, so that the number doubles with each step. An instance that has become
// less healthy is waited for. If it fails, the roll-out stops: no further instance moves while more than a tenth of the
// instances that have moved and become ready fail. An instance that failed before it moved counts neither as a success
// nor as a reason to stop. Paused instances do not move.
//
// All decisions are derived from the statuses of the instances, and instances move in an order that depends only on
// their names and the revision. A restarted or another process therefore continues where the last one stopped.
package rollout
