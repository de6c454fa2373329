// Package fairqueue provides a work queue that is fair between groups of items. It implements client-go's
// workqueue.TypedRateLimitingInterface.
//
// Every item belongs to a group. A group must be opened before it accepts items. Within a group, the guarantees of
// client-go's queue apply: an item that is added several times waits once, an item is never handed out twice at the
// same time, and an item that is added while it is running is handed out again after Done.
//
// # Turns
//
// Groups that have items to hand out form a ring and take turns. The algorithm is deficit round robin (Shreedhar and
// Varghese, SIGCOMM 1995) with the weight of the group as the quantum and a cost of 1 per item. A group joins the ring
// at the tail. Once a worker is free, a single item of a group therefore waits for at most one turn of each other
// group. A group that reaches its concurrency limit leaves the ring, and continues its turn when it returns.
//
// # Share of the workers
//
// A worker is idle while its goroutine is in Next. The number of items of a group that are running at the same time is
// bounded by a dynamic threshold. The algorithm comes from shared-memory switches (Choudhury and Hahne, IEEE/ACM
// Transactions on Networking, 1998). A group with h running items gets another worker under the following conditions,
// where idle is the number of idle workers, including the worker to be assigned:
//
//   - h < alpha*idle.
//   - If idle is 1, h is 0.
//
// Alpha is 1 until the first run of an opening has returned, and while the oldest run of the group has been running for
// more than 1 s. Otherwise it is 8. Running items of earlier openings are included in h, and one of them can be the
// oldest run. A group that is refused a worker keeps its place in the ring. A group without running items is never
// refused, so at most as many groups are skipped as items are running.
//
// If only one group is busy and its handlers are fast, it gets all workers but one (with up to 17 workers). If its
// handlers are slow, it gets half of the workers. The table shows how many workers remain idle for other groups when
// the handlers of some groups hang from the first run, and these groups have enough items. The lower number of a range
// applies if the hung groups become busy one after another. The higher number applies if they become busy at the same
// time.
//
//	hung groups     2    4    8   10   16 workers
//	1              1    2    4    5    8
//	2              0    1    2  2-3  4-5
//	3              0  0-1  1-2  1-2  2-4
//	4              0    0  0-1  0-2  1-3
//	5              0    0  0-1  0-1  0-2
//	8              0    0    0  0-1  0-1
//
// If the handlers of a group hang after they have been fast, the group keeps its current share until they return, for
// example because of a timeout. It leaves one worker idle, and a second such group can take that worker.
//
// With a single worker, the threshold has no effect: no item is running when the worker requests one. With two workers,
// each group uses at most one worker at a time. If items of a previous run or an earlier opening are still running in
// other goroutines, a group can be refused until they return.
//
// At most one worker is woken at a time. After it has taken an item, it wakes the next one if another item can be
// handed out.
//
// # Lanes
//
// Each group has two lanes that are first in, first out. Items of the live lane go first. If the background lane is not
// empty, one of every 8 items is taken from it, so that it does not starve. If an item that waits in the background
// lane is added to the live lane, it moves to the live lane.
//
// # Delays
//
// An item has at most one delay. If it is delayed several times, the earliest time counts. A delayed item can also wait
// in the background lane, so that an initial list does not postpone a retry. It moves to the live lane when it is due.
// The delay ends when the item is handed out or is added to the live lane. One timer serves all groups.
//
// # Openings
//
// Closing a group, or opening it again, drops its waiting and delayed items. Running items are tracked until Done, so
// that an item is never handed out while it is still running for an earlier opening. A Group handle belongs to one
// opening, and so does a rate limiter.
//
// # Cost
//
// Closing a group takes O(log groups) time, plus time that is linear in the number of its running items. Operations on
// delays take O(log items). All other operations take O(1), apart from the time for groups that are skipped.
package fairqueue
