// Package rollout decides when the instances of a Blueprint move to its newest revision.
//
// New instances are created with the newest revision. The others move in steps: at first one instance, and then as many
// as have moved successfully, so that the number doubles with each step. An instance has moved successfully if it is
// ready, or if it was not ready before either and does not fail. An instance that failed before it moved counts neither
// as a success nor as a reason to stop. Paused instances do not move.
//
// An instance that has become less healthy is waited for. If the rollout waits for ten minutes, it is reported as
// stalled. If the instance fails, the rollout stops: no further instance moves until at least ten instances have moved
// successfully for each one that fails. Instances that have been allowed to move are not held back.
//
// If no instance moves for a minute, those that could move are stuck, and others move in addition. If several are
// stuck, all but one of them count as failing. The minute begins again after a restart.
//
// All other decisions are derived from the statuses of the instances, and instances move in an order that depends only
// on their names and the revision. A restarted or another process therefore continues where the last one stopped.
package rollout
