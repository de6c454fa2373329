package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

const namespace = "dynamic_controller"

// typeLabels tell a type in every metric, with the values of labelsOf.
var typeLabels = []string{"group", "version", "resource"}

func labelsOf(gvr schema.GroupVersionResource, more ...string) []string {
	return append([]string{gvr.Group, gvr.Version, gvr.Resource}, more...)
}

// Reconciles counts and times the calls of handlers. It is a [dynamiccontroller.Metrics], to be given to a controller
// with WithMetrics, and a [prometheus.Collector].
type Reconciles struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

var (
	_ dynamiccontroller.Metrics = (*Reconciles)(nil)
	_ prometheus.Collector      = (*Reconciles)(nil)
)

// NewReconciles returns metrics that are not registered yet.
func NewReconciles() *Reconciles {
	return &Reconciles{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "reconciles_total", Help: "Calls of handlers, by how they ended.",
		}, append(typeLabels, "outcome")),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "reconcile_duration_seconds", Help: "How long calls of handlers took.",
			// From a reconcile that finds nothing to do, 100 microseconds, to the default timeout, 5 minutes.
			Buckets: prometheus.ExponentialBucketsRange(0.0001, 300, 14),
		}, typeLabels),
	}
}

// Reconciled is called by the controller.
func (r *Reconciles) Reconciled(gvr schema.GroupVersionResource, outcome dynamiccontroller.Outcome, took time.Duration) {
	r.total.WithLabelValues(labelsOf(gvr, string(outcome))...).Inc()
	r.duration.WithLabelValues(labelsOf(gvr)...).Observe(took.Seconds())
}

// Forget is called by the controller.
func (r *Reconciles) Forget(gvr schema.GroupVersionResource) {
	of := prometheus.Labels{"group": gvr.Group, "version": gvr.Version, "resource": gvr.Resource}
	r.total.DeletePartialMatch(of)
	r.duration.DeletePartialMatch(of)
}

// Describe is part of [prometheus.Collector].
func (r *Reconciles) Describe(to chan<- *prometheus.Desc) {
	r.total.Describe(to)
	r.duration.Describe(to)
}

// Collect is part of [prometheus.Collector].
func (r *Reconciles) Collect(to chan<- prometheus.Metric) {
	r.total.Collect(to)
	r.duration.Collect(to)
}

// Controller is what a status is read from: a *dynamiccontroller.DynamicController.
type Controller interface {
	Status() []dynamiccontroller.TypeStatus
}

// NewStatus returns a collector that reads the controller's status whenever it is scraped. It keeps nothing.
func NewStatus(controller Controller) prometheus.Collector { return status{controller} }

type status struct{ controller Controller }

func gauge(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, append(typeLabels, more...), nil)
}

var (
	objects = gauge("objects", "Objects in the cache.")
	waiting = gauge("queue_items", "Objects that wait, by lane: live, background, delayed.", "lane")
	oldest  = gauge("queue_oldest_seconds", "How long the first in line has waited.")
	running = gauge("handlers_running", "Handlers that run.")
	failing = gauge("objects_failing", "Objects whose last reconcile failed and will be retried.")
	parked  = gauge("objects_parked", "Objects that failed too often and wait for something to happen to them.")
	state   = gauge("type_state", "1 for the state that the type is in.", "state")
)

// Describe is part of [prometheus.Collector].
func (s status) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{objects, waiting, oldest, running, failing, parked, state} {
		to <- desc
	}
}

// Collect is part of [prometheus.Collector].
func (s status) Collect(to chan<- prometheus.Metric) {
	for _, t := range s.controller.Status() {
		tell := func(desc *prometheus.Desc, value float64, more ...string) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labelsOf(t.GVR, more...)...)
		}
		tell(objects, float64(t.Objects))
		tell(waiting, float64(t.Live), "live")
		tell(waiting, float64(t.Background), "background")
		tell(waiting, float64(t.Delayed), "delayed")
		tell(oldest, t.Oldest.Seconds())
		tell(running, float64(t.Running))
		tell(failing, float64(t.Failing))
		tell(parked, float64(t.Parked))
		tell(state, 1, string(t.State))
	}
}
