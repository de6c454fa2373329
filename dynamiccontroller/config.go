package dynamiccontroller

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/resync"
)

// Config configures a DynamicController. A zero field uses its default.
type Config struct {
	// Workers is the maximum number of concurrent handler calls across all types. Defaults to 10.
	Workers int
	// ResyncPeriod is the interval at which each object is reconciled even without events. A type's resyncs are
	// spread evenly over the period. Must be at least a second. Defaults to 10 hours. A negative value disables resyncs.
	ResyncPeriod time.Duration
	// QueueMaxRetries is the number of consecutive retries after which a failing object is parked. Defaults to 20. With
	// the default delays, that takes about 40 minutes. With [NoRetries], an object is parked after its first failure. Any
	// other negative value disables parking.
	QueueMaxRetries int
	// ShutdownTimeout is the maximum time that Run waits for handlers and watches after its context is cancelled. The
	// watches end after the handlers. They have the rest of the time, but at least a second, or another ShutdownTimeout if
	// that is shorter. Run can therefore take up to a second longer. Defaults to 20 seconds, which is within the default
	// grace period of Pods. With a negative value, Run waits without a limit.
	ShutdownTimeout time.Duration
	// MinRetryDelay is the delay before the first retry. The delay doubles with each consecutive failure, up to
	// MaxRetryDelay. Jitter adds up to 50% to each delay, except for the maximum delay, from which it subtracts up to 25%.
	// Defaults to 50 milliseconds.
	MinRetryDelay time.Duration
	// MaxRetryDelay is the maximum delay before a retry. Defaults to 5 minutes.
	MaxRetryDelay time.Duration
	// MaxWriteLag is the maximum time for which an object is not reconciled again because a cache lacks a write of its
	// last reconcile. It is reached when a watch hangs: client-go notices a hung connection after 45 seconds. Defaults to
	// 10 seconds. A negative value disables the wait.
	MaxWriteLag time.Duration
}

// NoRetries is the value of Config.QueueMaxRetries with which an object is parked after its first failure.
const NoRetries = math.MinInt

// maxRetries returns the number of consecutive retries after which an object is parked, or a negative number if there
// is no limit.
func (c Config) maxRetries() int {
	if c.QueueMaxRetries == NoRetries {
		return 0
	}
	return c.QueueMaxRetries
}

// minWatchTimeout is the time that watches have to end, even if handlers have used up ShutdownTimeout.
const minWatchTimeout = time.Second

// watchTimeout returns the time that the watches of a run have to end if its handlers have taken the given time. It is
// negative if there is no limit.
func (c Config) watchTimeout(handlers time.Duration) time.Duration {
	if c.ShutdownTimeout < 0 {
		return c.ShutdownTimeout
	}
	return max(c.ShutdownTimeout-handlers, min(c.ShutdownTimeout, minWatchTimeout))
}

// DefaultConfig returns a Config with every field set to its default.
func DefaultConfig() Config {
	return Config{
		Workers:         10,
		ResyncPeriod:    10 * time.Hour,
		QueueMaxRetries: 20,
		ShutdownTimeout: 20 * time.Second,
		MinRetryDelay:   50 * time.Millisecond,
		MaxRetryDelay:   5 * time.Minute,
		MaxWriteLag:     10 * time.Second,
	}
}

// withDefaults sets zero fields to their defaults. If only one of the retry delays is set, the other is adjusted so
// that the minimum does not exceed the maximum.
func (c Config) withDefaults() Config {
	defaults := DefaultConfig()
	c.Workers = cmp.Or(c.Workers, defaults.Workers)
	c.ResyncPeriod = cmp.Or(c.ResyncPeriod, defaults.ResyncPeriod)
	c.QueueMaxRetries = cmp.Or(c.QueueMaxRetries, defaults.QueueMaxRetries)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, defaults.ShutdownTimeout)
	c.MaxWriteLag = cmp.Or(c.MaxWriteLag, defaults.MaxWriteLag)
	longest := cmp.Or(c.MaxRetryDelay, defaults.MaxRetryDelay)
	c.MinRetryDelay = cmp.Or(c.MinRetryDelay, min(defaults.MinRetryDelay, longest))
	c.MaxRetryDelay = cmp.Or(c.MaxRetryDelay, max(defaults.MaxRetryDelay, c.MinRetryDelay))
	return c
}

// Validate returns an error that lists all invalid fields and wraps [ErrInvalidOptions]. Zero fields are valid.
// [NewForConfig] returns the same error. After [NewDynamicController], Run, RunWatches and StartServingGVK return it.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	for _, rule := range []struct {
		valid bool
		field string
		value any
		text  string
	}{
		{c.Workers >= 0, "Workers", c.Workers, "must not be negative"},
		{c.ResyncPeriod <= 0 || c.ResyncPeriod >= resync.MinPeriod, "ResyncPeriod", c.ResyncPeriod,
			fmt.Sprintf("must be at least %s, or negative to disable resyncs", resync.MinPeriod)},
		{c.MinRetryDelay >= 0, "MinRetryDelay", c.MinRetryDelay, "must not be negative"},
		{c.MaxRetryDelay >= 0, "MaxRetryDelay", c.MaxRetryDelay, "must not be negative"},
		{c.MinRetryDelay <= c.MaxRetryDelay, "MinRetryDelay", c.MinRetryDelay,
			fmt.Sprintf("must not exceed MaxRetryDelay, which is %s", c.MaxRetryDelay)},
	} {
		if !rule.valid {
			errs = append(errs, fmt.Errorf("invalid Config.%s %v: %s", rule.field, rule.value, rule.text))
		}
	}
	return invalid(errors.Join(errs...))
}

// Option is an option for [NewDynamicController] and [NewForConfig].
type Option func(*settings)

// settings holds what options set. Each field can be nil.
type settings struct {
	clients recordclient.Clients
	source  recordclient.Source // same as clients, unless NewForConfig created the controller
	server  string              // see writes.ServerOf; empty unless NewForConfig created the controller
	metrics Metrics
	parked  func(ObjectIdentifiers)

	typeEvents       TypeEvents
	mapper           meta.RESTMapper
	defaultTransform cache.TransformFunc
	reduce           func([]byte) []byte
	watchErrors      func(WatchError)
}

// WithMetadataClient sets the metadata client, which is required for [CacheMetadata] and [CacheKeys]. [NewForConfig]
// does not need this client and ignores it.
func WithMetadataClient(client metadata.Interface) Option {
	return func(s *settings) { s.clients.Metadata = client }
}

// WithRESTMapper sets a mapper that knows the kinds of types. Objects that are decoded as metadata, for example by
// listers with [CacheMetadata], then have the kind of their type. Without a mapper, and if the mapper returns an error,
// they have the kind PartialObjectMetadata, because the API server does not send the kind with metadata. The mapper is
// called each time an object is decoded. It must be safe for concurrent use, and should not send requests, like package
// restmapper. By default, or if mapper is nil, there is no mapper.
func WithRESTMapper(mapper meta.RESTMapper) Option {
	return func(s *settings) { s.mapper = mapper }
}

// TypeEvents calls notify whenever the API server starts or stops serving a type, until cancel is called. Calls to
// notify must not overlap. The cancel function may be nil. If it is not nil, it must not return while notify is
// running. A type may be reported as no longer served only if its CRD has been deleted or discovery no longer lists it.
// A NotFound response is not sufficient, because a lagging API server can return it for a type that is served.
type TypeEvents func(notify func(gvr schema.GroupVersionResource, served bool)) (cancel func())

// WithTypeEvents subscribes the controller to type events, such as those from a REST mapper: the method TypeEvents of a
// restmapper.Mapper can be passed. The subscription lasts while watches are running. When a type is served again, its
// watch is retried immediately instead of after a backoff of up to 30 seconds. When a type is no longer served, each
// object in the type's cache is reconciled once more.
func WithTypeEvents(events TypeEvents) Option {
	return func(s *settings) { s.typeEvents = events }
}

// WithMetrics makes the controller report metrics to m. By default, or if m is nil, no metrics are reported.
func WithMetrics(m Metrics) Option {
	return func(s *settings) { s.metrics = m }
}

// WithParked sets a function that is called each time an object has been parked, for example to notify users. It must
// be safe for concurrent use and return quickly. By default, or if f is nil, no function is called.
func WithParked(f func(id ObjectIdentifiers)) Option {
	return func(s *settings) { s.parked = f }
}

// WithDefaultTransform sets a transform for the objects of all types, including those watched by [Owns] and
// [Watches]. It runs before any transform set by [WithTransform] and must meet the same requirements. It does not
// prevent watches from being shared.
func WithDefaultTransform(f cache.TransformFunc) Option {
	return func(s *settings) { s.defaultTransform = f }
}

// WithReduce sets a function that removes parts of large objects before they are decoded for a transform. Decoding an
// object can take fifty times the memory of its JSON. f receives the JSON of the object and returns it, or the JSON of
// a smaller object with the same namespace and name. It must not modify its argument, and it must be safe for
// concurrent use. If it returns an invalid object, the whole object is decoded. f has no effect on watches without a
// transform.
func WithReduce(f func(object []byte) []byte) Option {
	return func(s *settings) { s.reduce = f }
}

// WithWatchErrors sets a function that receives the errors of watches, like client-go's cache.WatchErrorHandler. It is
// called when the watch of a served, owned or watched type, or that of [DynamicController.StartWatch], enters the state
// [TypeNotFound], [TypeForbidden] or [TypeFailing], and once for a watch that is shared. As in the log, a state that
// equals the last one that was reported for the watch is reported again after ten minutes at the earliest, even if the
// watch has been synced in between, unless it has been stopped. The log also limits the number of lines of all watches
// together; f is not limited in this way. An error that is over within the five seconds for which a watch stays
// [TypeSynced] is not reported; see [WatchStatus].LastProblem.
//
// Calls are made one at a time, in a goroutine of their own and without locks, possibly after Run and RunWatches have
// returned. If f hangs, nothing but later calls waits for it. Of the errors that wait, only the last one of each watch
// is kept. If f panics, the panic is logged. The errors are logged as well. By default, or if f is nil, no function is
// called.
func WithWatchErrors(f func(WatchError)) Option {
	return func(s *settings) { s.watchErrors = f }
}
