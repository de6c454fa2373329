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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// DynamicController watches and reconciles types that can be added and removed at any time. Its methods are safe for
// concurrent use.
type DynamicController struct {
	log       logr.Logger
	config    Config
	configErr error
	clients   recordclient.Clients
	source    recordclient.Source     // same as clients, unless NewForConfig created the controller
	metrics   Metrics                 // can be nil
	parked    func(ObjectIdentifiers) // can be nil

	typeEvents       TypeEvents          // can be nil
	defaultTransform cache.TransformFunc // can be nil
	reduce           func([]byte) []byte // can be nil

	queue    *queue
	pool     *typewatch.Pool
	watching atomic.Bool // RunWatches is running

	// mu guards the fields below. It is never held while calling the API server or user code, or waiting for a sync.
	mu            sync.RWMutex
	registrations map[schema.GroupVersionResource]*registration
	// ending holds closed registrations that still have running handlers or watches.
	ending  map[schema.GroupVersionResource][]*registration
	current *run       // nil while Run is not running
	watches *watchTerm // nil while no watches are running
}

// queue is the workqueue shared by all types, and group is the part of the queue that belongs to one registration.
type (
	queue = fairqueue.Queue[ObjectIdentifiers, schema.GroupVersionResource, string, *registration]
	group = fairqueue.Group[ObjectIdentifiers, schema.GroupVersionResource, string, *registration]
)

func newQueue() *queue {
	return fairqueue.New[ObjectIdentifiers, schema.GroupVersionResource, string, *registration](
		func(id ObjectIdentifiers) schema.GroupVersionResource { return id.GVR },
		func(id ObjectIdentifiers) string { return id.NamespacedKey },
		func(gvr schema.GroupVersionResource, key string) ObjectIdentifiers {
			return ObjectIdentifiers{NamespacedKey: key, GVR: gvr}
		},
	)
}

// NewDynamicController returns a controller that lists and watches objects with kubeClient. It does not start any
// goroutines or connect to the API server. Run, RunWatches and StartServingGVK return an error if config is invalid.
//
// kubeClient should not be throttled, because each type starts with a list request and a watch request. Prefer
// [NewForConfig]: with kubeClient, each object is decoded and re-encoded before it is stored, and each initial list is
// held in memory in full. kubeClient can also repeat requests and wait as the API server asks, without the engine's
// knowledge. The first watch of a new CRD's type can then start one second late. While the API server asks for a longer
// delay, the type's state reports that the API server does not respond.
func NewDynamicController(
	log logr.Logger, config Config, kubeClient dynamic.Interface, opts ...Option,
) *DynamicController {
	c := &DynamicController{
		log:           log,
		config:        config.withDefaults(),
		clients:       recordclient.Clients{Dynamic: kubeClient},
		queue:         newQueue(),
		registrations: map[schema.GroupVersionResource]*registration{},
		ending:        map[schema.GroupVersionResource][]*registration{},
	}
	c.configErr = c.config.validate()
	c.queue.ShutDown() // the queue stays shut down until a run begins
	for _, opt := range opts {
		opt(c)
	}
	if c.source == nil {
		c.source = c.clients
	}
	c.pool = typewatch.NewPool(typewatch.Config{
		Source: c.source, Log: c.logOf, Observe: newProblemLog(c.logOf).observe, Transform: c.defaultTransform,
		Reduce: c.reduce,
	})
	return c
}

func (c *DynamicController) logOf(gvr schema.GroupVersionResource) logr.Logger {
	return c.log.WithValues(keyGVR, nameOf(gvr))
}

// NewForConfig returns a controller that lists and watches objects without decoding them. Objects are decoded when
// they are read. NewForConfig does not need a metadata client and ignores [WithMetadataClient]. Lists are not
// throttled unless cfg sets QPS or RateLimiter. Watches are never throttled. The timeout of cfg is ignored. If cfg has
// no UserAgent, requests have client-go's default one, followed by "/dynamiccontroller".
func NewForConfig(log logr.Logger, config Config, cfg *rest.Config, opts ...Option) (*DynamicController, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.UserAgent == "" {
		rest.AddUserAgent(cfg, "dynamiccontroller")
	}
	if cfg.QPS == 0 && cfg.RateLimiter == nil {
		cfg.QPS = -1
	}
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create an HTTP client: %w", err)
	}
	source, err := recordclient.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("create a REST client: %w", err)
	}
	withSource := func(c *DynamicController) { c.source = source }
	c := NewDynamicController(log, config, nil, append(opts[:len(opts):len(opts)], withSource)...)
	return c, c.configErr
}

// StartServingGVK watches the objects of a type and reconciles them with handler while Run is running. It sends no
// requests and does not wait for a sync; see [DynamicController.WaitForGVRSync]. If it returns an error, nothing has
// changed. It returns no error if the API server does not serve the type or denies access to it: [TypeStatus] reports
// this, and the watch is retried.
//
// If the controller already serves the type, the handler and the options are replaced, and every object is reconciled
// once. If the new options need a different watch, they take effect once that watch has synced; until then,
// [TypeStatus].Replacement reports the state of the new watch. Another call supersedes a pending replacement.
//
// StartServingGVK may have to wait for running predicates and MapFuncs of types that share a watch with this type. If
// ctx is cancelled first, it returns nil and the work continues in the background. Handlers can call it.
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

// register creates or changes a registration. Once the registration's subscriptions have been updated, done is closed.
func (c *DynamicController) register(
	gvr schema.GroupVersionResource, next *serveOptions,
) (reg *registration, done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reg := c.registrations[gvr]; reg != nil {
		next.reg = reg
		p := newPendingSwap(next)
		reg.newest.Store(p)
		return reg, reg.subscriptions.apply(change{all: true, f: func() { reg.subscriptions.configure(p) }})
	}
	reg = newRegistration(c, gvr)
	for _, ending := range c.ending[gvr] {
		if ending.forgetting {
			reg.metricsForgotten = ending.ended
		}
	}
	next.reg = reg
	reg.options.Store(next)
	reg.newest.Store(&pendingSwap{next: next, over: make(chan struct{})})
	close(reg.newest.Load().over)
	reg.group = c.queue.Open(gvr, reg, next.limits(), reg.limiterOf(next))
	reg.group.Pause()
	reg.subscriptions = &subscriptionSet{
		reg: reg, primary: c.pool.Subscribe(next.subscription(), nil), secondaries: map[WatchKey]*secondary{},
	}
	c.registrations[gvr] = reg
	r := c.current
	if r != nil {
		r.registrations[reg] = struct{}{}
	}
	s, watches := reg.subscriptions, next.secondaries
	done = s.apply(change{keys: keysOf(watches), f: func() { s.addWatches(watches, false, nil) }})
	if r != nil {
		done = s.apply(change{f: func() { s.attach(r) }})
	}
	return reg, done
}

// StopServiceGVK stops serving a type. It prevents further handler calls for the type, cancels the contexts of running
// handlers with [ErrServingStopped], and removes the type from the queue, the status and the metrics. StopServiceGVK
// waits for the handlers and the watch to end. If ctx is cancelled first, they end in the background, and the error
// lists what is still running. StopServiceGVK can then be called again to wait for them.
//
// It returns nil if the type is not served. When called with the context of one of the type's own handlers, it only
// returns an error, because it would otherwise wait for its own caller.
func (c *DynamicController) StopServiceGVK(ctx context.Context, gvr schema.GroupVersionResource) error {
	if own, _ := ctx.Value(handlerOf{c}).(*serveOptions); own != nil && own.reg.gvr == gvr {
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

// unregister removes a type's current registration. It returns all of the type's registrations that have not ended.
func (c *DynamicController) unregister(gvr schema.GroupVersionResource) (ending []*registration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reg := c.registrations[gvr]; reg != nil {
		delete(c.registrations, gvr)
		c.ending[gvr] = append(c.ending[gvr], reg)
		reg.group.Close()
	}
	return slices.Clone(c.ending[gvr])
}

// Enqueue adds objects to the queue, even if they are not in the cache. They are reconciled after the type has
// synced. Objects of types that are not served are ignored, as are all objects while Run is not running. A malformed
// key is ignored, logged and counted in [TypeStatus].MalformedKeys.
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
		reg.group.Add(fairqueue.Live, key)
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

func (c *DynamicController) registered() []*registration {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.registrations))
}
