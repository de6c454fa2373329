package fairqueue

import (
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Group is a handle for an open group. Once the group has been closed or reopened, the handle's methods do nothing and
// return zero values.
type Group[T, K, N comparable, V any] struct {
	q       *Queue[T, K, N, V]
	opening *opening[T, K, N, V] // nil if the group was not open
	cause   Cause[T]             // of the items that are added through the handle
}

// Stats describes the items of a group.
type Stats struct {
	Live, Background int           // items waiting in each lane
	Delayed          int           // delayed items, including those that are also waiting or running
	Running          int           // items for which neither Settle nor Done was called, also from before Open
	Settling         int           // items for which Settle or Hold was called, but not Done, also from before Open
	Oldest           time.Duration // how long the first item of either lane has been waiting, whichever is longer
}

// Open opens a group, so that it accepts items. Next returns value together with each item of the group. If the group
// is already open, its items are dropped and the previous handle becomes invalid. Open does not call Options.FlowsOf.
// If items of an earlier opening can be running or settling, Assign must be called before the group is resumed.
func (q *Queue[T, K, N, V]) Open(key K, value V, options Options[T, N]) Group[T, K, N, V] {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[key]
	if g == nil {
		g = &group[T, K, N, V]{key: key, flows: newFlows[T, K, N, V](nil)}
		g.value = g
		q.groups[key] = g
	}
	g.openings++
	q.clearLocked(g)
	g.opening = &opening[T, K, N, V]{g: g, number: g.openings, value: value}
	q.configureLocked(g, options, nil)
	return Group[T, K, N, V]{q: q, opening: g.opening}
}

// Close closes the group and drops its waiting and delayed items. Running items are tracked until they are done.
func (h Group[T, K, N, V]) Close() {
	h.change(func(g *group[T, K, N, V]) {
		g.opening = nil
		h.q.clearLocked(g)
		if !g.holdsLocked() {
			delete(h.q.groups, g.key)
		}
	})
}

// Configure replaces the group's options. Running items are not affected, but count toward the new limits. Waiting and
// delayed items move to the flows that the new options assign to them.
func (h Group[T, K, N, V]) Configure(options Options[T, N]) {
	if h.opening == nil {
		return
	}
	g := h.opening.g
	assigned := h.q.lockAndAssign(g.key, options.FlowsOf)
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return
	}
	h.q.configureLocked(g, options, assigned)
	h.q.placeLocked(g)
	h.q.wakeLocked()
}

// Assign assigns the items that were running or settling before Open to flows. Until then, they belong to the flow "".
// It does nothing if it has assigned them before.
func (h Group[T, K, N, V]) Assign() {
	if h.opening == nil {
		return
	}
	q, g := h.q, h.opening.g
	var used *flows[T, K, N, V]
	var assigned map[N]string
	q.mu.Lock()
	if h.opening.isAssigned {
		q.mu.Unlock()
		return
	}
	for !h.endedLocked() && g.flows.of != nil && g.flows != used {
		used = g.flows
		q.mu.Unlock()
		assigned = q.lockAndAssign(g.key, used.of)
	}
	defer q.mu.Unlock()
	h.opening.isAssigned = true
	if !h.endedLocked() && g.flows.of != nil {
		q.setFlowsLocked(g, used.of, assigned)
		q.placeLocked(g)
		q.wakeLocked()
	}
}

// configureLocked sets the options of the current opening. assigned are the flows of the group's items.
func (q *Queue[T, K, N, V]) configureLocked(g *group[T, K, N, V], options Options[T, N], assigned map[N]string) {
	if options.Limiter == nil {
		options.Limiter = workqueue.DefaultTypedItemBasedRateLimiter[T]()
	}
	options.Weight = max(options.Weight, 1)
	g.opening.options = options
	g.credit = min(g.credit, options.Weight)
	if options.FlowsOf == nil && g.flows.of == nil {
		g.placeFlow(&g.flows.single)
		return
	}
	q.setFlowsLocked(g, options.FlowsOf, assigned)
}

// Pause makes Next skip the group until Resume is called. A paused group still accepts items.
func (h Group[T, K, N, V]) Pause() { h.change(func(*group[T, K, N, V]) { h.opening.paused = true }) }

// Resume ends a pause.
func (h Group[T, K, N, V]) Resume() { h.change(func(*group[T, K, N, V]) { h.opening.paused = false }) }

// Drain makes Next skip the group while draining is set, independently of Pause and Resume.
func (h Group[T, K, N, V]) Drain(draining bool) {
	h.change(func(*group[T, K, N, V]) { h.opening.draining = draining })
}

// Stop makes the group reject new items until Start is called, and drops its items that are neither running nor
// settling. Stop returns the names of the dropped items and of any others that were added again, but omits items that
// were only added to the background lane.
//
// Items that were handed out through the handle and are still running are left over. They are not handed out again
// until Done is called for them, and they count toward the limit of concurrency. They do not reduce the group's share
// of the workers, because the workers that process them are expected to be replaced. This also applies if the handle is
// no longer valid.
func (h Group[T, K, N, V]) Stop() (dropped []N) {
	if h.opening == nil {
		return nil
	}
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	g := h.opening.g
	for _, it := range slices.Collect(g.running.all()) {
		if it.isOf(h.opening) {
			g.running.remove(&it.element)
			it.hold = left
			g.left.pushBack(&it.element)
		}
	}
	if !h.endedLocked() {
		h.opening.stopped = true
		for name, it := range g.items {
			if it.delayed() || it.queued && it.lane == Live {
				dropped = append(dropped, name)
			}
		}
		h.q.clearLocked(g)
	}
	h.q.placeLocked(g)
	h.q.wakeLocked()
	h.q.endShutDownLocked()
	return dropped
}

// Start makes the group accept items again after Stop. From then on, Next returns value together with each item.
func (h Group[T, K, N, V]) Start(value V) {
	h.change(func(*group[T, K, N, V]) {
		h.opening.stopped, h.opening.returned, h.opening.value = false, false, value
	})
}

func (h Group[T, K, N, V]) change(f func(*group[T, K, N, V])) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return
	}
	f(h.opening.g)
	h.q.placeLocked(h.opening.g)
	h.q.wakeLocked()
	h.q.endShutDownLocked()
}

func (h Group[T, K, N, V]) endedLocked() bool {
	return h.opening == nil || h.opening.g.opening != h.opening
}

// rejectsLocked reports whether items cannot be added through the handle.
func (h Group[T, K, N, V]) rejectsLocked() bool {
	return h.q.closed || h.endedLocked() || h.opening.stopped
}

// Add adds items to a lane. It returns false if the handle is no longer valid, or the group or the queue is stopped.
//
// A running or settling item is handed out again after Done. Adding a delayed item to the live lane cancels the delay,
// unless Options.KeepDelays is set.
func (h Group[T, K, N, V]) Add(lane Lane, names ...N) bool {
	flowNames := h.lockAndFlow(names)
	defer h.q.mu.Unlock()
	if h.rejectsLocked() {
		return false
	}
	now, flowName := h.q.now(), ""
	for i, name := range names {
		if flowNames != nil {
			flowName = flowNames[i]
		}
		h.q.addLocked(h.opening.g, name, flowName, lane, now, h.cause)
	}
	h.q.wakeLocked()
	return true
}

// Hold makes an item settle that is neither running nor settling, whether it is in the queue or not: it is not handed
// out until Done is called. If it is waiting, it waits again after Done. Hold returns false, and has no effect, if the
// item is running or settling, if the handle is no longer valid, or if the group or the queue is stopped.
func (h Group[T, K, N, V]) Hold(name N) bool {
	flowNames := h.lockAndFlow([]N{name})
	defer h.q.mu.Unlock()
	if h.rejectsLocked() {
		return false
	}
	g, flowName := h.opening.g, ""
	if flowNames != nil {
		flowName = flowNames[0]
	}
	it := h.q.itemLocked(g, name, flowName)
	if it.held() {
		return false
	}
	it.opening, it.hold = h.opening.number, settling
	if it.queued {
		h.q.leaveLaneLocked(g, it)
	}
	g.settling.pushBack(&it.element)
	h.q.placeLocked(g)
	return true
}

// AddAfter adds an item to the live lane after d, or immediately if d is not positive. It has no effect if the item is
// due earlier, or already in the live lane and Options.KeepDelays is not set. The delay of a running item starts
// immediately. AddAfter returns false if the handle is no longer valid, or the group or the queue is stopped.
func (h Group[T, K, N, V]) AddAfter(name N, d time.Duration) bool {
	if d <= 0 {
		return h.Add(Live, name)
	}
	flowNames := h.lockAndFlow([]N{name})
	defer h.q.mu.Unlock()
	if h.rejectsLocked() {
		return false
	}
	flowName := ""
	if flowNames != nil {
		flowName = flowNames[0]
	}
	h.q.delayLocked(h.opening.g, name, flowName, d, h.cause.Kinds)
	return true
}

// CancelDelay cancels the item's delay, if any.
func (h Group[T, K, N, V]) CancelDelay(name N) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return
	}
	g := h.opening.g
	it := g.items[name]
	if it == nil || !it.delayed() {
		return
	}
	h.q.endDelayLocked(g, it)
	if !it.queued && !it.held() {
		h.q.dropItemLocked(g, it)
	}
}

// AddRateLimited calls AddAfter with the delay that the rate limiter returns for the item.
func (h Group[T, K, N, V]) AddRateLimited(name N) {
	if limiter := h.limiter(); limiter != nil {
		h.AddAfter(name, limiter.When(h.q.itemOf(h.opening.g.key, name)))
	}
}

// Forget makes the rate limiter forget the item's failures.
func (h Group[T, K, N, V]) Forget(name N) {
	if limiter := h.limiter(); limiter != nil {
		limiter.Forget(h.q.itemOf(h.opening.g.key, name))
	}
}

// limiter returns the group's rate limiter, or nil if the handle is no longer valid.
func (h Group[T, K, N, V]) limiter() workqueue.TypedRateLimiter[T] {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return nil
	}
	return h.opening.options.Limiter
}

// Has reports whether the group's item with this name is waiting, delayed, running or settling.
func (h Group[T, K, N, V]) Has(name N) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	return !h.endedLocked() && h.opening.g.items[name] != nil
}

// Stats returns the current statistics. It takes O(flows).
func (h Group[T, K, N, V]) Stats() (s Stats) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return s
	}
	g, now := h.opening.g, h.q.now()
	return Stats{
		Live: g.waiting[Live], Background: g.waiting[Background],
		Delayed: len(g.delays), Running: g.runningLocked(), Settling: g.settling.len, Oldest: now - g.flows.oldest(now),
	}
}

// opening is the state of a group from Open until Close or the next Open.
type opening[T, K, N comparable, V any] struct {
	g        *group[T, K, N, V]
	value    V
	number   uint32 // counts the openings of the group from 1
	options  Options[T, N]
	paused   bool // Next skips the group
	draining bool // Next skips the group
	stopped  bool // the group rejects new items
	returned bool // whether Done has been called for an item since Open or Start

	isAssigned bool // whether Assign has assigned the items from before Open
}

// group is the queue's state for one group key. A closed group is kept while items are running or settling.
type group[T, K, N comparable, V any] struct {
	element[*group[T, K, N, V]] // in the ring
	delay                       // the earliest of the delays below

	key      K
	opening  *opening[T, K, N, V] // nil if the group is closed
	openings uint32               // number of openings so far
	items    map[N]*item[T, K, N, V]
	peak     int // largest len(items) seen by dropItemLocked
	flows    *flows[T, K, N, V]
	turns    [2]list[*flow[T, K, N, V]] // flows with items to hand out, in the order of their turns, by lane
	waiting  [2]int                     // items by lane
	running  list[*item[T, K, N, V]]    // oldest first
	left     list[*item[T, K, N, V]]    // items that were running when Stop was called, and still are
	settling list[*item[T, K, N, V]]    // items for which Settle or Hold was called, and Done was not
	delays   delayHeap[*item[T, K, N, V]]

	credit    int // items left in the current turn
	liveTurns int // items taken from the live lane since the last one from the background lane
}

func (g *group[T, K, N, V]) waitingLocked() int { return g.waiting[Live] + g.waiting[Background] }

func (g *group[T, K, N, V]) runningLocked() int { return g.running.len + g.left.len }

// holdsLocked reports whether items are running or settling.
func (g *group[T, K, N, V]) holdsLocked() bool { return g.runningLocked()+g.settling.len > 0 }

// listOf returns the list that contains a held item.
func (g *group[T, K, N, V]) listOf(it *item[T, K, N, V]) *list[*item[T, K, N, V]] {
	switch it.hold {
	case left:
		return &g.left
	case settling:
		return &g.settling
	default:
		return &g.running
	}
}

// item is the state of an item that is waiting, delayed, running or settling. It can be delayed in all of these states.
type item[T, K, N comparable, V any] struct {
	element[*item[T, K, N, V]] // in the live lane or in a list of running or settling items
	delay

	name    N // not set in a shared item
	flow    *flow[T, K, N, V]
	since   time.Duration // when the item started to wait or to run
	opening uint32        // number of the group's opening when the item was handed out or held; 0 if it is not held
	queued  bool          // the item is in its lane, or Done will add it to the lane
	shared  bool          // the struct represents several items; see backlog
	hold    hold          // how the item is held
	lane    Lane
	cause   Cause[T] // why the item is waiting or, if it is held, why it will wait again
}

// hold is how an item is held, from when it is handed out, or Hold is called, until Done is called.
type hold uint8

const (
	running  hold = iota
	left          // Stop was called while the item was running
	settling      // Settle or Hold was called
)

// held reports whether the item is running or settling: it is not handed out until Done is called.
func (it *item[T, K, N, V]) held() bool { return it.opening != 0 }

// isOf reports whether the item is held since the opening, which can be nil.
func (it *item[T, K, N, V]) isOf(s *opening[T, K, N, V]) bool {
	return s != nil && it.opening == s.number
}

// clearLocked drops all items that are not being processed.
func (q *Queue[T, K, N, V]) clearLocked(g *group[T, K, N, V]) {
	q.waiting -= g.waitingLocked()
	g.flows, g.turns, g.waiting = newFlows[T, K, N, V](g.flows.of), [2]list[*flow[T, K, N, V]]{}, [2]int{}
	g.credit, g.liveTurns = 0, 0
	q.placeLocked(g)
	g.delays = nil
	q.updateDelayLocked(g)

	g.peak = g.runningLocked() + g.settling.len
	g.items = make(map[N]*item[T, K, N, V], g.peak)
	for _, held := range []*list[*item[T, K, N, V]]{&g.running, &g.left, &g.settling} {
		for it := range held.all() {
			it.queued, it.delay, it.cause = false, delay{}, Cause[T]{}
			it.flow = g.flows.enter(it.flow.name)
			if it.hold != settling {
				it.flow.running++
			}
			g.items[it.name] = it
		}
	}
}

// maxReused limits the size of maps that are reused. Larger maps are replaced, because maps never shrink.
const maxReused = 1024

// itemLocked returns the group's item with this name. If necessary, it creates the item in the flow with the given
// name. The result is not shared.
func (q *Queue[T, K, N, V]) itemLocked(g *group[T, K, N, V], name N, flowName string) *item[T, K, N, V] {
	before := g.items[name]
	if before != nil && !before.shared {
		return before
	}
	it, _ := q.free.Get().(*item[T, K, N, V])
	if it == nil {
		it = &item[T, K, N, V]{}
	}
	if before != nil {
		it.queued, it.lane, it.since = true, Background, before.since
		it.flow, it.cause = before.flow, before.cause
	} else {
		it.flow = g.flows.enter(flowName)
	}
	it.value, it.name = it, name
	g.items[name] = it
	return it
}

func (q *Queue[T, K, N, V]) dropItemLocked(g *group[T, K, N, V], it *item[T, K, N, V]) {
	g.peak = max(g.peak, len(g.items))
	delete(g.items, it.name)
	if len(g.items) == 0 && g.peak > maxReused {
		g.items, g.peak, g.delays = map[N]*item[T, K, N, V]{}, 0, nil
	}
	it.flow.leave()
	*it = item[T, K, N, V]{}
	q.free.Put(it)
}
