package typewatch

import "slices"

// chunk is a part of the objects in a store. The chunks of a store form a linked list, so that the memory of a chunk is
// released once all subscriptions have received its objects.
type chunk struct {
	states []state
	next   *chunk
}

// snapshot returns the existing objects.
func (w *watch) snapshot() (first *chunk) {
	last := &first
	for records := range slices.Chunk(w.store.All(), batch) {
		c := &chunk{states: make([]state, len(records))}
		for i, r := range records {
			c.states[i].Record = r
		}
		*last, last = c, &c.next
	}
	return first
}

// knownObjects holds the arguments of a call to Known.
type knownObjects struct {
	objects  [batch]Object
	pointers [batch]*Object
}

// set returns the objects of a chunk as they are delivered to a subscription with the given view.
func (k *knownObjects) set(c *chunk, view View) []*Object {
	for i := range c.states {
		k.objects[i] = Object{state: &c.states[i], View: view}
		k.pointers[i] = &k.objects[i]
	}
	return k.pointers[:len(c.states)]
}

// pass delivers the existing objects of a watch to all subscriptions that wait for them. It begins with a snapshot of
// the store. Subscriptions whose event handler can call user code receive the snapshot in their inbox. The other ones
// are members of the pass: they receive one chunk after the other and then the changes since the snapshot. The delivery
// lock is released after each chunk.
type pass struct {
	next    *chunk // the next chunk that the members receive
	members []*Subscription
	changes []*storeChange // since the pass began
	known   knownObjects   // reused for all members
}

// startPass starts a pass if a subscription waits for the existing objects, unless a pass is in progress. It must be
// called whenever a subscription begins to wait. The caller must hold w.delivery.
func (w *watch) startPass() {
	held := w.pool.holds.Load() > 0
	if held || w.pass != nil || !slices.ContainsFunc(w.attached, (*Subscription).awaitsPass) {
		return
	}
	w.pass = &pass{}
	go w.deliverExisting()
}

// awaitsPass reports whether the existing objects must be delivered to the subscription. The caller must hold the
// delivery lock.
func (s *Subscription) awaitsPass() bool {
	return s.handler != nil && !s.announced && !s.closed.Load() && s.view.Load().watch.listed.Load()
}

// deliverExisting performs passes until no subscription waits for one.
func (w *watch) deliverExisting() {
	for w.beginPass() {
		for w.deliverChunk() {
		}
	}
}

// waitingLocked returns the subscriptions that wait for a pass. The caller must hold the delivery lock.
func (w *watch) waitingLocked() (waiting []*Subscription) {
	for _, s := range w.attached {
		if s.awaitsPass() {
			waiting = append(waiting, s)
		}
	}
	return waiting
}

// beginPass begins a pass. It returns false if no subscription waits for one.
func (w *watch) beginPass() bool {
	w.delivery.Lock()
	defer w.delivery.Unlock()
	waiting := w.waitingLocked()
	if len(waiting) == 0 || w.pool.holds.Load() > 0 {
		w.pass = nil
		return false
	}
	w.passes++
	first := w.snapshot()
	w.pass = &pass{next: first}
	for _, s := range waiting {
		s.announced = true
		if view := s.view.Load(); view.options.Blocking || !s.inbox.isIdle() {
			s.inbox.announce(first, *view)
			s.inbox.setView(*s.view.Load()) // it can have been updated in between
		} else {
			s.pass = w.pass
			w.pass.members = append(w.pass.members, s)
		}
	}
	return true
}

// deliverChunk delivers the next chunk to the members of the pass. After the last chunk, it delivers the changes since
// the pass began. It returns false if the pass is over.
func (w *watch) deliverChunk() bool {
	w.delivery.Lock()
	defer w.delivery.Unlock()
	p := w.pass
	views := map[*Subscription]View{} // read once, because Update can change them
	for _, s := range slices.Clone(p.members) {
		switch view := *s.view.Load(); {
		case s.closed.Load():
			s.dropPass()
		case view.options.Blocking:
			s.leavePass()
		default:
			views[s] = view
		}
	}
	if next := p.next; next != nil && len(p.members) > 0 {
		p.next = next.next
		for _, s := range p.members {
			s.handler.Known(p.known.set(next, views[s]))
		}
		return true
	}
	members := p.members
	p.members = nil
	for _, s := range members {
		s.pass = nil
		s.handler.Synced()
		for _, c := range p.changes {
			view := *s.view.Load()
			s.deliver(c.in(view, view))
		}
	}
	return false
}

// leavePass moves everything that the subscription has not received from the pass to its inbox. The caller must hold
// the delivery lock.
func (s *Subscription) leavePass() {
	p := s.pass
	if p == nil {
		return
	}
	s.dropPass()
	view := *s.view.Load()
	s.inbox.announce(p.next, view)
	for _, c := range p.changes {
		s.inbox.add(c.in(view, view))
	}
}

// abandonPass moves only the deletions that the subscription has not received from the pass to its inbox. The caller
// must hold the delivery lock.
func (s *Subscription) abandonPass() {
	p := s.pass
	if p == nil {
		return
	}
	s.dropPass()
	view := *s.view.Load()
	for _, c := range p.changes {
		if c.isDeletion() {
			s.inbox.add(c.in(view, view))
		}
	}
}

// dropPass removes the subscription from the members of its pass, if any. The caller must hold the delivery lock. This
// must not be left to the pass, because a subscription that has moved is guarded by the lock of another watch.
func (s *Subscription) dropPass() {
	if p := s.pass; p != nil {
		p.members = slices.DeleteFunc(p.members, func(other *Subscription) bool { return other == s })
		s.pass = nil
	}
}
