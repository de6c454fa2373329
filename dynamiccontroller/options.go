package dynamiccontroller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/selectors"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// ServeOption is an option for [DynamicController.StartServingGVK]: a [Watch], any [CommonOption], [WithConcurrency],
// [WithWeight], [WithReconcileTimeout] or [WithRateLimiter]. If the same option, or a Watch with the same key, is given
// more than once, the last one takes effect.
type ServeOption interface{ applyToServe(o *serveOptions) }

// CommonOption is an option for [DynamicController.StartServingGVK], [Owns] and [Watches]. It applies to the watch on
// the served, owned or watched type, depending on the function to which it is passed.
type CommonOption struct{ apply func(*watchOptions) }

var (
	_ ServeOption   = CommonOption{}
	_ OwnsOption    = CommonOption{}
	_ WatchesOption = CommonOption{}
)

func (c CommonOption) applyToServe(o *serveOptions)       { c.applyTo(&o.watchOptions) }
func (c CommonOption) applyToOwns(o *secondaryOptions)    { c.applyTo(&o.watchOptions) }
func (c CommonOption) applyToWatches(o *secondaryOptions) { c.applyTo(&o.watchOptions) }

// applyTo does nothing for the zero CommonOption.
func (c CommonOption) applyTo(o *watchOptions) {
	if c.apply != nil {
		c.apply(o)
	}
}

type serveOption func(*serveOptions)

func (f serveOption) applyToServe(o *serveOptions) { f(o) }

// CacheMode determines how much of each object is kept in memory. It also determines the Go type of the objects that
// listers return and that predicates and MapFuncs receive.
type CacheMode uint8

const (
	// CacheFull keeps whole objects, without managedFields, as *unstructured.Unstructured. See [WithManagedFields].
	CacheFull CacheMode = iota
	// CacheMetadata keeps only the metadata, without managedFields, as a *metav1.PartialObjectMetadata.
	CacheMetadata
	// CacheKeys keeps only keys, UIDs and versions. It cannot be used with listers, predicates or transforms. If a server
	// sends no resourceVersions, changes cannot be detected in a list, and each list reconciles all objects.
	CacheKeys
)

// defaultReconcileTimeout is much longer than API calls take, even with retries. It is short enough that hung handlers
// are usually cancelled before a person has to intervene.
const defaultReconcileTimeout = 5 * time.Minute

// serveOptions holds the handler and the options of one call to StartServingGVK. It is immutable once registered.
type serveOptions struct {
	reg          *registration
	watchOptions // of the served type
	handler      Handler
	concurrency  int
	weight       int
	timeout      time.Duration       // of one handler call; negative means no timeout
	limiter      limiter             // nil for the default
	secondaries  []*secondaryOptions // one for each Watch, in order; if keys are equal, the last one wins
}

// watchOptions determines which objects of a type are watched, and which part of each object is kept.
type watchOptions struct {
	cache         CacheMode
	managedFields bool
	transform     cache.TransformFunc
	predicate     Predicate

	watch typewatch.Key // the watch that the options require; the method complete sets its GVR and projection
	errs  []error       // errors in the options
}

func (o *watchOptions) reject(format string, args ...any) {
	o.errs = append(o.errs, fmt.Errorf(format, args...))
}

// WithConcurrency limits the type to n concurrent handler calls. Running handlers from an earlier registration of the
// type also count toward the limit. The limit must be at least 1, and can exceed Config.Workers. By default there is no
// such limit, and the number of workers that a type can use depends only on how many workers are idle; see promise F2
// in the package documentation.
func WithConcurrency(n int) ServeOption {
	return serveOption(func(o *serveOptions) {
		if n < 1 {
			o.reject("WithConcurrency(%d): must be at least 1", n)
		}
		o.concurrency = n
	})
}

// WithWeight sets the number of objects of the type that are reconciled per turn while other types have work waiting.
// The default is 1, which is also the minimum.
func WithWeight(n int) ServeOption {
	return serveOption(func(o *serveOptions) {
		if n < 1 {
			o.reject("WithWeight(%d): must be at least 1", n)
		}
		o.weight = n
	})
}

// WithReconcileTimeout sets the duration after which a handler's context is cancelled, with the cause
// [ErrReconcileTimeout]. The default is 5 minutes. A negative duration disables the timeout. Zero is invalid.
func WithReconcileTimeout(d time.Duration) ServeOption {
	return serveOption(func(o *serveOptions) {
		if d == 0 {
			o.reject("WithReconcileTimeout(0): must not be zero; a negative duration disables the timeout")
		}
		o.timeout = d
	})
}

// WithRateLimiter sets the rate limiter for the type's retries. The limiter must not be shared between types, and must
// be safe for concurrent use. If l is nil, the default limiter is used. It backs off exponentially per object, from
// Config.MinRetryDelay to Config.MaxRetryDelay, and gives each type a budget of 100 retries per second with a burst of
// 1000. Retries after the maximum delay do not use the budget.
func WithRateLimiter(l workqueue.TypedRateLimiter[ObjectIdentifiers]) ServeOption {
	return serveOption(func(o *serveOptions) { o.limiter = l })
}

// WithNamespaces restricts a watch to the given namespaces. Each of them is listed and watched with separate requests,
// so permissions in these namespaces are sufficient. The watch has synced when the lists of all these namespaces are
// complete. By default, or without arguments, one watch covers all namespaces. A watch on a cluster-scoped type cannot
// be restricted to namespaces.
func WithNamespaces(namespaces ...string) CommonOption {
	sorted := slices.Compact(slices.Sorted(slices.Values(namespaces)))
	return CommonOption{func(o *watchOptions) {
		for _, namespace := range sorted {
			for _, problem := range validation.IsDNS1123Label(namespace) {
				o.reject("WithNamespaces(%q): %s", namespace, problem)
			}
		}
		o.watch.Namespaces = strings.Join(sorted, ",")
	}}
}

// WithLabelSelector restricts a watch to the objects that match the selector. An object that no longer matches is
// treated as deleted. By default, and with a nil selector, all objects are watched. No object matches [labels.Nothing],
// which metav1.LabelSelectorAsSelector returns for nil.
func WithLabelSelector(selector labels.Selector) CommonOption {
	text, err := selectors.Labels(selector)
	return CommonOption{func(o *watchOptions) {
		if err != nil {
			o.reject("WithLabelSelector: %w", err)
		}
		o.watch.LabelSelector = text
	}}
}

// WithFieldSelector restricts a watch to the objects that match the selector, with the same rules as
// [WithLabelSelector]. All types support metadata.name and metadata.namespace; custom resources also support the
// selectableFields of their CRD. The API server rejects selectors on other fields, which puts the type in state
// [TypeFailing].
func WithFieldSelector(selector fields.Selector) CommonOption {
	text, err := selectors.Fields(selector)
	return CommonOption{func(o *watchOptions) {
		if err != nil {
			o.reject("WithFieldSelector: %w", err)
		}
		o.watch.FieldSelector = text
	}}
}

// WithCache sets which part of each object is kept. Listers return only this part, and predicates and MapFuncs receive
// only this part, even if a shared watch keeps more for another subscriber. The default is [CacheFull] for a served
// type, and [CacheMetadata] in [Owns] and [Watches].
func WithCache(mode CacheMode) CommonOption {
	return CommonOption{func(o *watchOptions) {
		if mode > CacheKeys {
			o.reject("WithCache(%d): unknown mode; use CacheFull, CacheMetadata or CacheKeys", mode)
		}
		o.cache = mode
	}}
}

// WithManagedFields keeps metadata.managedFields, which is removed by default because it often makes up a third of an
// object. It requires [CacheFull]. Package handlers uses managedFields to detect that another field manager has taken
// over a field of a child, and to remove conditions that are no longer set.
func WithManagedFields() CommonOption {
	return CommonOption{func(o *watchOptions) { o.managedFields = true }}
}

// WithTransform stores the result of f instead of the object, for example to save memory. f receives a decoded object
// of the cache mode's Go type, and may modify and return it. It is called once per event. It must be deterministic;
// otherwise, each relist would report every object as changed. It must keep the metadata that the handler and the
// watches need, such as owner references; the resourceVersion is always kept. It must be safe for concurrent use,
// because each watched namespace has a goroutine that calls it.
//
// If f returns an object of a different Go type, the object is kept in decoded form and shared by all readers. The
// transform fails if f panics, changes the namespace or name, or returns an error, nil, or an object that cannot be
// encoded as JSON. In that case, the error is logged and the object is stored untransformed. A watch with a transform
// is not shared. If f is nil, there is no transform.
func WithTransform(f cache.TransformFunc) CommonOption {
	return CommonOption{func(o *watchOptions) { o.transform = f }}
}

// WithPredicate makes the controller ignore changes for which f returns false. Initial lists, resyncs, Enqueue and
// retries are not affected. Calls for one watch are never concurrent. They must return quickly, because all subscribers
// to the watch wait for them. If f panics, the panic is logged and the change is processed. If f is nil, every change
// is processed. If f returns false for a deletion, failed reconciles of the object are no longer retried. WithPredicate
// cannot be combined with [CacheKeys].
//
// After a change to the type's schema, f is called with old and new states that have the same resourceVersion and
// generation. A predicate that compares only these fields ignores such changes. After a watch is replaced, the old
// state of an object that was deleted during the replacement may contain only its metadata, or only its key.
func WithPredicate(f Predicate) CommonOption {
	return CommonOption{func(o *watchOptions) { o.predicate = f }}
}

// newServeOptions applies the options. The returned error lists all invalid options.
func (c *DynamicController) newServeOptions(
	gvr schema.GroupVersionResource, handler Handler, opts []ServeOption,
) (*serveOptions, error) {
	o := &serveOptions{
		handler: handler,
		weight:  1,
		timeout: defaultReconcileTimeout,
	}
	if gvr.Version == "" || gvr.Resource == "" {
		o.reject("the GVR %+v must have a version and a resource", gvr)
	}
	if handler == nil {
		o.reject("the handler is nil")
	}
	applyAll(opts, ServeOption.applyToServe, o)
	o.complete(gvr)
	o.errs = append(o.errs, c.source.Check(o.watch.Projection))
	for _, secondary := range o.secondaries {
		if err := c.source.Check(secondary.watch.Projection); err != nil {
			o.reject("%s: %w", secondary.key.name(), err)
		}
	}
	return o, errors.Join(o.errs...)
}

// applyAll calls apply for each option, and rejects nil options.
func applyAll[O comparable, T interface{ reject(string, ...any) }](opts []O, apply func(O, T), to T) {
	var none O
	for _, opt := range opts {
		if opt == none {
			to.reject("an option is nil")
		} else {
			apply(opt, to)
		}
	}
}

// complete fills in the key of the watch and rejects mutually exclusive options.
func (o *watchOptions) complete(gvr schema.GroupVersionResource) {
	projections := map[CacheMode]objects.Projection{
		CacheFull: objects.Full, CacheMetadata: objects.Metadata, CacheKeys: objects.Keys,
	}
	o.watch.GVR, o.watch.Projection = gvr, projections[o.cache]
	if o.managedFields {
		o.watch.Projection = objects.Complete
	}
	if o.managedFields && o.cache != CacheFull {
		o.reject("WithManagedFields requires WithCache(CacheFull)")
	}
	if o.cache == CacheKeys && (o.predicate != nil || o.transform != nil) {
		o.reject("WithPredicate and WithTransform cannot be combined with WithCache(CacheKeys)")
	}
}

// sameWatch reports whether o and other can use the same watch. Functions cannot be compared, so sameWatch returns
// false if o or other has a transform.
func (o *watchOptions) sameWatch(other *watchOptions) bool {
	return o.watch == other.watch && o.transform == nil && other.transform == nil
}

// keepsWatch reports whether AddWatches can apply the new options without replacing the current watch. Unlike
// sameWatch, it allows the current watch to have a transform. Otherwise, a handler that calls AddWatches with a
// transform would replace the watch on every reconcile.
func (o *watchOptions) keepsWatch(next *watchOptions) bool {
	return o.watch == next.watch && (o.transform != nil || next.transform == nil)
}

func (o *watchOptions) subscription() typewatch.Options {
	return typewatch.Options{Key: o.watch, Transform: o.transform}
}

func (o *serveOptions) limits() fairqueue.Limits {
	return fairqueue.Limits{Weight: o.weight, Concurrency: o.concurrency}
}
