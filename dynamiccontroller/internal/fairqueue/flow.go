package fairqueue

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// flow is a part of a group's items. Flows with waiting items take turns within their group. A group without a function
// that assigns its items to flows has a single flow.
type flow[T, K, N comparable, V any] struct {
	set        *flows[T, K, N, V] // the set that contains the flow
	name       string
	live       list[*item[T, K, N, V]]
	background backlog[T, K, N, V]
	items      int // items that are waiting, delayed, running or settling
	running    int
	liveTurns  int // items taken from the live lane since the last one from the background lane
	// turns are the flow's places in the rings of its group, by lane.
	turns [2]element[*flow[T, K, N, V]]
}

// flows are all flows that a group has while one function assigns its items to them. A flow without items is removed.
type flows[T, K, N comparable, V any] struct {
	of     func([]N) []string // nil if there is only the single flow
	single flow[T, K, N, V]
	named  map[string]*flow[T, K, N, V] // not used for the single flow
	peak   int                          // largest len(named) seen by leave
}

func newFlows[T, K, N comparable, V any](of func([]N) []string) *flows[T, K, N, V] {
	s := &flows[T, K, N, V]{of: of}
	s.single.init(s, "")
	if of != nil {
		s.named = map[string]*flow[T, K, N, V]{}
	}
	return s
}

func (f *flow[T, K, N, V]) init(s *flows[T, K, N, V], name string) {
	f.set, f.name = s, name
	for lane := range f.turns {
		f.turns[lane].value = f
	}
}

// enter adds an item to the flow with this name, creating the flow if necessary.
func (s *flows[T, K, N, V]) enter(name string) *flow[T, K, N, V] {
	f := &s.single
	if s.of != nil {
		f = s.named[name]
	}
	if f == nil {
		f = &flow[T, K, N, V]{}
		f.init(s, name)
		s.named[name] = f
	}
	f.items++
	return f
}

// leave removes an item from the flow.
func (f *flow[T, K, N, V]) leave() {
	s := f.set
	if f.items--; f.items > 0 || s.of == nil {
		return
	}
	s.peak = max(s.peak, len(s.named))
	delete(s.named, f.name)
	if len(s.named) == 0 && s.peak > maxReused {
		s.named, s.peak = map[string]*flow[T, K, N, V]{}, 0
	}
}

func (s *flows[T, K, N, V]) all() iter.Seq[*flow[T, K, N, V]] {
	return func(yield func(*flow[T, K, N, V]) bool) {
		if s.of == nil {
			yield(&s.single)
			return
		}
		for _, f := range s.named {
			if !yield(f) {
				return
			}
		}
	}
}

// placeFlow adds the flow to the rings of its group, or removes it, as required. It must be called when the flow's
// waiting or running items, or the group's limits, have changed.
func (g *group[T, K, N, V]) placeFlow(f *flow[T, K, N, V]) {
	g.placeFlowIn(f, Live)
	g.placeFlowIn(f, Background)
}

// placeFlowIn does the same for one lane. The flow joins the ring at the tail.
func (g *group[T, K, N, V]) placeFlowIn(f *flow[T, K, N, V], lane Lane) {
	waiting, place := f.live.len, &f.turns[lane]
	if lane == Background {
		waiting = f.background.len
	}
	switch eligible := waiting > 0 && g.hasRoom(f); {
	case eligible == (place.next != nil): // already in place
	case eligible:
		g.turns[lane].pushBack(place)
	default:
		g.turns[lane].remove(place)
	}
}

// hasRoom reports whether the flow's limit of concurrency allows another running item.
func (g *group[T, K, N, V]) hasRoom(f *flow[T, K, N, V]) bool {
	if g.opening == nil {
		return true
	}
	limit := g.opening.options.FlowConcurrency
	return limit < 1 || f.running < limit
}

// oldest returns when the item that has been waiting longest started to wait. At least one item must be waiting.
func (s *flows[T, K, N, V]) oldest(now time.Duration) time.Duration {
	oldest := now
	for f := range s.all() {
		if f.live.len > 0 {
			oldest = min(oldest, f.live.head.value.since)
		}
		if f.background.len > 0 {
			oldest = min(oldest, f.background.batches[0].since)
		}
	}
	return oldest
}

// lockAndAssign locks the queue, and returns the name of the flow to which of assigns each of the group's items. It
// returns nil if of is nil. The queue is not locked while of is called.
func (q *Queue[T, K, N, V]) lockAndAssign(key K, of func([]N) []string) map[N]string {
	q.mu.Lock()
	if of == nil {
		return nil
	}
	assigned := map[N]string{}
	for {
		var missing []N
		if g := q.groups[key]; g != nil {
			for name := range g.items {
				if _, known := assigned[name]; !known {
					missing = append(missing, name)
				}
			}
		}
		if len(missing) == 0 {
			return assigned
		}
		q.mu.Unlock()
		for i, flowName := range of(missing) {
			assigned[missing[i]] = flowName
		}
		q.mu.Lock()
	}
}

// lockAndFlow locks the queue, and returns the names of the flows of some items, which can already be in the group or
// not. It returns nil if the group has a single flow or rejects items. The queue is not locked while user code is
// called.
func (h Group[T, K, N, V]) lockAndFlow(names []N) (flowNames []string) {
	var used *flows[T, K, N, V]
	h.q.mu.Lock()
	for !h.rejectsLocked() {
		current := h.opening.g.flows
		if current.of == nil {
			return nil
		}
		if current == used {
			return flowNames
		}
		used = current
		h.q.mu.Unlock()
		flowNames = used.of(names)
		h.q.mu.Lock()
	}
	return nil
}

// setFlowsLocked replaces the function that assigns the group's items to flows. assigned must be the result of
// lockAndAssign for this function. In each lane, the items keep their order.
func (q *Queue[T, K, N, V]) setFlowsLocked(g *group[T, K, N, V], of func([]N) []string, assigned map[N]string) {
	live, background := g.liveItems(), g.backgroundEntries()
	next := newFlows[T, K, N, V](of)
	g.flows, g.turns = next, [2]list[*flow[T, K, N, V]]{}
	for _, it := range live {
		it.flow = next.enter(assigned[it.name])
		it.flow.live.pushBack(&it.element)
	}
	for _, e := range background {
		it := g.items[e.name]
		if it.flow.set == next {
			continue
		}
		f := next.enter(assigned[e.name])
		if shared := f.background.push(f, e.name, e.since, it.cause); it.shared {
			g.items[e.name] = shared
		} else {
			it.flow = f
		}
	}
	for name, it := range g.items {
		if it.flow.set != next { // neither in the live nor in the background lane
			it.flow = next.enter(assigned[name])
		}
		if it.held() && it.hold != settling {
			it.flow.running++
		}
	}
	for _, it := range live {
		g.placeFlowIn(it.flow, Live)
	}
	for _, e := range background {
		g.placeFlowIn(g.items[e.name].flow, Background)
	}
}

// liveItems returns the items in the live lane, in the order in which they were added.
func (g *group[T, K, N, V]) liveItems() (items []*item[T, K, N, V]) {
	for f := range g.flows.all() {
		items = slices.AppendSeq(items, f.live.all())
	}
	slices.SortStableFunc(items, func(a, b *item[T, K, N, V]) int { return cmp.Compare(a.since, b.since) })
	return items
}

// entry is an entry of the background lane.
type entry[N comparable] struct {
	name  N
	since time.Duration
}

// backgroundEntries returns the entries of items in the background lane, in the order in which they were added.
func (g *group[T, K, N, V]) backgroundEntries() (entries []entry[N]) {
	for f := range g.flows.all() {
		for _, batch := range f.background.batches {
			for _, name := range batch.names {
				if g.waitsIn(batch.item, name) {
					entries = append(entries, entry[N]{name, batch.since})
				}
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b entry[N]) int { return cmp.Compare(a.since, b.since) })
	return entries
}
