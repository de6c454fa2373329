package fairqueue

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Items in tests have the form "group/name".
type (
	testQueue = Queue[string, string, string, string]
	testGroup = Group[string, string, string, string]

	testOptions = Options[string, string]
)

func groupOf(item string) string {
	group, _, _ := strings.Cut(item, "/")
	return group
}

func identity(item string) string { return item }

func second(_, item string) string { return item }

func newTestQueue() *testQueue { return New[string, string, string, string](groupOf, identity, second) }

// open opens the groups without limits.
func open(q *testQueue, groups ...string) map[string]testGroup {
	opened := map[string]testGroup{}
	for _, g := range groups {
		opened[g] = q.Open(g, g, testOptions{})
	}
	return opened
}

// next returns the next item, which must be waiting.
func next(t *testing.T, q *testQueue) string {
	t.Helper()
	if q.Len() == 0 {
		t.Fatal("no item is waiting")
	}
	item, shutdown := q.Get()
	if shutdown {
		t.Fatal("the queue is shut down")
	}
	return item
}

// process returns the next item after calling Done with it.
func process(t *testing.T, q *testQueue) string {
	t.Helper()
	item := next(t, q)
	q.Done(item)
	return item
}

// stopAll stops all groups and shuts down the queue.
func stopAll(q *testQueue) {
	q.mu.Lock()
	openings := []testGroup{}
	for _, g := range q.groups {
		openings = append(openings, testGroup{q: q, opening: g.opening})
	}
	q.mu.Unlock()
	for _, group := range openings {
		group.Stop()
	}
	q.ShutDown()
}

// workers process items of a queue in a synctest bubble. An item is running until finish is called.
type workers struct {
	q       *testQueue
	mu      sync.Mutex
	running map[string]chan struct{}
}

// newWorkers returns workers. When the test ends, the workers stop, and handlers that are still running return.
func newWorkers(t *testing.T, q *testQueue) *workers {
	w := &workers{q: q, running: map[string]chan struct{}{}}
	t.Cleanup(func() {
		stopAll(q)
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, finished := range w.running {
			close(finished)
		}
	})
	return w
}

// start starts n workers one after another.
func (w *workers) start(n int) *workers {
	for range n {
		go w.work()
		synctest.Wait()
	}
	return w
}

func (w *workers) work() {
	for {
		item, shutdown := w.q.Get()
		if shutdown {
			return
		}
		finished := make(chan struct{})
		w.mu.Lock()
		w.running[item] = finished
		w.mu.Unlock()
		<-finished
		w.q.Done(item)
	}
}

// finish makes the handler of a running item return.
func (w *workers) finish(t *testing.T, item string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	finished := w.running[item]
	delete(w.running, item)
	w.mu.Unlock()
	if finished == nil {
		t.Fatalf("%s is not running", item)
	}
	close(finished)
	synctest.Wait()
}

// finishAny waits for the duration, and then makes the handler of one of the group's running items return.
func (w *workers) finishAny(t *testing.T, group string, after time.Duration) {
	t.Helper()
	time.Sleep(after)
	w.finish(t, w.items(group)[0])
}

// items returns the running items of the group.
func (w *workers) items(group string) (items []string) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for item := range w.running {
		if groupOf(item) == group {
			items = append(items, item)
		}
	}
	return items
}
