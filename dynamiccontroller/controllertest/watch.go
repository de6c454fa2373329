package controllertest

import (
	"context"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// watcher is a watch request. Events are delivered in order, and are never dropped.
type watcher struct {
	matches func(*unstructured.Unstructured) bool
	convert func(*unstructured.Unstructured) runtime.Object // returns the object of an event
	result  chan watch.Event
	wake    chan struct{} // has capacity for one value
	stopped chan struct{}
	stop    func()                         // closes stopped once
	held    func() (until <-chan struct{}) // returns nil if events are not held back

	mu      sync.Mutex // guards pending
	pending []delayedEvent
}

type delayedEvent struct {
	watch.Event
	due time.Time
}

var _ watch.Interface = &watcher{}

// watchLocked starts a watch that delivers the changes after a resourceVersion. With version 0, it first delivers the
// existing objects. watcher.stop removes it.
func (s *Server) watchLocked(
	t *table, version int64, matches func(*unstructured.Unstructured) bool,
	convert func(*unstructured.Unstructured) runtime.Object,
) *watcher {
	w := &watcher{
		matches: matches, convert: convert,
		result: make(chan watch.Event), wake: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	w.stop = sync.OnceFunc(func() {
		close(w.stopped)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(t.watchers, w)
	})
	w.held = func() <-chan struct{} {
		s.mu.Lock()
		defer s.mu.Unlock()
		return t.lag.released
	}
	if version == 0 {
		for _, object := range t.list(matches) {
			w.add(watch.Added, object, 0)
		}
		version = s.version
	}
	for _, c := range t.changes {
		if c.version > version {
			w.addChange(c, t.lag.delay)
		}
	}
	t.watchers[w] = struct{}{}
	return w
}

// recordLocked adds a change to the history and notifies the watchers.
func (t *table) recordLocked(c change) {
	t.changes = append(t.changes, c)
	for w := range t.watchers {
		w.addChange(c, t.lag.delay)
	}
}

// addChange adds the event for a change, if the object matches or matched.
func (w *watcher) addChange(c change, delay time.Duration) {
	matched, matches := c.before != nil && w.matches(c.before), c.after != nil && w.matches(c.after)
	switch {
	case matched && matches:
		w.add(watch.Modified, c.after, delay)
	case matches:
		w.add(watch.Added, c.after, delay)
	case matched:
		last := c.before.DeepCopy()
		last.SetResourceVersion(strconv.FormatInt(c.version, 10))
		w.add(watch.Deleted, last, delay)
	}
}

func (w *watcher) add(kind watch.EventType, object *unstructured.Unstructured, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	event := watch.Event{Type: kind, Object: w.convert(object.DeepCopy())}
	w.pending = append(w.pending, delayedEvent{event, time.Now().Add(delay)})
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// deliver sends events until the watch is stopped or times out, or ctx is cancelled.
func (w *watcher) deliver(ctx context.Context, timeout time.Duration) {
	defer close(w.result)
	defer w.stop()
	defer context.AfterFunc(ctx, w.stop)()
	var timedOut <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		timedOut = timer.C
	}
	for {
		select {
		case <-w.stopped:
			return
		case <-timedOut:
			return
		case <-w.wake:
		}
		w.mu.Lock()
		events := w.pending
		w.pending = nil
		w.mu.Unlock()
		for _, e := range events {
			if !w.await(e, timedOut) {
				return
			}
			select {
			case <-w.stopped:
				return
			case w.result <- e.Event:
			}
		}
	}
}

// await waits until an event can be delivered. It returns false if the watch ends before.
func (w *watcher) await(e delayedEvent, timedOut <-chan time.Time) bool {
	due := time.NewTimer(time.Until(e.due))
	defer due.Stop()
	select {
	case <-due.C:
	case <-timedOut:
		return false
	case <-w.stopped:
		return false
	}
	for until := w.held(); until != nil; until = w.held() {
		select {
		case <-until:
		case <-timedOut:
			return false
		case <-w.stopped:
			return false
		}
	}
	return true
}

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.stop() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }
