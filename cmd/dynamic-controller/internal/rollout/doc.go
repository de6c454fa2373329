// Package rollout decides when the instances of a Blueprint move to its newest revision.
//
// New instances are reconciled with the newest revision immediately. Existing instances move to it in steps. In the
// first step, one instance moves. In each further step, as many instances move as have already moved successfully, so
// that the size of the steps doubles. An instance has moved successfully if it is ready. It has also moved successfully
// if it is not failing and was not ready before the move.
//
// Instances that already fail before they move have separate steps. In the first of these steps, one such instance
// moves. In each further step, as many of them move as there are instances that have moved. An instance that
// fails both before and after the move does not count as a success, and does not stop the rollout. Paused instances do
// not move.
//
// A step is smaller by one instance for each instance that is less healthy than before it moved, but is not failing. If
// a rollout has been waiting only for such instances for ten minutes, it is reported as stalled.
//
// The rollout stops if an instance that was not failing before the move is failing after it. The rollout continues when
// at least ten instances have moved successfully for each such instance. While a rollout is stopped, instances that
// were already allowed to move can still move.
//
// If no instance moves for a minute, the instances that are allowed to move are considered stuck. The same number of
// additional instances is then allowed to move. If several instances are stuck, all but one of them count as failing.
//
// # Forged statuses
//
// Tenants can write the statuses of their instances. The revision in a status therefore only selects one of the
// revisions that instances can have. These are the base, which is the last revision to which all instances had moved,
// and the revisions that were accepted later. Any other revision stands for the base. So does an empty revision, unless
// the instance was created after the newest revision was accepted. The caller stores which revision is the base.
//
// An instance with the newest revision in its status is reconciled with it, but its success does not count. Only an
// instance that the Gate has admitted counts, after [Gate.Moved] was called for it and the cache contains its status.
// If the cache does not contain it after a minute, because somebody overwrites it, the instance is stuck. Whether an
// instance is healthy is always taken from its status. Tenants can therefore stop a rollout with their instances, and
// hide that their own instances fail.
//
// # Restarts
//
// A new process, or a new leader, has admitted no instances. It reads two facts that its predecessors have stored where
// tenants cannot write:
//
//   - All instances had moved. In this case, all statuses are believed. The rollout is complete when the instances have
//     been counted.
//   - The number of admitted instances. Of the instances that have moved according to their statuses, as many count.
//     Instances that are less healthy than before they moved are counted first, and always reduce the number of
//     successes. Forged statuses can therefore replace successful instances, but not add to them.
//
// The order in which instances move depends only on their names and the name of the revision. The new process therefore
// admits the instances that its predecessor had admitted.
//
// The number is stored when it has doubled, or when the rollout would stop with the stored number. 10,000 instances
// cause about 15 writes. If a process ends before the number is stored, or if somebody removes the number, the next
// steps are smaller. If some instances fail, the rollout stops until they recover, are paused or are deleted.
//
// Instances that were stuck have another minute after a restart.
package rollout
