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
// Alpha is 1 until Done has been called for an item that was handed out after Open, and whenever the group's oldest
// running item has been running for more than 1 s. Otherwise, alpha is 8. Items that were handed out before the group
// was opened and are still running also count as running items of the group. If the threshold blocks a group, the group
// keeps its place in the ring. A group without running items is never blocked.
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
// Each group has two first-in, first-out lanes. Items in the live lane are handed out first. To prevent starvation, one
// in eight items is taken from the background lane. Adding an item to the live lane removes it from the other lane.
//
// # Delays
//
// An item has at most one delay. If several delays are requested, the one that expires first applies. A delayed item
// can also wait in the background lane, so that an initial list does not postpone a retry. When the delay expires, the
// item moves to the live lane. Handing out the item or adding it to the live lane cancels the delay.
//
// # Reopening a group
//
// Closing a group, or reopening it, drops its waiting and delayed items. Running items are tracked until they are done,
// so that an item is not handed out again while it is still running. A [Group] handle and its rate limiter are valid
// from one Open until the next Open or Close.
//
// # Cost
//
// Opening or closing a group takes O(log groups + running items). Operations on delays take O(log items), and Cancel
// takes O(items). All others take amortized O(1), plus the time to skip blocked groups.
package fairqueue
