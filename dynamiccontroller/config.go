package dynamiccontroller

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/resync"
)

// Config configures a DynamicController. The zero value is usable: each field that is zero gets its default value. To
// disable retries, return [Terminal] errors from handlers.
type Config struct {
	// Workers is the number of handlers that can run at the same time, for all types together. Defaults to 10.
	Workers int
	// ResyncPeriod is how often each object is reconciled without an event. The resyncs of a type are spread evenly
	// over the period. It must be at least a second. Defaults to 10 hours. A negative period disables resyncs.
	ResyncPeriod time.Duration
	// QueueMaxRetries is the number of consecutive failures after which an object is parked. Defaults to 20, which
	// takes about 40 minutes with the default delays. A negative number disables parking.
	QueueMaxRetries int
	// ShutdownTimeout is how long Run waits for running handlers after its context has been cancelled. If the handlers
	// use up the timeout, Run then waits for the watches to end, for up to another second or for ShutdownTimeout if
	// that is shorter. Defaults to 20 seconds, which is less than the 30 seconds that Kubernetes gives a terminating
	// Pod.
	ShutdownTimeout time.Duration
	// MinRetryDelay is the delay before the first retry of a failed reconcile. It doubles with each further consecutive
	// failure, up to MaxRetryDelay. Random jitter adds up to half of the delay. A delay that has reached the maximum is
	// instead shortened by up to a quarter. Defaults to 50 milliseconds.
	MinRetryDelay time.Duration
	// MaxRetryDelay is the longest delay before a retry. Defaults to 5 minutes.
	MaxRetryDelay time.Duration
}

// DefaultConfig returns a Config in which every field has its default value.
func DefaultConfig() Config {
	return Config{
		Workers:         10,
		ResyncPeriod:    10 * time.Hour,
		QueueMaxRetries: 20,
		ShutdownTimeout: 20 * time.Second,
		MinRetryDelay:   50 * time.Millisecond,
		MaxRetryDelay:   5 * time.Minute,
	}
}

// withDefaults sets the fields that are zero to their defaults. If only one of the two retry delays is set, the default
// of the other one is adjusted so that the minimum does not exceed the maximum.
func (c Config) withDefaults() Config {
	defaults := DefaultConfig()
	setDefault(&c.Workers, defaults.Workers)
	setDefault(&c.ResyncPeriod, defaults.ResyncPeriod)
	setDefault(&c.QueueMaxRetries, defaults.QueueMaxRetries)
	setDefault(&c.ShutdownTimeout, defaults.ShutdownTimeout)
	setDefault(&c.MinRetryDelay, min(defaults.MinRetryDelay, orElse(c.MaxRetryDelay, defaults.MaxRetryDelay)))
	setDefault(&c.MaxRetryDelay, max(defaults.MaxRetryDelay, c.MinRetryDelay))
	return c
}

func setDefault[T comparable](field *T, value T) { *field = orElse(*field, value) }

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// validate returns an error for each invalid field.
func (c Config) validate() error {
	var errs []error
	refuse := func(field string, value any, why string) {
		errs = append(errs, fmt.Errorf("invalid Config.%s %v: %s", field, value, why))
	}
	if c.Workers < 0 {
		refuse("Workers", c.Workers, "must not be negative")
	}
	if c.ResyncPeriod > 0 && c.ResyncPeriod < resync.MinPeriod {
		refuse("ResyncPeriod", c.ResyncPeriod, fmt.Sprintf("must be at least %s, or negative to disable resyncs", resync.MinPeriod))
	}
	if c.ShutdownTimeout < 0 {
		refuse("ShutdownTimeout", c.ShutdownTimeout, "must not be negative")
	}
	switch {
	case c.MaxRetryDelay < 0:
		refuse("MaxRetryDelay", c.MaxRetryDelay, "must not be negative")
	case c.MinRetryDelay < 0:
		refuse("MinRetryDelay", c.MinRetryDelay, "must not be negative")
	case c.MinRetryDelay > c.MaxRetryDelay:
		refuse("MinRetryDelay", c.MinRetryDelay, fmt.Sprintf("must not exceed MaxRetryDelay, which is %s", c.MaxRetryDelay))
	}
	return errors.Join(errs...)
}

// Option is an option for [NewDynamicController] and [NewForConfig].
type Option func(*DynamicController)

// WithMetadataClient sets the metadata client, which watches with [CacheMetadata] and [CacheKeys] require.
// [NewForConfig] creates this client itself.
func WithMetadataClient(client metadata.Interface) Option {
	return func(c *DynamicController) { c.clients.Metadata = client }
}

// TypeEvents subscribes the function notify to changes in the set of types that the API server serves. It calls notify
// whenever the API server starts or stops serving a type. Calls to notify must not overlap. The returned function
// cancel, which can be nil, ends the subscription. It must not return while a call to notify is running. A type must
// not be reported as no longer served before its CRD has been deleted or discovery no longer lists it. A NotFound
// response alone is not sufficient, because the API server can lag behind.
type TypeEvents func(notify func(gvr schema.GroupVersionResource, served bool)) (cancel func())

// WithTypeEvents subscribes the controller to type events, for example those of a REST mapper, while watches are
// running. When a type is reported as served, its watch is retried immediately. Without the event, the next retry could
// be up to 30 seconds away. When it is reported as no longer served, each object in its cache is reconciled one last
// time.
func WithTypeEvents(events TypeEvents) Option {
	return func(c *DynamicController) { c.typeEvents = events }
}

// WithMetrics sets the receiver of the controller's metrics. By default, and if m is nil, nothing is reported.
func WithMetrics(m Metrics) Option {
	return func(c *DynamicController) {
		if m == nil {
			m = noMetrics{}
		}
		c.metrics = m
	}
}

// WithDefaultTransform sets a transform for the objects of all types: those of the served types, and those of the types
// that [Owns] and [Watches] watch. It is applied before a transform that was set with [WithTransform], and must meet
// the same requirements. Watches remain shared, because they all have the same default transform.
func WithDefaultTransform(f cache.TransformFunc) Option {
	return func(c *DynamicController) { c.defaultTransform = f }
}

// Metrics receives the controller's measurements. Its methods are called concurrently and must return quickly. Values
// that can be polled are in [DynamicController.Status]. Package metrics implements Metrics for Prometheus.
type Metrics interface {
	// Reconciled is called after each call to a handler.
	Reconciled(gvr schema.GroupVersionResource, outcome Outcome, took time.Duration)
	// Forget is called when a type is no longer served. Reconciled is not called for the type until it is served again.
	Forget(gvr schema.GroupVersionResource)
}

type noMetrics struct{}

func (noMetrics) Reconciled(schema.GroupVersionResource, Outcome, time.Duration) {}
func (noMetrics) Forget(schema.GroupVersionResource)                             {}

// Keys of log entries.
const (
	keyGVR      = "gvr"
	keyObject   = "object"
	keyKey      = "key"
	keySource   = "source"
	keyError    = "error"
	keyFailures = "failures"
	keyState    = "state"
	keyMessage  = "message"
	keyStack    = "stack"
	keyWorkers  = "workers"
	keyWatched  = "watched"
)
