package listwatch

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/utils/clock"
)

// NewReflector returns a reflector that fills the store. The reflector itself retries requests after a refused
// connection or a 429. These retries are delayed by at most maxDelay, not counting jitter, and a delay ends when the
// context of the attempt is cancelled. The first delay of a reflector's default backoff is 0.8 s. In this reflector, it
// is 20 ms.
func (l *ListWatch) NewReflector(
	log logr.Logger, name string, maxDelay time.Duration, store cache.ReflectorStore,
) *cache.Reflector {
	return cache.NewReflectorWithOptions(&listerWatcher{ListWatch: l}, nil, store, cache.ReflectorOptions{
		Name:            name,
		TypeDescription: l.config.GVR.String(),
		Logger:          &log,
		Clock:           stoppableClock{after: func(d time.Duration) <-chan time.Time { return After(l.attempt, d) }},
		Backoff: &wait.Backoff{
			Duration: 20 * time.Millisecond, Cap: maxDelay, Steps: 12, Factor: 2, Jitter: 0.5,
		},
	})
}

// listerWatcher passes the reflector's requests to a ListWatch. With a cache.ListWatch, opening a watch would use about
// 0.5 kB more of the goroutine's stack, which would then often grow from 8 kB to 16 kB.
type listerWatcher struct {
	*ListWatch
	cache.ListerWatcher // nil; provides List and Watch, which the reflector does not call
}

var _ cache.ListerWatcherWithContext = (*listerWatcher)(nil)

// IsWatchListSemanticsUnSupported reports whether the client has a method of this name that returns true.
func (l *listerWatcher) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(l.client)
}

// After returns a channel that receives a value after d, or when ctx is cancelled.
func After(ctx context.Context, d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ctx, func() {
		cancel()
		fired <- time.Now()
	})
	return fired
}

// stoppableClock is the real clock, except that After can be interrupted. The reflector waits for its backoff without
// checking its context (watchList, client-go v0.37).
type stoppableClock struct {
	clock.RealClock
	after func(time.Duration) <-chan time.Time
}

func (c stoppableClock) After(d time.Duration) <-chan time.Time { return c.after(d) }
