package fairqueue

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// pair is a queue and its model. The same operations are applied to both.
type pair struct {
	q       *testQueue
	m       *model
	opened  map[string][]testGroup // all openings of each group
	waits   int
	mu      sync.Mutex // guards handed
	handed  []string   // items handed out since the last comparison
	workers sync.WaitGroup
}

func newPair(groups []string) *pair {
	p := &pair{q: newTestQueue(), m: newModel(), opened: map[string][]testGroup{}}
	for _, g := range groups {
		p.open(g, testOptions{Weight: 1})
	}
	return p
}

func (p *pair) open(name string, options testOptions) {
	opened := p.q.Open(name, name, options)
	opened.Assign()
	p.opened[name] = append(p.opened[name], opened)
	p.m.open(name, options)
}

func (p *pair) current(name string) testGroup { return p.opened[name][p.m.groups[name].opening] }

// next starts another worker, which waits for one item, unless there are already enough workers.
func (p *pair) next(t *rapid.T) {
	if p.m.idle+len(p.m.running) > 12 {
		return
	}
	p.m.idle++
	p.workers.Go(func() {
		item, value, wait, shutdown := p.q.Next(nil)
		if shutdown {
			return
		}
		if value != groupOf(item) {
			t.Errorf("%s was handed out with the value %s", item, value)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.handed = append(p.handed, handout(item, wait.For, describedCause(wait.Cause)))
	})
}

// describedCause formats a Cause in the same way as a modelCause.
type describedCause Cause[string]

func (c describedCause) String() string {
	first := ""
	if c.First != nil {
		first = *c.First
	}
	return fmt.Sprintf("kinds %b of %q and %d others", c.Kinds, first, c.Others)
}

// drawCause returns a cause for the queue, and the same for the model.
func drawCause(t *rapid.T) (cause Cause[string], m modelCause) {
	m.kinds = uint16(rapid.IntRange(0, 3).Draw(t, "kinds"))
	if object := rapid.SampledFrom([]string{"", "", "x", "y", "z"}).Draw(t, "object"); object != "" {
		cause.First, m.objects = &object, []string{object}
	}
	cause.Kinds = m.kinds
	return cause, m
}

func (p *pair) addAfter(t *rapid.T, item string, d time.Duration, opening string, choice int) {
	if d > 0 {
		// The order of items that are due at the same time is undefined.
		p.waits++
		d += time.Duration(p.waits) * time.Nanosecond
	}
	switch opening {
	case "queue":
		p.q.AddAfter(item, d)
		p.m.addAfter(item, d, p.m.openingOf(item), modelCause{})
	default:
		openings := p.opened[groupOf(item)]
		choice %= len(openings)
		cause, m := drawCause(t)
		openings[choice].Because(cause).AddAfter(item, d)
		p.m.addAfter(item, d, choice, m)
	}
}

// sleep advances the fake clock by d. The duration must be short, because rapid gives up after a day of bubble time.
func (p *pair) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	p.m.tick()
}

// stop stops a group through the handle of one of its openings.
func (p *pair) stop(t *rapid.T, name string, opening int) {
	want := p.m.stop(name, opening)
	got := p.opened[name][opening].Stop()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("dropped %v, want %v", got, want)
	}
}

// check compares the queue and the model. It fails if an item is waiting although an idle worker could take it, because
// the model hands out every such item.
func (p *pair) check(t *rapid.T) {
	synctest.Wait()
	p.m.handOut()
	defer p.sleep(time.Nanosecond) // so that successive operations happen at different times
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
		if got := p.current(name).Stats(); got != want {
			t.Fatalf("group %s has %+v, want %+v", name, got, want)
		}
	}
	if got := p.q.Len(); got != waiting {
		t.Fatalf("%d items are waiting, want %d", got, waiting)
	}
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	p.checkGroupsLocked(t)
	if p.q.idle != p.m.idle {
		t.Fatalf("%d workers are idle, want %d", p.q.idle, p.m.idle)
	}
}

func (p *pair) checkGroupsLocked(t *rapid.T) {
	for name, g := range p.q.groups {
		if want := len(p.m.all(name)); len(g.items) != want {
			t.Fatalf("group %s tracks %d items, want %d", name, len(g.items), want)
		}
		p.checkFlowsLocked(t, name, g)
	}
}

// checkFlowsLocked compares the flows of a group, and checks that empty ones leave nothing.
func (p *pair) checkFlowsLocked(t *rapid.T, name string, g *group[string, string, string, string]) {
	m := p.m.groups[name]
	want, running := map[string]int{}, map[string]int{}
	for item := range p.m.all(name) {
		want[m.flowOf(item)]++
		if run, held := p.m.running[item]; held && !run.settles {
			running[m.flowOf(item)]++
		}
	}
	got, waiting := map[string]int{}, [2]int{}
	for f := range g.flows.all() {
		if f.items > 0 || m.options.FlowsOf != nil {
			got[f.name] = f.items
		}
		if m.open && f.running != running[f.name] {
			t.Fatalf("flow %s/%s has %d running items, want %d", name, f.name, f.running, running[f.name])
		}
		for lane, n := range [2]int{f.live.len, f.background.len} {
			waiting[lane] += n
			if m.open && (f.turns[lane].next != nil) != slices.Contains(m.turns[lane], f.name) {
				t.Fatalf("flow %s/%s is in the ring of lane %d, or is not, unlike in %q", name, f.name, lane, m.turns[lane])
			}
		}
		if f.background.len == 0 && f.background.batches != nil {
			t.Fatalf("flow %s/%s has an empty background lane, but still a list of %d batches", name, f.name,
				len(f.background.batches))
		}
	}
	if waiting != g.waiting {
		t.Fatalf("group %s has %v waiting items, its flows have %v", name, g.waiting, waiting)
	}
	if m.open && !maps.Equal(got, want) {
		t.Fatalf("group %s has the flows %v, want %v", name, got, want)
	}
}

// done calls Done with one of the running items, or with an item that is not running.
func (p *pair) done(t *rapid.T, items []string) {
	if running := slices.Sorted(maps.Keys(p.m.running)); len(running) > 0 {
		items = append(running, items[0])
	}
	item := rapid.SampledFrom(items).Draw(t, "item")
	p.q.Done(item)
	p.m.done(item)
}

// settle calls Settle with one of the running items, or with an item that is not running.
func (p *pair) settle(t *rapid.T, items []string) {
	if running := slices.Sorted(maps.Keys(p.m.running)); len(running) > 0 {
		items = append(running, items[0])
	}
	item := rapid.SampledFrom(items).Draw(t, "item")
	if got, want := p.q.Settle(item), p.m.settle(item); got != want {
		t.Fatalf("Settle returned %t for %s, want %t", got, item, want)
	}
}

// hold calls Hold on the handle of one of the last openings of the item's group.
func (p *pair) hold(t *rapid.T, item string) {
	openings := p.opened[groupOf(item)]
	opening := rapid.IntRange(max(0, len(openings)-2), len(openings)-1).Draw(t, "opening")
	if got, want := openings[opening].Hold(item), p.m.hold(item, opening); got != want {
		t.Fatalf("Hold returned %t for %s, want %t", got, item, want)
	}
}

// operations returns the operations by name. After each of them, rapid calls check.
func (p *pair) operations(groups, items []string) map[string]func(*rapid.T) {
	item, group := rapid.SampledFrom(items), rapid.SampledFrom(groups)
	done := func(t *rapid.T) { p.done(t, items) }
	add := func(t *rapid.T) {
		i, lane := item.Draw(t, "item"), Lane(rapid.IntRange(0, 1).Draw(t, "lane"))
		cause, m := drawCause(t)
		p.current(groupOf(i)).Because(cause).Add(lane, i)
		p.m.add(i, lane, m)
	}
	return map[string]func(*rapid.T){
		"settle": func(t *rapid.T) { p.settle(t, items) },
		"hold":   func(t *rapid.T) { p.hold(t, item.Draw(t, "item")) },
		// rapid draws an operation with several names more often.
		"next 1": p.next, "next 2": p.next, "next 3": p.next,
		"done 1": done, "done 2": done, "done 3": done,
		"add 1": add, "add 2": add,
		"add many": func(t *rapid.T) {
			name := group.Draw(t, "group")
			for _, i := range items {
				if groupOf(i) == name {
					p.q.Add(i)
					p.m.add(i, Live, modelCause{})
					synctest.Wait()
					p.m.handOut()
					p.sleep(time.Nanosecond) // the order of items that are added at the same time can change with the flows
				}
			}
		},
		"add after": func(t *rapid.T) {
			d := time.Duration(rapid.IntRange(0, 20).Draw(t, "microseconds")) * time.Microsecond
			opening := rapid.SampledFrom([]string{"queue", "group"}).Draw(t, "through")
			p.addAfter(t, item.Draw(t, "item"), d, opening, rapid.IntRange(0, 5).Draw(t, "opening"))
		},
		"sleep": func(t *rapid.T) {
			p.sleep(time.Duration(rapid.IntRange(1, 5).Draw(t, "microseconds")) * time.Microsecond)
		},
		"sleep until runs are slow": func(*rapid.T) {
			p.sleep(time.Millisecond) // all delays expire before any run counts as slow
			p.sleep(slowRun + time.Millisecond)
		},
		"change group": func(t *rapid.T) { p.changeGroup(t, group.Draw(t, "group")) },
		"":             p.check,
	}
}

// changeGroup calls a method of one of the group's handles, or opens the group again.
func (p *pair) changeGroup(t *rapid.T, name string) {
	g, openings := p.m.groups[name], p.opened[name]
	opening := rapid.IntRange(max(0, len(openings)-2), len(openings)-1).Draw(t, "opening")
	current := g.open && opening == g.opening
	options := testOptions{
		Weight:      rapid.IntRange(1, 3).Draw(t, "weight"),
		Concurrency: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "concurrency"),
	}
	if flows := rapid.SampledFrom([]int{0, 0, 1, 2, 3, 8}).Draw(t, "flows"); flows > 0 {
		options.FlowsOf = each(func(item string) string { return fmt.Sprint(int(item[len(item)-1]) % flows) })
	}
	options.KeepDelays = rapid.SampledFrom([]bool{false, false, true}).Draw(t, "keep delays")
	options.FlowConcurrency = rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "flow concurrency")
	switch rapid.IntRange(0, 13).Draw(t, "change") {
	case 0, 1, 2:
		openings[opening].Configure(options)
		if current {
			p.m.configure(name, options)
		}
	case 3, 4:
		openings[opening].Pause()
		g.paused = g.paused || current
	case 12, 13:
		draining := rapid.Bool().Draw(t, "draining")
		openings[opening].Drain(draining)
		if current {
			g.draining = draining
		}
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
		p.open(name, options)
	case 9:
		p.stop(t, name, opening)
	default:
		openings[opening].Start(name)
		g.stopped, g.returned = g.stopped && !current, g.returned && !current
	}
	p.m.place(name)
}

// TestQueue_BehavesLikeTheModel applies random operations to the queue and to the model. After each operation, it
// compares the items that they hand out. Workers are goroutines, so a lost wakeup also shows up as a difference.
func TestQueue_BehavesLikeTheModel(t *testing.T) {
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
	const rounds = 20
	sequences := 0
	synctest.Test(t, func(t *testing.T) {
		// Hide the type of t, because rapid calls Deadline on a *testing.T, which is not allowed in a bubble.
		for range rounds {
			rapid.Check(struct{ testing.TB }{t}, func(t *rapid.T) {
				sequences++
				p := newPair(groups)
				defer p.workers.Wait()
				defer stopAll(p.q)
				t.Repeat(p.operations(groups, items))
			})
		}
	})
	if want := rounds * checksPerRound(t); !t.Failed() && sequences < want {
		t.Errorf("only %d sequences of operations were run, want %d", sequences, want)
	}
}

// checksPerRound returns the number of sequences that each call to rapid.Check must run.
func checksPerRound(t *testing.T) int {
	checks, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		checks /= 5 // rapid does the same
	}
	return checks
}
