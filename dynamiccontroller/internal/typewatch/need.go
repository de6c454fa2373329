package typewatch

import (
	"maps"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Want is what a need asks for.
type Want struct {
	Spec
	// Transform, if any, makes of the objects what is kept. It must be idempotent: the reflector applies it while it
	// collects a list, and the store again. As functions cannot be compared, such a need shares its watch with no other.
	Transform cache.TransformFunc
	// After is a need whose watch ends before the one of a need with a transform begins, as do those that it was to begin
	// after itself, so that a transform that all have is called from one goroutine at a time. Acquire does not keep it.
	After *Need
	// Observe, if any, is told of each change of state of the watch that serves the need, and must not call back.
	Observe func(State)
}

// Sink hears what happens to the objects. Its funcs are called one at a time, in order, and after the cache shows what
// they tell; they must return soon, for other needs of the same watch wait meanwhile, and must not call Attach, Detach or
// Leave.
type Sink struct {
	// Known is called with the keys of the objects that are there already, in portions, and Synced once it was called
	// with all of them, and Changed with those that are not as the need knew them in whose place this one is.
	Known  func(keys []string)
	Synced func()
	// Changed is called with an object's state before and after: old is nil for a new object, now for a deleted one. They
	// are as the watch keeps them; [Need.View] makes of them what the need asks for.
	Changed func(key string, old, now any)
}

// Need is one user's share in a watch. Its methods may be called concurrently.
type Need struct {
	Want
	shared   *shared
	released atomic.Bool // it leaves soon: it hears of changes still, but is not told of all again

	// The feed's deliver guards what follows.

	sink *Sink
	// announced: the sink was told of all that there was, and hears of changes.
	announced bool
	// inherited is what the need in whose place this one is knew. What the first list lacks of it was deleted.
	inherited map[string]any
	// awaitsSink: it took the place of one that had a sink, and has none yet. What it inherited is kept for the sink to come,
	// even if it has synced by then.
	awaitsSink bool
	left       bool
	heir       *Need // that took this one's place

	// The feed's mu guards what follows.

	synced   chan struct{} // closed while isSynced, and when the need has left
	isSynced bool

	ended <-chan struct{} // set by Release
}

// State tells how the watch that serves the need stands: where that is one that is still to take another's place, the
// new one.
func (n *Need) State() State { return n.shared.watchFor(n).health.state() }

// Synced is closed once what the need asks for is in the cache as a whole list, of the present term of the pool or the
// next one, and when the need has left.
func (n *Need) Synced() <-chan struct{} {
	n.shared.feed.mu.RLock()
	defer n.shared.feed.mu.RUnlock()
	return n.synced
}

// settleLocked closes or renews the channel. The caller holds the feed's mu.
func (n *Need) settleLocked() {
	switch serves := n.shared.feed.servesLocked(n); {
	case serves && !n.isSynced:
		close(n.synced)
		n.isSynced = true
	case !serves && n.isSynced:
		n.synced = make(chan struct{})
		n.isSynced = false
	}
}

// Objects holds the objects as the watch keeps them, deeper perhaps than the need asks for, or while that has not synced
// less deep; it is nil while only keys are kept.
func (n *Need) Objects() cache.Indexer { return n.shared.feed.contents().objects() }

// Get returns an object as the watch keeps it.
func (n *Need) Get(key string) (obj any, known bool) { return n.shared.feed.contents().get(key) }

// Has tells whether the object is in the cache.
func (n *Need) Has(key string) bool {
	_, known := n.shared.feed.contents().version(key)
	return known
}

// HasUID tells whether the object is in the cache and has the UID.
func (n *Need) HasUID(key string, uid types.UID) bool {
	return n.shared.feed.contents().hasUID(key, uid)
}

// OwnedBy returns the objects that have the owner among theirs, as the watch keeps them. They are found by an index, which
// the first call makes. With [Keys] there are none.
func (n *Need) OwnedBy(owner types.UID) []any { return n.shared.feed.contents().ownedBy(string(owner)) }

// Keys lists the keys of all objects, in no order.
func (n *Need) Keys() []string { return n.shared.feed.contents().keys() }

// Len is the number of objects.
func (n *Need) Len() int { return n.shared.feed.contents().len() }

// View shows an object as the need asks for it, nil as nil. It must not be changed either.
func (n *Need) View(obj any) any {
	if n.Transform != nil {
		return obj
	}
	return view(n.Depth, obj)
}

// Attach makes sink hear of everything from now on, in place of the sink before: first of each object there is, as soon as
// the need has synced, then of each change. A deletion is told before that too.
func (n *Need) Attach(sink Sink) {
	f := n.shared.feed
	f.deliver.Lock()
	defer f.deliver.Unlock()
	if n.left {
		return
	}
	f.without(n)
	n.sink, n.awaitsSink = &sink, false
	f.sinks = append(f.sinks, n)
	n.announce()
}

// Detach ends what Attach began, and says that no Attach is about to follow. When it returns the sink is not being called,
// and will not be.
func (n *Need) Detach() {
	f := n.shared.feed
	f.deliver.Lock()
	defer f.deliver.Unlock()
	f.without(n)
	n.awaitsSink = false
	n.disinheritIf(f.serves(n))
}

// Release gives the need up: its watch ends, or keeps less, if no other needs it as it is. It does not wait; Leave and
// Ended do.
func (n *Need) Release() {
	n.released.Store(true)
	n.shared.release(n)
}

// Leave is Detach for good. If heir is not nil it takes this need's place: what this one knew and the heir does not find
// is told to the heir's sink as deleted. If this one has a sink, the heir is to be given one, or told by Detach that it gets
// none: what is deleted in between is told then.
func (n *Need) Leave(heir *Need) {
	known, heard := n.leave(heir)
	for heir != nil && (heard || len(known) > 0) {
		heir = heir.inherit(known, heard)
	}
}

// leave returns what the heir is to know, and whether somebody was to hear of it.
func (n *Need) leave(heir *Need) (known map[string]any, heard bool) {
	f := n.shared.feed
	f.deliver.Lock()
	defer f.deliver.Unlock()
	if n.left {
		return nil, false
	}
	heard = n.sink != nil || n.awaitsSink
	f.without(n)
	if heir != nil {
		contents := f.contents()
		keys := contents.keys()
		known = make(map[string]any, len(keys)+len(n.inherited))
		maps.Copy(known, n.inherited)
		for _, key := range keys {
			if obj, still := contents.get(key); still {
				known[key] = obj
			}
		}
	}
	n.left, n.heir, n.inherited, n.awaitsSink = true, heir, nil, false
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.needs, n)
	if !n.isSynced {
		close(n.synced) // whoever waits looks again at who serves him
		n.isSynced = true
	}
	return known, heard
}

// inherit takes over what another need knew, which somebody heard of or not. It returns the heir, if the need has left
// itself.
func (n *Need) inherit(known map[string]any, heard bool) (heir *Need) {
	f := n.shared.feed
	f.deliver.Lock()
	defer f.deliver.Unlock()
	if n.left {
		return n.heir
	}
	n.awaitsSink = n.sink == nil && (heard || n.awaitsSink)
	if n.inherited == nil {
		n.inherited = known
	} else {
		maps.Copy(n.inherited, known)
	}
	if n.announced {
		n.tellInherited() // of what has changed it was told itself
	}
	n.disinheritIf(f.serves(n))
	return nil
}

// disinheritIf forgets what the need inherited if it has synced and nobody is to hear of it. The caller holds deliver.
func (n *Need) disinheritIf(synced bool) {
	if synced && n.sink == nil && !n.awaitsSink {
		n.inherited = nil
	}
}

// Ended is closed when nothing runs any more that ran for this need alone. It is called after Release.
func (n *Need) Ended() <-chan struct{} { return n.ended }

// announce tells the sink of all that there is, once the need is served. The caller holds deliver.
func (n *Need) announce() {
	if n.announced || n.released.Load() || !n.shared.feed.serves(n) {
		return
	}
	n.announced = true
	defer n.shared.feed.owners.forget()
	changed := n.tellInherited()
	keys := n.Keys()
	for len(keys) > 0 {
		most := min(portion, len(keys))
		n.sink.Known(keys[:most])
		keys = keys[most:]
	}
	for _, c := range changed {
		n.sink.Changed(c.key, c.old, c.now)
	}
	n.sink.Synced()
}

// tellInherited tells what is gone of what was inherited, and returns what has changed: who was interested in the object as
// it was may not be in what it is.
func (n *Need) tellInherited() (changed []change) {
	contents := n.shared.feed.contents()
	for key, old := range n.inherited {
		switch now, there := contents.get(key); {
		case !there:
			n.sink.Changed(key, old, nil)
		case versionOf(old) != "" && versionOf(now) != "" && !sameVersion(old, now):
			changed = append(changed, change{key: key, old: old, now: now})
		}
	}
	n.inherited = nil
	return changed
}

// hear tells the sink of a change. One that was not told of all objects yet will see in them what is new or changed, but
// not what is gone. The caller holds deliver.
func (n *Need) hear(c change) {
	if !n.announced {
		if c.now != nil {
			return
		}
		delete(n.inherited, c.key)
	}
	n.sink.Changed(c.key, c.old, c.now)
}
