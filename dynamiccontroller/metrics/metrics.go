package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

const namespace = "dynamiccontroller"

// Option is an option for [NewReconciles] and [NewStatus].
type Option func(*options)

type options struct{ withoutTypeLabels bool }

// WithoutTypeLabels removes the labels group, version and resource, and adds up the values of all types. The number of
// series then does not depend on the number of types. queue_oldest_seconds is the maximum over all types.
func WithoutTypeLabels() Option {
	return func(o *options) { o.withoutTypeLabels = true }
}

func newOptions(opts []Option) (o options) {
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// labels returns the label names of a metric.
func (o options) labels(more ...string) []string {
	if o.withoutTypeLabels {
		return more
	}
	return append([]string{"group", "version", "resource"}, more...)
}

// values returns the label values of a metric.
func (o options) values(gvr schema.GroupVersionResource, more ...string) []string {
	if o.withoutTypeLabels {
		return more
	}
	return append([]string{gvr.Group, gvr.Version, gvr.Resource}, more...)
}

// Reconciles counts reconciles, their causes, and those that began although a cache lacked a write of the last one. It
// measures the duration of reconciles, the time that objects wait in the queue, and the time until watches have synced.
// It implements both [dynamiccontroller.Metrics], which [dynamiccontroller.WithMetrics] accepts, and
// [prometheus.Collector].
type Reconciles struct {
	dynamiccontroller.NoMetrics
	options  options
	total    *prometheus.CounterVec
	causes   *prometheus.CounterVec
	lags     *prometheus.CounterVec
	duration *prometheus.HistogramVec
	queued   *prometheus.HistogramVec
	syncs    prometheus.Histogram
}

var (
	_ dynamiccontroller.Metrics = (*Reconciles)(nil)
	_ prometheus.Collector      = (*Reconciles)(nil)
)

// NewReconciles returns new, unregistered metrics. The caller must register them.
func NewReconciles(opts ...Option) *Reconciles {
	o := newOptions(opts)
	return &Reconciles{
		options: o,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "reconciles_total", Help: "Number of reconciles, by outcome.",
		}, o.labels("outcome")),
		causes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "reconcile_causes_total",
			Help: "Number of reconciles, by cause. A reconcile with several causes counts for each of them.",
		}, o.labels("cause")),
		lags: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "write_lags_total",
			Help: "Number of times that an object was reconciled again although a cache lacked a write of its last reconcile.",
		}, o.labels()),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "reconcile_duration_seconds", Help: "Duration of reconciles.",
			// From 100 microseconds, for a reconcile that finds nothing to do, to 5 minutes, the default timeout.
			Buckets: prometheus.ExponentialBucketsRange(0.0001, 300, 14),
		}, o.labels()),
		queued: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "queue_duration_seconds",
			Help: "Time that objects waited in the queue, excluding the delay of a retry or requeue.",
			// From 1 millisecond, which is longer than an idle worker takes, to 5 minutes.
			Buckets: prometheus.ExponentialBucketsRange(0.001, 300, 8),
		}, o.labels()),
		syncs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "sync_duration_seconds",
			Help: "Time until a watch has synced, after it has started or its cache has been out of date.",
			// From 10 milliseconds, for a few objects, to an hour, for an API server that was not available.
			Buckets: prometheus.ExponentialBucketsRange(0.01, 3600, 10),
		}),
	}
}

// Reconciled implements [dynamiccontroller.Metrics].
func (r *Reconciles) Reconciled(done dynamiccontroller.Reconcile) {
	labels := r.options.values(done.GVR)
	r.total.WithLabelValues(r.options.values(done.GVR, string(done.Outcome))...).Inc()
	for kind := range done.Cause.Kinds() {
		r.causes.WithLabelValues(r.options.values(done.GVR, kind.String())...).Inc()
	}
	r.duration.WithLabelValues(labels...).Observe(done.Took.Seconds())
	r.queued.WithLabelValues(labels...).Observe(done.Queued.Seconds())
	r.lags.WithLabelValues(labels...) // zero until WriteLagged is called
}

// Synced implements [dynamiccontroller.Metrics].
func (r *Reconciles) Synced(done dynamiccontroller.Sync) { r.syncs.Observe(done.Took.Seconds()) }

// WriteLagged implements [dynamiccontroller.Metrics].
func (r *Reconciles) WriteLagged(gvr schema.GroupVersionResource) {
	r.lags.WithLabelValues(r.options.values(gvr)...).Inc()
}

// Forget implements [dynamiccontroller.Metrics].
func (r *Reconciles) Forget(gvr schema.GroupVersionResource) {
	if r.options.withoutTypeLabels {
		return // counters must not decrease
	}
	of := prometheus.Labels{"group": gvr.Group, "version": gvr.Version, "resource": gvr.Resource}
	r.total.DeletePartialMatch(of)
	r.causes.DeletePartialMatch(of)
	r.lags.DeletePartialMatch(of)
	r.duration.DeletePartialMatch(of)
	r.queued.DeletePartialMatch(of)
}

// Describe implements [prometheus.Collector].
func (r *Reconciles) Describe(to chan<- *prometheus.Desc) {
	r.total.Describe(to)
	r.causes.Describe(to)
	r.lags.Describe(to)
	r.duration.Describe(to)
	r.queued.Describe(to)
	r.syncs.Describe(to)
}

// Collect implements [prometheus.Collector].
func (r *Reconciles) Collect(to chan<- prometheus.Metric) {
	r.total.Collect(to)
	r.causes.Collect(to)
	r.lags.Collect(to)
	r.duration.Collect(to)
	r.queued.Collect(to)
	r.syncs.Collect(to)
}
