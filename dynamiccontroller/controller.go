package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// DynamicController serves types that come and go while it runs. All its methods may be called concurrently.
type DynamicController struct {
	log       logr.Logger
	config    Config
	configErr error
	clients   typewatch.Clients
	metrics   Metrics
	// typeEvents is nil if nobody tells which types there are.
	typeEvents TypeEvents

	// queue is the one workqueue; storage is what it is made of, for what its interface has no word for.
	queue   workqueue.TypedRateLimitingInterface[ObjectIdentifiers]
	storage *items
	limits  *limiters

	// mu guards what follows and each registration's watch. It is held for looking up and putting down, never across a
	// request, a sync, a handler or anything else of a caller's.
	mu            sync.RWMutex
	registrations map[schema.GroupVersionResource]*registration
	ending        map[schema.GroupVersionResource][]*registration // stopped, and not all of it has returned
	watching      *watchTerm                                      // nil while no watches run
	reconciling   bool                                            // Run runs
}

var (
	errRunning  = errors.New("it runs already")
	errWatching = errors.New("watches run already")
	// errWatchesEnded ends a Run that relied on RunWatches.
	errWatchesEnded = errors.New("RunWatches ended before Run did")
)

// NewDynamicController returns a controller that reads with kubeClient. It starts nothing and connects to nothing. What
// is wrong with config is returned by Run, RunWatches and StartServingGVK.
//
// The client should not be throttled: a type costs a list and a watch when it starts, and the API server has its own
// fairness. See [NewForConfig].
func NewDynamicController(log logr.Logger, config Config, kubeClient dynamic.Interface, opts ...Option) *DynamicController {
	c := &DynamicController{
		log:           log,
		config:        config.withDefaults(),
		clients:       typewatch.Clients{Dynamic: kubeClient},
		metrics:       noMetrics{},
		registrations: map[schema.GroupVersionResource]*registration{},
		ending:        map[schema.GroupVersionResource][]*registration{},
	}
	c.configErr = c.config.validate()
	c.queue, c.storage, c.limits = newQueue()
	for _, opt := range opts {
		opt(c)
	}
	return c
}

// NewForConfig returns a controller with clients of its own, a dynamic one and a metadata one that share connections.
// Unless cfg says how to throttle them (QPS, RateLimiter), they are not.
func NewForConfig(log logr.Logger, config Config, cfg *rest.Config, opts ...Option) (*DynamicController, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.QPS == 0 && cfg.RateLimiter == nil {
		cfg.QPS = -1
	}
	cfg.Wrap(typewatch.RetryEarly)
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make an HTTP client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a dynamic client: %w", err)
	}
	metadataClient, err := metadata.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a metadata client: %w", err)
	}
	c := NewDynamicController(log, config, dynamicClient, append([]Option{WithMetadataClient(metadataClient)}, opts...)...)
	return c, c.configErr
}

// Run reconciles until ctx ends: it runs the workers, and the watches too unless RunWatches does. Every object in the
// cache is reconciled once, and then whenever something happens to it.
//
// When ctx ends no handler starts any more and the contexts of those that run end at once ([ErrRunEnded], which wraps
// ctx's own cause). Run waits for them for at most Config.ShutdownTimeout; if some have not returned by then its error
// names them. It may be run again then, also while such a handler still runs: its object is not reconciled before it
// returned.
//
// Run returns an error at once if it runs already, and ends with one if it relied on RunWatches and that ended.
func (c *DynamicController) Run(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("run the dynamic controller: %w", err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	watches, own, err := c.beginReconciling(ctx)
	if err != nil {
		return fail(err)
	}
	c.log.Info("reconciling", keyWorkers, c.config.Workers)
	run, cancel := context.WithCancel(ctx)
	base, cancelBase := context.WithCancelCause(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	for range c.config.Workers {
		workers.Go(func() { c.work(run, base) })
	}
	workers.Go(func() { c.resync(run) })
	for _, reg := range c.registered() {
		c.attach(reg)
	}
	if own {
		defer c.hearTypeEvents()()
	}

	var result error
	select {
	case <-ctx.Done():
	case <-watches.ended:
		result = errWatchesEnded
		if ctx.Err() != nil {
			result = nil
		}
	}
	cancel()
	cancelBase(fmt.Errorf("%w: %w", ErrRunEnded, orElse(context.Cause(ctx), errWatchesEnded)))
	c.miss(c.storage.Cancel())
	if hung := c.joinWorkers(&workers); hung != "" {
		result = errors.Join(result, fmt.Errorf("these handlers have not returned %s after their contexts ended: %s", c.config.ShutdownTimeout, hung))
	}
	c.endReconciling(watches, own)
	if result != nil {
		return fail(result)
	}
	return nil
}

// RunWatches keeps the caches of all served types warm until ctx ends, and reconciles nothing: it is the half of the
// controller for every replica, beside which Run may begin and end any number of times. On a standby nothing is queued.
//
// It returns an error at once if watches run already, in another RunWatches or in a Run that began before it.
func (c *DynamicController) RunWatches(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("run the watches: %w", err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	c.mu.Lock()
	if c.watching != nil {
		c.mu.Unlock()
		return fail(errWatching)
	}
	watches := c.beginWatchingLocked(ctx)
	c.mu.Unlock()
	defer c.hearTypeEvents()()
	<-ctx.Done()
	c.endWatching(watches)
	return nil
}

// beginReconciling opens the queue, and starts the watches if nobody else has.
func (c *DynamicController) beginReconciling(ctx context.Context) (watches *watchTerm, own bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reconciling {
		return nil, false, errRunning
	}
	c.reconciling = true
	c.storage.Restart()
	for _, reg := range c.registrations {
		reg.group.Hold()
	}
	if c.watching == nil {
		// The watches outlive ctx: handlers that finish still read the cache.
		return c.beginWatchingLocked(context.WithoutCancel(ctx)), true, nil
	}
	return c.watching, false, nil
}

func (c *DynamicController) endReconciling(watches *watchTerm, own bool) {
	for _, reg := range c.registered() {
		c.watchOf(reg).Detach()
	}
	if own {
		c.endWatching(watches)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reconciling = false
}

// miss keeps for the next run the deletions that this one was told of and did not get to. All else is in the cache.
func (c *DynamicController) miss(dropped []ObjectIdentifiers) {
	for _, id := range dropped {
		reg, err := c.registrationOf(id.GVR)
		if err == nil && !c.watchOf(reg).Has(id.NamespacedKey) {
			reg.miss(id.NamespacedKey)
		}
	}
}

// joinWorkers waits for the workers and says which handlers hold them up after ShutdownTimeout.
func (c *DynamicController) joinWorkers(workers *sync.WaitGroup) (hung string) {
	joined := make(chan struct{})
	go func() {
		workers.Wait()
		close(joined)
	}()
	timeout := time.NewTimer(c.config.ShutdownTimeout)
	defer timeout.Stop()
	select {
	case <-joined:
		return ""
	case <-timeout.C:
		return enumerate(c.runningCalls())
	}
}

func (c *DynamicController) runningCalls() []string {
	c.mu.RLock()
	regs := make([]*registration, 0, len(c.registrations))
	for _, reg := range c.registrations {
		regs = append(regs, reg)
	}
	for _, ending := range c.ending {
		regs = append(regs, ending...)
	}
	c.mu.RUnlock()
	var calls []string
	for _, reg := range regs {
		calls = append(calls, reg.running()...)
	}
	return calls
}

// Enqueue reconciles the objects as soon as their type's turn comes, whether the cache holds them or not. What is not
// served is ignored, and so is everything while Run does not run: it reconciles all objects of the cache when it begins.
func (c *DynamicController) Enqueue(ids ...ObjectIdentifiers) {
	for _, id := range ids {
		reg, err := c.registrationOf(id.GVR)
		if err != nil {
			c.log.V(1).Info("not enqueued", keyObject, id.String(), keyError, err.Error())
			continue
		}
		reg.group.Add(fairqueue.Live, id)
	}
}

// registered lists the registrations.
func (c *DynamicController) registered() []*registration {
	c.mu.RLock()
	defer c.mu.RUnlock()
	regs := make([]*registration, 0, len(c.registrations))
	for _, reg := range c.registrations {
		regs = append(regs, reg)
	}
	return regs
}

func (c *DynamicController) registrationOf(gvr schema.GroupVersionResource) (*registration, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if reg := c.registrations[gvr]; reg != nil {
		return reg, nil
	}
	return nil, fmt.Errorf("%s: %w", nameOf(gvr), ErrNotServed)
}

func (c *DynamicController) watchOf(reg *registration) *typewatch.Watch {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return reg.watch.Watch
}

// attach makes the queue hear of all the registration's objects, and of what happens to them from now on.
func (c *DynamicController) attach(reg *registration) {
	reg.group.Add(fairqueue.Background, reg.ids(reg.owed())...)
	c.watchOf(reg).Attach(reg.sink())
}
