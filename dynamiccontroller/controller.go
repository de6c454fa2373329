package dynamiccontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// DynamicController serves types that can be added and removed while it is running. Its methods are safe for concurrent
// use.
type DynamicController struct {
	log       logr.Logger
	config    Config
	configErr error
	clients   listwatch.Clients
	metrics   Metrics
	// typeEvents is nil unless WithTypeEvents set it.
	typeEvents TypeEvents
	// defaultTransform is nil unless WithDefaultTransform set it.
	defaultTransform cache.TransformFunc

	queue    *queue
	pool     *typewatch.Pool
	watching atomic.Bool // RunWatches is running

	// mu guards the fields below. It is never held while calling the API server, waiting for a sync, or running user
	// code.
	mu            sync.RWMutex
	registrations map[schema.GroupVersionResource]*registration
	// ending holds registrations that are closed, but still have running handlers or watches.
	ending map[schema.GroupVersionResource][]*registration
	// forgetting holds a channel for each type for which Metrics.Forget is being called. The channel is closed when
	// Forget has returned.
	forgetting map[schema.GroupVersionResource]chan struct{}
	current    *run       // nil while Run is not running
	watches    *watchTerm // nil while no watches are running
}

// The workqueue that all types share, and a handle on the part that belongs to one registration. The queue implements
// client-go's [workqueue.TypedRateLimitingInterface], and is fair between types.
type (
	queue = fairqueue.Queue[ObjectIdentifiers, schema.GroupVersionResource, *registration]
	group = fairqueue.Group[ObjectIdentifiers, schema.GroupVersionResource, *registration]
)

// NewDynamicController returns a controller that lists and watches objects with kubeClient. It does not start anything
// and does not connect to the API server. Run, RunWatches and StartServingGVK return an error if config is invalid.
//
// The client should not be throttled: each type needs one list and one watch when it starts, and the API server
// protects itself with API Priority and Fairness.
//
// [NewForConfig] creates clients that retry some requests faster than client-go does by default. With other clients,
// the first watch of a type whose CRD has just been established can start a second late. After etcd has been restored
// from a backup, the watches then take about 40 seconds per type to recover.
func NewDynamicController(
	log logr.Logger, config Config, kubeClient dynamic.Interface, opts ...Option,
) *DynamicController {
	c := &DynamicController{
		log:           log,
		config:        config.withDefaults(),
		clients:       listwatch.Clients{Dynamic: kubeClient},
		metrics:       noMetrics{},
		queue:         fairqueue.New[ObjectIdentifiers, schema.GroupVersionResource, *registration](typeOf),
		registrations: map[schema.GroupVersionResource]*registration{},
		ending:        map[schema.GroupVersionResource][]*registration{},
		forgetting:    map[schema.GroupVersionResource]chan struct{}{},
	}
	c.configErr = c.config.validate()
	c.queue.ShutDown() // the queue stays shut down until a run begins
	for _, opt := range opts {
		opt(c)
	}
	c.pool = typewatch.NewPool(typewatch.Config{
		Clients: c.clients, Log: c.logOf, Observe: c.logState, Transform: c.defaultTransform,
	})
	return c
}

func typeOf(id ObjectIdentifiers) schema.GroupVersionResource { return id.GVR }

func (c *DynamicController) logOf(gvr schema.GroupVersionResource) logr.Logger {
	return c.log.WithValues(keyGVR, nameOf(gvr))
}

// NewForConfig returns a controller with a dynamic client and a metadata client that share their connections. The
// clients are not throttled unless cfg sets QPS or RateLimiter.
func NewForConfig(log logr.Logger, config Config, cfg *rest.Config, opts ...Option) (*DynamicController, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.QPS == 0 && cfg.RateLimiter == nil {
		cfg.QPS = -1
	}
	cfg.Wrap(listwatch.RetryEarly)
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create an HTTP client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("create a dynamic client: %w", err)
	}
	metadataClient, err := metadata.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("create a metadata client: %w", err)
	}
	c := NewDynamicController(log, config, dynamicClient, append([]Option{WithMetadataClient(metadataClient)}, opts...)...)
	return c, c.configErr
}

// StartServingGVK watches the objects of a type and reconciles them with handler, as soon as Run and the watches are
// running. It makes no request and does not wait for a sync; see [DynamicController.WaitForGVRSync]. If it returns an
// error, nothing has changed. A type that the API server does not serve, or that the client is not allowed to watch, is
// not an error: [TypeStatus] reports its state, and the watch is retried.
//
// If the type is already served, the handler and the options are replaced, and every object is reconciled once. Calls
// to the previous handler that are still running are not affected. If the new options need a different watch, the
// previous handler and options stay in effect until that watch has synced, and [TypeStatus].Replacement reports its
// state. If StartServingGVK is called again in the meantime, the new call replaces the pending change.
//
// StartServingGVK may have to wait for predicates and MapFuncs of subscribers that share a watch with the type. If ctx
// is cancelled in the meantime, it returns nil and the change continues in the background. It can be called at any
// time, including from handlers.
func (c *DynamicController) StartServingGVK(
	ctx context.Context, gvr schema.GroupVersionResource, handler Handler, opts ...ServeOption,
) error {
	fail := func(err error) error { return fmt.Errorf("start serving %s: %w", nameOf(gvr), err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	next, err := c.newServeOptions(gvr, handler, opts)
	if err != nil {
		return fail(err)
	}
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	reg, done := c.register(gvr, next)
	reg.log.Info("Started serving")
	await(ctx, done)
	return nil
}

// register creates a registration, or changes the existing one. The channel done is closed when the subscriptions have
// been changed.
func (c *DynamicController) register(
	gvr schema.GroupVersionResource, next *serveOptions,
) (reg *registration, done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reg := c.registrations[gvr]; reg != nil {
		reg.newest.Store(next)
		return reg, reg.subscriptions.change(true, func() { reg.subscriptions.configure(next) })
	}
	reg = newRegistration(c, gvr)
	reg.metricsForgotten = c.forgetting[gvr]
	reg.options.Store(next)
	reg.newest.Store(next)
	reg.group = c.queue.Open(gvr, reg, next.limits(), reg.limiterOf(next))
	reg.group.Pause()
	reg.subscriptions = newSubscriptionSet(reg, next)
	c.registrations[gvr] = reg
	r := c.current
	if r != nil {
		r.registrations[reg] = struct{}{}
	}
	return reg, reg.subscriptions.change(false, func() {
		reg.subscriptions.addWatches(next.secondaries, false)
		if r != nil {
			reg.subscriptions.attach(r)
		}
	})
}

// StopServiceGVK stops serving a type. No handler of the type starts afterwards, the contexts of running handlers are
// cancelled with [ErrServingStopped], and the type is removed from queue, status and metrics. StopServiceGVK waits
// until the handlers and the watch have ended. If ctx is cancelled first, the error lists the handlers and the watch
// that are still running. They then end in the background, and StopServiceGVK can be called again to wait for them.
//
// It returns nil for a type that is not served. If it is called with the context of one of the type's own handlers, it
// returns an error and stops nothing, because it would otherwise wait for its own caller.
func (c *DynamicController) StopServiceGVK(ctx context.Context, gvr schema.GroupVersionResource) error {
	if own, _ := ctx.Value(handlerOf{c}).(*registration); own != nil && own.gvr == gvr {
		return fmt.Errorf("stop serving %s: must not be called with the context of one of its own handlers", nameOf(gvr))
	}
	ending := c.unregister(gvr)
	for _, reg := range ending {
		reg.close()
	}
	var running []string
	for _, reg := range ending {
		if !await(ctx, reg.ended) {
			running = append(running, reg.stillActive()...)
		}
	}
	if len(running) > 0 {
		return fmt.Errorf("stop serving %s: %w; still running: %s",
			nameOf(gvr), context.Cause(ctx), enumerate(running))
	}
	if len(ending) > 0 {
		c.log.Info("Stopped serving", keyGVR, nameOf(gvr))
	}
	return nil
}

// unregister removes the registration of a type, if any. It returns all registrations of the type that have not ended.
func (c *DynamicController) unregister(gvr schema.GroupVersionResource) (ending []*registration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reg := c.registrations[gvr]; reg != nil {
		delete(c.registrations, gvr)
		if c.current != nil {
			delete(c.current.registrations, reg)
		}
		c.ending[gvr] = append(c.ending[gvr], reg)
		reg.group.Close()
	}
	return slices.Clone(c.ending[gvr])
}

// forget removes a registration that has ended. If it was the last one of its type, it calls Metrics.Forget.
func (c *DynamicController) forget(reg *registration) {
	c.mu.Lock()
	ending := slices.DeleteFunc(c.ending[reg.gvr], func(other *registration) bool { return other == reg })
	if c.ending[reg.gvr] = ending; len(ending) == 0 {
		delete(c.ending, reg.gvr)
	}
	if len(ending) > 0 || c.registrations[reg.gvr] != nil {
		c.mu.Unlock()
		return
	}
	done := make(chan struct{})
	c.forgetting[reg.gvr] = done
	c.mu.Unlock()
	reg.callMetrics(func() { c.metrics.Forget(reg.gvr) })
	c.mu.Lock()
	if c.forgetting[reg.gvr] == done {
		delete(c.forgetting, reg.gvr)
	}
	c.mu.Unlock()
	close(done)
}

// Enqueue adds objects to the queue, whether or not the cache holds them. They are reconciled after the type has
// synced. Objects of a type that is not served are ignored. While Run is not running, all objects are ignored,
// because Run reconciles every object in the cache when it starts. A malformed key is ignored, logged and counted in
// [TypeStatus].MalformedKeys.
func (c *DynamicController) Enqueue(ids ...ObjectIdentifiers) {
	for _, id := range ids {
		reg, err := c.registrationOf(id.GVR)
		if err != nil {
			c.log.V(1).Info("Object not enqueued", keyObject, id.String(), keyError, err.Error())
			continue
		}
		key, err := normalizeKey(id.NamespacedKey)
		if err != nil {
			reg.ignoreMalformedKey("Enqueue", id.NamespacedKey, err)
			continue
		}
		reg.group.Add(fairqueue.Live, reg.id(key))
	}
}

func (c *DynamicController) registrationOf(gvr schema.GroupVersionResource) (*registration, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if reg := c.registrations[gvr]; reg != nil {
		return reg, nil
	}
	return nil, fmt.Errorf("%s: %w", nameOf(gvr), ErrNotServed)
}

// registered returns all registrations.
func (c *DynamicController) registered() []*registration {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.registrations))
}

// runningHandlers describes the running handlers of all types, including types that are no longer served.
func (c *DynamicController) runningHandlers() (names []string) {
	c.mu.RLock()
	regs := slices.Collect(maps.Values(c.registrations))
	for _, ending := range c.ending {
		regs = append(regs, ending...)
	}
	c.mu.RUnlock()
	for _, reg := range regs {
		names = append(names, reg.runningHandlers()...)
	}
	return names
}
