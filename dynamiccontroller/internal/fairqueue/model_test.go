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
	term    int       // number of calls to Restart
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
	term    int // the term in which the item was handed out
	session int
	began   time.Time
}

type modelGroup struct {
	open, paused, returned bool
	session                int
	limits                 Limits
	lanes                  [2][]string
	since                  map[string]time.Time // when each item was added to its lane
	again                  map[string]Lane
	due                    map[string]time.Time
	liveTurns, credit      int
}

func newModel() *model {
	return &model{groups: map[string]*modelGroup{}, running: map[string]modelRun{}}
}

// runs returns how many of the group's items are running, and when the oldest of them began to run.
func (m *model) runs(group string) (n int, oldest time.Time) {
	oldest = time.Now()
	for item, run := range m.running {
		if groupOf(item) == group {
			n++
			if run.began.Before(oldest) {
				oldest = run.began
			}
		}
	}
	return n, oldest
}

// busy returns the number of items that were handed out since Restart and are running.
func (m *model) busy() (n int) {
	for _, run := range m.running {
		if run.term == m.term {
			n++
		}
	}
	return n
}

// allowed implements the dynamic threshold.
func (m *model) allowed(group string) bool {
	n, oldest := m.runs(group)
	alpha := 8
	if !m.groups[group].returned || time.Since(oldest) > time.Second {
		alpha = 1
	}
	return m.busy() == 0 || n < alpha*m.idle && (n == 0 || m.idle > 1)
}

// place updates the ring after a change to the group.
func (m *model) place(group string) {
	g := m.groups[group]
	n, _ := m.runs(group)
	eligible := g.open && !g.paused && len(g.lanes[0])+len(g.lanes[1]) > 0 &&
		(g.limits.Concurrency == 0 || n < g.limits.Concurrency)
	at := slices.Index(m.ring, group)
	switch {
	case eligible && at < 0 && g.credit > 0 && g.credit < g.limits.Weight:
		m.ring = append([]string{group}, m.ring...)
	case eligible && at < 0:
		m.ring = append(m.ring, group)
		g.credit = g.limits.Weight
	case !eligible && at >= 0:
		m.ring = slices.Delete(m.ring, at, at+1)
	}
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
	switch {
	case len(g.lanes[Background]) == 0:
		g.liveTurns = 0
	case len(g.lanes[Live]) == 0 || g.liveTurns == backgroundShare-1:
		lane, g.liveTurns = Background, 0
	default:
		g.liveTurns++
	}
	item := g.lanes[lane][0]
	g.lanes[lane] = g.lanes[lane][1:]
	delete(g.due, item)
	m.running[item] = modelRun{session: g.session, began: time.Now(), term: m.term}
	m.handed = append(m.handed, handout(item, m.now().Sub(g.since[item])))
	m.idle--
	if g.credit--; g.credit == 0 || len(g.lanes[0])+len(g.lanes[1]) == 0 {
		g.credit = 0
		m.ring = slices.DeleteFunc(m.ring, func(other string) bool { return other == name })
	}
	m.place(name)
}

func (m *model) add(item string, lane Lane) {
	g := m.groups[groupOf(item)]
	if !g.open {
		return
	}
	if lane == Live {
		delete(g.due, item)
	}
	if _, running := m.running[item]; running {
		if before, again := g.again[item]; !again || lane < before {
			g.again[item] = lane
		}
		return
	}
	if slices.Contains(g.lanes[Live], item) {
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

// addAfter delays the item as AddAfter does on a handle from the given session.
func (m *model) addAfter(item string, d time.Duration, session int) {
	g := m.groups[groupOf(item)]
	if !g.open || g.session != session {
		return
	}
	if d <= 0 {
		m.add(item, Live)
		return
	}
	lane, again := g.again[item]
	if again && lane == Live || slices.Contains(g.lanes[Live], item) {
		return
	}
	due := time.Now().Add(d)
	if before, delayed := g.due[item]; !delayed || due.Before(before) {
		g.due[item] = due
	}
}

// sessionOf returns the session that is used when one of the queue's own methods is called with the item.
func (m *model) sessionOf(item string) int {
	if run, running := m.running[item]; running {
		return run.session
	}
	return m.groups[groupOf(item)].session
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
		m.add(first, Live)
		m.handOut()
		m.due = time.Time{}
	}
}

func (m *model) done(item string) {
	run, running := m.running[item]
	if !running {
		return
	}
	delete(m.running, item)
	g := m.groups[groupOf(item)]
	g.returned = g.returned || run.session == g.session
	if lane, again := g.again[item]; again {
		delete(g.again, item)
		m.push(item, lane)
	}
	m.place(groupOf(item))
}

func (m *model) open(name string, limits Limits) {
	before := m.groups[name]
	g := &modelGroup{open: true, limits: limits}
	if before != nil {
		g.session = before.session + 1
	}
	m.groups[name] = g
	m.clear(name)
}

func (m *model) clear(name string) {
	g := m.groups[name]
	g.lanes, g.liveTurns, g.credit = [2][]string{}, 0, 0
	g.again, g.due, g.since = map[string]Lane{}, map[string]time.Time{}, map[string]time.Time{}
	m.place(name)
}

// cancel drops all items that are not running. It returns the dropped items and any running items that were added
// again, but omits items that were only added to the background lane.
func (m *model) cancel() (dropped []string) {
	for name, g := range m.groups {
		dropped = append(dropped, g.lanes[Live]...)
		for item, lane := range g.again {
			if lane == Live {
				dropped = append(dropped, item)
			}
		}
		dropped = slices.AppendSeq(dropped, maps.Keys(g.due))
		m.clear(name)
	}
	m.idle = 0
	slices.Sort(dropped)
	return dropped
}

func (m *model) stats(name string) Stats {
	g := m.groups[name]
	if !g.open {
		return Stats{}
	}
	n, _ := m.runs(name)
	s := Stats{Live: len(g.lanes[Live]), Background: len(g.lanes[Background]), Delayed: len(g.due), Running: n}
	for _, items := range g.lanes {
		if len(items) > 0 {
			s.Oldest = max(s.Oldest, time.Since(g.since[items[0]]))
		}
	}
	return s
}

// known returns the number of the group's items that are waiting, delayed or running.
func (m *model) known(name string) int {
	g, items := m.groups[name], map[string]bool{}
	for item := range m.running {
		if groupOf(item) == name {
			items[item] = true
		}
	}
	for _, item := range slices.Concat(g.lanes[Live], g.lanes[Background], slices.Collect(maps.Keys(g.due))) {
		items[item] = true
	}
	return len(items)
}

// handout formats an item that was handed out and its waiting time.
func handout(item string, waited time.Duration) string {
	return fmt.Sprintf("%s after %s", item, waited)
}
