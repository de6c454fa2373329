package instances

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// triggerBurst is the number of reconciles of one instance that changes to existing objects can trigger without a
	// delay. Changes that occur before a triggered reconcile starts count as one.
	triggerBurst = 30
	// triggerInterval is the minimum interval between further triggered reconciles.
	triggerInterval = 10 * time.Second
)

// triggerThrottle limits how often changes to existing objects trigger a reconcile of an instance. Without it,
// instances that refer to each other could trigger each other in a tight loop. It is safe for concurrent use.
type triggerThrottle struct {
	mu        sync.Mutex // guards instances and their fields
	instances map[string]*throttledInstance
}

// throttledInstance is the throttling state of one instance.
type throttledInstance struct {
	limiter *rate.Limiter
	queued  bool // whether a triggered reconcile has not started yet
	delayed bool // whether enqueue is scheduled after a delay
}

// admit returns those of the given instances that can be reconciled now. For each of the others, it calls enqueue after
// a delay. Further changes during the delay have no effect.
func (l *triggerThrottle) admit(instances []string, enqueue func(instance string)) (now []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, instance := range instances {
		t := l.ofLocked(instance)
		if t.delayed {
			continue
		}
		delay := time.Duration(0)
		if !t.queued {
			delay = t.limiter.Reserve().Delay()
		}
		if delay == 0 {
			t.queued = true
			now = append(now, instance)
			continue
		}
		t.delayed = true
		time.AfterFunc(delay, func() {
			l.mu.Lock()
			t.delayed = false
			l.mu.Unlock()
			enqueue(instance)
		})
	}
	return now
}

func (l *triggerThrottle) ofLocked(instance string) *throttledInstance {
	if l.instances == nil {
		l.instances = map[string]*throttledInstance{}
	}
	if l.instances[instance] == nil {
		l.instances[instance] = &throttledInstance{limiter: rate.NewLimiter(rate.Every(triggerInterval), triggerBurst)}
	}
	return l.instances[instance]
}

// started must be called when a reconcile of an instance starts.
func (l *triggerThrottle) started(instance string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.instances[instance]; t != nil {
		t.queued = false
	}
}

// forget drops the state of an instance.
func (l *triggerThrottle) forget(instance string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.instances, instance)
}
