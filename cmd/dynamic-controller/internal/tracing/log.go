package tracing

import (
	"slices"

	"github.com/go-logr/logr"
)

// Keys for log messages.
const (
	keyReconcileID = "reconcileID"
	keyTerm        = "term"
	keyTraceID     = "traceID"
)

// NewLogger returns a logger for the engines. It adds the values that [Identify] sets to the log lines of a reconcile.
func NewLogger(log logr.Logger) logr.Logger {
	inner := log.GetSink()
	if deeper, ok := inner.(logr.CallDepthLogSink); ok {
		inner = deeper.WithCallDepth(1) // skip the methods of sink
	}
	return log.WithSink(&sink{LogSink: inner})
}

// sink is a LogSink that adds the values of a reconcile to each line. The engine creates a logger for each reconcile,
// uses it for messages about the outcome, and passes it to the handler in the context. Identify sets the reconcile of
// this logger's sink. A sink must not be used concurrently until then.
type sink struct {
	logr.LogSink
	reconcile reconcile
}

// Init does nothing, because the wrapped sink has been initialized.
func (s *sink) Init(logr.RuntimeInfo) {}

func (s *sink) Info(level int, msg string, keysAndValues ...any) {
	s.LogSink.Info(level, msg, s.reconcile.appendTo(keysAndValues)...)
}

func (s *sink) Error(err error, msg string, keysAndValues ...any) {
	s.LogSink.Error(err, msg, s.reconcile.appendTo(keysAndValues)...)
}

func (s *sink) WithValues(keysAndValues ...any) logr.LogSink {
	return &sink{s.LogSink.WithValues(keysAndValues...), s.reconcile}
}

func (s *sink) WithName(name string) logr.LogSink {
	return &sink{s.LogSink.WithName(name), s.reconcile}
}

// WithCallDepth implements [logr.CallDepthLogSink].
func (s *sink) WithCallDepth(depth int) logr.LogSink {
	if deeper, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return &sink{deeper.WithCallDepth(depth), s.reconcile}
	}
	return s
}

// appendTo appends the keys and values of the reconcile.
func (r reconcile) appendTo(keysAndValues []any) []any {
	if r.id == 0 {
		return keysAndValues
	}
	keysAndValues = append(slices.Clip(keysAndValues), keyReconcileID, r.ID())
	if r.term > 0 {
		keysAndValues = append(keysAndValues, keyTerm, r.term)
	}
	if r.span.IsSampled() {
		keysAndValues = append(keysAndValues, keyTraceID, r.span.TraceID().String())
	}
	return keysAndValues
}
