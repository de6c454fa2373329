package main

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/component-base/featuregate"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/restmapper"
)

// newRegistry returns a registry with all metrics of the process.
func newRegistry(
	e *engines, r *replica.Replica, p *acceptance.Controller, clients *clientMetrics,
	features featuregate.MutableFeatureGate, kubernetes serverVersion,
) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(e.metrics...)
	registry.MustRegister(clients.collectors()...)
	registry.MustRegister(
		metrics.NewLeadership(r), blueprintStates(p.States), newOutlivingMetric(p.Outliving),
		&mapperMetrics{e.mapper, e.kinds.Load}, newVersionMetric(),
		kubernetes.metric(), featureMetric{features}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("dynamiccontroller_"+name, help, labels, nil)
}

func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// blueprintStates exports the number of Blueprints in each state.
type blueprintStates func() map[acceptance.State]int

var descBlueprints = newDesc("blueprints",
	"Number of Blueprints, by state: Served, Waiting, Unknown, Rejected or Deleting.", "state")

// Describe implements [prometheus.Collector].
func (s blueprintStates) Describe(to chan<- *prometheus.Desc) { to <- descBlueprints }

// Collect implements [prometheus.Collector].
func (s blueprintStates) Collect(to chan<- prometheus.Metric) {
	for state, n := range s() {
		to <- gauge(descBlueprints, float64(n), string(state))
	}
}

// newOutlivingMetric returns a metric with the number of children of instances that no longer exist.
func newOutlivingMetric(count func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dynamiccontroller_outliving_children",
		Help: "Number of children of instances that no longer exist, which Kubernetes does not delete.",
	}, func() float64 { return float64(count()) })
}

// mapperMetrics exports the state of a REST mapper.
type mapperMetrics struct {
	mapper interface{ Errors() []restmapper.Error }
	kinds  func() int64
}

var (
	descKinds = newDesc("mapper_kinds", "Number of kinds that the REST mapper has mapped.")
	descLag   = newDesc("mapper_lag_seconds", "How long requests for the kinds of the cluster have been failing, by "+
		"source: CRDs, APIServices or Discovery. The value is 0 if they succeed.", "source")
)

// Describe implements [prometheus.Collector].
func (m *mapperMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- descKinds
	to <- descLag
}

// Collect implements [prometheus.Collector].
func (m *mapperMetrics) Collect(to chan<- prometheus.Metric) {
	lags := map[restmapper.Source]time.Duration{
		restmapper.SourceCRDs: 0, restmapper.SourceAPIServices: 0, restmapper.SourceDiscovery: 0,
	}
	for _, err := range m.mapper.Errors() {
		lags[err.Source] = max(lags[err.Source], time.Since(err.Since))
	}
	for source, lag := range lags {
		to <- gauge(descLag, lag.Seconds(), string(source))
	}
	to <- gauge(descKinds, float64(m.kinds()))
}

// newVersionMetric returns a metric with the version of the program in its labels.
func newVersionMetric() prometheus.Collector {
	info := ownBuildInfo()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dynamiccontroller_build_info", Help: "The value is 1. The labels contain the version of the program.",
		ConstLabels: prometheus.Labels{
			"version": info.Version, "revision": cmp.Or(info.Commit, "unknown"), "goversion": info.GoVersion,
		},
	})
	g.Set(1)
	return g
}

// newExpiryMetric returns a metric with the time at which the certificate of the webhook expires.
func newExpiryMetric(expires func() time.Time) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dynamiccontroller_webhook_certificate_expiration_timestamp_seconds",
		Help: "When the webhook's certificate expires, in seconds since 1970. The value is 0 if there is no certificate.",
	}, func() float64 {
		if at := expires(); !at.IsZero() {
			return float64(at.Unix())
		}
		return 0
	})
}
