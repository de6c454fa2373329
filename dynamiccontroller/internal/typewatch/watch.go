package typewatch

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Depth is how much of each object a watch asks for and keeps.
type Depth uint8

const (
	// Full keeps whole objects.
	Full Depth = iota
	// Metadata keeps what a PartialObjectMetadata holds, without managedFields.
	Metadata
	// Keys keeps the objects' keys and a number that tells their versions apart.
	Keys
)

// Spec is what to watch and what to keep of it.
type Spec struct {
	GVR       schema.GroupVersionResource
	Namespace string // empty for all
	Selector  string // of labels; empty for all
	Depth     Depth
}

// Watch keeps what a type's objects are. Its methods may be called concurrently, Run once at a time.
type Watch struct {
	spec     Spec
	requests *requests
	store    *store
	health   *health
	news     news
}

// New returns a watch that keeps what transform, if any, makes of the objects. Transform must be idempotent: the
// reflector applies it while it collects a list, and the store again. Observe, if any, is told of each change of state
// and must not call back.
func New(log logr.Logger, spec Spec, clients Clients, transform cache.TransformFunc, observe func(State)) *Watch {
	w := &Watch{spec: spec, health: newHealth(observe), news: newNews()}
	w.requests = newRequests(spec, clients, w.health)
	w.store = newStore(log, spec.Depth, transform, w.health)
	return w
}

// State tells how the watch stands.
func (w *Watch) State() State { return w.health.state() }

// Synced is closed once the store holds a whole list that the present Run got, or the next one gets.
func (w *Watch) Synced() <-chan struct{} { return w.health.synced() }

// Objects holds the objects; it is nil with [Keys].
func (w *Watch) Objects() cache.Indexer { return w.store.contents.objects() }

// Has tells whether the object is in the store.
func (w *Watch) Has(key string) bool { return w.store.contents.has(key) }

// Keys lists the keys of all objects, in no order.
func (w *Watch) Keys() []string { return w.store.contents.keys() }

// Len is the number of objects.
func (w *Watch) Len() int { return w.store.contents.len() }

// Attach makes sink hear of everything from now on, in place of the sink before: first of each object there is, as
// soon as the watch has synced, then of each change.
func (w *Watch) Attach(sink Sink) { w.store.attach(sink) }

// Detach ends what Attach began. When it returns the sink is not being called, and will not be.
func (w *Watch) Detach() { w.store.detach() }

// Inherit makes the watch take the place of another, which has ended or is about to: what its first list lacks of what
// that one knew is told as deleted. It is called before Run.
func (w *Watch) Inherit(before *Watch) { w.store.heirOf = before.store }

// Appeared says that the type is served now: if the watch waits to try again, it does so at once.
func (w *Watch) Appeared() { w.news.appeared() }

// Vanished says that the type is gone, and not only unknown to the server that was asked: what the store holds is told
// as deleted. The watch goes on trying.
func (w *Watch) Vanished() { w.news.vanished() }

// Run watches until ctx ends and returns when its goroutines have ended. What the store held before counts as known:
// what the first list lacks of it was deleted meanwhile.
func (w *Watch) Run(ctx context.Context, log logr.Logger) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, log))
	w.requests.begin()
	w.health.start()
	defer w.health.stop()
	// Already now, for a sink that is attached before the next run has begun must wait for its list.
	defer w.store.expectList()
	defer w.requests.join()
	defer cancel()

	reflector := cache.NewReflectorWithOptions(w.requests.listerWatcher(), nil, w.store, cache.ReflectorOptions{
		Name:            "typewatch",
		TypeDescription: w.spec.GVR.String(),
		Logger:          &log,
		Clock:           stoppableClock{after: func(d time.Duration) <-chan time.Time { return after(ctx, d) }},
		// For what the reflector retries itself: a refused connection, and 429. Its own waits begin at 0.8 s.
		Backoff: &wait.Backoff{Duration: 20 * time.Millisecond, Cap: 10 * time.Second, Steps: 10, Factor: 2, Jitter: 0.5},
	})
	retry, answers := newRetry(), false
	for ctx.Err() == nil {
		attempt, end := w.news.attempt(ctx)
		began, err := time.Now(), error(nil)
		if !answers {
			err = w.requests.probe(attempt)
		}
		if err == nil {
			err = reflector.ListAndWatchWithContext(attempt)
		}
		end()
		answers = err == nil
		if w.news.takeVanished() {
			answers = false
			w.requests.joinStream()
			// All is gone: that is as good as an empty list, for a sink that waits for one too.
			if err := w.store.take(nil); err != nil {
				log.Error(err, "the cache of a type that is gone could not be emptied")
			}
		}
		if time.Since(began) > steady {
			retry = newRetry()
		}
		select {
		case <-after(ctx, retry()):
		case <-w.news.wake:
			retry = newRetry()
		}
	}
}

// steady is how long a watch must have lasted for its end to count as the first of a row.
const steady = time.Minute

// newRetry returns the waits between attempts. The first are short, because a type is not found for some milliseconds
// after its CRD was established; the last make a type that is not there cost two requests a minute.
func newRetry() wait.DelayFunc {
	return wait.Backoff{Duration: 10 * time.Millisecond, Cap: 30 * time.Second, Steps: 20, Factor: 2, Jitter: 0.2}.DelayFunc()
}

// after fires when d is over or ctx ends.
func after(ctx context.Context, d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ctx, func() {
		cancel()
		fired <- time.Now()
	})
	return fired
}

// stoppableClock is the real clock but for After: the reflector waits through its backoff without looking at its
// context (watchList, client-go v0.37), for longer than anyone who stops a watch would wait.
type stoppableClock struct {
	clock.RealClock
	after func(time.Duration) <-chan time.Time
}

func (c stoppableClock) After(d time.Duration) <-chan time.Time { return c.after(d) }
