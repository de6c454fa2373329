package restmapper

import (
	"runtime"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ChangeType is what happened to a kind.
type ChangeType string

const (
	// Added: the kind was not served, as far as the subscriber was told, and is now.
	Added ChangeType = "Added"
	// Changed: the kind is served in other versions, or one of its versions is mapped otherwise.
	Changed ChangeType = "Changed"
	// Removed: the kind is not served any more.
	Removed ChangeType = "Removed"
)

// Change is what happened to a kind since its subscriber was last told of it. The mappings are shared by all subscribers
// and must not be changed.
type Change struct {
	Type ChangeType
	Kind schema.GroupKind
	// Old and New are the kind's mappings, one a version, the preferred version first. Old is what this subscriber was
	// told last, and is empty with [Added]; New is empty with [Removed].
	Old, New []*meta.RESTMapping
}

// pending is a change that was not told yet.
type pending struct {
	kind     schema.GroupKind
	old, now []*meta.RESTMapping
}

// hub tells the subscribers, each in a goroutine of its own while there is something to tell it.
type hub struct {
	mu            sync.Mutex // guards all that follows, and the subscriptions
	open          bool       // calls may begin
	subscriptions map[*subscription]struct{}
	calling       sync.WaitGroup // goroutines that call subscribers
}

type subscription struct {
	call    func(Change)
	waiting map[schema.GroupKind]*pending
	order   []*pending
	// busy is closed when the goroutine that calls has ended; nil while there is none.
	busy      chan struct{}
	cancelled bool
}

func (h *hub) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = true
	for s := range h.subscriptions {
		h.deliverLocked(s)
	}
}

// stop returns when no subscriber is being called any more. What was not told stays for the next start.
func (h *hub) stop() {
	h.mu.Lock()
	h.open = false
	h.mu.Unlock()
	h.calling.Wait()
}

func (h *hub) subscribe(call func(Change), known []pending) *subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &subscription{call: call, waiting: map[schema.GroupKind]*pending{}}
	if h.subscriptions == nil {
		h.subscriptions = map[*subscription]struct{}{}
	}
	h.subscriptions[s] = struct{}{}
	s.add(known)
	h.deliverLocked(s)
	return s
}

func (h *hub) isEmpty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subscriptions) == 0
}

func (h *hub) tell(changes []pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subscriptions {
		s.add(changes)
		h.deliverLocked(s)
	}
}

// add merges changes into those that wait: a kind that is as it was last told needs no call.
func (s *subscription) add(changes []pending) {
	for _, c := range changes {
		p := s.waiting[c.kind]
		if p == nil {
			p = &pending{kind: c.kind, old: c.old}
			s.waiting[c.kind] = p
			s.order = append(s.order, p)
		}
		p.now = c.now
		if sameMappings(p.old, p.now) {
			delete(s.waiting, c.kind)
			s.order = slices.DeleteFunc(s.order, func(o *pending) bool { return o == p })
		}
	}
}

func (h *hub) deliverLocked(s *subscription) {
	if !h.open || s.cancelled || s.busy != nil || len(s.order) == 0 {
		return
	}
	busy := make(chan struct{})
	s.busy = busy
	h.calling.Add(1)
	go func() {
		defer h.calling.Done()
		defer close(busy)
		for {
			c, ok := h.next(s)
			if !ok {
				return
			}
			callSubscriber(s.call, c)
		}
	}()
}

// next takes the oldest change that waits, or ends the goroutine that calls.
func (h *hub) next(s *subscription) (Change, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open || s.cancelled || len(s.order) == 0 {
		s.busy = nil
		return Change{}, false
	}
	p := s.order[0]
	s.order = s.order[1:]
	delete(s.waiting, p.kind)
	c := Change{Type: Changed, Kind: p.kind, Old: p.old, New: p.now}
	switch {
	case len(p.old) == 0:
		c.Type = Added
	case len(p.now) == 0:
		c.Type = Removed
	}
	return c, true
}

// cancel ends a subscription, and waits for the call that runs unless it comes from a subscriber's call itself.
func (h *hub) cancel(s *subscription) {
	h.mu.Lock()
	s.cancelled, s.waiting, s.order = true, nil, nil
	delete(h.subscriptions, s)
	busy := s.busy
	h.mu.Unlock()
	if busy != nil && !calledBySubscriber() {
		<-busy
	}
}

// callSubscriber stands on the stack of whatever a subscriber calls.
//
//go:noinline
func callSubscriber(call func(Change), c Change) { call(c) }

// calledBySubscriber tells whether this is called, at whatever depth, from within a subscriber's call: to wait there for
// that call would be to wait for itself, and two subscribers that cancel each other would wait for one another.
func calledBySubscriber() bool {
	pcs := make([]uintptr, 64)
	for skip := 0; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		frames := runtime.CallersFrames(pcs[:n])
		for n > 0 {
			frame, more := frames.Next()
			if strings.HasSuffix(frame.Function, "/restmapper.callSubscriber") {
				return true
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

func sameMappings(a, b []*meta.RESTMapping) bool {
	return slices.EqualFunc(a, b, func(a, b *meta.RESTMapping) bool { return *a == *b })
}

// difference lists what happened to the kinds of a group. Either is nil if there is no such group.
func difference(old, now *group, touches *touched) []pending {
	var changes []pending
	for _, kind := range touches.between(old, now).kinds {
		if sameKind(old, now, kind) {
			continue
		}
		p := pending{old: old.realMappings(kind), now: now.realMappings(kind)}
		if old != nil {
			p.kind = schema.GroupKind{Group: old.order.name, Kind: kind}
		} else {
			p.kind = schema.GroupKind{Group: now.order.name, Kind: kind}
		}
		changes = append(changes, p)
	}
	return changes
}

// sameKind compares a kind's mappings without making them.
func sameKind(a, b *group, kind string) bool {
	i, j := 0, 0
	for {
		va, ea := a.nextOf(kind, &i)
		vb, eb := b.nextOf(kind, &j)
		if ea == nil || eb == nil {
			return ea == nil && eb == nil
		}
		if va.version != vb.version || ea.plural != eb.plural || ea.namespaced != eb.namespaced {
			return false
		}
	}
}

// realMappings are those that discovery has, the preferred version first: the guesses of list kinds do not count.
func (g *group) realMappings(kind string) (mappings []*meta.RESTMapping) {
	for i := 0; ; {
		v, e := g.nextOf(kind, &i)
		if e == nil {
			return mappings
		}
		mappings = append(mappings, g.mapping(v, kind, e))
	}
}

// nextOf finds the next version, from i on, of which discovery has the kind.
func (g *group) nextOf(kind string, i *int) (v *groupVersion, e *kindEntry) {
	for g != nil && *i < len(g.versions) {
		v := &g.versions[*i]
		*i++
		if e := v.kinds.get(kind); e != nil && e.real {
			return v, e
		}
	}
	return nil, nil
}
