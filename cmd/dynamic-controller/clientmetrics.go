package main

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
)

// clientMetrics exports metrics of client-go with the names that Kubernetes components use.
type clientMetrics struct {
	requests, retries  *prometheus.CounterVec
	latency, throttled *prometheus.HistogramVec
}

// newClientMetrics returns metrics of all clients that the process creates afterwards. The caller must register them.
// It must be called once, because client-go ignores later calls.
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
	}
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestLatency: latencyMetric{m.latency}, RateLimiterLatency: latencyMetric{m.throttled},
		RequestResult: m, RequestRetry: m,
	})
	return m
}

func (m *clientMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.retries, m.latency, m.throttled}
}

// Increment implements [clientmetrics.ResultMetric].
func (m *clientMetrics) Increment(_ context.Context, code, method, host string) {
	m.requests.WithLabelValues(code, method, host).Inc()
}

// IncrementRetry implements [clientmetrics.RetryMetric].
func (m *clientMetrics) IncrementRetry(_ context.Context, code, verb, host string) {
	m.retries.WithLabelValues(code, verb, host).Inc()
}

// newLeaseMetric returns a metric that is 1 while the replica leads. It has the name that Kubernetes components use.
func newLeaseMetric(r metrics.Replica, lease string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "leader_election_master_status", Help: "The value is 1 if this replica leads, and 0 otherwise.",
		ConstLabels: prometheus.Labels{"name": lease},
	}, func() float64 {
		if r.Status().Leading {
			return 1
		}
		return 0
	})
}

// latencyMetric implements [clientmetrics.LatencyMetric].
type latencyMetric struct{ *prometheus.HistogramVec }

func (m latencyMetric) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	m.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}
