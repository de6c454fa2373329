package dynamiccontroller

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// Config tunes a DynamicController. The zero value works. As zero stands for a default, there is no way to ask for no
// retries at all, for which [Terminal] is there, or for no time to shut down in.
type Config struct {
	// Workers is the number of reconciling goroutines: how many handlers run at once over all types. Defaults to 10.
	Workers int
	// ResyncPeriod is about how often every known object is reconciled though nothing happened to it. The resyncs of a
	// type are spread evenly over the period. At least a second; defaults to 10 hours; a negative period is never.
	ResyncPeriod time.Duration
	// QueueMaxRetries is after how many failures in a row an object is parked. Defaults to 20, which with the default
	// delays is after some 40 minutes; a negative number is never.
	QueueMaxRetries int
	// ShutdownTimeout is how long Run waits for running handlers when its context ends. Defaults to 20 seconds, below
	// the 30 that Kubernetes gives a terminating Pod.
	ShutdownTimeout time.Duration
	// MinRetryDelay is the wait before the first retry of a failed reconcile; it doubles with each further failure in
	// a row, up to MaxRetryDelay. Up to half of the wait is added as jitter, and at the longest up to a quarter taken
	// off. Defaults to 50 milliseconds.
	MinRetryDelay time.Duration
	// MaxRetryDelay is the longest wait before a retry. Defaults to 5 minutes.
	MaxRetryDelay time.Duration
}

// DefaultConfig is what a zero Config stands for.
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

// withDefaults fills in what is zero. A delay that is given moves the default of the other.
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

// validate says everything that is wrong, by field.
func (c Config) validate() error {
	var errs []error
	refuse := func(field string, value any, why string) {
		errs = append(errs, fmt.Errorf("invalid Config.%s %v: %s", field, value, why))
	}
	if c.Workers < 0 {
		refuse("Workers", c.Workers, "must not be negative")
	}
	if c.ResyncPeriod > 0 && c.ResyncPeriod < shortestResyncPeriod {
		refuse("ResyncPeriod", c.ResyncPeriod, fmt.Sprintf("must be at least %s, or negative for never", shortestResyncPeriod))
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
		refuse("MinRetryDelay", c.MinRetryDelay, fmt.Sprintf("must not be above MaxRetryDelay, which is %s", c.MaxRetryDelay))
	}
	return errors.Join(errs...)
}

// Option is an optional part of a DynamicController.
type Option func(*DynamicController)

// WithMetadataClient gives the client for [CacheMetadata] and [CacheKeys]. [NewForConfig] makes one.
func WithMetadataClient(client metadata.Interface) Option {
	return func(c *DynamicController) { c.clients.Metadata = client }
}

// TypeEvents calls tell whenever the API server starts (served) or stops serving a type, one call at a time. Cancel, which
// can be nil, ends the calls and returns when no call is running. A type must be reported as no longer served only after its CRD
// has been deleted or discovery no longer lists it. A NotFound alone is not sufficient, because the API server may lag behind.
type TypeEvents func(tell func(gvr schema.GroupVersionResource, served bool)) (cancel func())

// WithTypeEvents makes the controller hear from events, a REST mapper's for instance, which types there are. A served type
// whose watch waits because the API server did not know it is then watched at once, instead of after up to 30 seconds;
// and one that is gone gets a last reconcile for each object that the cache held. They are heard while watches run.
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
