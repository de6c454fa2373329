package fairqueue

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// model is the queue in the simplest words: slices for lanes and ring, a map for the rest.
type model struct {
	groups  map[string]*modelGroup
	ring    []string
	running map[string]int // items being processed, by the epoch that they were handed out for
	closed  bool
}

type modelGroup struct {
	open, held bool
	epoch      int
	limits     Limits
	lanes      [2][]string
	again      map[string]Lane
	due        map[string]time.Time
	skipped    int
	credit     int
}

func groupOf(item string) string { return item[:1] }

func (m *model) runningOf(group string) (n int) {
	for item := range m.running {
		if groupOf(item) == group {
			n++
		}
	}
	return n
}

func (m *model) seat(group string) {
	g := m.groups[group]
	may := g.open && !g.held && len(g.lanes[0])+len(g.lanes[1]) > 0 &&
		(g.limits.Concurrency == 0 || m.runningOf(group) < g.limits.Concurrency)
	at := slices.Index(m.ring, group)
	switch {
	case may && at < 0 && g.credit > 0:
		m.ring = append([]string{group}, m.ring...)
	case may && at < 0:
		m.ring = append(m.ring, group)
		g.credit = g.limits.Weight
	case !may && at >= 0:
		m.ring = slices.Delete(m.ring, at, at+1)
	}
}

func (m *model) add(item string, lane Lane) {
	g := m.groups[groupOf(item)]
	if m.closed || !g.open {
		return
	}
	delete(g.due, item)
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
	g.lanes[lane] = append(g.lanes[lane], item)
	m.seat(groupOf(item))
}

func (m *model) addAfter(item string, d time.Duration) {
	g := m.groups[groupOf(item)]
	epoch, running := m.running[item]
	if m.closed || !g.open || running && epoch != g.epoch {
		return
	}
	if d <= 0 {
		m.add(item, Live)
		return
	}
	_, again := g.again[item]
	if again || slices.Contains(g.lanes[0], item) || slices.Contains(g.lanes[1], item) {
		return
	}
	due := time.Now().Add(d)
	if before, delayed := g.due[item]; !delayed || due.Before(before) {
		g.due[item] = due
	}
}

// tick adds what is due, the earliest first.
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
		m.add(first, Live)
	}
}

func (m *model) next() (string, bool) {
	if len(m.ring) == 0 {
		return "", false
	}
	name := m.ring[0]
	g := m.groups[name]
	lane := Live
	switch {
	case len(g.lanes[Background]) == 0:
		g.skipped = 0
	case len(g.lanes[Live]) == 0 || g.skipped == backgroundShare-1:
		lane, g.skipped = Background, 0
	default:
		g.skipped++
	}
	item := g.lanes[lane][0]
	g.lanes[lane] = g.lanes[lane][1:]
	m.running[item] = g.epoch
	if g.credit--; g.credit == 0 || len(g.lanes[0])+len(g.lanes[1]) == 0 {
		g.credit = 0
		m.ring = m.ring[1:]
	}
	m.seat(name)
	return item, true
}

func (m *model) done(item string) {
	if _, running := m.running[item]; !running {
		return
	}
	delete(m.running, item)
	g := m.groups[groupOf(item)]
	if lane, again := g.again[item]; again {
		delete(g.again, item)
		g.lanes[lane] = append(g.lanes[lane], item)
	}
	m.seat(groupOf(item))
}

func (g *modelGroup) clear() {
	g.lanes, g.again, g.due, g.skipped, g.credit = [2][]string{}, map[string]Lane{}, map[string]time.Time{}, 0, 0
}

// TestTheQueueBehavesAsItsModel runs generated operations against queue and model and compares what each hands out, item
// by item: turns, weights, caps, lanes, holds, delays, closing and opening, shutdown and restart.
func TestTheQueueBehavesAsItsModel(t *testing.T) {
	groups := []string{"a", "b", "c"}
	var items []string
	for _, g := range groups {
		for i := range 4 {
			items = append(items, fmt.Sprintf("%s%d", g, i))
		}
	}
	sequences := 0
	defer func() {
		if !t.Failed() && sequences < 2000 {
			t.Errorf("only %d sequences of operations ran", sequences)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		// Waits are short, as rapid gives up after a day of the bubble's time. The test's type is hidden behind another,
		// as rapid asks a *testing.T for its deadline, which a bubble does not have.
		property := func(t *rapid.T) {
			sequences++
			q := New[string, string, string](groupOf)
			m := &model{groups: map[string]*modelGroup{}, running: map[string]int{}}
			opened := map[string]Group[string, string, string]{}
			for _, g := range groups {
				m.groups[g] = &modelGroup{}
				m.groups[g].clear()
			}
			item, group := rapid.SampledFrom(items), rapid.SampledFrom(groups)
			limits := rapid.Custom(func(t *rapid.T) Limits {
				return Limits{Weight: rapid.IntRange(1, 3).Draw(t, "weight"), Concurrency: rapid.IntRange(0, 2).Draw(t, "concurrency")}
			})
			openGroup := func(name string, l Limits) {
				opened[name] = q.Open(name, name, l)
				g := m.groups[name]
				g.clear()
				m.seat(name)
				g.open, g.held, g.limits = true, false, l
				g.credit = min(g.credit, l.Weight)
				g.epoch++
			}
			for _, g := range groups {
				openGroup(g, Limits{Weight: 1})
			}
			take := func(t *rapid.T) {
				want, some := m.next()
				if !some {
					return
				}
				got, value, shutdown := q.Next()
				if shutdown || got != want || value != groupOf(want) {
					t.Fatalf("handed out %q of %q (shutdown %v), want %q", got, value, shutdown, want)
				}
			}
			delays := 0
			t.Repeat(map[string]func(*rapid.T){
				"add": func(t *rapid.T) {
					i, lane := item.Draw(t, "item"), Lane(rapid.IntRange(0, 1).Draw(t, "lane"))
					if g := m.groups[groupOf(i)]; g.open {
						opened[groupOf(i)].Add(lane, i)
					} else {
						lane = Live
						q.Add(i)
					}
					m.add(i, lane)
				},
				"addAfter": func(t *rapid.T) {
					i, d := item.Draw(t, "item"), time.Duration(rapid.IntRange(0, 20).Draw(t, "microseconds"))*time.Microsecond
					if d > 0 {
						// What is due at the same moment has no order.
						delays++
						d += time.Duration(delays) * time.Nanosecond
					}
					q.AddAfter(i, d)
					m.addAfter(i, d)
				},
				"wait": func(t *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 5).Draw(t, "microseconds")) * time.Microsecond)
					synctest.Wait()
					m.tick()
				},
				"next": take,
				"more": take,
				"done": func(t *rapid.T) {
					i := item.Draw(t, "item")
					q.Done(i)
					m.done(i)
				},
				"close": func(t *rapid.T) {
					name := group.Draw(t, "group")
					opened[name].Close()
					g := m.groups[name]
					g.open = false
					g.clear()
					m.seat(name)
				},
				"open": func(t *rapid.T) { openGroup(group.Draw(t, "group"), limits.Draw(t, "limits")) },
				"limits": func(t *rapid.T) {
					name, l := group.Draw(t, "group"), limits.Draw(t, "limits")
					if g := m.groups[name]; g.open {
						opened[name].SetLimits(l)
						g.limits = l
						g.credit = min(g.credit, l.Weight)
						m.seat(name)
					}
				},
				"hold": func(t *rapid.T) {
					name, held := group.Draw(t, "group"), rapid.Bool().Draw(t, "held")
					if g := m.groups[name]; g.open {
						opened[name].hold(held)
						g.held = held
						m.seat(name)
					}
				},
				"cancel and restart": func(t *rapid.T) {
					var want []string
					for name, g := range m.groups {
						want = append(want, g.lanes[Live]...)
						for item, lane := range g.again {
							if lane == Live {
								want = append(want, item)
							}
						}
						want = slices.AppendSeq(want, maps.Keys(g.due))
						g.clear()
						m.seat(name)
					}
					got := q.Cancel()
					slices.Sort(got)
					slices.Sort(want)
					if !slices.Equal(got, want) {
						t.Fatalf("dropped %v, want %v", got, want)
					}
					q.Restart()
				},
				"": func(t *rapid.T) {
					waiting := 0
					for name, g := range m.groups {
						waiting += len(g.lanes[0]) + len(g.lanes[1])
						if !g.open {
							continue
						}
						want := Stats{
							Live: len(g.lanes[0]), Background: len(g.lanes[1]), Delayed: len(g.due), Running: m.runningOf(name),
						}
						got := opened[name].Stats()
						got.Oldest = 0
						if got != want {
							t.Fatalf("group %s holds %+v, want %+v", name, got, want)
						}
					}
					if q.Len() != waiting {
						t.Fatalf("%d items wait, want %d", q.Len(), waiting)
					}
				},
			})
			q.Cancel()
		}
		for range 20 {
			rapid.Check(struct{ testing.TB }{t}, property)
		}
	})
}
