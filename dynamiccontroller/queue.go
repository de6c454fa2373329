package dynamiccontroller

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/internal/protect"
)

type (
	items   = fairqueue.Queue[ObjectIdentifiers, schema.GroupVersionResource, *registration]
	group   = fairqueue.Group[ObjectIdentifiers, schema.GroupVersionResource, *registration]
	limiter = workqueue.TypedRateLimiter[ObjectIdentifiers]
)

// newQueue wires the one workqueue: client-go's typed rate-limiting queue over storage that is fair between types and
// limits that no two types share.
func newQueue() (workqueue.TypedRateLimitingInterface[ObjectIdentifiers], *items, *limiters) {
	storage := fairqueue.New[ObjectIdentifiers, schema.GroupVersionResource, *registration](
		func(id ObjectIdentifiers) schema.GroupVersionResource { return id.GVR })
	storage.ShutDown() // until a run begins
	limits := &limiters{byType: map[schema.GroupVersionResource]limiter{}}
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limits,
		workqueue.TypedRateLimitingQueueConfig[ObjectIdentifiers]{DelayingQueue: storage})
	return queue, storage, limits
}

// limiters gives each type its own limiter, so that one type's failures never delay another's retries.
type limiters struct {
	mu     sync.RWMutex // guards byType; the limiters guard themselves
	byType map[schema.GroupVersionResource]limiter
}

var _ limiter = (*limiters)(nil)

func (l *limiters) set(gvr schema.GroupVersionResource, of limiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byType[gvr] = of
}

func (l *limiters) remove(gvr schema.GroupVersionResource) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byType, gvr)
}

// of returns the type's limiter; for a type that is not served one that limits nothing, as the queue drops its items.
func (l *limiters) of(id ObjectIdentifiers) limiter {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if of, served := l.byType[id.GVR]; served {
		return of
	}
	return noLimiter{}
}

func (l *limiters) When(id ObjectIdentifiers) time.Duration { return l.of(id).When(id) }
func (l *limiters) NumRequeues(id ObjectIdentifiers) int    { return l.of(id).NumRequeues(id) }
func (l *limiters) Forget(id ObjectIdentifiers)             { l.of(id).Forget(id) }

// guarded recovers from a limiter's panics.
type guarded struct {
	limiter
	log     logr.Logger
	longest time.Duration
}

func (g guarded) When(id ObjectIdentifiers) (delay time.Duration) {
	if panicked := protect.Call(func() { delay = g.limiter.When(id) }); panicked != nil {
		g.report(panicked)
		return g.longest
	}
	return delay
}

func (g guarded) Forget(id ObjectIdentifiers) {
	if panicked := protect.Call(func() { g.limiter.Forget(id) }); panicked != nil {
		g.report(panicked)
	}
}

func (g guarded) report(panicked *protect.Mistake) {
	g.log.Error(panicked, "rate limiter panicked", keyStack, string(panicked.Stack))
}

type noLimiter struct{}

func (noLimiter) When(ObjectIdentifiers) time.Duration { return 0 }
func (noLimiter) NumRequeues(ObjectIdentifiers) int    { return 0 }
func (noLimiter) Forget(ObjectIdentifiers)             {}

// A type's retries have a budget, so that a type whose every object fails does not spend all that the API server
// gives: so many a second, after a burst.
const (
	retriesPerSecond = 100
	retriesBurst     = 1000
)

// newLimiter returns the limiter that a type has by default: backoff by item, a budget by type.
func newLimiter(shortest, longest time.Duration) limiter {
	return &backoff{
		shortest: shortest, longest: longest,
		budget:   rate.NewLimiter(retriesPerSecond, retriesBurst),
		failures: map[string]int{},
	}
}

// backoff doubles the delay with each failure of an item in a row, within a budget of the type's, and adds jitter so that
// what failed together is not retried together: up to half of the delay, and at the longest up to a quarter less.
// (client-go's exponential limiter has no jitter, and its bucket no end: a delay would grow with what has failed before.)
type backoff struct {
	shortest, longest time.Duration
	budget            *rate.Limiter

	mu       sync.Mutex // guards failures
	failures map[string]int
}

var _ limiter = (*backoff)(nil)

func (b *backoff) When(id ObjectIdentifiers) time.Duration {
	b.mu.Lock()
	before := b.failures[id.NamespacedKey]
	b.failures[id.NamespacedKey] = before + 1
	b.mu.Unlock()

	delay := b.longest
	if doubled := b.shortest << min(before, 62); before < 62 && doubled > 0 && doubled>>before == b.shortest {
		delay = min(doubled, b.longest)
	}
	delay += rand.N(delay/2 + 1)
	reservation := b.budget.Reserve()
	delay = max(delay, reservation.Delay())
	if delay < b.longest {
		return delay
	}
	// What waits that long needs nothing of the budget.
	reservation.Cancel()
	return max(b.shortest, b.longest-rand.N(b.longest/4+1))
}

func (b *backoff) NumRequeues(id ObjectIdentifiers) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures[id.NamespacedKey]
}

func (b *backoff) Forget(id ObjectIdentifiers) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failures, id.NamespacedKey)
}
