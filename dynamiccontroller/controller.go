package dynamiccontroller

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/writes"
)

// DynamicController watches and reconciles types that can be added and removed at any time. Its methods are safe for
// concurrent use.
type DynamicController struct {
	*core
	configErr error

	registry *registry
	waits    *writeWaits
	crews    crews
	sessions sessions
	ledger   writes.Ledger // of runs without leader election
}

// NewDynamicController returns a controller that lists and watches objects with kubeClient. It does not start any
// goroutines or connect to the API server. Run, RunWatches and StartServingGVK return an error if config is invalid;
// see [Config.Validate].
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
		core: &core{
			settings: settings{clients: recordclient.Clients{Dynamic: kubeClient}},
			log:      log,
			config:   config.withDefaults(),
			queue:    newQueue(),
		},
		registry: newRegistry(),
	}
	c.configErr = config.Validate()
	c.queue.ShutDown() // the queue stays shut down until a run begins
	for _, opt := range opts {
		if opt == nil {
			c.configErr = errors.Join(c.configErr, invalid(errors.New("an option is nil")))
			continue
		}
		opt(&c.settings)
	}
	if c.source == nil {
		c.source = c.clients
	}
	c.waits = newWriteWaits(c.core, c.registry)
	c.crews.start = func() *crew { return startCrew(c.core, c.registry, c.waits) }
	c.sessions.start = c.startWatches
	c.pool = typewatch.NewPool(typewatch.Config{
		Source: c.source, Log: c.logOf, Observe: c.newObserver(), Transform: c.defaultTransform,
		Reduce: c.reduce, KindOf: c.kindOf, Progress: c.waits.wake,
	})
	return c
}

// newObserver returns a function that logs the states of watches, passes on their errors and reports completed syncs to
// the metrics.
func (c *DynamicController) newObserver() func(typewatch.Key, typewatch.State, time.Duration) {
	problems, failures := newProblemLog(c.logOf), newWatchErrors(c.watchErrors, c.logOf)
	return func(key typewatch.Key, s typewatch.State, unsynced time.Duration) {
		problems.observe(key, s)
		failures.observe(key, s)
		if s.Phase == typewatch.Synced && c.metrics != nil {
			// In a goroutine, because the watch waits for the observer.
			go callUserCode(c.logOf(key.GVR), "Metrics panicked", func() {
				c.metrics.Synced(Sync{GVR: key.GVR, Took: unsynced})
			})
		}
	}
}

// NewForConfig returns a controller that lists and watches objects without decoding them. Objects are decoded when
// they are read. NewForConfig does not need a metadata client and ignores [WithMetadataClient]. Lists are not
// throttled unless cfg sets QPS or RateLimiter. Watches are never throttled. The timeout of cfg is ignored. If cfg has
// no UserAgent, requests have client-go's default one, followed by "/dynamiccontroller".
func NewForConfig(log logr.Logger, config Config, cfg *rest.Config, opts ...Option) (*DynamicController, error) {
	if cfg == nil {
		return nil, errNilConfig
	}
	cfg = withUserAgent(cfg)
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create an HTTP client: %w", err)
	}
	return NewForConfigAndClient(log, config, cfg, httpClient, opts...)
}

var errNilConfig = invalid(errors.New("cfg must not be nil"))

// withUserAgent returns a copy of cfg with a user agent.
func withUserAgent(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	if cfg.UserAgent == "" {
		rest.AddUserAgent(cfg, "dynamiccontroller")
	}
	return cfg
}

// NewForConfigAndClient is like [NewForConfig], but sends the requests with the given HTTP client, so that clients can
// share connections. The client's transport determines TLS, authentication and the user agent; see
// [rest.HTTPClientFor]. Its Timeout is ignored, because watches last for minutes.
func NewForConfigAndClient(
	log logr.Logger, config Config, cfg *rest.Config, httpClient *http.Client, opts ...Option,
) (*DynamicController, error) {
	switch {
	case cfg == nil:
		return nil, errNilConfig
	case httpClient == nil:
		return nil, invalid(errors.New("the HTTP client must not be nil"))
	}
	cfg = withUserAgent(cfg)
	if cfg.QPS == 0 && cfg.RateLimiter == nil {
		cfg.QPS = -1
	}
	source, err := recordclient.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("create a REST client: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("find out the URL of the API server: %w", err)
	}
	withSource := func(s *settings) { s.source, s.server = source, writes.ServerOf(base) }
	c := NewDynamicController(log, config, nil, append(opts[:len(opts):len(opts)], withSource)...)
	return c, c.configErr
}

// errNoRun is logged for objects of types that no run serves.
var errNoRun = errors.New("no run serves the type")

// Enqueue adds objects to the queue, even if they are not in the cache. They are reconciled after the type has
// synced. Objects of types that are not served, or that no run serves, are ignored and logged at V(1). The next run
// reconciles all objects in the cache. A malformed key is ignored, logged and counted in [TypeStatus].MalformedKeys.
func (c *DynamicController) Enqueue(ids ...ObjectIdentifiers) { c.EnqueueAfter(0, ids...) }

// EnqueueAfter is like [DynamicController.Enqueue], but adds each object after the given delay. The delay counts from
// the call. A delay that is not positive means immediately. If an object already has a delay, for example from
// [RequeueAfter], the one that expires first applies. If it is already waiting because of an event, or is reconciled
// before the delay has expired, the delay is cancelled, unless the type is served with [KeepRequeues]. Delays end with
// the run: the next one reconciles all objects in the cache, and those that were delayed.
func (c *DynamicController) EnqueueAfter(delay time.Duration, ids ...ObjectIdentifiers) {
	for _, id := range ids {
		reg, err := c.registry.registrationOf(id.GVR)
		if err != nil {
			c.log.V(1).Info("Object not enqueued", keyObject, id.String(), keyError, err.Error())
			continue
		}
		key, err := normalizeKey(id.NamespacedKey)
		if err != nil {
			reg.ignoreMalformedKey("Enqueue", id.NamespacedKey, err)
			continue
		}
		if !reg.group.Because(because(CauseEnqueue)).AddAfter(key, delay) {
			c.log.V(1).Info("Object not enqueued", keyObject, id.String(), keyError, errNoRun.Error())
		}
	}
}

// QueueLen returns the number of objects of all types that are waiting in the queue. It does not count delayed objects
// and running handlers. Its cost does not depend on the number of types and objects.
func (c *DynamicController) QueueLen() int { return c.queue.Len() }

// WatchCount returns the number of watches of served, owned and watched types, including those that are being replaced.
// A watch that several types share counts once. A watch of n namespaces sends n watch requests.
func (c *DynamicController) WatchCount() int { return c.pool.Len() }
