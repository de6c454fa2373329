package dynamiccontroller

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// ServeOption is an option for [DynamicController.StartServingGVK]: a [Watch], any [CommonOption], [WithConcurrency],
// [WithWeight], [WithReconcileTimeout] or [WithRateLimiter]. If the same option, or a Watch with the same key, is given
// more than once, the last one takes effect.
type ServeOption interface{ applyToServe(o *serveOptions) }

// CommonOption is an option for [DynamicController.StartServingGVK], [Owns] and [Watches]. It applies to the objects
// that are watched. With StartServingGVK, these are the objects of the served type; with Owns and Watches, they are the
// objects of the other type.
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

// serveOption implements ServeOption.
type serveOption func(*serveOptions)

func (f serveOption) applyToServe(o *serveOptions) { f(o) }

// CacheMode determines how much of each object is kept in memory. It also determines the Go type of the objects that
// listers return and that predicates and MapFuncs receive.
type CacheMode uint8

const (
	// CacheFull keeps whole objects: *unstructured.Unstructured.
	CacheFull CacheMode = iota
	// CacheMetadata keeps the metadata without managedFields: *metav1.PartialObjectMetadata.
	CacheMetadata
	// CacheKeys keeps only keys, UIDs and versions. A type with this mode cannot have a lister, a predicate or a
	// transform.
	CacheKeys
)

// defaultReconcileTimeout is well above the duration of API calls including their own retries, and short enough that a
// hung handler usually ends before an operator notices it.
const defaultReconcileTimeout = 5 * time.Minute

// serveOptions holds the handler and the options of one call to StartServingGVK. It does not change afterwards.
type serveOptions struct {
	watchOptions // of the served type
	handler      Handler
	concurrency  int
	weight       int
	timeout      time.Duration       // for one call to the handler; negative means no timeout
	limiter      limiter             // nil for the default
	secondaries  []*secondaryOptions // one for each Watch, in order; if keys are equal, the last one counts
}

// watchOptions selects the objects of a type to watch and the part of each object to keep.
type watchOptions struct {
	namespace     string
	labelSelector string // in the API server's syntax
	fieldSelector string // in the API server's syntax
	cache         CacheMode
	transform     cache.TransformFunc
	predicate     Predicate

	watch typewatch.Key // identifies the watch that the options above require; set by complete
	errs  []error       // errors in the options
}

func (o *watchOptions) refuse(format string, args ...any) {
	o.errs = append(o.errs, fmt.Errorf(format, args...))
}

// WithConcurrency sets n as a hard cap on the number of handlers of the type that run at the same time. Handlers of an
// earlier registration of the type that are still running count as well. The cap must be at least 1, and can exceed
// Config.Workers. By default there is no hard cap: how many workers a type can use depends only on the number of idle
// workers. Promise F2 in the package documentation describes this.
func WithConcurrency(n int) ServeOption {
	return serveOption(func(o *serveOptions) {
		if n < 1 {
			o.refuse("WithConcurrency(%d): must be at least 1", n)
		}
		o.concurrency = n
	})
}

// WithWeight sets how many objects of the type are reconciled per turn while other types have work waiting. The default
// is 1, which is also the minimum.
func WithWeight(n int) ServeOption {
	return serveOption(func(o *serveOptions) {
		if n < 1 {
			o.refuse("WithWeight(%d): must be at least 1", n)
		}
		o.weight = n
	})
}

// WithReconcileTimeout sets the duration after which the context of a handler is cancelled, with the cause
// [ErrReconcileTimeout]. Defaults to 5 minutes. A negative d means no timeout. Zero is invalid.
func WithReconcileTimeout(d time.Duration) ServeOption {
	return serveOption(func(o *serveOptions) {
		if d == 0 {
			o.refuse("WithReconcileTimeout(0): must not be zero; a negative timeout means none")
		}
		o.timeout = d
	})
}

// WithRateLimiter sets the rate limiter for the type's retries. The limiter must not be shared between types, and must
// be safe for concurrent use. If l is nil, the default limiter is used. It retries each object with exponential backoff
// between Config.MinRetryDelay and Config.MaxRetryDelay, and gives each type a budget of 100 retries per second with a
// burst of 1000.
func WithRateLimiter(l workqueue.TypedRateLimiter[ObjectIdentifiers]) ServeOption {
	return serveOption(func(o *serveOptions) { o.limiter = l })
}

// WithNamespace restricts a watch to one namespace. The default is "", which means all namespaces. A cluster-scoped
// type cannot be watched with a namespace.
func WithNamespace(namespace string) CommonOption {
	return CommonOption{func(o *watchOptions) {
		if namespace != "" {
			for _, problem := range validation.IsDNS1123Label(namespace) {
				o.refuse("WithNamespace(%q): %s", namespace, problem)
			}
		}
		o.namespace = namespace
	}}
}

// WithLabelSelector restricts a watch to the objects that the selector matches. An object that no longer matches is
// treated as deleted. By default, and with a nil selector, all objects are watched. With [labels.Nothing], the type is
// still watched, but with a selector that matches no objects. Note that metav1.LabelSelectorAsSelector returns
// labels.Nothing for nil.
func WithLabelSelector(selector labels.Selector) CommonOption {
	text, err := labelSelectorText(selector)
	return CommonOption{func(o *watchOptions) {
		if err != nil {
			o.refuse("WithLabelSelector: %w", err)
		}
		o.labelSelector = text
	}}
}

// WithFieldSelector restricts a watch to the objects that the selector matches. An object that no longer matches is
// treated as deleted. By default, and with a nil or empty selector, all objects are watched. With [fields.Nothing], the
// type is still watched, but with a selector that matches no objects. All types support metadata.name and
// metadata.namespace; custom resources also support the selectableFields of their definition. The API server rejects
// selectors on other fields, and the state of the type is then [TypeFailing].
func WithFieldSelector(selector fields.Selector) CommonOption {
	text, err := fieldSelectorText(selector)
	return CommonOption{func(o *watchOptions) {
		if err != nil {
			o.refuse("WithFieldSelector: %w", err)
		}
		o.fieldSelector = text
	}}
}

// WithCache sets which part of each object is kept. Listers, predicates and MapFuncs receive the objects in this form,
// even if a shared watch keeps more for another subscriber. Defaults to [CacheFull] for a served type, and to
// [CacheMetadata] in [Owns] and [Watches].
func WithCache(mode CacheMode) CommonOption {
	return CommonOption{func(o *watchOptions) {
		if mode > CacheKeys {
			o.refuse("WithCache(%d): unknown mode", mode)
		}
		o.cache = mode
	}}
}

// WithTransform stores the result of f in place of an object, for example to save memory. The function f can modify the
// object that it receives. It must be idempotent and deterministic, and must keep the object's metadata, in particular
// resourceVersion, namespace, name and UID. If it is not deterministic, or removes the resourceVersion, each relist
// delivers every object. It must also be safe for concurrent use, because two watches call it while one of them
// replaces the other. A call to f counts as failed if it panics, returns an error or a nil object, or changes the
// namespace or name. The error is then logged, and the object that was passed to f is stored in the state in which f
// left it. A watch with a transform is not shared. If f is nil, there is no transform.
func WithTransform(f cache.TransformFunc) CommonOption {
	return CommonOption{func(o *watchOptions) { o.transform = f }}
}

// WithPredicate ignores a change if f returns false for it. Initial lists, resyncs, Enqueue and retries are not
// affected. Calls to f are never concurrent and must return quickly, because all subscribers of the watch wait for
// them. If f panics, the panic is logged and the change is processed. If f is nil, every change is processed.
// WithPredicate cannot be combined with [CacheKeys].
//
// After a change to the type's schema, f is called with an old and a new state that have the same resourceVersion and
// generation. A predicate that compares only these ignores such changes. When a new watch has replaced another one, the
// old state of an object that was deleted in the meantime may contain only its metadata, or only its namespace and
// name.
func WithPredicate(f Predicate) CommonOption {
	return CommonOption{func(o *watchOptions) { o.predicate = f }}
}

// newServeOptions applies the options and returns all of their errors.
func (c *DynamicController) newServeOptions(
	gvr schema.GroupVersionResource, handler Handler, opts []ServeOption,
) (*serveOptions, error) {
	o := &serveOptions{
		handler: handler,
		weight:  1,
		timeout: defaultReconcileTimeout,
	}
	if gvr.Version == "" || gvr.Resource == "" {
		o.refuse("the GVR %+v has no version or no resource", gvr)
	}
	if handler == nil {
		o.refuse("the handler is nil")
	}
	for _, opt := range opts {
		if opt == nil {
			o.refuse("an option is nil")
			continue
		}
		opt.applyToServe(o)
	}
	o.complete(gvr)
	if err := o.watchOptions.check(c.clients); err != nil {
		o.errs = append(o.errs, err)
	}
	for _, secondary := range o.secondaries {
		if err := secondary.check(c.clients); err != nil {
			o.refuse("%s: %w", secondary.key.name(), err)
		}
	}
	return o, errors.Join(o.errs...)
}

// complete sets the identity of the watch, and rejects mutually exclusive options.
func (o *watchOptions) complete(gvr schema.GroupVersionResource) {
	projections := map[CacheMode]typewatch.Projection{
		CacheFull: typewatch.Full, CacheMetadata: typewatch.Metadata, CacheKeys: typewatch.Keys,
	}
	o.watch = typewatch.Key{
		GVR: gvr, Namespace: o.namespace, LabelSelector: o.labelSelector, FieldSelector: o.fieldSelector,
		Projection: projections[o.cache],
	}
	if o.cache == CacheKeys && (o.predicate != nil || o.transform != nil) {
		o.refuse("WithPredicate and WithTransform need objects, which WithCache(CacheKeys) does not keep")
	}
}

// check returns an error if the controller lacks the client for the watch.
func (o *watchOptions) check(clients listwatch.Clients) error {
	switch {
	case o.cache == CacheFull && clients.Dynamic == nil:
		return errors.New("WithCache(CacheFull) needs a dynamic client, but the controller has none")
	case o.cache != CacheFull && clients.Metadata == nil:
		return errors.New("WithCache(CacheMetadata) and WithCache(CacheKeys) need a metadata client: " +
			"use NewForConfig or WithMetadataClient")
	}
	return nil
}

// sameWatch reports whether o and other can use the same watch. Functions cannot be compared, so two watches with a
// transform are never the same.
func (o *watchOptions) sameWatch(other *watchOptions) bool {
	return o.watch == other.watch && o.transform == nil && other.transform == nil
}

// keepsWatch reports whether AddWatches keeps the current watch, whose options are o, when it is called with the
// options other. Unlike sameWatch, it allows the current watch to have a transform. Otherwise a handler that calls
// AddWatches with a transform would replace the watch in each reconcile.
func (o *watchOptions) keepsWatch(other *watchOptions) bool {
	return o.watch == other.watch && (o.transform != nil || other.transform == nil)
}

func (o *watchOptions) subscription() typewatch.Options {
	return typewatch.Options{Key: o.watch, Transform: o.transform}
}

func (o *serveOptions) limits() fairqueue.Limits {
	return fairqueue.Limits{Weight: o.weight, Concurrency: o.concurrency}
}

// noLabels and noFields are selectors that match no object. They are needed because the text of [labels.Nothing] and
// [fields.Nothing] is empty, and the API server treats an empty selector as one that matches everything. The two terms
// of each selector contradict each other, so that no object can satisfy both. The field selector uses metadata.name,
// because the storage layer of the API server then reads at most one object.
const (
	noLabels = "!nothing,nothing"
	noFields = "metadata.name!=nothing,metadata.name=nothing"
)

// labelSelectorText returns the selector in the API server's syntax.
func labelSelectorText(selector labels.Selector) (text string, err error) {
	if selector == nil {
		return "", nil
	}
	panicked := protect.Call(func() {
		requirements, selectable := selector.Requirements()
		text = selector.String()
		switch {
		case !selectable:
			text = noLabels
		case text == "" && !selector.Empty():
			if text = labels.NewSelector().Add(requirements...).String(); text == "" {
				err = fmt.Errorf("selector of type %T is not empty but has no text", selector)
			}
		}
	})
	if panicked != nil {
		return "", fmt.Errorf("selector of type %T panicked: %w", selector, panicked)
	}
	return text, err
}

// fieldSelectorText returns the selector in the API server's syntax, with its terms sorted.
func fieldSelectorText(selector fields.Selector) (text string, err error) {
	if selector == nil {
		return "", nil
	}
	panicked := protect.Call(func() {
		var parsed fields.Selector
		if parsed, err = fields.ParseSelector(selector.String()); err != nil {
			return
		}
		text = parsed.String()
		// If fields.Nothing is combined with other selectors, it does not appear in the text. To detect it, the code
		// below builds an object that satisfies every term of the text. If the text matches this object and the
		// selector does not, the selector contains fields.Nothing.
		object := fields.Set{}
		for _, term := range parsed.Requirements() {
			if term.Operator == selection.NotEquals {
				object[term.Field] += term.Value + "?"
			}
		}
		for _, term := range parsed.Requirements() {
			if term.Operator != selection.NotEquals {
				object[term.Field] = term.Value
			}
		}
		if parsed.Matches(object) && !selector.Matches(object) {
			text = noFields
		}
	})
	if panicked != nil {
		return "", fmt.Errorf("selector of type %T panicked: %w", selector, panicked)
	}
	return text, err
}
