package typewatch

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Depth is how much of each object a watch asks for and keeps. The greater includes the lesser.
type Depth uint8

const (
	// Keys keeps the objects' keys and numbers that tell their versions and UIDs apart.
	Keys Depth = iota
	// Metadata keeps what a PartialObjectMetadata holds, without managedFields.
	Metadata
	// Full keeps whole objects.
	Full
)

// Spec is what to watch and what to keep of it.
type Spec struct {
	GVR       schema.GroupVersionResource
	Namespace string // empty for all
	Selector  string // of labels; empty for all
	Depth     Depth
}

// watch fills a store with what a type's objects are. It is run once at a time.
type watch struct {
	spec     Spec
	requests *requests
	store    *store
	health   *health
	news     news
}

func newWatch(log logr.Logger, spec Spec, pool *Pool, transform cache.TransformFunc, feed *feed, observe func(State)) *watch {
	w := &watch{spec: spec, health: newHealth(observe), news: newNews()}
	w.store = newStore(log, spec.Depth, transform, feed, w.health)
	w.requests = newRequests(spec, pool.clients, pool.relists, w.health, func() string { return feed.newest(w.store) })
	return w
}

// run watches until ctx ends and returns when its goroutines have ended. What the store held before counts as known:
// what the first list lacks of it was deleted meanwhile.
func (w *watch) run(ctx context.Context, log logr.Logger) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, log))
	w.requests.begin()
	w.health.start()
	defer w.health.stop()
	// Already now, for a sink that is attached before the next run has begun must wait for its list.
	defer w.store.feed.expectList(w.store)
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
			w.requests.resumption.begin()
			err = reflector.ListAndWatchWithContext(attempt)
		}
		end()
		relist := errors.Is(err, errRelist)
		answers = err == nil || relist
		if w.news.takeVanished() {
			answers = false
			w.requests.joinStream()
			// All is gone: that is as good as an empty list, for a sink that waits for one too.
			if err := w.store.take(nil, ""); err != nil {
				log.Error(err, "the cache of a type that is gone could not be emptied")
			}
		}
		if relist || time.Since(began) > steady {
			retry = newRetry()
		}
		select {
		case <-after(ctx, retry()):
		case <-w.news.wake:
			retry = newRetry()
		}
	}
}

// steady is how long a watch must have lasted for the backoff to be reset when it ends. Relists after a watch that was
// closed early have their own limit.
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
