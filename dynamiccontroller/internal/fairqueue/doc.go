// Package fairqueue provides a work queue that is fair between groups of items. It implements client-go's
// workqueue.TypedRateLimitingInterface.
//
// Every item belongs to a group. A group must be opened before it accepts items. Within a group, the guarantees of
// client-go's queue apply. An item that is added several times is queued only once. An item is never processed by two
// workers at the same time. An item that is added while it is running is handed out again after Done.
//
// # Turns
//
// Groups with waiting items form a ring and take turns. The algorithm is deficit round robin (Shreedhar and Varghese,
// SIGCOMM 1995), with the weight of the group as the quantum and a cost of 1 per item. A group joins the ring at the
// tail, so a single item waits for at most one turn of each of the other groups. A group that reaches its concurrency
// limit leaves the ring, and resumes its turn later.
//
// # Share of the workers
//
// A worker is idle while its goroutine is in Next. A dynamic threshold limits how many items of a group run
// concurrently. The algorithm comes from shared-memory switches (Choudhury and Hahne, IEEE/ACM Transactions on
// Networking, 1998). A group with h running items gets one of the idle workers if
//
//   - h < alpha*idle, and
//   - idle > 1 or h is 0.
//
// Alpha is 1 until Done has been called for an item that was handed out after Open or Start, and whenever the group's
// oldest running item has been running for more than 1 s. Otherwise, alpha is 8. Items that were handed out before the
// group was opened and are still running also count as running items of the group. If the threshold blocks a group, the
// group keeps its place in the ring. A group without running items is never blocked.
//
// With up to 17 workers, a group whose handlers are fast gets all but one of the workers if no other group is busy. A
// group whose handlers are slow gets half of them. The table shows how many workers remain idle if the handlers of some
// groups hang on their very first items. Where the table gives a range, the lower number applies if these groups become
// busy one after another, and the higher number if they become busy at the same time.
//
//	hung groups     2    4    8   10   16 workers
//	1              1    2    4    5    8
//	2              0    1    2  2-3  4-5
//	3              0  0-1  1-2  1-2  2-4
//	4              0    0  0-1  0-2  1-3
//	5              0    0  0-1  0-1  0-2
//	8              0    0    0  0-1  0-1
//
// If a group's handlers are fast at first and then hang, the group keeps its share of the workers until the handlers
// return, for example after a timeout. One worker remains idle, but a second such group can take it. With two workers,
// each group gets at most one worker at a time. With a single worker, the threshold has no effect.
//
// # Lanes
//
// Each group has two lanes, which are first in, first out within each flow. Items in the live lane are handed out
// first. To prevent starvation, one in eight items is taken from the background lane. Adding an item to the live lane
// removes it from the other lane.
//
// # Flows
//
// The items of a group can be divided into flows. In each lane, the flows with waiting items form a ring and take
// turns, one item at a time. A flow that reaches its limit of concurrency leaves the rings, and joins them again at the
// tail. A group whose waiting items all belong to such flows leaves the ring of groups. The rule for the two lanes
// applies to the group and to each flow. If it is the turn of a flow in one lane, but the flow's own rule requires an
// item of the other lane, that item is handed out. A flow that is often at its limit therefore starves neither lane.
//
// When the function that assigns items to flows is replaced, all items are assigned again. In each lane, items keep
// their order, unless they were added at the same time, and flows take their turns in the order of their first items.
//
// # Delays
//
// An item has at most one delay. If several delays are requested, the one that expires first applies. A delayed item
// can also wait in the background lane, so that an initial list does not postpone a retry. When the delay expires, the
// item moves to the live lane. Handing out the item or adding it to the live lane cancels the delay, unless
// [Options].KeepDelays is set.
//
// # Causes
//
// [Group.Because] gives the reason for adding an item: a set of bits that the queue does not interpret, and optionally
// an object. If the item is added again before it is handed out, its causes merge: the bits are combined, the first
// object is kept, and the others are counted. [Queue.Next] returns the result. The causes of a running item are for the
// next time. A delay has the cause for which it was set. If the item is handed out earlier, which cancels the delay,
// the cause of the delay is one of its causes. Dropping an item or a delay drops its cause.
//
// # Settling
//
// An item that was processed can wait for something before it may be handed out again. [Queue.Settle] gives back its
// place, so that it counts toward no limit, and [Queue.Done] ends the wait. In between, additions, delays and causes
// merge, as while an item is running. [Group.Hold] does the same to an item that is not running.
//
// # Stopping a group
//
// A group can be stopped and started. A stopped group rejects items. This does not affect other groups, and no worker
// waits for it. Items that were running when the group was stopped are left over; see [Group.Stop].
//
// # Reopening a group
//
// Closing a group, or reopening it, drops its waiting and delayed items. Running items are tracked until they are done,
// so that an item is not handed out again while it is still running. A [Group] handle and its rate limiter are valid
// from one Open until the next Open or Close.
//
// # Cost
//
// Opening, closing or stopping a group takes O(log groups + items). Replacing the function that assigns items to flows
// takes O(items log items). Operations on delays take O(log items), and statistics O(flows). All others take amortized
// O(1), plus the time to skip blocked groups. A flow takes about 200 bytes while it has items. An item in the live lane
// takes about 140 bytes, and one in the background lane 60 bytes if others were added at the same time for the same
// cause. Causes take 16 of the 140 bytes.
package fairqueue
