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

// Config configures a DynamicController. The zero value is usable: zero fields have their defaults. To disable retries,
// return [Terminal] errors from handlers.
type Config struct {
	// Workers is the number of handlers that can run at the same time, for all types together. Defaults to 10.
	Workers int
	// ResyncPeriod is how often each object is reconciled without an event. The resyncs of a type are spread evenly
	// over the period. It must be at least a second. Defaults to 10 hours. A negative period disables resyncs.
	ResyncPeriod time.Duration
	// QueueMaxRetries is the number of consecutive failures after which an object is parked. Defaults to 20, which
	// takes about 40 minutes with the default delays. A negative number disables parking.
	QueueMaxRetries int
	// ShutdownTimeout is how long Run waits for running handlers after its context has been cancelled. If they use up
	// the timeout, Run waits for the watches for up to another second, but for no longer than ShutdownTimeout. Defaults
	// to 20 seconds, which is less than the 30 seconds that Kubernetes gives a terminating Pod.
	ShutdownTimeout time.Duration
	// MinRetryDelay is the delay before the first retry of a failed reconcile. It doubles with each further failure
	// in a row, up to MaxRetryDelay. Jitter adds up to half of the delay; at the maximum it subtracts up to a
	// quarter. Defaults to 50 milliseconds.
	MinRetryDelay time.Duration
	// MaxRetryDelay is the longest delay before a retry. Defaults to 5 minutes.
	MaxRetryDelay time.Duration
}

// DefaultConfig returns the defaults of all fields.
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

// withDefaults sets the zero fields. If only one of the retry delays is set, the default of the other one is adjusted
// to it.
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

// Option is an option of [NewDynamicController] and [NewForConfig].
type Option func(*DynamicController)

// WithMetadataClient sets the client for [CacheMetadata] and [CacheKeys]. [NewForConfig] creates one.
func WithMetadataClient(client metadata.Interface) Option {
	return func(c *DynamicController) { c.clients.Metadata = client }
}

// TypeEvents subscribes notify to changes of the types that the API server serves. It calls notify whenever the API
// server starts or stops serving a type, one call at a time. Cancel, which can be nil, ends the subscription and
// returns when no call is running. A type must be reported as no longer served only after its CRD has been deleted or
// discovery no longer lists it. A NotFound alone is not sufficient, because the API server can lag behind.
type TypeEvents func(notify func(gvr schema.GroupVersionResource, served bool)) (cancel func())

// WithTypeEvents subscribes the controller to type events, for example those of a REST mapper, while watches are
// running. When a type is reported as served, its watch is retried at once instead of after up to 30 seconds. When it
// is reported as no longer served, each object in its cache is reconciled one last time.
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

// WithDefaultTransform sets a transform for the objects of all types, primary and secondary. It is applied before the
// transform of [WithTransform] and has the same requirements. Watches remain shared, because they all have the same
// default transform.
func WithDefaultTransform(f cache.TransformFunc) Option {
	return func(c *DynamicController) { c.defaultTransform = f }
}

// Metrics receives the controller's measurements. Its methods are called concurrently and must return quickly. Values
// that can be polled are in [DynamicController.Status]. Package metrics implements Metrics for Prometheus.
type Metrics interface {
	// Reconciled is called after each call of a handler.
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
