package tracing

import (
	"net/http"
	"slices"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"
	componenttracing "k8s.io/component-base/tracing"
)

// Wrap makes clients with cfg, or with a copy of it, record a span for each request in a sampled reconcile. Other
// requests, such as watches and those for the Lease, have no spans. For a nil Tracer, it does not change cfg.
func (t *Tracer) Wrap(cfg *rest.Config) {
	if t == nil {
		return
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &transport{next: next, traced: componenttracing.WrapperFor(t.provider)(&annotator{next})}
	})
}

// transport records spans for requests whose context has a sampled span.
type transport struct{ next, traced http.RoundTripper }

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace.SpanContextFromContext(r.Context()).IsSampled() {
		return t.traced.RoundTrip(r)
	}
	return t.next.RoundTrip(r)
}

// WrappedRoundTripper returns the wrapped transport, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// annotator changes the name and the attributes of the span of a request. The original URL includes the query, which
// can expose field values of an instance in a selector.
type annotator struct{ next http.RoundTripper }

func (a *annotator) RoundTrip(r *http.Request) (*http.Response, error) {
	span := trace.SpanFromContext(r.Context())
	u := *r.URL
	u.RawQuery, u.User = "", nil
	template := templateOf(u.Path)
	span.SetName(r.Method + " " + template)
	span.SetAttributes(semconv.URLFull(u.String()), semconv.URLTemplate(template))
	return a.next.RoundTrip(r)
}

// templateOf returns the path of a request with placeholders for namespaces and names.
func templateOf(path string) string {
	parts := strings.Split(path, "/")
	first := slices.IndexFunc(parts, func(part string) bool { return part == "api" || part == "apis" })
	if first < 0 {
		return path
	}
	at := first + 2 // the version follows api
	if parts[first] == "apis" {
		at++ // the group and the version follow apis
	}
	if len(parts) > at+2 && parts[at] == "namespaces" {
		parts[at+1] = "{namespace}"
		at += 2
	}
	if len(parts) > at+1 {
		parts[at+1] = "{name}"
	}
	return strings.Join(parts, "/")
}
