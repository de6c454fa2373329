package fairqueue

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Items in the tests of flows have the form "group/flow/name".
func flowOf(item string) string {
	_, rest, _ := strings.Cut(item, "/")
	flow, _, _ := strings.Cut(rest, "/")
	return flow
}

// each returns a function that calls of for each item.
func each(of func(string) string) func([]string) []string {
	return func(items []string) (flows []string) {
		for _, item := range items {
			flows = append(flows, of(item))
		}
		return flows
	}
}

// items returns n items of a flow of group a.
func items(flow string, n int) (items []string) {
	for i := range n {
		items = append(items, fmt.Sprintf("a/%s/%d", flow, i))
	}
	return items
}

// openWithFlows opens group a of a queue that behaves as if ten more workers were idle.
func openWithFlows(options testOptions) (*testQueue, testGroup) {
	q := newTestQueue()
	q.idle = 10
	options.FlowsOf = each(flowOf)
	return q, q.Open("a", "a", options)
}

// An item of a quiet flow waits for at most one item of each other flow.
func TestFlow_TakesTurns(t *testing.T) {
	for _, lane := range []Lane{Live, Background} {
		q, group := openWithFlows(testOptions{})
		group.Add(lane, items("busy", 100)...)
		group.Add(lane, items("busy too", 100)...)
		process(t, q)
		group.Add(lane, "a/quiet/0")
		var next []string
		for range 3 {
			next = append(next, process(t, q))
		}
		if want := []string{"a/busy too/0", "a/busy/1", "a/quiet/0"}; !slices.Equal(next, want) {
			t.Errorf("lane %d: got %q, want %q", lane, next, want)
		}
	}
}

// A flow at its limit does not block the other flows, and keeps its items.
func TestFlow_LimitHoldsPerFlow(t *testing.T) {
	q, group := openWithFlows(testOptions{FlowConcurrency: 1})
	group.Add(Live, items("a", 3)...)
	group.Add(Live, items("b", 2)...)
	running := []string{next(t, q), next(t, q)}
	if want := []string{"a/a/0", "a/b/0"}; !slices.Equal(running, want) {
		t.Fatalf("got %q, want %q", running, want)
	}
	if s := group.Stats(); s.Live != 3 || s.Running != 2 {
		t.Errorf("got %+v, want 3 waiting and 2 running items", s)
	}
	q.mu.Lock()
	blocked := q.pickLocked() == nil
	q.mu.Unlock()
	if !blocked {
		t.Error("the group has items to hand out although all its flows are at their limits")
	}
	q.Done("a/a/0")
	if got := next(t, q); got != "a/a/1" {
		t.Errorf("got %s, want the next item of the flow that has room", got)
	}
}

// If the background items are due but their flows are at their limits, live items of other flows are handed out.
func TestFlow_BlockedBackgroundItemsDoNotBlockLiveOnes(t *testing.T) {
	q, group := openWithFlows(testOptions{FlowConcurrency: 1})
	group.Add(Live, "a/slow/running")
	next(t, q)
	group.Add(Background, items("slow", 2)...)
	want := items("other", 3*backgroundShare)
	group.Add(Live, want...)
	for _, item := range want {
		if got := process(t, q); got != item {
			t.Fatalf("got %s, want %s", got, item)
		}
	}
	group.Add(Live, "a/other/later")
	q.Done("a/slow/running")
	if got := process(t, q); got != "a/slow/0" {
		t.Errorf("got %s, want the item that has been due", got)
	}
}

// Other flows use up the turns of the live lane while a flow with items in both lanes is at its limit. Its live item
// still precedes its background items.
func TestFlow_LiveItemPrecedesBackgroundItemsOfALimitedFlow(t *testing.T) {
	q, group := openWithFlows(testOptions{FlowConcurrency: 1})
	group.Add(Background, items("limited", 20)...)
	running := next(t, q)
	group.Add(Live, "a/limited/event")
	for i := range 20 {
		for j := range backgroundShare {
			item := fmt.Sprintf("a/hot/%d-%d", i, j)
			group.Add(Live, item)
			if got := process(t, q); got != item {
				t.Fatalf("got %s, want %s", got, item)
			}
		}
		q.Done(running)
		if running = next(t, q); running == "a/limited/event" {
			return
		}
	}
	t.Error("20 background items of the flow preceded its event")
}

// Two flows at their limits alternate. Both have events all the time, and the background items of both make progress.
func TestFlow_BackgroundItemsOfEachLimitedFlowMakeProgress(t *testing.T) {
	q, group := openWithFlows(testOptions{FlowConcurrency: 1})
	progress := map[string]int{}
	for _, flow := range []string{"a", "b"} {
		group.Add(Background, items(flow, 100)...)
		group.Add(Live, "a/"+flow+"/event")
	}
	running := []string{next(t, q), next(t, q)}
	for range 200 {
		q.Done(running[0])
		if flow := flowOf(running[0]); !strings.HasSuffix(running[0], "event") {
			progress[flow]++
		}
		for _, flow := range []string{"a", "b"} {
			group.Add(Live, "a/"+flow+"/event")
		}
		running = append(running[1:], next(t, q))
	}
	if progress["a"] < 8 || progress["b"] < 8 {
		t.Errorf("background items that were handed out: %v, want about one in eight of 100 for each flow", progress)
	}
}

func TestGroup_CancelDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, group := openWithFlows(testOptions{KeepDelays: true})
		group.AddAfter("a/x/delayed", 1)
		group.AddAfter("a/x/waiting", 1)
		group.Add(Live, "a/x/waiting")
		group.AddAfter("a/x/kept", 1)
		group.CancelDelay("a/x/delayed")
		group.CancelDelay("a/x/waiting")
		group.CancelDelay("a/x/unknown")
		if s := group.Stats(); s.Delayed != 1 || s.Live != 1 || group.Has("a/x/delayed") {
			t.Errorf("got %+v", s)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		got := []string{process(t, q), process(t, q)}
		if want := []string{"a/x/waiting", "a/x/kept"}; !slices.Equal(got, want) || q.Len() != 0 {
			t.Errorf("got %q and %d more, want %q", got, q.Len(), want)
		}
		group.Close()
		group.CancelDelay("a/x/kept")
		q.ShutDown()
	})
}

// An item that was handed out and added again at the same time has two entries in the background lane.
func TestFlow_ChangeWithAStaleEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, group := openWithFlows(testOptions{})
		group.Add(Background, "a/x/first", "a/x/0")
		group.Add(Live, "a/x/0")
		process(t, q)
		group.Add(Background, "a/x/0")
		group.Configure(testOptions{FlowsOf: each(identity)})
		got := []string{process(t, q), process(t, q)}
		if want := []string{"a/x/first", "a/x/0"}; !slices.Equal(got, want) || q.Len() != 0 {
			t.Errorf("got %q and %d more, want %q", got, q.Len(), want)
		}
		if s := group.Stats(); s != (Stats{}) {
			t.Errorf("got %+v, want no items", s)
		}
	})
}

// The items of a batch keep their places when their flows change. The model test adds each item at another time.
func TestFlow_ChangeWithBatches(t *testing.T) {
	q, group := openWithFlows(testOptions{})
	want := slices.Concat(items("x", 5), items("y", 5), items("z", 5))
	group.Add(Background, want...)
	group.Add(Live, "a/y/2")
	group.AddAfter("a/z/1", time.Hour) // this item no longer shares the struct of its batch
	for range 3 {
		group.Configure(testOptions{FlowsOf: each(func(item string) string { return item[len(item)-1:] })})
		group.Configure(testOptions{FlowsOf: each(flowOf)})
	}
	if s := group.Stats(); s.Live != 1 || s.Background != 14 || s.Delayed != 1 {
		t.Errorf("got %+v", s)
	}
	var got []string
	for range want {
		got = append(got, process(t, q))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || group.Stats() != (Stats{}) {
		t.Errorf("got %q and %+v, want each item once", got, group.Stats())
	}
	q.ShutDown()
}

// FlowsOf is called while the queue is not locked. Items that are added in the meantime are assigned to flows as well.
func TestFlow_FunctionCanUseTheQueue(t *testing.T) {
	q, group := openWithFlows(testOptions{})
	group.Add(Live, "a/x/0", "a/y/0")
	added := false
	group.Configure(testOptions{FlowConcurrency: 1, FlowsOf: each(func(string) string {
		if !added {
			added = true
			group.Add(Background, "a/z/0")
			group.AddAfter("a/x/1", 1<<40)
		}
		return "all"
	})})
	q.mu.Lock()
	flows := len(q.groups["a"].flows.named)
	q.mu.Unlock()
	if s := group.Stats(); flows != 1 || s.Live != 2 || s.Background != 1 || s.Delayed != 1 {
		t.Errorf("got %d flows and %+v, want all items in one flow", flows, s)
	}
	q.ShutDown()
}

// If the function changes while an item is added, the item is added to the flow that the new function returns.
func TestFlow_ChangesWhileAnItemIsAdded(t *testing.T) {
	q := newTestQueue()
	changed := false
	var group testGroup
	group = q.Open("a", "a", testOptions{FlowsOf: each(func(string) string {
		if !changed {
			changed = true
			group.Configure(testOptions{FlowsOf: each(func(string) string { return "new" })})
		}
		return "old"
	})})
	group.Add(Live, "a/x/0")
	q.mu.Lock()
	defer q.mu.Unlock()
	if name := q.groups["a"].items["a/x/0"].flow.name; name != "new" {
		t.Errorf("the item is in flow %q", name)
	}
}

// Items that are running when the group is opened again count toward the limits of their flows once they are assigned.
func TestFlow_AssignsItemsOfAnEarlierOpening(t *testing.T) {
	q, group := openWithFlows(testOptions{})
	group.Add(Live, "a/x/0", "a/y/0")
	for range 2 {
		q.Get()
	}
	group = q.Open("a", "a", testOptions{FlowConcurrency: 1, FlowsOf: each(flowOf)})
	group.Pause()
	group.Add(Live, "a/x/1", "a/z/0")
	group.Assign()
	group.Resume()
	if got := process(t, q); got != "a/z/0" {
		t.Errorf("got %s, want the item whose flow has none running", got)
	}
	q.mu.Lock()
	if names := slices.Sorted(maps.Keys(q.groups["a"].flows.named)); !slices.Equal(names, []string{"x", "y"}) {
		t.Errorf("got the flows %q", names)
	}
	q.mu.Unlock()
	q.Done("a/x/0")
	if got := process(t, q); got != "a/x/1" {
		t.Errorf("got %s, want the item whose flow was at its limit", got)
	}
	q.Done("a/y/0")
	q.ShutDown()
}

// Items of an earlier opening are assigned once, and not whenever a run begins.
func TestFlow_AssignsItemsOfAnEarlierOpeningOnce(t *testing.T) {
	q, group := openWithFlows(testOptions{})
	group.Add(Live, "a/x/0")
	q.Get()
	calls := 0
	group = q.Open("a", "a", testOptions{FlowsOf: each(func(string) string { calls++; return "x" })})
	for range 3 {
		group.Assign()
	}
	if calls != 1 {
		t.Errorf("the function of flows was called %d times", calls)
	}
	q.Done("a/x/0")
	q.ShutDown()
}

// If the function changes while items are assigned, they are assigned by the new one.
func TestFlow_ChangesWhileItemsAreAssigned(t *testing.T) {
	q, group := openWithFlows(testOptions{})
	group.Add(Live, "a/x/0")
	q.Get()
	changed := false
	group = q.Open("a", "a", testOptions{FlowsOf: each(func(string) string {
		if !changed {
			changed = true
			group.Configure(testOptions{FlowsOf: each(func(string) string { return "new" })})
		}
		return "old"
	})})
	group.Assign()
	q.mu.Lock()
	defer q.mu.Unlock()
	if name := q.groups["a"].items["a/x/0"].flow.name; !changed || name != "new" {
		t.Errorf("the item is in flow %q", name)
	}
}

// A panic of FlowsOf leaves the queue usable.
func TestFlow_PanicsLeaveTheQueueUsable(t *testing.T) {
	q := newTestQueue()
	panics := testOptions{FlowsOf: func([]string) []string { panic("no flow") }}
	group := q.Open("a", "a", panics)
	mustPanic := func(name string, f func()) {
		defer func() {
			if recover() == nil {
				t.Errorf("%s did not panic", name)
			}
		}()
		f()
	}
	mustPanic("Add", func() { group.Add(Live, "a/x/0") })
	mustPanic("AddAfter", func() { group.AddAfter("a/x/0", 1) })
	if got := q.Len(); got > 0 {
		t.Errorf("%d items are waiting", got)
	}
	group.Configure(testOptions{})
	group.Add(Live, "a/y/0")
	mustPanic("Configure", func() { group.Configure(panics) })
	if got := process(t, q); got != "a/y/0" {
		t.Errorf("got %s, want the item that was added before", got)
	}
	group.Add(Live, "a/y/0")
	if _, shutdown := q.Get(); shutdown {
		t.Fatal("the queue is shut down")
	}
	group = q.Open("a", "a", panics) // the item is still running
	mustPanic("Assign", group.Assign)
	q.Done("a/y/0")
	group.Assign()
}

// The memory of many flows is released when they are empty.
func TestFlow_ReleasesMemory(t *testing.T) {
	q, group := openWithFlows(testOptions{})
	for i := range 2 * maxReused {
		group.Add(Live, fmt.Sprintf("a/%d/0", i))
	}
	q.mu.Lock()
	before := q.groups["a"].flows.named
	q.mu.Unlock()
	for range 2 * maxReused {
		process(t, q)
	}
	group.Add(Live, "a/x/0")
	q.mu.Lock()
	defer q.mu.Unlock()
	if after := q.groups["a"].flows.named; len(before) != 0 || len(after) != 1 {
		t.Errorf("the map of %d flows is still used", 2*maxReused)
	}
}
