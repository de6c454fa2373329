package typewatch

import "slices"

// chunk is a part of the objects in a store. The chunks of a store form a linked list, so that the memory of a chunk is
// released once all listeners have received its objects.
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

// set returns the objects of a chunk as they are delivered with the given view.
func (k *knownObjects) set(c *chunk, view View) []*Object {
	for i := range c.states {
		k.objects[i] = Object{state: &c.states[i], View: view}
		k.pointers[i] = &k.objects[i]
	}
	return k.pointers[:len(c.states)]
}

// pass delivers the existing objects of a watch to all listeners that wait for them. It begins with a snapshot of
// the store. Listeners whose event handler can call user code receive the snapshot in their inbox. The other ones are
// members of the pass: they receive one chunk after the other and then the changes since the snapshot. The delivery
// lock is released after each chunk.
type pass struct {
	next    *chunk // the next chunk that the members receive
	members []*listener
	changes []*storeChange // since the pass began
	known   knownObjects   // reused for all members
}

// startPass starts a pass if a listener waits for the existing objects, unless a pass is in progress. It must be called
// whenever a listener begins to wait. The caller must hold w.delivery.
func (w *watch) startPass() {
	if w.pass != nil || len(w.awaitingPass()) == 0 {
		return
	}
	w.pass = &pass{}
	go w.deliverExisting()
}

// deliverExisting performs passes until no listener waits for one.
func (w *watch) deliverExisting() {
	for w.beginPass() {
		for w.deliverChunk() {
		}
	}
}

// awaitingPass returns the listeners for which a pass can begin. The caller must hold w.delivery.
func (w *watch) awaitingPass() (waiting []*listener) {
	if !w.listed.Load() || w.env.holds.Load() > 0 {
		return nil
	}
	for _, l := range w.attached {
		if l.awaitsPass() {
			waiting = append(waiting, l)
		}
	}
	return waiting
}

// beginPass begins a pass. It returns false if no listener waits for one.
func (w *watch) beginPass() bool {
	w.delivery.Lock()
	defer w.delivery.Unlock()
	waiting := w.awaitingPass()
	if len(waiting) == 0 {
		w.pass = nil
		return false
	}
	w.passes++
	w.pass = &pass{next: w.snapshot()}
	for _, l := range waiting {
		l.joinPass(w.pass)
	}
	return true
}

// deliverChunk delivers the next chunk to the members of the pass. After the last chunk, it delivers the changes since
// the pass began. It returns false if the pass is over.
func (w *watch) deliverChunk() bool {
	w.delivery.Lock()
	defer w.delivery.Unlock()
	p := w.pass
	for _, l := range slices.Clone(p.members) { // because members can leave
		l.receive(p.next, &p.known)
	}
	if p.next != nil && len(p.members) > 0 {
		p.next = p.next.next
		return true
	}
	members := p.members
	p.members = nil
	for _, l := range members {
		l.endPass(p.changes)
	}
	return false
}
