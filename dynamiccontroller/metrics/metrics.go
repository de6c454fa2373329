package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

const namespace = "dynamic_controller"

// typeLabels are the labels that all metrics have. The function labelsOf returns their values for a type.
var typeLabels = []string{"group", "version", "resource"}

func labelsOf(gvr schema.GroupVersionResource, more ...string) []string {
	return append([]string{gvr.Group, gvr.Version, gvr.Resource}, more...)
}

// Reconciles counts reconciles and measures their duration. It implements both [dynamiccontroller.Metrics], which
// [dynamiccontroller.WithMetrics] accepts, and [prometheus.Collector].
type Reconciles struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

var (
	_ dynamiccontroller.Metrics = (*Reconciles)(nil)
	_ prometheus.Collector      = (*Reconciles)(nil)
)

// NewReconciles returns new metrics. The caller must register them.
func NewReconciles() *Reconciles {
	return &Reconciles{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "reconciles_total", Help: "Number of reconciles, by outcome.",
		}, append(typeLabels, "outcome")),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "reconcile_duration_seconds", Help: "Duration of reconciles.",
			// From 100 microseconds, for a reconcile that finds nothing to do, to 5 minutes, the default timeout.
			Buckets: prometheus.ExponentialBucketsRange(0.0001, 300, 14),
		}, typeLabels),
	}
}

// Reconciled implements [dynamiccontroller.Metrics].
func (r *Reconciles) Reconciled(
	gvr schema.GroupVersionResource, outcome dynamiccontroller.Outcome, took time.Duration,
) {
	r.total.WithLabelValues(labelsOf(gvr, string(outcome))...).Inc()
	r.duration.WithLabelValues(labelsOf(gvr)...).Observe(took.Seconds())
}

// Forget implements [dynamiccontroller.Metrics].
func (r *Reconciles) Forget(gvr schema.GroupVersionResource) {
	of := prometheus.Labels{"group": gvr.Group, "version": gvr.Version, "resource": gvr.Resource}
	r.total.DeletePartialMatch(of)
	r.duration.DeletePartialMatch(of)
}

// Describe implements [prometheus.Collector].
func (r *Reconciles) Describe(to chan<- *prometheus.Desc) {
	r.total.Describe(to)
	r.duration.Describe(to)
}

// Collect implements [prometheus.Collector].
func (r *Reconciles) Collect(to chan<- prometheus.Metric) {
	r.total.Collect(to)
	r.duration.Collect(to)
}

// Controller provides the status of the served types. *dynamiccontroller.DynamicController implements it.
type Controller interface {
	Status() []dynamiccontroller.TypeStatus
}

// NewStatus returns a collector that reads the status of the controller on each scrape.
func NewStatus(controller Controller) prometheus.Collector { return status{controller} }

type status struct{ controller Controller }

func gauge(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, append(typeLabels, more...), nil)
}

var (
	objects = gauge("objects", "Number of objects in the cache.")
	bytes   = gauge("cache_bytes", "Approximate memory used by the objects in the cache.")
	waiting = gauge("queue_items", "Number of objects in the queue, by lane: live, background or delayed.", "lane")
	oldest  = gauge("queue_oldest_seconds", "How long the object at the head of the queue has waited.")
	running = gauge("handlers_running", "Number of running handlers.")
	failing = gauge("objects_failing", "Number of objects whose last reconcile failed and will be retried.")
	parked  = gauge("objects_parked", "Number of objects that are not retried until their next event.")
	state   = gauge("type_state", "The value is 1 for the current state of the type.", "state")
)

// Describe implements [prometheus.Collector].
func (s status) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{objects, bytes, waiting, oldest, running, failing, parked, state} {
		to <- desc
	}
}

// Collect implements [prometheus.Collector].
func (s status) Collect(to chan<- prometheus.Metric) {
	for _, t := range s.controller.Status() {
		set := func(desc *prometheus.Desc, value float64, more ...string) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labelsOf(t.GVR, more...)...)
		}
		set(objects, float64(t.Objects))
		set(bytes, float64(t.Bytes))
		set(waiting, float64(t.Live), "live")
		set(waiting, float64(t.Background), "background")
		set(waiting, float64(t.Delayed), "delayed")
		set(oldest, t.Oldest.Seconds())
		set(running, float64(t.Running))
		set(failing, float64(t.Failing))
		set(parked, float64(t.Parked))
		set(state, 1, string(t.State))
	}
}
