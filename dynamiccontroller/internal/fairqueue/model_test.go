package fairqueue

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// model is a simple implementation of the queue, with slices for the lanes and the ring.
type model struct {
	groups  map[string]*modelGroup
	ring    []string
	running map[string]modelRun
	idle    int
	handed  []string  // items handed out since the last comparison
	due     time.Time // due time of the delay that tick is processing; otherwise zero
}

func (m *model) now() time.Time {
	if m.due.IsZero() {
		return time.Now()
	}
	return m.due
}

type modelRun struct {
	left    bool // the group was stopped while the item was running
	settles bool // the item does not count as running
	opening int
	began   time.Time
}

type modelGroup struct {
	open, paused, stopped bool
	draining              bool
	returned              bool
	opening               int
	options               testOptions
	lanes                 [2][]string
	turns                 [2][]string          // flows with items to hand out
	since                 map[string]time.Time // when each item was added to its lane
	again                 map[string]Lane
	due                   map[string]time.Time
	causes                map[string]modelCause // of items that wait, or will wait again
	delayed               map[string]modelCause // of delays
	liveTurns, credit     int
	liveTurnsOf           map[string]int // by flow
}

// modelCause is a Cause with all objects that caused the item to be added.
type modelCause struct {
	kinds   uint16
	objects []string
}

func (c modelCause) with(other modelCause) modelCause {
	return modelCause{c.kinds | other.kinds, slices.Concat(c.objects, other.objects)}
}

func (c modelCause) String() string {
	first, others := "", 0
	for i, object := range c.objects {
		if i == 0 {
			first = object
		} else if object != first {
			others++
		}
	}
	return fmt.Sprintf("kinds %b of %q and %d others", c.kinds, first, others)
}

func newModel() *model {
	return &model{groups: map[string]*modelGroup{}, running: map[string]modelRun{}}
}

// runs returns how many of the group's items are running, and when the oldest of them began to run. It also returns how
// many others have been running since before the group was stopped.
func (m *model) runs(group string) (n int, oldest time.Time, left int) {
	oldest = time.Now()
	for item, run := range m.running {
		switch {
		case groupOf(item) != group || run.settles:
		case run.left:
			left++
		default:
			n++
			if run.began.Before(oldest) {
				oldest = run.began
			}
		}
	}
	return n, oldest, left
}

// allowed implements the dynamic threshold.
func (m *model) allowed(group string) bool {
	n, oldest, _ := m.runs(group)
	alpha := 8
	if !m.groups[group].returned || time.Since(oldest) > time.Second {
		alpha = 1
	}
	return n < alpha*m.idle && (n == 0 || m.idle > 1)
}

// place updates the ring after a change to the group.
func (m *model) place(group string) {
	g := m.groups[group]
	n, _, left := m.runs(group)
	m.placeFlows(group)
	eligible := g.open && !g.paused && !g.draining && len(g.turns[0])+len(g.turns[1]) > 0 &&
		(g.options.Concurrency == 0 || n+left < g.options.Concurrency)
	at := slices.Index(m.ring, group)
	switch {
	case eligible && at < 0 && g.credit > 0 && g.credit < g.options.Weight:
		m.ring = append([]string{group}, m.ring...)
	case eligible && at < 0:
		m.ring = append(m.ring, group)
		g.credit = g.options.Weight
	case !eligible && at >= 0:
		m.ring = slices.Delete(m.ring, at, at+1)
	}
}

// placeFlows updates the rings of the group's flows.
func (m *model) placeFlows(group string) {
	g := m.groups[group]
	for lane, items := range g.lanes {
		var eligible []string
		for _, item := range items {
			flow := g.flowOf(item)
			running := 0
			for other, run := range m.running {
				if groupOf(other) == group && !run.settles && g.flowOf(other) == flow {
					running++
				}
			}
			if limit := g.options.FlowConcurrency; limit == 0 || running < limit {
				eligible = append(eligible, flow)
			}
		}
		g.turns[lane] = slices.DeleteFunc(g.turns[lane], func(flow string) bool { return !slices.Contains(eligible, flow) })
		for _, flow := range eligible {
			if !slices.Contains(g.turns[lane], flow) {
				g.turns[lane] = append(g.turns[lane], flow)
			}
		}
	}
}

func (g *modelGroup) flowOf(item string) string {
	if g.options.FlowsOf == nil {
		return ""
	}
	return g.options.FlowsOf([]string{item})[0]
}

// handOut hands out items to idle workers until no group is allowed to take one.
func (m *model) handOut() {
	for m.idle > 0 {
		at := slices.IndexFunc(m.ring, m.allowed)
		if at < 0 {
			return
		}
		m.handOutOf(m.ring[at])
	}
}

func (m *model) handOutOf(name string) {
	g := m.groups[name]
	lane := Live
	if len(g.turns[Live]) == 0 || len(g.turns[Background]) > 0 && g.liveTurns >= backgroundShare-1 {
		lane = Background
	}
	flow := g.turns[lane][0]
	g.turns[lane] = append(g.turns[lane][1:], flow)
	inFlow := func(item string) bool { return g.flowOf(item) == flow }
	waiting := [2]bool{slices.ContainsFunc(g.lanes[Live], inFlow), slices.ContainsFunc(g.lanes[Background], inFlow)}
	lane = Live
	if !waiting[Live] || waiting[Background] && g.liveTurnsOf[flow] >= backgroundShare-1 {
		lane = Background
	}
	g.liveTurns++
	g.liveTurnsOf[flow]++
	if lane == Background || len(g.lanes[Background]) == 0 {
		g.liveTurns = 0
	}
	if lane == Background || !waiting[Background] {
		g.liveTurnsOf[flow] = 0
	}
	at := slices.IndexFunc(g.lanes[lane], inFlow)
	item := g.lanes[lane][at]
	g.lanes[lane] = slices.Delete(g.lanes[lane], at, at+1)
	if !g.options.KeepDelays {
		g.endDelay(item)
	}
	m.running[item] = modelRun{opening: g.opening, began: time.Now()}
	m.handed = append(m.handed, handout(item, m.now().Sub(g.since[item]), g.causes[item]))
	delete(g.causes, item)
	m.idle--
	if g.credit--; g.credit == 0 || len(g.lanes[0])+len(g.lanes[1]) == 0 {
		g.credit = 0
		m.ring = slices.DeleteFunc(m.ring, func(other string) bool { return other == name })
	}
	m.place(name)
}

// endDelay ends the item's delay, if any, and adds its cause to those of the item.
func (g *modelGroup) endDelay(item string) {
	g.causes[item] = g.causes[item].with(g.delayed[item])
	delete(g.due, item)
	delete(g.delayed, item)
}

func (m *model) add(item string, lane Lane, cause modelCause) {
	g := m.groups[groupOf(item)]
	if !g.open || g.stopped {
		return
	}
	before, again := g.again[item]
	queued := again && before == Live || slices.Contains(g.lanes[Live], item)
	if expired := !m.due.IsZero(); expired || lane == Live && !queued && !g.options.KeepDelays {
		g.endDelay(item)
	}
	g.causes[item] = g.causes[item].with(cause)
	if _, running := m.running[item]; running {
		if !again || lane < before {
			g.again[item] = lane
		}
		return
	}
	if queued {
		return
	}
	if at := slices.Index(g.lanes[Background], item); at >= 0 {
		if lane == Background {
			return
		}
		g.lanes[Background] = slices.Delete(g.lanes[Background], at, at+1)
	}
	m.push(item, lane)
	m.place(groupOf(item))
}

func (m *model) push(item string, lane Lane) {
	g := m.groups[groupOf(item)]
	g.lanes[lane] = append(g.lanes[lane], item)
	g.since[item] = m.now()
}

// addAfter delays the item as AddAfter does on a handle from the given opening.
func (m *model) addAfter(item string, d time.Duration, opening int, cause modelCause) {
	g := m.groups[groupOf(item)]
	if !g.open || g.stopped || g.opening != opening {
		return
	}
	if d <= 0 {
		m.add(item, Live, cause)
		return
	}
	cause.objects = nil
	lane, again := g.again[item]
	if !g.options.KeepDelays && (again && lane == Live || slices.Contains(g.lanes[Live], item)) {
		g.causes[item] = g.causes[item].with(cause)
		return
	}
	g.delayed[item] = g.delayed[item].with(cause)
	due := time.Now().Add(d)
	if before, delayed := g.due[item]; !delayed || due.Before(before) {
		g.due[item] = due
	}
}

// openingOf returns the opening that is used when one of the queue's own methods is called with the item.
func (m *model) openingOf(item string) int {
	if run, running := m.running[item]; running {
		return run.opening
	}
	return m.groups[groupOf(item)].opening
}

// tick adds and hands out the items that are due, in the order of their due times.
func (m *model) tick() {
	for {
		var first string
		var at time.Time
		for _, g := range m.groups {
			for item, due := range g.due {
				if !due.After(time.Now()) && (first == "" || due.Before(at)) {
					first, at = item, due
				}
			}
		}
		if first == "" {
			return
		}
		m.due = at
		m.add(first, Live, modelCause{})
		m.handOut()
		m.due = time.Time{}
	}
}

func (m *model) settle(item string) bool {
	run, running := m.running[item]
	g := m.groups[groupOf(item)]
	if !running || run.left || run.settles || !g.open || run.opening != g.opening {
		return false
	}
	g.returned, run.settles = true, true
	m.running[item] = run
	m.place(groupOf(item))
	return true
}

// hold makes an item settle through a handle from the given opening.
func (m *model) hold(item string, opening int) bool {
	g := m.groups[groupOf(item)]
	if _, held := m.running[item]; held || !g.open || g.stopped || g.opening != opening {
		return false
	}
	m.running[item] = modelRun{settles: true, opening: opening}
	for lane, items := range g.lanes {
		if at := slices.Index(items, item); at >= 0 {
			g.lanes[lane] = slices.Delete(items, at, at+1)
			g.again[item] = Lane(lane)
		}
	}
	m.place(groupOf(item))
	return true
}

func (m *model) done(item string) {
	run, running := m.running[item]
	if !running {
		return
	}
	delete(m.running, item)
	g := m.groups[groupOf(item)]
	g.returned = g.returned || run.opening == g.opening && !run.settles
	if lane, again := g.again[item]; again {
		delete(g.again, item)
		m.push(item, lane)
	}
	m.place(groupOf(item))
}

func (m *model) open(name string, options testOptions) {
	before := m.groups[name]
	g := &modelGroup{open: true, options: options}
	if before != nil {
		g.opening = before.opening + 1
	}
	m.groups[name] = g
	m.clear(name)
}

// configure replaces the group's options. Flows take their turns in the order of their first items.
func (m *model) configure(name string, options testOptions) {
	g := m.groups[name]
	if g.options.FlowsOf != nil || options.FlowsOf != nil {
		g.turns, g.liveTurnsOf = [2][]string{}, map[string]int{}
	}
	g.options, g.credit = options, min(g.credit, options.Weight)
	m.place(name)
}

func (m *model) clear(name string) {
	g := m.groups[name]
	g.lanes, g.turns, g.liveTurns, g.credit = [2][]string{}, [2][]string{}, 0, 0
	g.liveTurnsOf = map[string]int{}
	g.again, g.due, g.since = map[string]Lane{}, map[string]time.Time{}, map[string]time.Time{}
	g.causes, g.delayed = map[string]modelCause{}, map[string]modelCause{}
	m.place(name)
}

// stop stops a group and drops all its items that are not running. It returns the dropped items and any running items
// that were added again, but omits items that were only added to the background lane.
func (m *model) stop(name string, opening int) (dropped []string) {
	g := m.groups[name]
	for item, run := range m.running {
		if groupOf(item) == name && run.opening == opening && !run.settles {
			run.left = true
			m.running[item] = run
		}
	}
	if !g.open || opening != g.opening {
		return nil
	}
	dropped = slices.Clone(g.lanes[Live])
	for item, lane := range g.again {
		if lane == Live {
			dropped = append(dropped, item)
		}
	}
	dropped = slices.AppendSeq(dropped, maps.Keys(g.due))
	slices.Sort(dropped)
	g.stopped = true
	m.clear(name)
	return slices.Compact(dropped)
}

func (m *model) stats(name string) Stats {
	g := m.groups[name]
	if !g.open {
		return Stats{}
	}
	n, _, left := m.runs(name)
	s := Stats{Live: len(g.lanes[Live]), Background: len(g.lanes[Background]), Delayed: len(g.due), Running: n + left}
	for item, run := range m.running {
		if groupOf(item) == name && run.settles {
			s.Settling++
		}
	}
	for _, items := range g.lanes {
		if len(items) > 0 {
			s.Oldest = max(s.Oldest, time.Since(g.since[items[0]]))
		}
	}
	return s
}

// all returns the group's items that are waiting, delayed or running.
func (m *model) all(name string) map[string]bool {
	g, items := m.groups[name], map[string]bool{}
	for item := range m.running {
		if groupOf(item) == name {
			items[item] = true
		}
	}
	for _, item := range slices.Concat(g.lanes[Live], g.lanes[Background], slices.Collect(maps.Keys(g.due))) {
		items[item] = true
	}
	return items
}

// handout formats an item that was handed out, its waiting time and its causes.
func handout(item string, waited time.Duration, cause fmt.Stringer) string {
	return fmt.Sprintf("%s after %s because of %s", item, waited, cause)
}
