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
// at the tail. A single item of a group therefore waits for at most one turn of each other group, once a worker is
// free. A group that reaches its concurrency limit leaves the ring, and continues its turn when it returns.
//
// # Share of the workers
//
// A worker is idle while its goroutine is in Next. The dynamic threshold of shared-memory switches (Choudhury and
// Hahne, IEEE/ACM Transactions on Networking, 1998) bounds the number of items of a group that are running at the same
// time. A group with h running items gets one of the idle workers under these conditions, where the worker to be
// assigned counts as idle:
//
//   - h < alpha*idle.
//   - If idle is 1, h is 0.
//
// Alpha is 1 until the first run of an opening has returned, and while the oldest run of the group has been running for
// more than 1 s. Otherwise it is 8. Running items of earlier openings count in h and as oldest run. A refused group
// keeps its place in the ring. A group without running items is never refused, so at most as many groups are skipped as
// items are running.
//
// A group that is busy alone and fast gets all workers but one (with up to 17 workers). If its handlers are slow, it
// gets half of the workers. Groups whose handlers hang from their first run, and that have enough items, leave the
// following number of idle workers to the others. The lower number of a range applies if the groups become busy one
// after another, the higher one if they become busy at the same time.
//
//	hung groups     2    4    8   10   16 workers
//	1              1    2    4    5    8
//	2              0    1    2  2-3  4-5
//	3              0  0-1  1-2  1-2  2-4
//	4              0    0  0-1  0-2  1-3
//	5              0    0  0-1  0-1  0-2
//	8              0    0    0  0-1  0-1
//
// A group whose handlers hang after they have been fast keeps the share that it has until they return, for example
// because of a timeout. It leaves one worker, and a second such group can take that one.
//
// With a single worker, the threshold has no effect: no item is running when the worker requests one. With two workers,
// each group is processed by one worker at a time. If items of a previous run or an earlier opening are still running
// in other goroutines, a group can be refused until they return.
//
// At most one worker is woken at a time. After it has taken an item, it wakes the next one if another item can be
// handed out.
//
// # Lanes
//
// Each group has two lanes that are first in, first out. Items of the live lane go first. One of 8 items is taken from
// the background lane if it is not empty, so that it does not starve. An item of the background lane that is added to
// the live lane moves up.
//
// # Delays
//
// An item has at most one delay. The earliest time counts. A delayed item can also wait in the background lane, so that
// an initial list does not postpone a retry. It moves up to the live lane when it is due. The delay ends when the item
// is handed out or is added to the live lane. One timer serves all groups.
//
// # Openings
//
// Closing a group, or opening it again, drops its waiting and delayed items. Running items are tracked until Done, so
// that an item is never handed out while it is still running for an earlier opening. A Group handle belongs to one
// opening, and so does the rate limiter.
//
// # Cost
//
// Closing a group is O(log groups) plus the number of its running items. Delays are O(log items). All other operations
// are O(1), apart from skipped groups.
package fairqueue
