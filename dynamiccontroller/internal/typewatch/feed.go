package typewatch

import (
	"slices"
	"sync"
	"time"
)

// feed tells the needs of one shared watch what happens. It takes that from one store, the current one; another one that
// is to take its place says nothing before it does.
type feed struct {
	// mayTakeOver is asked before a store that is not current becomes so, and tookOver is called when it has. They, and
	// ended, which is called when the current store's run is over, are called with deliver held.
	mayTakeOver func(*store) bool
	tookOver    func(*store)
	ended       func()

	// deliver keeps changes and what is heard of them in one order. It is held across the sinks' calls, which is why they
	// must not come back here. Changes of what mu guards are made with it held as well, but for begin.
	deliver sync.Mutex
	// sinks are the needs that have a sink.
	sinks []*Need
	// stopCatchUp stops the timer of a store that waits to take over.
	stopCatchUp func()
	owners      ownersOfChange

	mu      sync.RWMutex // guards what follows, for readers
	current *store
	listed  bool   // a list of the present run is in the current store
	next    *store // is about to become current, whatever happens, and has less for some needs perhaps
	needs   map[*Need]struct{}
}

// portion is how many keys Known is called with at most, so that whoever takes them may keep its lock short.
const portion = 256

// catchUp is for how long a store that is to take over may lag behind the one before it. There are API servers whose
// versions cannot be compared with what a deletion had; then the last known state wins.
const catchUp = 5 * time.Second

// begin makes a store current while no other has ever run.
func (f *feed) begin(s *store) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current = s
}

func (f *feed) contents() contents {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.current.contents
}

func (f *feed) isCurrent(s *store) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.current == s
}

// newest returns the newest resourceVersion that the current store or s has, or "" if neither has any.
func (f *feed) newest(s *store) string {
	f.deliver.Lock()
	defer f.deliver.Unlock()
	f.mu.RLock()
	defer f.mu.RUnlock()
	if s.position == "" || newer(f.current.position, s.position) {
		return f.current.position
	}
	return s.position
}

// serves tells whether the current store has what the need asks for.
func (f *feed) serves(n *Need) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.servesLocked(n)
}

func (f *feed) servesLocked(n *Need) bool {
	return f.listed && f.current.depth >= n.Depth && (f.next == nil || f.next.depth >= n.Depth)
}

// join makes the need one of the feed's.
func (f *feed) join(n *Need) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.needs[n] = struct{}{}
	n.settleLocked()
}

// show makes the store what is read, and says so to those who wait for it. Next is to become current, if it is not nil.
func (f *feed) show(s *store, listed bool, next *store) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current, f.listed, f.next = s, listed, next
	for n := range f.needs {
		n.settleLocked()
		n.disinheritIf(n.isSynced)
	}
}

// changed, advanced and filled say that a store got an event, one that says nothing new, or a whole list. The caller
// holds deliver.
func (f *feed) changed(s *store, c change) {
	if !f.isCurrent(s) {
		f.comeForward(s)
		return
	}
	f.tell(c)
}

func (f *feed) advanced(s *store) {
	if !f.isCurrent(s) {
		f.comeForward(s)
	}
}

func (f *feed) filled(s *store, changes []change) {
	if !f.isCurrent(s) {
		f.comeForward(s)
		return
	}
	f.tellList(s, changes)
}

// comeForward lets a store take the place of the current one as soon as it has seen all that was told. So that this comes
// to pass, nothing is told from its first list on.
func (f *feed) comeForward(s *store) {
	if !s.listed {
		return
	}
	if !f.mayTakeOver(s) {
		s.muted = true
		return
	}
	from := f.current
	if !f.listed || !newer(from.position, s.position) {
		f.takeOver(from, s)
		return
	}
	if from.muted {
		return
	}
	from.muted = true
	f.show(from, true, s)
	timer := time.AfterFunc(catchUp, func() {
		f.deliver.Lock()
		defer f.deliver.Unlock()
		if f.isCurrent(from) && from.muted && s.listed {
			f.takeOver(from, s)
		}
	})
	f.stopCatchUp = func() { timer.Stop() }
}

// caughtUp says that the store that was to take over has, or never will. The caller holds deliver.
func (f *feed) caughtUp() {
	if f.stopCatchUp != nil {
		f.stopCatchUp()
		f.stopCatchUp = nil
	}
}

// takeOver makes a store current and tells what it knows and the one before did not. The caller holds deliver.
func (f *feed) takeOver(from, s *store) {
	f.caughtUp()
	from.muted = true
	for _, n := range f.sinks {
		n.announced = n.announced && n.Depth <= s.depth // a deeper one was released, and has not left
	}
	f.tellList(s, difference(from.contents, s.contents))
	f.tookOver(s)
}

// tellList tells of a list: by its difference to those who know the one before, and whole to the others.
func (f *feed) tellList(s *store, changes []change) {
	// Whoever the sinks call on finds a store that says it has synced.
	f.show(s, true, nil)
	s.health.filled()
	for _, c := range changes {
		f.tell(c)
	}
	for _, n := range f.sinks {
		n.announce()
	}
}

func (f *feed) tell(c change) {
	for _, n := range f.sinks {
		n.hear(c)
	}
	f.owners.forget()
}

// expectList says that a store's run is over: the next list is the first of another, and heard whole.
func (f *feed) expectList(s *store) {
	f.deliver.Lock()
	defer f.deliver.Unlock()
	s.listed = false
	if !f.isCurrent(s) {
		return
	}
	f.caughtUp()
	s.muted = false
	f.show(s, false, nil)
	for _, n := range f.sinks {
		n.announced = false
	}
	f.ended()
}

// without takes the need's sink away. The caller holds deliver.
func (f *feed) without(n *Need) {
	f.sinks = slices.DeleteFunc(f.sinks, func(other *Need) bool { return other == n })
	n.sink, n.announced = nil, false
}
