// Package memory bounds the memory that concurrent reconciles hold together.
//
// A reconcile has a [Reservation] of the process's [Budget]. It must call [Reservation.Grow] before it allocates memory
// whose size depends on what users write: before a response is decoded, an object is copied or an expression is
// evaluated. The sizes are estimates, which are too high rather than too low. Grow never waits, because a waiting
// reconcile would occupy a worker that other types need. It returns an error instead:
//
//   - a [*BusyError] if other reconciles hold the memory. The object is reconciled again after a moment.
//   - a [*TooLargeError] if the reconcile needs more than the maximum, which is less than it could get if it ran alone.
//
// # Sharing
//
// The first bytes of every reservation, its allowance, are set aside and always granted. Most reconciles need no more,
// so they never fail because of others. The rest of the budget is shared. All reconciles of one type in one namespace
// can hold at most 1.5 times as much of it as is still free, and all reconciles of one type 3 times as much (the
// dynamic threshold of Choudhury and Hahne, 1998). Therefore, a tenant that runs alone gets 60% of it, a type 75%, and
// others get a part of what is left.
package memory
