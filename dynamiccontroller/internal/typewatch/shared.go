package typewatch

import (
	"context"
	"slices"

	"k8s.io/client-go/tools/cache"
)

// shared is one watch for all who need the same type, namespace and selector. It keeps the deepest that any of them needs:
// when that changes another watch is started beside the present one, and takes its place once it has synced, so that
// there are two for that time and never one that knows less than was told.
type shared struct {
	pool      *Pool
	spec      Spec // its depth is of no meaning
	transform cache.TransformFunc
	feed      *feed
	after     []<-chan struct{} // the first watch may begin when these are closed

	// The pool's lock guards what follows.

	needs   map[*Need]struct{}
	current *keeper
	coming  *keeper // to take current's place, if any
	// committed: coming has synced and current is told no more. There is no way back but the end of the term.
	committed bool
	stopping  <-chan struct{} // closed when the watch that was stopped last has ended
	running   int             // goroutines of keepers that have not returned
	closed    bool            // nobody needs it any more
	ended     chan struct{}
}

// keeper is a watch and what ends its goroutine.
type keeper struct {
	*watch
	begun  bool
	fails  bool               // its requests do
	cancel context.CancelFunc // nil while there is no goroutine
	runs   bool               // its goroutine waits for no other any more
	ended  chan struct{}      // closed when that has returned
}

// adjustLocked makes the watches what the needs ask for, and starts those that may run.
func (s *shared) adjustLocked() {
	if s.closed {
		return
	}
	deepest := Keys
	for n := range s.needs {
		deepest = max(deepest, n.Depth)
	}
	switch {
	case s.current == nil, !s.current.begun && s.coming == nil && s.current.depth() != deepest:
		s.current = s.newKeeper(deepest)
		s.feed.begin(s.current.store)
	case s.committed:
		// It is adjusted again when the other has taken over.
	case s.current.depth() == deepest:
		s.dropComingLocked()
	default:
		if next := s.nextDepthLocked(deepest); s.coming == nil || s.coming.depth() != next {
			s.dropComingLocked()
			s.coming = s.newKeeper(next)
		}
	}
	for _, k := range []*keeper{s.current, s.coming} {
		if k != nil {
			s.startLocked(k)
		}
	}
}

// nextDepthLocked is the depth to change to: the deepest, unless another is on its way to somebody who lacks it, or the deepest
// cannot sync and somebody lacks less. When that has taken over it is raised again.
func (s *shared) nextDepthLocked(deepest Depth) Depth {
	if s.coming == nil || deepest < s.current.depth() {
		return deepest
	}
	coming, least, lacked := s.coming.depth(), deepest, false
	for n := range s.needs {
		if n.Depth > s.current.depth() {
			least = min(least, n.Depth)
			lacked = lacked || n.Depth == coming
		}
	}
	switch {
	case s.coming.fails && least < coming:
		return least
	case lacked:
		return coming
	default:
		return deepest
	}
}

func (s *shared) newKeeper(depth Depth) *keeper {
	k := &keeper{}
	spec := s.spec
	spec.Depth = depth
	k.watch = newWatch(s.pool.log(s.spec.GVR), spec, s.pool, chain(s.pool.Transform, s.transform), s.feed, func(state State) { s.observe(k, state) })
	return k
}

// startLocked runs the keeper while watches run, and not beside one that was stopped: there are two at most. A watch that
// ended for good because nobody needed it counts no more: while it closes whoever comes begins another.
func (s *shared) startLocked(k *keeper) {
	if s.pool.spawn == nil || k.cancel != nil {
		return
	}
	k.begun = true
	s.running++
	k.ended = make(chan struct{})
	log, before := s.pool.log(s.spec.GVR), append(slices.Clone(s.after), s.stopping)
	k.cancel = s.pool.spawn(func(ctx context.Context) {
		defer s.returned(k)
		for _, ended := range before {
			select {
			case <-ended:
			case <-ctx.Done():
				return
			}
		}
		s.pool.mu.Lock()
		k.runs = true
		s.pool.mu.Unlock()
		k.run(ctx, log)
	})
}

func (s *shared) returned(k *keeper) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	k.cancel, k.runs = nil, false
	close(k.ended)
	s.running--
	s.endIfIdleLocked()
}

func (s *shared) endIfIdleLocked() {
	if s.closed && s.running == 0 {
		close(s.ended)
	}
}

func (s *shared) dropComingLocked() {
	if s.coming != nil {
		s.stopLocked(s.coming)
		s.coming = nil
	}
}

func (s *shared) stopLocked(k *keeper) {
	if k.cancel != nil {
		k.cancel()
	}
	if k.runs {
		s.stopping = k.ended
	}
}

func (k *keeper) depth() Depth { return k.store.depth }

// release takes a need away. The last one ends the watch, and whoever needs it from now on gets another one: what ends
// never takes a new need along.
func (s *shared) release(n *Need) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if _, known := s.needs[n]; !known {
		return
	}
	delete(s.needs, n)
	n.ended = s.ended
	if len(s.needs) > 0 {
		n.ended = closedChannel
		coming := s.coming
		s.adjustLocked()
		if coming != nil && coming != s.coming && coming.cancel != nil {
			n.ended = coming.ended // it ran for this need
		}
		return
	}
	s.closed = true
	s.pool.removeLocked(s)
	s.stopLocked(s.current)
	s.dropComingLocked()
	s.endIfIdleLocked()
}

var closedChannel = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

func isOver(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// watchFor is the watch that the need depends on.
func (s *shared) watchFor(n *Need) *watch {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.coming != nil && s.current.depth() < n.Depth {
		return s.coming.watch
	}
	return s.current.watch
}

// observe passes a keeper's state on to the needs that depend on it.
func (s *shared) observe(k *keeper, state State) {
	s.pool.mu.Lock()
	k.fails = state.Phase == NotFound || state.Phase == Forbidden || state.Phase == Failing
	if k == s.coming && k.fails {
		defer s.adjust()
	}
	var observers []func(State)
	for n := range s.needs {
		if n.Observe != nil && (k == s.current && n.Depth <= k.depth() || k == s.coming && n.Depth > s.current.depth()) {
			observers = append(observers, n.Observe)
		}
	}
	s.pool.mu.Unlock()
	for _, observe := range observers {
		observe(state)
	}
	s.pool.observe(s.spec.GVR, state)
}

func (s *shared) adjust() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.adjustLocked()
}

// mayTakeOver, tookOver and runEnded are what the feed calls.
func (s *shared) mayTakeOver(by *store) bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.closed || s.coming == nil || s.coming.store != by {
		return false
	}
	s.committed = true
	return true
}

func (s *shared) tookOver(*store) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.committed = false
	if s.coming == nil {
		return // nobody needs it any more
	}
	s.stopLocked(s.current)
	s.current, s.coming = s.coming, nil
	s.adjustLocked()
}

func (s *shared) runEnded() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.committed = false
}
