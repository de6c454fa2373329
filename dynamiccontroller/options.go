package dynamiccontroller

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// CacheMode is how much of a type's objects is kept in memory, and what [DynamicController.Lister] returns of them.
type CacheMode uint8

const (
	// CacheFull keeps whole objects: *unstructured.Unstructured.
	CacheFull CacheMode = iota
	// CacheMetadata keeps what every object has: *metav1.PartialObjectMetadata, without managedFields.
	CacheMetadata
	// CacheKeys keeps keys and versions alone. There is no Lister.
	CacheKeys
)

// defaultReconcileTimeout ends the context of a handler that hangs. It is well above what API calls take with their
// own retries, and below what a person waits before looking.
const defaultReconcileTimeout = 5 * time.Minute

// served is a type's handler and options. A registration holds the newest; it is never changed.
type served struct {
	handler     Handler
	concurrency int
	weight      int
	namespace   string
	selector    labels.Selector
	cache       CacheMode
	transform   cache.TransformFunc
	predicate   func(old, now any) bool
	timeout     time.Duration
	limiter     limiter

	watched typewatch.Spec // what the options above ask to be watched
	errs    []error        // of the options
}

// ServeOption is an option of [DynamicController.StartServingGVK].
type ServeOption func(*served)

func (s *served) refuse(format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

// WithConcurrency lets at most n handlers of the type run at once, those of an earlier registration of it that have not
// returned included. By default it is half of Config.Workers, at least
// one, so that a type whose handlers are slow or hang leaves workers to the others; with a single worker there is none
// to leave, and a hung handler stops all types until its timeout. n may be above Config.Workers.
func WithConcurrency(n int) ServeOption {
	return func(s *served) {
		if n < 1 {
			s.refuse("WithConcurrency(%d): must be at least 1", n)
		}
		s.concurrency = n
	}
}

// WithWeight gives the type n items a turn while other types have work waiting too. Defaults to 1.
func WithWeight(n int) ServeOption {
	return func(s *served) {
		if n < 1 {
			s.refuse("WithWeight(%d): must be at least 1", n)
		}
		s.weight = n
	}
}

// WithNamespace serves the objects of one namespace alone. By default all are served.
func WithNamespace(namespace string) ServeOption {
	return func(s *served) {
		if namespace != "" {
			for _, problem := range validation.IsDNS1123Label(namespace) {
				s.refuse("WithNamespace(%q): %s", namespace, problem)
			}
		}
		s.namespace = namespace
	}
}

// WithLabelSelector serves the objects that the selector matches. One that stops matching counts as gone. By default
// all are served.
func WithLabelSelector(selector labels.Selector) ServeOption {
	return func(s *served) { s.selector = selector }
}

// WithCache chooses what is kept of the objects. Defaults to [CacheFull].
func WithCache(mode CacheMode) ServeOption {
	return func(s *served) {
		if mode > CacheKeys {
			s.refuse("WithCache(%d): no such mode", mode)
		}
		s.cache = mode
	}
}

// WithTransform keeps what f makes of an object, to save memory for instance. F may change the object that it is
// given, must keep its metadata, must be idempotent and is called from one goroutine at a time. An object that it fails
// or panics on is kept as it left it.
func WithTransform(f cache.TransformFunc) ServeOption {
	return func(s *served) { s.transform = f }
}

// WithPredicate reconciles an object for a change only if f says so. Old is nil for a new object and now is nil for a
// deleted one; both are as the cache keeps them and must not be changed. After a swap to another cache mode the old state
// of what was deleted meanwhile is no more than namespace and name. F is called from one goroutine at a time, must
// return soon, must not call the controller, and counts as true when it panics. It is not asked about the initial list, resyncs, Enqueue and retries,
// and needs a cache that keeps objects.
func WithPredicate(f func(old, now any) bool) ServeOption {
	return func(s *served) { s.predicate = f }
}

// WithReconcileTimeout ends a handler's context after d, with the cause [ErrReconcileTimeout]. Defaults to 5 minutes;
// a negative d is never.
func WithReconcileTimeout(d time.Duration) ServeOption {
	return func(s *served) {
		if d == 0 {
			s.refuse("WithReconcileTimeout(0): must not be zero")
		}
		s.timeout = d
	}
}

// WithRateLimiter replaces the type's limiter of retries. It must not be shared between types. By default each item
// has an exponential backoff between Config's MinRetryDelay and MaxRetryDelay, and the type a budget of 100 retries a
// second after a burst of 1000.
func WithRateLimiter(l workqueue.TypedRateLimiter[ObjectIdentifiers]) ServeOption {
	return func(s *served) { s.limiter = l }
}

// newServed applies the options and says all that is wrong with them.
func (c *DynamicController) newServed(gvr schema.GroupVersionResource, handler Handler, opts []ServeOption) (*served, error) {
	s := &served{
		handler:     handler,
		concurrency: max(1, c.config.Workers/2),
		weight:      1,
		selector:    labels.Everything(),
		timeout:     defaultReconcileTimeout,
	}
	if gvr.Version == "" || gvr.Resource == "" {
		s.refuse("the GVR %+v lacks a version or a resource", gvr)
	}
	if handler == nil {
		s.refuse("the handler is nil")
	}
	for _, opt := range opts {
		opt(s)
	}
	if s.selector == nil {
		s.selector = labels.Everything()
	}
	if s.limiter == nil {
		s.limiter = newLimiter(c.config.MinRetryDelay, c.config.MaxRetryDelay)
	}
	s.limiter = guarded{limiter: s.limiter, log: c.log.WithValues(keyGVR, nameOf(gvr)), longest: c.config.MaxRetryDelay}
	depths := map[CacheMode]typewatch.Depth{CacheFull: typewatch.Full, CacheMetadata: typewatch.Metadata, CacheKeys: typewatch.Keys}
	s.watched = typewatch.Spec{GVR: gvr, Namespace: s.namespace, Selector: s.selector.String(), Depth: depths[s.cache]}
	switch {
	case s.cache == CacheFull && c.clients.Dynamic == nil:
		s.refuse("WithCache(CacheFull) needs a dynamic client, and the controller was given none")
	case s.cache != CacheFull && c.clients.Metadata == nil:
		s.refuse("WithCache(CacheMetadata) and WithCache(CacheKeys) need a metadata client: use NewForConfig or WithMetadataClient")
	}
	if s.cache == CacheKeys && (s.predicate != nil || s.transform != nil) {
		s.refuse("WithPredicate and WithTransform need objects, which WithCache(CacheKeys) does not keep")
	}
	return s, errors.Join(s.errs...)
}

// sameWatch tells whether what one watches serves the other. Functions cannot be compared: a transform may be another.
func (s *served) sameWatch(other *served) bool {
	return s.watched == other.watched && s.transform == nil && other.transform == nil
}

func (s *served) limits() fairqueue.Limits {
	return fairqueue.Limits{Weight: s.weight, Concurrency: s.concurrency}
}

// wants tells whether a change is to be reconciled.
func (s *served) wants(log logr.Logger, old, now any) (wanted bool) {
	if s.predicate == nil {
		return true
	}
	defer func() {
		if value := recover(); value != nil {
			log.Error(fmt.Errorf("panic: %v", value), "the predicate panicked, the change counts", keyStack, string(debug.Stack()))
			wanted = true
		}
	}()
	return s.predicate(old, now)
}
