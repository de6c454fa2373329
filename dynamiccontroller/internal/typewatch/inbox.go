package typewatch

import (
	"slices"
	"sync"
	"time"
)

// inbox holds what a listener has not received yet, and delivers it in a goroutine. The goroutine exists only while
// there is something to deliver. It holds no lock while it calls the event handler. An inbox is used by listeners whose
// event handler can call user code, and by any listener that leaves a pass before the end.
//
// Items are added only while the delivery lock of the listener's watch is held. They are delivered in this order:
//
//  1. early: changes from before the pass over the existing objects
//  2. existing: the existing objects, followed by a call to Synced
//  3. changes: changes since the pass began
type inbox struct {
	mu       sync.Mutex    // guards the fields below; no other lock is taken while it is held
	handler  *EventHandler // nil if nothing must be delivered
	early    changeQueue
	existing *existing // nil unless existing objects, or the call to Synced, have yet to be delivered
	changes  changeQueue
	again    *Change       // the change whose delivery ended with runtime.Goexit, or nil; delivered next
	running  bool          // whether the goroutine is running
	calling  bool          // whether it is calling the event handler
	returned chan struct{} // closed when the current call has returned; nil if nobody waits for it
	idle     chan struct{} // closed when the goroutine ends; nil if nobody waits for it
}

// existing is the part of a pass that has not been delivered to a listener.
type existing struct {
	view View
	next *chunk // nil if all objects have been delivered
	// single holds the objects of a call to Known that ended with runtime.Goexit. They are delivered again, one at a time.
	single []*Object
}

// delivery is one call to an event handler, or one to a function.
type delivery struct {
	handler *EventHandler
	chunk   *chunk
	view    View // of the objects in the chunk
	known   []*Object
	from    *existing // to which the objects belong
	synced  bool
	lost    bool
	change  Change
	f       func()
	isAgain bool // an earlier delivery ended with runtime.Goexit
}

// reset replaces the event handler and removes all items. It returns the functions that were removed, which the caller
// must call without a lock. A call to the former handler can still be running.
func (b *inbox) reset(handler *EventHandler) (functions []func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.handler, b.existing, b.again = handler, nil, nil
	return append(b.early.clear(), b.changes.clear()...)
}

// maxFinish limits the time for which changes are still delivered when an event handler is removed.
const maxFinish = time.Second / 2

// finish delivers the changes, but no existing objects, and removes the event handler. A change that happened before
// the handler is removed is not lost, unless user code needs more than maxFinish. When finish returns, no call is
// running.
func (b *inbox) finish() {
	b.mu.Lock()
	handler := b.handler
	if b.existing != nil { // before Synced, only deletions may be delivered
		b.existing = nil
		b.changes.keepDeletions()
	}
	running, idle := b.running, make(chan struct{})
	if running {
		b.idle = idle
	}
	b.mu.Unlock()
	if running {
		timer := time.NewTimer(maxFinish)
		select {
		case <-idle:
		case <-timer.C:
		}
		timer.Stop()
	}
	b.mu.Lock()
	replaced := b.handler != handler
	b.mu.Unlock()
	if !replaced {
		callAll(b.reset(nil))
	}
	b.wait()
}

// wait waits until the current call has returned.
func (b *inbox) wait() {
	b.mu.Lock()
	if !b.calling {
		b.mu.Unlock()
		return
	}
	if b.returned == nil {
		b.returned = make(chan struct{})
	}
	returned := b.returned
	b.mu.Unlock()
	<-returned
}

// isIdle reports whether everything has been delivered.
func (b *inbox) isIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.running
}

// announce adds the existing objects. If an earlier pass has not been delivered completely, its rest and the changes
// that follow it are dropped, except deletions, because the objects are among those of the new pass.
func (b *inbox) announce(first *chunk, view View) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.existing != nil { // before Synced, only deletions may be delivered
		b.changes.keepDeletions()
	}
	b.early.append(&b.changes, b.losesLocked())
	b.existing = &existing{view: view, next: first}
	b.startLocked()
}

// setView sets the view of the existing objects that have not been delivered, unless they belong to another watch.
func (b *inbox) setView(view View) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.existing != nil && b.existing.view.contents == view.contents {
		b.existing.view = view
	}
}

// add adds a change.
func (b *inbox) add(c Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes.add(c, b.losesLocked())
	b.startLocked()
}

func (b *inbox) losesLocked() losesFunc {
	if b.handler == nil {
		return nil
	}
	return b.handler.Loses
}

// addFunc adds a function that is called when all earlier items have been delivered. It returns false if there are
// none.
func (b *inbox) addFunc(f func()) (added bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running {
		b.changes.addFunc(f)
	}
	return b.running
}

func (b *inbox) startLocked() {
	if !b.running {
		b.running = true
		go b.deliverAll()
	}
}

// deliverAll delivers all items. If an event handler calls runtime.Goexit, another goroutine continues.
func (b *inbox) deliverAll() {
	over := false
	defer func() {
		if !over {
			go b.deliverAll()
		}
	}()
	for {
		d, ok := b.next()
		if !ok {
			over = true
			return
		}
		b.deliver(d)
	}
}

// next removes and returns the next item. If ok is false, the inbox is empty, and the goroutine must end.
func (b *inbox) next() (d delivery, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d.handler = b.handler
	switch e := b.existing; {
	case b.again != nil:
		d.change, d.isAgain, b.again = *b.again, true, nil
	case !b.early.isEmpty():
		d.change, d.f = b.early.next()
	case e != nil && len(e.single) > 0:
		d.known, e.single, d.isAgain, d.from = e.single[:1], e.single[1:], true, e
	case e != nil && e.next != nil:
		d.chunk, d.view, d.from, e.next = e.next, e.view, e, e.next.next
	case e != nil:
		b.existing, d.synced = nil, true
	case !b.changes.isEmpty():
		d.change, d.f = b.changes.next()
	case b.early.lost || b.changes.lost:
		b.early.lost, b.changes.lost, d.lost = false, false, true
	default:
		b.running = false
		if b.idle != nil {
			close(b.idle)
			b.idle = nil
		}
		return delivery{}, false
	}
	b.calling = true
	return d, true
}

func (b *inbox) deliver(d delivery) {
	over := false
	defer func() { b.endCall(d, over) }()
	if d.chunk != nil {
		d.known = new(knownObjects).set(d.chunk, d.view)
	}
	switch {
	case d.f != nil:
		d.f()
	case d.handler == nil: // the items were removed
	case d.known != nil:
		d.handler.Known(d.known)
	case d.synced:
		d.handler.Synced()
	case d.lost:
		if d.handler.Lost != nil {
			d.handler.Lost()
		}
	default:
		d.handler.Changed(d.change)
	}
	over = true
}

func (b *inbox) endCall(d delivery, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calling = false
	if b.returned != nil {
		close(b.returned)
		b.returned = nil
	}
	if over || d.isAgain || b.handler != d.handler {
		return
	}
	switch {
	case len(d.known) > 0:
		if b.existing == d.from { // otherwise, a later pass delivers the objects
			d.from.single = slices.Clone(d.known)
		}
	case d.change.Key != "":
		b.again = &d.change
	}
}
