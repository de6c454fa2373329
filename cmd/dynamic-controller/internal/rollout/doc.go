// Package rollout decides when the instances of a Blueprint move to its newest revision.
//
// New instances are reconciled with the newest revision immediately. Existing instances move to it in steps. In the
// first step, one instance moves. In each further step, as many instances move as have already moved successfully, so
// that the size of the steps doubles. An instance has moved successfully if it is ready. It has also moved successfully
// if it is not failing and was not ready before the move.
//
// Instances that already fail before they move have separate steps. In the first of these steps, one such instance
// moves. In each further step, as many of them move as there are instances with the newest revision. An instance that
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
// The minute begins again when the process restarts.
//
// Tenants can write the statuses of their instances. The revision in a status therefore only selects one of the
// revisions that instances can have. These are the base, which is the last revision to which all instances had moved,
// and the revisions that were accepted later. Any other revision stands for the base. While the process runs, an
// instance that has moved stays moved. The caller stores which revision is the base.
//
// Apart from this minute, the state of a rollout is derived from the statuses of the instances. The order in which
// instances move depends only on their names and the name of the revision. A rollout therefore continues after a
// restart or a change of leader.
package rollout
