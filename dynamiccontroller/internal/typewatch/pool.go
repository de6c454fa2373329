package typewatch

import (
	"context"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// Pool holds the watches of all types, each of them shared by those who need the same. Its methods may be called
// concurrently, Begin and End in turns.
type Pool struct {
	// Transform, if any, is applied to the objects of all watches, before the transform of a subscription. It must be
	// idempotent and safe for concurrent use, and must be set before the first Acquire.
	Transform cache.TransformFunc

	clients Clients
	log     func(schema.GroupVersionResource) logr.Logger
	observe func(schema.GroupVersionResource, State)
	relists *rate.Limiter // limits the relists after watches that were closed early

	// mu guards what follows, and what the shared watches say it does. It is held for looking up and putting down, never
	// across a sink's call or whatever waits.
	mu     sync.Mutex
	bySpec map[Spec]*shared // those without a transform; the depth is zero
	byType map[schema.GroupVersionResource][]*shared
	spawn  func(run func(context.Context)) context.CancelFunc // nil while no watches run
	join   func()                                             // ends what spawn started
}

// NewPool returns a pool that runs nothing yet. Log is asked for a type's logger, and observe is told of each watch's
// changes of state and must not call back.
func NewPool(clients Clients, log func(schema.GroupVersionResource) logr.Logger, observe func(schema.GroupVersionResource, State)) *Pool {
	return &Pool{
		clients: clients, log: log, observe: observe, relists: newSharedRelists(),
		bySpec: map[Spec]*shared{},
		byType: map[schema.GroupVersionResource][]*shared{},
	}
}

// Acquire returns a need of what want says, with the watch that others share already or a new one. It waits for nothing.
func (p *Pool) Acquire(want Want) *Need {
	p.mu.Lock()
	defer p.mu.Unlock()
	place := want.Spec
	place.Depth = 0
	s := p.bySpec[place]
	if s == nil || want.Transform != nil {
		s = p.newShared(place, want)
		p.byType[want.GVR] = append(p.byType[want.GVR], s)
		if want.Transform == nil {
			p.bySpec[place] = s
		}
	}
	want.After = nil // a need must not keep its predecessors, and what they held, in memory
	n := &Need{Want: want, shared: s, synced: make(chan struct{})}
	s.needs[n] = struct{}{}
	s.adjustLocked()
	s.feed.join(n)
	return n
}

func (p *Pool) newShared(spec Spec, want Want) *shared {
	s := &shared{
		pool: p, spec: spec, transform: want.Transform,
		stopping: closedChannel,
		needs:    map[*Need]struct{}{},
		ended:    make(chan struct{}),
	}
	if want.Transform != nil && want.After != nil && want.After.Transform != nil {
		// It may end before it ever ran, while it waits for its own predecessor.
		s.after = append(s.after, want.After.shared.ended)
		for _, ended := range want.After.shared.after {
			if !isOver(ended) {
				s.after = append(s.after, ended)
			}
		}
	}
	s.feed = &feed{mayTakeOver: s.mayTakeOver, tookOver: s.tookOver, ended: s.runEnded, needs: map[*Need]struct{}{}}
	return s
}

func (p *Pool) removeLocked(s *shared) {
	if s.transform == nil {
		delete(p.bySpec, s.spec)
	}
	gvr := s.spec.GVR
	p.byType[gvr] = slices.DeleteFunc(p.byType[gvr], func(other *shared) bool { return other == s })
	if len(p.byType[gvr]) == 0 {
		delete(p.byType, gvr)
	}
}

// Begin runs the watches of all needs, those that come later included, until End or the end of ctx.
func (p *Pool) Begin(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spawn = func(run func(context.Context)) context.CancelFunc {
		ctx, cancel := context.WithCancel(ctx)
		running.Go(func() {
			defer cancel()
			run(ctx)
		})
		return cancel
	}
	p.join = func() {
		cancel()
		running.Wait()
	}
	for _, ofType := range p.byType {
		for _, s := range ofType {
			s.adjustLocked()
		}
	}
}

// End ends the watches and returns when they have. What they kept is kept.
func (p *Pool) End() {
	p.mu.Lock()
	p.spawn = nil
	join := p.join
	p.mu.Unlock()
	join()
}

// Appeared says that the type is served now: if its watches wait to try again, they do so at once.
func (p *Pool) Appeared(gvr schema.GroupVersionResource) {
	for _, k := range p.keepers(gvr) {
		k.news.appeared()
	}
}

// Vanished must be called when the type is gone, as opposed to unknown to the API server that was asked. The watches
// become NotFound at once, deliver the objects in their caches as deleted, and keep retrying. Vanished reports whether
// the type has any watches.
func (p *Pool) Vanished(gvr schema.GroupVersionResource) bool {
	keepers := p.keepers(gvr)
	for _, k := range keepers {
		// The order matters: news.vanished ends the current attempt, and the result of the next attempt replaces this
		// state.
		k.health.vanished()
		k.news.vanished()
	}
	return len(keepers) > 0
}

func (p *Pool) keepers(gvr schema.GroupVersionResource) (keepers []*keeper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.byType[gvr] {
		keepers = append(keepers, s.current)
		if s.coming != nil {
			keepers = append(keepers, s.coming)
		}
	}
	return keepers
}

// Running lists the types whose watches have not returned.
func (p *Pool) Running() (types []schema.GroupVersionResource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for gvr, ofType := range p.byType {
		if slices.ContainsFunc(ofType, func(s *shared) bool { return s.running > 0 }) {
			types = append(types, gvr)
		}
	}
	return types
}

// Watches is the number of watches of the type that there are: two while one takes another's place.
// Those that are closing because nobody needs them any more do not count.
func (p *Pool) Watches(gvr schema.GroupVersionResource) int { return len(p.keepers(gvr)) }
