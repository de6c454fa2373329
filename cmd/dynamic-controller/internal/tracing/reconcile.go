package tracing

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/trace"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// reconcile identifies a call to a handler.
type reconcile struct {
	id   uint64 // 0 outside of reconciles
	term int64  // 0 if the engine also runs on standby replicas
	span trace.SpanContext
}

var (
	reconciles atomic.Uint64 // the number of reconciles in this process
	// process distinguishes the reconciles of different processes.
	process = utilrand.String(idLength)
)

const idLength = 8

// ID returns a string that is unique across replicas and restarts.
func (r reconcile) ID() string { return process + "-" + strconv.FormatUint(r.id, 10) }

// Identify adds an ID, and the term if term is not nil, to all log lines of a reconcile. It requires an engine with a
// logger from [NewLogger].
func Identify(term func() int64) handlers.Middleware {
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if s := sinkOf(ctx); s != nil {
				s.reconcile.id = reconciles.Add(1)
				if term != nil {
					s.reconcile.term = term()
				}
			}
			return handler(ctx, id)
		}
	}
}

// sinkOf returns the sink of the logger in the context, or nil if it is not from [NewLogger].
func sinkOf(ctx context.Context) *sink {
	s, _ := logr.FromContextOrDiscard(ctx).GetSink().(*sink)
	return s
}
