package typewatch

import (
	"slices"
	"sync/atomic"
)

// listener receives what a watch delivers, for one event handler: the existing objects and the changes. At any time, it
// belongs to one watch. Its fields and methods are guarded by the delivery lock of that watch, except for view, closed
// and the inbox.
type listener struct {
	view   atomic.Pointer[View] // of the objects that are delivered next
	closed atomic.Bool          // whether the subscription has been closed
	inbox  inbox                // items are added under the delivery lock

	handler *EventHandler // nil if the listener is not attached
	// announced is true if the handler has received the existing objects of this session, or will receive them from a
	// pass.
	announced bool
	pass      *pass // the pass of which the listener is a member, or nil
}

// setView sets the view of the objects that are delivered next. The caller must serialize calls.
func (l *listener) setView(view View) {
	l.view.Store(&view)
	l.inbox.setView(view)
}

// setHandlerLocked sets the handler, which must receive the existing objects again. The caller must hold the delivery
// lock, and must call the returned functions once it has released the lock.
func (l *listener) setHandlerLocked(handler *EventHandler) (removed []func()) {
	l.dropPass()
	l.handler, l.announced = handler, false
	return l.inbox.reset(handler)
}

// handle delivers a change in the watch, or leaves it to the pass in which the listener takes part. Until the existing
// objects have been announced, only deletions are delivered. New and changed objects will be among the existing
// objects. The caller must hold the delivery lock.
func (l *listener) handle(c *storeChange) {
	if !l.closed.Load() && l.pass == nil && (l.announced || c.isDeletion()) {
		view := *l.view.Load()
		l.deliver(c.in(view, view))
	}
}

// deliver calls the handler with a change or adds the change to the inbox. The caller must hold the delivery lock.
func (l *listener) deliver(c Change) {
	if c.blocks() || !l.inbox.isIdle() {
		l.inbox.add(c)
	} else {
		l.handler.Changed(c)
	}
}

// awaitsPass reports whether the existing objects must be delivered once they have been listed. The caller must hold
// the delivery lock.
func (l *listener) awaitsPass() bool { return l.handler != nil && !l.announced && !l.closed.Load() }

// joinPass takes part in a pass that begins. The caller must hold the delivery lock.
func (l *listener) joinPass(p *pass) {
	l.announced = true
	if view := *l.view.Load(); view.options.Blocking || !l.inbox.isIdle() {
		l.inbox.announce(p.next, view)
		l.inbox.setView(*l.view.Load()) // it can have been updated in between
		return
	}
	l.pass = p
	p.members = append(p.members, l)
}

// receive delivers a chunk of the pass, unless the listener can no longer be a member, which it then leaves. The chunk
// is nil at the end of the pass. The caller must hold the delivery lock.
func (l *listener) receive(c *chunk, known *knownObjects) {
	switch view := *l.view.Load(); { // read once, because Update can change it
	case l.closed.Load():
		l.dropPass()
	case view.options.Blocking:
		l.leavePass()
	case c != nil:
		l.handler.Known(known.set(c, view))
	}
}

// endPass delivers the changes since the pass began, whose objects have been delivered. The caller must hold the
// delivery lock.
func (l *listener) endPass(changes []*storeChange) {
	l.pass = nil
	l.handler.Synced()
	for _, c := range changes {
		view := *l.view.Load()
		l.deliver(c.in(view, view))
	}
}

// leavePass moves everything that the listener has not received from the pass to its inbox. The caller must hold the
// delivery lock.
func (l *listener) leavePass() {
	p := l.pass
	if p == nil {
		return
	}
	l.dropPass()
	view := *l.view.Load()
	l.inbox.announce(p.next, view)
	for _, c := range p.changes {
		l.inbox.add(c.in(view, view))
	}
}

// abandonPass moves only the deletions that the listener has not received from the pass to its inbox. The caller must
// hold the delivery lock.
func (l *listener) abandonPass() {
	p := l.pass
	if p == nil {
		return
	}
	l.dropPass()
	view := *l.view.Load()
	for _, c := range p.changes {
		if c.isDeletion() {
			l.inbox.add(c.in(view, view))
		}
	}
}

// dropPass removes the listener from the members of its pass, if any. The caller must hold the delivery lock. This must
// not be left to the pass, because a listener that has moved is guarded by the lock of another watch.
func (l *listener) dropPass() {
	if p := l.pass; p != nil {
		p.members = slices.DeleteFunc(p.members, func(other *listener) bool { return other == l })
		l.pass = nil
	}
}
