package dynamiccontroller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/selectors"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// ServeOption is an option for [DynamicController.StartServingGVK]: a [Watch], any [CommonOption], [WithConcurrency],
// [WithWeight], [WithFlow], [WithFlowConcurrency], [WithReconcileTimeout], [WithRateLimiter], [KeepRequeues] or
// [KeepWatches]. If the same option, or a Watch with the same key, is given more than once, the last one takes effect.
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

// OwnsOption is an option for [Owns]. [EveryOwner], [WithBucketLabel] and every [CommonOption] are OwnsOptions.
type OwnsOption interface{ applyToOwns(o *secondaryOptions) }

// WatchesOption is an option for [Watches]. [WithBucketLabel] and every [CommonOption] are WatchesOptions. [AfterLoss]
// is one that only [DynamicController.StartWatch] accepts.
type WatchesOption interface{ applyToWatches(o *secondaryOptions) }

// SecondaryOption is an option for [Owns] and [Watches]. [WithBucketLabel] is one.
type SecondaryOption interface {
	OwnsOption
	WatchesOption
}

// EveryOwner makes [Owns] reconcile all owners of an object instead of only its controller.
func EveryOwner() OwnsOption { return everyOwner{} }

// WithBucketLabel narrows the watch of a type in a shard to objects that belong to types of the shard, and to objects
// without the label. The value of the label on an object is the bucket of the type that the object belongs to; see
// [BucketOf]. Types of the same shard share the watch. Without shards, or if the number of shards is not a power of
// two, the option has no effect.
//
// Objects without the label are watched for each shard, so that they can be labelled at any time. A process stores them
// once for each shard that it serves or watches, so label them first, and use WithLabelSelector to exclude objects that
// belong to no type. An object with the bucket of a type in another shard is treated as deleted. The label must
// therefore be put back if it has been changed; package handlers/children does so. Do not use the option for objects
// that objects of several types refer to. The label does not decide which objects are reconciled: these are determined
// as without the option, and always belong to the type.
//
// An object that belongs to several types has room for one bucket, so the option cannot be combined with [EveryOwner].
func WithBucketLabel(key string) SecondaryOption { return bucketLabel(key) }

type bucketLabel string

func (b bucketLabel) applyToOwns(o *secondaryOptions)    { b.applyTo(o) }
func (b bucketLabel) applyToWatches(o *secondaryOptions) { b.applyTo(o) }

func (b bucketLabel) applyTo(o *secondaryOptions) {
	for _, problem := range validation.IsQualifiedName(string(b)) {
		o.reject("WithBucketLabel(%q): %s", string(b), problem)
	}
	o.watch.BucketLabel = string(b)
}

// AfterLoss sets which objects are reconciled after states of objects were lost, because the [MapAnyFunc] could not
// keep up with the changes; see [MapFunc]. f returns the objects that a lost state can affect. By default, or if f is
// nil, all objects of all served types are reconciled. Only [DynamicController.StartWatch] accepts the option.
//
// f is called when no change waits, under the same rules as the MapAnyFunc. The cache of the watch contains the changes
// that were combined. f need not return objects for runs that begin after the loss, because a run reconciles all
// objects. If f panics, the panic is logged, and all objects are reconciled.
func AfterLoss(f func(ctx context.Context) []ObjectIdentifiers) WatchesOption { return afterLoss(f) }

type afterLoss func(context.Context) []ObjectIdentifiers

func (f afterLoss) applyToWatches(o *secondaryOptions) {
	if !o.standalone {
		o.reject("AfterLoss is an option of StartWatch only; after a loss, Watches reconciles all objects of its own type")
	}
	o.afterLoss = f
}

type everyOwner struct{}

func (everyOwner) applyToOwns(o *secondaryOptions) { o.key.EveryOwner = true }

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
	// CacheKeys keeps only keys, UIDs and versions. It cannot be used with listers, predicates, transforms or indexes. If
	// a server sends no resourceVersions, changes cannot be detected in a list, and each list reconciles all objects.
	CacheKeys
)

// defaultReconcileTimeout is much longer than API calls take, even with retries. It is short enough that hung handlers
// are usually cancelled before a person has to intervene.
const defaultReconcileTimeout = 5 * time.Minute

// serveOptions holds the handler and the options of one call to StartServingGVK. It is immutable once registered.
type serveOptions struct {
	gvr          schema.GroupVersionResource
	feed         *feed.Options // what the feed needs of these options
	watchOptions               // of the served type
	handler      Handler
	concurrency  int
	weight       int
	flowOf       func(ObjectIdentifiers) string // nil if all objects are in one flow
	perFlow      int                            // limit of concurrency of each flow; 0 for none
	timeout      time.Duration                  // of one handler call; negative means no timeout
	limiter      limiter                        // nil for the default
	secondaries  []*secondaryOptions            // one for each Watch, in order; if keys are equal, the last one wins
	keepRequeues bool
	keepWatches  bool
}

// secondaryOptions holds the options of one Watch. It is immutable once Owns or Watches has returned.
type secondaryOptions struct {
	watchOptions
	key     WatchKey
	mapFunc MapFunc      // nil if the Watch was created by Owns
	asFeed  *feed.Source // what the feed needs of these options; set by asWatch

	standalone bool // the options are those of StartWatch
	afterLoss  func(context.Context) []ObjectIdentifiers
}

// WatchKey identifies one of the watches of a served type. Two Watch values with equal keys describe the same watch,
// possibly with different options. A WatchKey can be used as a map key.
type WatchKey struct {
	GVR        schema.GroupVersionResource // the watched type
	Namespaces string                      // sorted, and separated by commas; empty for all namespaces
	// LabelSelector uses the API server's syntax. It is "!nothing,nothing" if it matches no objects.
	LabelSelector string
	// FieldSelector uses the API server's syntax, with its terms in alphabetical order. It is
	// "metadata.name!=nothing,metadata.name=nothing" if it matches no objects.
	FieldSelector string
	BucketLabel   string // the argument of WithBucketLabel
	Owned         bool   // the watch was created by Owns, not by Watches
	EveryOwner    bool   // Owns was called with the option EveryOwner
}

// watchKeyOf returns the key as users see it.
func watchKeyOf(k feed.Key) WatchKey {
	return WatchKey{
		GVR: k.GVR, Namespaces: k.Namespaces, LabelSelector: k.LabelSelector, FieldSelector: k.FieldSelector,
		BucketLabel: k.BucketLabel, Owned: k.Owned, EveryOwner: k.EveryOwner,
	}
}

// asFeed is the inverse of watchKeyOf.
func (k WatchKey) asFeed() feed.Key {
	selection := typewatch.Selection{
		GVR: k.GVR, Namespaces: k.Namespaces, LabelSelector: k.LabelSelector, FieldSelector: k.FieldSelector,
		BucketLabel: k.BucketLabel,
	}
	return feed.Key{Selection: selection, Owned: k.Owned, EveryOwner: k.EveryOwner}
}

// name returns a short form of the key for error messages, such as "Owns(pods.v1)". It is not called String, because
// SecondaryStatus embeds WatchKey and would inherit that method.
func (k WatchKey) name() string {
	if k.Owned {
		return "Owns(" + nameOf(k.GVR) + ")"
	}
	return "Watches(" + nameOf(k.GVR) + ")"
}

// compare orders keys by type, namespaces, selectors and kind of watch.
func (k WatchKey) compare(other WatchKey) int {
	return cmp.Or(
		strings.Compare(nameOf(k.GVR), nameOf(other.GVR)),
		strings.Compare(k.Namespaces, other.Namespaces),
		strings.Compare(k.LabelSelector, other.LabelSelector),
		strings.Compare(k.FieldSelector, other.FieldSelector),
		strings.Compare(k.BucketLabel, other.BucketLabel),
		strings.Compare(k.name(), other.name()), // Owns before Watches
		strings.Compare(strconv.FormatBool(k.EveryOwner), strconv.FormatBool(other.EveryOwner)),
	)
}

// watchOptions determines which objects of a type are watched, and which part of each object is kept.
type watchOptions struct {
	cache         CacheMode
	managedFields bool
	transform     cache.TransformFunc
	predicate     Predicate
	indexes       map[string]func(Object) []string

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

// WithFlow makes waiting objects of the type take turns by flow, so that many objects of one flow do not delay those of
// the others; see promise F3 in the package documentation. flowOf returns the flow of an object. For example,
// WithFlow(ObjectIdentifiers.Namespace) makes the objects of different namespaces take turns. A flow costs memory only
// while an object of it is waiting or being reconciled.
//
// flowOf is called whenever an object is added to the queue, again for all waiting objects when the options change, and
// when a type is served again while handlers of its former registration are running. It must depend on nothing but the
// object's identifiers, must not use the controller, and must be safe for concurrent use. It is called while a watch
// delivers a change. A function that hangs therefore blocks the watch, also for the other types that share it. If it
// panics, the panic is logged, and the object is in the flow "". If flowOf is nil, all objects are in one flow, which
// is the default.
func WithFlow(flowOf func(ObjectIdentifiers) string) ServeOption {
	return serveOption(func(o *serveOptions) { o.flowOf = flowOf })
}

// WithFlowConcurrency limits each flow of the type to n concurrent handler calls; see [WithFlow], which it requires.
// The limit must be at least 1. The waiting objects of a flow at its limit occupy no worker. Running handlers from an
// earlier registration of the type also count toward the limit. By default, there is no such limit.
func WithFlowConcurrency(n int) ServeOption {
	return serveOption(func(o *serveOptions) {
		if n < 1 {
			o.reject("WithFlowConcurrency(%d): must be at least 1", n)
		}
		o.perFlow = n
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

// KeepRequeues keeps the pending delay of an object, from [RequeueAfter] or a retry, if the object is reconciled before
// the delay has expired, for example because of an event. The object is then reconciled again when the delay expires.
// This is how client-go's workqueue behaves, so that handlers written for it may rely on it. An object has at most one
// delay. If several are requested, the one that expires first applies. The delay is cancelled if the object is parked,
// or gone and not retried. By default, an earlier reconcile cancels the delay, because its outcome is more recent.
func KeepRequeues() ServeOption { return serveOption(func(o *serveOptions) { o.keepRequeues = true }) }

// KeepWatches keeps the watches that the type already has, including those that AddWatches has added, when
// StartServingGVK replaces the handler and the options. A Watch that is passed to StartServingGVK replaces the one with
// the same key. By default, the watches that are not passed to StartServingGVK are removed.
func KeepWatches() ServeOption { return serveOption(func(o *serveOptions) { o.keepWatches = true }) }

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
// retries are not affected. Calls for one watch of a type are never concurrent. Until a call returns, later changes
// wait; see [Predicate]. If f panics, the panic is logged and the change is processed. If f is nil, every change is
// processed. If f returns false for a deletion, failed reconciles of the object are no longer retried. WithPredicate
// cannot be combined with [CacheKeys].
//
// After a change to the type's schema, f is called with old and new states that have the same resourceVersion and
// generation. A predicate that compares only these fields ignores such changes.
func WithPredicate(f Predicate) CommonOption {
	return CommonOption{func(o *watchOptions) { o.predicate = f }}
}

// WithIndex declares an index of the watch's cache. [Lister].ByIndex finds the objects for which f returns a value. f
// returns any number of values, as an IndexFunc of client-go does. For example, to find the objects that refer to a
// secret, f returns the names of the secrets that an object refers to. To find objects in a namespace, f can return
// values that begin with the namespace.
//
// An index belongs to the options, even if the watch is shared. If several options declare an index with the same name,
// the last one takes effect. StartServingGVK replaces all indexes. AddWatches keeps the indexes of an existing watch,
// and adds those with new names. [AddIndex] adds an index to any watch. WithIndex cannot be combined with [CacheKeys].
//
// f is called by ByIndex, in the goroutine of its caller. An index costs nothing until the first call to ByIndex, which
// calls f for each object in the cache. Later calls do so for each object that has changed since. f is called for all
// objects again after a relist, and if more than 64 objects, and about half of all objects, have changed since the last
// call. An index keeps a copy of each object's values and, for each value, a map of its objects. An object without
// values takes no memory.
//
// f must be deterministic, fast and safe for concurrent use. It must use nothing but the object. If f panics, the
// object has no values. The first panic of an index is logged as an error, the others at V(1).
//
// Concurrent calls to ByIndex for the same index wait for each other. If f hangs, these calls hang, and so do the
// handlers that have made them, as with any other function that a handler calls. [TypeStatus].RunningFunction names the
// index. f must not call ByIndex for its own index, because it would wait for itself.
func WithIndex(name string, f func(Object) []string) CommonOption {
	return CommonOption{func(o *watchOptions) {
		switch {
		case name == "":
			o.reject("WithIndex: the name is empty")
		case f == nil:
			o.reject("WithIndex(%q): the function is nil", name)
		}
		if o.indexes == nil {
			o.indexes = map[string]func(Object) []string{}
		}
		o.indexes[name] = f
	}}
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
	if o.cache == CacheKeys && (o.predicate != nil || o.transform != nil || o.indexes != nil) {
		o.reject("WithPredicate, WithTransform and WithIndex cannot be combined with WithCache(CacheKeys)")
	}
}

// source returns the options as a source without a key and without targets.
func (o *watchOptions) source() *feed.Source {
	source := &feed.Source{
		Name: nameOf(o.watch.GVR), Watch: typewatch.Options{Key: o.watch, Transform: o.transform},
	}
	if o.predicate != nil {
		source.Accepts = o.accepts
	}
	if o.indexes != nil {
		source.Watch.Indexes = newIndexes(o.indexes)
	}
	return source
}

func (o *serveOptions) sources() []*feed.Source {
	sources := make([]*feed.Source, len(o.secondaries))
	for i, secondary := range o.secondaries {
		sources[i] = secondary.asFeed
	}
	return sources
}

// accepts reports whether the predicate accepts a change. It returns true if the predicate panics.
func (o *watchOptions) accepts(e feed.Environment, before, after *typewatch.Object) (accepted bool) {
	returned := e.Call("predicate", "Predicate panicked, change accepted", func() {
		accepted = o.predicate(e.Context, newObject(before), newObject(after))
	})
	return accepted || !returned
}

// keys calls the MapFunc for a stored object. It returns nil if the MapFunc panics.
func (o *secondaryOptions) keys(e feed.Environment, object *typewatch.Object) (keys []string) {
	e.Log = e.Log.WithValues(keyWatched, nameOf(o.key.GVR))
	if !e.Call("MapFunc", "MapFunc panicked, nothing enqueued", func() {
		keys = o.mapFunc(e.Context, newObject(object))
	}) {
		return nil
	}
	return keys
}

type limiter = workqueue.TypedRateLimiter[ObjectIdentifiers]
