// Package tracing identifies reconciles in the log and records them as OpenTelemetry spans.
//
// [NewLogger] and [Identify] add an ID and the term to each log line of a reconcile. A [Tracer] exports one span for
// each sampled reconcile, with a child span for each request to the API server. Spans contain the names of objects, but
// not their contents. Without a Tracer, handlers and transports are not wrapped.
package tracing
