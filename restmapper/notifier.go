package restmapper

import (
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/protect"
)

// pending is a change that has not been delivered.
type pending struct {
	kind     schema.GroupKind
	old, now []*meta.RESTMapping
	// oldVerbs and nowVerbs identify the verbs in all versions.
	oldVerbs, nowVerbs string
}

// isEmpty reports whether the kind has returned to its old state.
func (p *pending) isEmpty() bool { return sameMappings(p.old, p.now) && p.oldVerbs == p.nowVerbs }

// notifier delivers changes to subscribers. Each subscriber is called by its own goroutine, which exists only while
// there are changes to deliver.
type notifier struct {
	log logr.Logger

	mu            sync.Mutex // guards the fields below, and the subscriptions
	running       bool       // calls can begin
	subscriptions map[*subscription]struct{}
	calls         sync.WaitGroup // goroutines that call subscribers
}

type subscription struct {
	call    func(Change)
	changes map[schema.GroupKind]*pending
	order   []*pending // the changes, in the order of delivery
	// busy is closed when the goroutine that calls the subscriber ends. It is nil if no such goroutine is running.
	busy      chan struct{}
	cancelled bool
}

func (n *notifier) start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running = true
	for s := range n.subscriptions {
		n.deliverLocked(s)
	}
}

// stop prevents further calls and returns when no call is in progress. Changes that have not been delivered are kept.
func (n *notifier) stop() {
	n.mu.Lock()
	n.running = false
	n.mu.Unlock()
	n.calls.Wait()
}

func (n *notifier) subscribe(call func(Change), known []pending) *subscription {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &subscription{call: call, changes: map[schema.GroupKind]*pending{}}
	if n.subscriptions == nil {
		n.subscriptions = map[*subscription]struct{}{}
	}
	n.subscriptions[s] = struct{}{}
	s.add(known)
	n.deliverLocked(s)
	return s
}

func (n *notifier) isEmpty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.subscriptions) == 0
}

func (n *notifier) notify(changes []pending) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.subscriptions {
		s.add(changes)
		n.deliverLocked(s)
	}
}

// add merges changes into the pending ones. If a kind has returned to the state that the subscriber last received, its
// change is dropped.
func (s *subscription) add(changes []pending) {
	for _, c := range changes {
		p := s.changes[c.kind]
		if p == nil {
			p = &pending{kind: c.kind, old: c.old, oldVerbs: c.oldVerbs}
			s.changes[c.kind] = p
			s.order = append(s.order, p)
		}
		p.now, p.nowVerbs = c.now, c.nowVerbs
		if p.isEmpty() {
			delete(s.changes, c.kind)
			s.order = slices.DeleteFunc(s.order, func(o *pending) bool { return o == p })
		}
	}
}

// deliverLocked starts the goroutine that calls the subscriber, unless it exists or has nothing to do.
func (n *notifier) deliverLocked(s *subscription) {
	if s.busy != nil || !n.hasNextLocked(s) {
		return
	}
	s.busy = make(chan struct{})
	n.calls.Go(func() {
		defer n.delivered(s)
		for {
			c, ok := n.next(s)
			if !ok {
				return
			}
			n.call(s, c)
		}
	})
}

// delivered is called when the goroutine that calls the subscriber ends. If changes remain, delivered starts another
// goroutine. Changes remain if one was added while the goroutine was ending.
func (n *notifier) delivered(s *subscription) {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(s.busy)
	s.busy = nil
	n.deliverLocked(s)
}

func (n *notifier) hasNextLocked(s *subscription) bool {
	return n.running && !s.cancelled && len(s.order) > 0
}

// next removes the oldest pending change.
func (n *notifier) next(s *subscription) (c Change, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.hasNextLocked(s) {
		return Change{}, false
	}
	p := s.order[0]
	s.order = s.order[1:]
	delete(s.changes, p.kind)
	c = Change{Type: Changed, Kind: p.kind, Old: p.old, New: p.now}
	switch {
	case len(p.old) == 0:
		c.Type = Added
	case len(p.now) == 0:
		c.Type = Removed
	}
	return c, true
}

// call calls the subscriber. If the subscriber panics or calls runtime.Goexit, call logs it.
func (n *notifier) call(s *subscription, c Change) {
	if mistake := protect.Isolate(func() { s.call(c) }); mistake != nil {
		n.log.Error(mistake, "Subscriber panicked", keyKind, c.Kind.String(), keyStack, string(mistake.Stack))
	}
}

// cancel ends a subscription. It returns a channel that is closed when no call to the subscriber is in progress.
func (n *notifier) cancel(s *subscription) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.cancelled, s.changes, s.order = true, nil, nil
	delete(n.subscriptions, s)
	if s.busy != nil {
		return s.busy
	}
	return closedChannel
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
