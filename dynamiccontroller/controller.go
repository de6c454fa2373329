package dynamiccontroller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
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
	pool      *typewatch.Pool // the watches of all types
	metrics   Metrics
	// typeEvents is nil if nobody tells which types there are.
	typeEvents TypeEvents
	// defaultTransform is nil unless WithDefaultTransform set it.
	defaultTransform cache.TransformFunc

	// queue is the one workqueue; storage is what it is made of, for what its interface has no word for.
	queue   workqueue.TypedRateLimitingInterface[ObjectIdentifiers]
	storage *items
	limits  *limiters

	// mu guards what follows and each registration's needs. It is held for looking up and putting down, never across a
	// request, a sync, a handler or anything else of a caller's.
	mu            sync.RWMutex
	registrations map[schema.GroupVersionResource]*registration
	ending        map[schema.GroupVersionResource][]*registration // stopped, and not all of it has returned
	watching      *watchTerm                                      // nil while no watches run
	reconciling   bool                                            // Run runs
	hearing       hearing
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
// fairness. With a client that was not made by [NewForConfig], the first watch of a type that was just established may be
// a second late: the API server advises that, and client-go follows.
//
// With such a client, the watches also take longer to recover from a restore of etcd: about 40 seconds per type. The REST client
// repeats a request that is refused with "Too large resource version" ten times before the engine can fall back to the most
// recent version. The clients of [NewForConfig] do not repeat it.
func NewDynamicController(log logr.Logger, config Config, kubeClient dynamic.Interface, opts ...Option) *DynamicController {
	c := &DynamicController{
		log:           log,
		config:        config.withDefaults(),
		clients:       typewatch.Clients{Dynamic: kubeClient},
		metrics:       noMetrics{},
		registrations: map[schema.GroupVersionResource]*registration{},
		ending:        map[schema.GroupVersionResource][]*registration{},
		hearing:       hearing{of: map[*registration]int{}},
	}
	c.configErr = c.config.validate()
	c.queue, c.storage, c.limits = newQueue()
	for _, opt := range opts {
		opt(c)
	}
	c.pool = typewatch.NewPool(c.clients, c.logOf, func(gvr schema.GroupVersionResource, s typewatch.State) { logState(c.logOf(gvr), s) })
	c.pool.Transform = c.defaultTransform
	return c
}

func (c *DynamicController) logOf(gvr schema.GroupVersionResource) logr.Logger {
	return c.log.WithValues(keyGVR, nameOf(gvr))
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

// Enqueue adds the objects to the queue, whether or not the cache holds them. They are reconciled once their type has
// synced. Objects of a type that is not served are ignored. While Run is not running, all objects are ignored, because
// Run reconciles every object in the cache when it starts. A malformed key is ignored, logged and counted in
// [TypeStatus].MalformedKeys.
func (c *DynamicController) Enqueue(ids ...ObjectIdentifiers) {
	for _, id := range ids {
		reg, err := c.registrationOf(id.GVR)
		if err != nil {
			c.log.V(1).Info("not enqueued", keyObject, id.String(), keyError, err.Error())
			continue
		}
		key, err := normalizeKey(id.NamespacedKey)
		if err != nil {
			reg.refuseKey("Enqueue", id.NamespacedKey, err)
			continue
		}
		reg.group.Add(fairqueue.Live, reg.id(key))
	}
}

// registered lists the registrations.
func (c *DynamicController) registered() []*registration {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.registrations))
}

func (c *DynamicController) registrationOf(gvr schema.GroupVersionResource) (*registration, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if reg := c.registrations[gvr]; reg != nil {
		return reg, nil
	}
	return nil, fmt.Errorf("%s: %w", nameOf(gvr), ErrNotServed)
}
