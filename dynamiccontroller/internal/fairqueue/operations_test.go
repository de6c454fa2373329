package fairqueue

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// pair is a queue and its model, to which the same operations are applied.
type pair struct {
	q       *testQueue
	m       *model
	opened  map[string][]testGroup // all openings of each group
	waits   int
	mu      sync.Mutex // guards handed
	handed  []string   // handed out since the last comparison
	workers sync.WaitGroup
}

func newPair(groups []string) *pair {
	p := &pair{q: newTestQueue(), m: newModel(), opened: map[string][]testGroup{}}
	for _, g := range groups {
		p.open(g, Limits{Weight: 1})
	}
	return p
}

func (p *pair) open(name string, limits Limits) {
	p.opened[name] = append(p.opened[name], p.q.Open(name, name, limits, nil))
	p.m.open(name, limits)
}

func (p *pair) current(name string) testGroup { return p.opened[name][p.m.groups[name].opening] }

// next makes another worker wait for one item.
func (p *pair) next(t *rapid.T) {
	if p.m.idle+len(p.m.running) > 12 {
		return
	}
	p.m.idle++
	p.workers.Go(func() {
		item, value, shutdown := p.q.Next()
		if shutdown {
			return
		}
		if value != groupOf(item) {
			t.Errorf("%s was handed out with the value %s", item, value)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.handed = append(p.handed, item)
	})
}

func (p *pair) addAfter(item string, d time.Duration, opening string, choice int) {
	if d > 0 {
		// The order of items that are due at the same time is undefined.
		p.waits++
		d += time.Duration(p.waits) * time.Nanosecond
	}
	switch opening {
	case "queue":
		p.q.AddAfter(item, d)
		p.m.addAfter(item, d, p.m.openingOf(item))
	default:
		openings := p.opened[groupOf(item)]
		choice %= len(openings)
		openings[choice].AddAfter(item, d)
		p.m.addAfter(item, d, choice)
	}
}

// sleep must be short, because rapid gives up after a day of bubble time.
func (p *pair) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	p.m.tick()
}

func (p *pair) cancelAndRestart(t *rapid.T) {
	want := p.m.cancel()
	got := p.q.Cancel()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("dropped %v, want %v", got, want)
	}
	p.workers.Wait()
	p.q.Restart()
	p.m.term++
}

// check compares the queue and the model. It fails if an item is waiting although a worker could take it, because the
// model hands out all items that are allowed.
func (p *pair) check(t *rapid.T) {
	synctest.Wait()
	p.m.handOut()
	p.mu.Lock()
	slices.Sort(p.handed)
	slices.Sort(p.m.handed)
	if !slices.Equal(p.handed, p.m.handed) {
		t.Fatalf("handed out %v, want %v", p.handed, p.m.handed)
	}
	p.handed, p.m.handed = nil, nil
	p.mu.Unlock()
	waiting := 0
	for name := range p.m.groups {
		want := p.m.stats(name)
		waiting += want.Live + want.Background
		got := p.current(name).Stats()
		got.Oldest = 0
		if got != want {
			t.Fatalf("group %s has %+v, want %+v", name, got, want)
		}
	}
	if got := p.q.Len(); got != waiting {
		t.Fatalf("%d items are waiting, want %d", got, waiting)
	}
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	if p.q.idle != p.m.idle {
		t.Fatalf("%d workers are idle, want %d", p.q.idle, p.m.idle)
	}
}

// done ends one of the running items, or calls Done with an item that is not running.
func (p *pair) done(t *rapid.T, items []string) {
	if running := slices.Sorted(maps.Keys(p.m.running)); len(running) > 0 {
		items = append(running, items[0])
	}
	item := rapid.SampledFrom(items).Draw(t, "item")
	p.q.Done(item)
	p.m.done(item)
}

// operations returns the operations by name. After each of them, rapid calls check.
func (p *pair) operations(groups, items []string) map[string]func(*rapid.T) {
	item, group := rapid.SampledFrom(items), rapid.SampledFrom(groups)
	done := func(t *rapid.T) { p.done(t, items) }
	add := func(t *rapid.T) {
		i, lane := item.Draw(t, "item"), Lane(rapid.IntRange(0, 1).Draw(t, "lane"))
		p.current(groupOf(i)).Add(lane, i)
		p.m.add(i, lane)
	}
	return map[string]func(*rapid.T){
		"next": p.next, "next too": p.next, "next also": p.next,
		"done": done, "done too": done, "done also": done,
		"add": add, "add too": add,
		"add many": func(t *rapid.T) {
			name := group.Draw(t, "group")
			for _, i := range items {
				if groupOf(i) == name {
					p.q.Add(i)
					p.m.add(i, Live)
					synctest.Wait()
					p.m.handOut()
				}
			}
		},
		"add after": func(t *rapid.T) {
			d := time.Duration(rapid.IntRange(0, 20).Draw(t, "microseconds")) * time.Microsecond
			opening := rapid.SampledFrom([]string{"queue", "group"}).Draw(t, "through")
			p.addAfter(item.Draw(t, "item"), d, opening, rapid.IntRange(0, 5).Draw(t, "opening"))
		},
		"sleep": func(t *rapid.T) {
			p.sleep(time.Duration(rapid.IntRange(1, 5).Draw(t, "microseconds")) * time.Microsecond)
		},
		"sleep until runs are slow": func(*rapid.T) {
			p.sleep(time.Millisecond) // all delays end before the runs are slow
			p.sleep(slowRun + time.Millisecond)
		},
		"change group": func(t *rapid.T) { p.changeGroup(t, group.Draw(t, "group")) },
		"":             p.check,
	}
}

// changeGroup calls a method of an opening of the group, or opens the group again, or rarely cancels the queue.
func (p *pair) changeGroup(t *rapid.T, name string) {
	g, openings := p.m.groups[name], p.opened[name]
	opening := rapid.IntRange(max(0, len(openings)-2), len(openings)-1).Draw(t, "opening")
	current := g.open && opening == g.opening
	limits := Limits{
		Weight:      rapid.IntRange(1, 3).Draw(t, "weight"),
		Concurrency: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "concurrency"),
	}
	switch rapid.IntRange(0, 9).Draw(t, "change") {
	case 0, 1, 2:
		openings[opening].Configure(limits, nil)
		if current {
			g.limits, g.credit = limits, min(g.credit, limits.Weight)
		}
	case 3, 4:
		openings[opening].Pause()
		g.paused = g.paused || current
	case 5, 6:
		openings[opening].Resume()
		g.paused = g.paused && !current
	case 7:
		openings[opening].Close()
		if current {
			g.open = false
			p.m.clear(name)
		}
	case 8:
		p.open(name, limits)
	default:
		p.cancelAndRestart(t)
	}
	p.m.place(name)
}

// TestQueueBehavesLikeModel applies random operations to the queue and to the model and compares the items that they
// hand out after each operation. Workers are goroutines, so that a lost wakeup is a difference as well.
func TestQueueBehavesLikeModel(t *testing.T) {
	groups := []string{"a", "b", "c"}
	var items []string
	for _, g := range groups {
		for i := range 8 {
			items = append(items, fmt.Sprintf("%s/%d", g, i))
		}
	}
	if err := flag.Set("rapid.steps", "60"); err != nil {
		t.Fatal(err)
	}
	sequences := 0
	synctest.Test(t, func(t *testing.T) {
		// The type of t is hidden, because rapid calls Deadline of a *testing.T, which is not allowed in a bubble.
		for range 20 {
			rapid.Check(struct{ testing.TB }{t}, func(t *rapid.T) {
				sequences++
				p := newPair(groups)
				defer p.workers.Wait()
				defer p.q.Cancel()
				t.Repeat(p.operations(groups, items))
			})
		}
	})
	if !t.Failed() && sequences < 2000 {
		t.Errorf("only %d sequences of operations were run", sequences)
	}
}
