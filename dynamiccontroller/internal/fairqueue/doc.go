// Package fairqueue is a work queue that is fair between groups of items: the storage and the delaying layer beneath
// client-go's NewTypedRateLimitingQueueWithConfig, in place of its own.
//
// Every item belongs to a group. What client-go's queue promises of items holds here too: an item waits once however
// often it is added, it is never handed out twice at the same time, and one that is added while it is being processed
// is handed out again after Done. What client-go's storage cannot do is added below:
//
//   - Turns. Groups with something to hand out stand in a ring and take turns: deficit round robin (Shreedhar and
//     Varghese, SIGCOMM 1995) with the group's weight as quantum and a cost of one an item, which makes it O(1). A cost
//     by handler time was left out: it is known only afterwards, and the cap already bounds how many workers a slow
//     group holds. A group that becomes eligible joins at the tail, so that a single item waits at most one round: the
//     sum of the other groups' weights.
//   - Caps. A group hands out at most its concurrency at once, and leaves the ring while it is at its cap, where it
//     costs nothing and blocks nobody. What is left of its turn it has when it is back, so that weights hold for groups
//     with low caps too.
//   - Lanes. Within a group items are first in, first out in two lanes. [Live] goes first, but one in [backgroundShare]
//     turns of the group is the background lane's when something waits there, so that it cannot starve: the n-th item
//     of the background lane is handed out after at most n*backgroundShare turns. An item of the background lane that
//     is added again as live moves up.
//   - Delays. An item is delayed at most once, until the earliest moment asked for. Adding it meanwhile brings it
//     forward, and what its next processing asks for counts. One timer serves all groups; there is no goroutine.
//   - Removal. Closing a group drops all that it holds, waiting and delayed, in O(log groups), for the timer, and O(items
//     being processed). Those stay known until Done, over closing and opening again, so that a key is never handed out
//     while an earlier opening still works on it.
//
// The behaviours that client-go's own tests check of its queues, an item added twice, added while it is processed, delayed
// twice, shut down with and without a drain, are checked in queue_test.go, and every operation against a simple model in
// model_test.go.
//
// Everything else is O(1), delays O(log n), under one lock that is held for nothing but that. A group that is not open
// takes no items: they are dropped. Memory is given back when a group runs empty.
package fairqueue
