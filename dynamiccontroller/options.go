package dynamiccontroller

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
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
	watchOptions
	handler     Handler
	concurrency int
	weight      int
	timeout     time.Duration
	limiter     limiter
	secondaries []*secondaryOptions
	everyOwner  bool // of a secondary

	errs []error // of the options
}

// watchOptions are what is watched of a type and kept of its objects.
type watchOptions struct {
	namespace string
	selector  string // label selector in the API server's syntax
	selects   bool   // WithLabelSelector was given a selector
	cache     CacheMode
	transform cache.TransformFunc
	predicate func(old, now any) bool

	spec typewatch.Spec // what the others come to
}

// ServeOption is an option of [DynamicController.StartServingGVK] and, if it is about what is watched, of [Owns] and
// [Watches].
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

// WithLabelSelector serves only the objects that the selector matches. An object that stops matching counts as deleted.
// By default, and with a nil selector, all objects are served. [labels.Nothing] serves no objects: the type is watched
// with a selector that matches none. Note that metav1.LabelSelectorAsSelector returns labels.Nothing for nil.
func WithLabelSelector(selector labels.Selector) ServeOption {
	return func(s *served) {
		text, err := selectorText(selector)
		if err != nil {
			s.refuse("WithLabelSelector: %w", err)
		}
		s.selector, s.selects = text, selector != nil
	}
}

// WithCache chooses what is kept of the objects, and what of them is shown where others that share the watch keep more.
// Defaults to [CacheFull], and within [Owns] and [Watches] to [CacheMetadata].
func WithCache(mode CacheMode) ServeOption {
	return func(s *served) {
		if mode > CacheKeys {
			s.refuse("WithCache(%d): no such mode", mode)
		}
		s.cache = mode
	}
}

// WithTransform stores the result of f in place of an object, for example to save memory. F can change the object that it is
// given. It must be idempotent and deterministic, and must keep the object's metadata, in particular resourceVersion,
// namespace, name and UID. If it is not deterministic, or removes the resourceVersion, each relist delivers every object.
// F is called from one goroutine at a time. F fails if it returns an error or a nil object, changes the namespace or
// name, or panics. The error is then logged, and the argument is stored as f left it.
func WithTransform(f cache.TransformFunc) ServeOption {
	return func(s *served) { s.transform = f }
}

// WithPredicate reconciles an object for a change only if f says so, or with [Owns] and [Watches] those to whom it is of
// interest. Old is nil for a new object and now is nil for a deleted one; both are as a lister returns them and must not be
// changed. After a swap to another cache mode the old state of what was deleted meanwhile may be no more than metadata, or
// than namespace and name. F is called from one goroutine at a time, must return soon, for all who share the watch wait,
// must not call the controller, and counts as true when it panics. It is not asked about initial lists, resyncs, Enqueue and retries,
// and needs a cache that keeps objects.
//
// After a change of the type's schema, f is called with an old and a new state that have the same resourceVersion and
// generation. A predicate that compares only these ignores such changes.
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
	if s.everyOwner {
		s.refuse("EveryOwner is an option of Owns")
	}
	if s.limiter == nil {
		s.limiter = newLimiter(c.config.MinRetryDelay, c.config.MaxRetryDelay)
	}
	s.limiter = guarded{limiter: s.limiter, log: c.log.WithValues(keyGVR, nameOf(gvr)), longest: c.config.MaxRetryDelay}
	s.settle(gvr)
	if err := s.watchOptions.check(c); err != nil {
		s.errs = append(s.errs, err)
	}
	for _, secondary := range s.secondaries {
		secondary.check(c, s)
	}
	return s, errors.Join(s.errs...)
}

// newSecondaries applies options that are to ask for secondaries and for nothing else.
func (c *DynamicController) newSecondaries(opts []ServeOption) ([]*secondaryOptions, error) {
	s := namedSecondaries(opts)
	for _, secondary := range s.secondaries {
		secondary.check(c, s)
	}
	return s.secondaries, errors.Join(s.errs...)
}

// namedSecondaries are those that the options name, whether they could be watched or not.
func namedSecondaries(opts []ServeOption) *served {
	s := &served{}
	for _, opt := range opts {
		opt(s)
	}
	if s.saysHow() || s.everyOwner || s.saysWhat() {
		s.refuse("an option is neither Owns nor Watches")
	}
	return s
}

// saysHow tells whether an option is about how objects are reconciled, and saysWhat about what is watched of a type.
func (s *served) saysHow() bool {
	return s.concurrency != 0 || s.weight != 0 || s.timeout != 0 || s.limiter != nil
}

func (o *watchOptions) saysWhat() bool {
	return o.namespace != "" || o.selects || o.cache != 0 || o.transform != nil || o.predicate != nil
}

// settle makes of the options what is to be watched.
func (o *watchOptions) settle(gvr schema.GroupVersionResource) {
	depths := map[CacheMode]typewatch.Depth{CacheFull: typewatch.Full, CacheMetadata: typewatch.Metadata, CacheKeys: typewatch.Keys}
	o.spec = typewatch.Spec{GVR: gvr, Namespace: o.namespace, Selector: o.selector, Depth: depths[o.cache]}
}

// check says what is wrong with the options together.
func (o *watchOptions) check(c *DynamicController) error {
	var errs []error
	switch {
	case o.cache == CacheFull && c.clients.Dynamic == nil:
		errs = append(errs, errors.New("WithCache(CacheFull) needs a dynamic client, and the controller was given none"))
	case o.cache != CacheFull && c.clients.Metadata == nil:
		errs = append(errs, errors.New("WithCache(CacheMetadata) and WithCache(CacheKeys) need a metadata client: use NewForConfig or WithMetadataClient"))
	}
	if o.cache == CacheKeys && (o.predicate != nil || o.transform != nil) {
		errs = append(errs, errors.New("WithPredicate and WithTransform need objects, which WithCache(CacheKeys) does not keep"))
	}
	return errors.Join(errs...)
}

// sameWatch tells whether what one watches serves the other. Functions cannot be compared: a transform may be another.
func (o *watchOptions) sameWatch(other *watchOptions) bool {
	return o.spec == other.spec && o.transform == nil && other.transform == nil
}

func (s *served) limits() fairqueue.Limits {
	return fairqueue.Limits{Weight: s.weight, Concurrency: s.concurrency}
}

// wants tells whether a change is to be reconciled.
func (o *watchOptions) wants(log logr.Logger, old, now any) (wanted bool) {
	if o.predicate == nil {
		return true
	}
	if panicked := protect.Call(func() { wanted = o.predicate(old, now) }); panicked != nil {
		log.Error(panicked, "predicate panicked, the change is processed", keyStack, string(panicked.Stack))
		return true
	}
	return wanted
}
