package main

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// clientMetrics exports metrics of client-go with the names that Kubernetes components use.
type clientMetrics struct {
	requests, retries  *prometheus.CounterVec
	latency, throttled *prometheus.HistogramVec
	leading            *prometheus.GaugeVec
	slowpath           *prometheus.CounterVec
}

// newClientMetrics returns metrics of all clients and elections that the process creates afterwards. The caller must
// register them. It must be called once, because client-go ignores later calls.
func newClientMetrics() *clientMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		buckets := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60} // as in Kubernetes components
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
			[]string{"verb", "host"})
	}
	m := &clientMetrics{
		requests: counter("rest_client_requests_total", "Number of requests to the API server, by status code, method and "+
			"host.", "code", "method", "host"),
		retries: counter("rest_client_request_retries_total", "Number of retried requests to the API server, by status "+
			"code, verb and host.", "code", "verb", "host"),
		latency: histogram("rest_client_request_duration_seconds", "Duration of requests to the API server, by verb and "+
			"host."),
		throttled: histogram("rest_client_rate_limiter_duration_seconds", "How long requests waited for the rate limiter of "+
			"the client, by verb and host."),
		leading: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "leader_election_master_status",
			Help: "The value is 1 if this replica holds the Lease, and 0 otherwise."}, []string{"name"}),
		slowpath: counter("leader_election_slowpath_total", "Number of renewals that had to read the Lease first.", "name"),
	}
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestLatency: latencyMetric{m.latency}, RateLimiterLatency: latencyMetric{m.throttled},
		RequestResult: m, RequestRetry: m,
	})
	leaderelection.SetProvider(m)
	return m
}

func (m *clientMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.retries, m.latency, m.throttled, m.leading, m.slowpath}
}

// Increment implements [clientmetrics.ResultMetric].
func (m *clientMetrics) Increment(_ context.Context, code, method, host string) {
	m.requests.WithLabelValues(code, method, host).Inc()
}

// IncrementRetry implements [clientmetrics.RetryMetric].
func (m *clientMetrics) IncrementRetry(_ context.Context, code, verb, host string) {
	m.retries.WithLabelValues(code, verb, host).Inc()
}

// NewLeaderMetric implements [leaderelection.MetricsProvider].
func (m *clientMetrics) NewLeaderMetric() leaderelection.LeaderMetric { return m }

// On implements [leaderelection.LeaderMetric].
func (m *clientMetrics) On(name string) { m.leading.WithLabelValues(name).Set(1) }

// Off implements [leaderelection.LeaderMetric].
func (m *clientMetrics) Off(name string) { m.leading.WithLabelValues(name).Set(0) }

// SlowpathExercised implements [leaderelection.LeaderMetric].
func (m *clientMetrics) SlowpathExercised(name string) { m.slowpath.WithLabelValues(name).Inc() }

// latencyMetric implements [clientmetrics.LatencyMetric].
type latencyMetric struct{ *prometheus.HistogramVec }

func (m latencyMetric) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	m.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}
