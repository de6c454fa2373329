package controllertest

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// lag determines when the events of a type's watches are delivered.
type lag struct {
	delay    time.Duration // of events that are added
	holds    int
	released chan struct{} // closed when the last hold ends; nil without holds
}

// DelayWatches delivers each later event of the type's watches with a delay, as a busy API server does. Caches that are
// filled from these watches are then behind the objects that the server returns to clients. Zero, which is the
// default, delivers events at once. Lists are not delayed. A watch that starts at an earlier resourceVersion receives
// the changes since then with the delay, too.
//
// Caches lag in production, mostly by milliseconds. A handler that reads its own last write from a cache must be right
// with any delay: it otherwise repeats writes, for example creates a second child. [WaitIdle] does not wait for delayed
// events: call time.Sleep with the delay, and then WaitIdle again.
func (s *Server) DelayWatches(gvr schema.GroupVersionResource, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tableLocked(gvr).lag.delay = delay
}

// HoldWatches holds back all later events of the type's watches until release is called, in place of a fixed delay. The
// test can then make the controller call a handler at a moment at which its cache is certain to be outdated, for
// example with [dynamiccontroller.DynamicController.Enqueue]. If HoldWatches is called several times, events are held
// until all have been released. The function release can be called more than once.
func (s *Server) HoldWatches(gvr schema.GroupVersionResource) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.tableLocked(gvr).lag
	if l.holds++; l.holds == 1 {
		l.released = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.holds--; l.holds == 0 {
			close(l.released)
			l.released = nil
		}
	})
}
