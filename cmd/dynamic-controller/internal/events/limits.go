package events

import (
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

const (
	// objectBurst and objectRate limit the events about one object. They equal defaultSpamBurst and defaultSpamQPS in
	// k8s.io/client-go/tools/record.
	objectBurst = 25
	objectRate  = rate.Limit(1. / 300)
	// totalBurst and totalRate limit the Normal events and the Warning events separately. Failures are therefore still
	// reported while many instances are being created.
	totalBurst = 100
	totalRate  = rate.Limit(10)
	// maxLimiters is the maximum number of objects with a limiter.
	maxLimiters = 4096
)

// limits contains the token buckets that limit events. It is safe for concurrent use.
type limits struct {
	mu      sync.Mutex // guards objects
	objects *lru.Cache
	total   map[string]*rate.Limiter // by event type; immutable
}

func newLimits(eventTypes ...string) *limits {
	l := &limits{objects: lru.New(maxLimiters), total: map[string]*rate.Limiter{}}
	for _, each := range eventTypes {
		l.total[each] = rate.NewLimiter(totalRate, totalBurst)
	}
	return l
}

// allow takes the tokens for an event about an object, and reports whether they were available.
func (l *limits) allow(object types.UID, eventType string) bool {
	return l.ofObject(object).Allow() && l.total[eventType].Allow()
}

func (l *limits) ofObject(object types.UID) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found, has := l.objects.Get(object); has {
		return found.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(objectRate, objectBurst)
	l.objects.Add(object, limiter)
	return limiter
}
