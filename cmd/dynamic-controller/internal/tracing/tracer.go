package tracing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	componenttracing "k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// scope is the name of the instrumentation scope, and the prefix of attributes without a semantic convention.
const scope = "dynamiccontroller"

// Attributes of the span of a reconcile, in addition to the semantic conventions.
const (
	attributeController  = attribute.Key(scope + ".controller")
	attributeGroup       = attribute.Key(scope + ".resource.group")
	attributeVersion     = attribute.Key(scope + ".resource.version")
	attributeResource    = attribute.Key(scope + ".resource.name")
	attributeObject      = attribute.Key(scope + ".object.name")
	attributeReconcileID = attribute.Key(scope + ".reconcile.id")
	attributeTerm        = attribute.Key(scope + ".term")
	attributeCauseKinds  = attribute.Key(scope + ".cause.kinds")
	attributeCauseObject = attribute.Key(scope + ".cause.object")
	attributeCauseRetry  = attribute.Key(scope + ".cause.retry")
	attributeOutcome     = attribute.Key(scope + ".outcome")
)

// Values of attributeOutcome.
const (
	outcomeSuccess = "success"
	outcomeRequeue = "requeue"
	outcomeError   = "error"
	outcomePanic   = "panic"
)

// Tracer exports spans to a collector. A nil *Tracer is valid and does nothing.
type Tracer struct {
	provider componenttracing.TracerProvider
	tracer   trace.Tracer
}

// New returns a Tracer, or nil if config is nil. It does not wait for a connection to the collector. The resource of
// all spans has the given name and version of the service, the prefix of reconcile IDs as its instance, and the
// attributes in $OTEL_RESOURCE_ATTRIBUTES. Exporter errors are logged by the Tracer that was created last.
func New(
	ctx context.Context, log logr.Logger, config *tracingapi.TracingConfiguration, name, version string,
) (*Tracer, error) {
	if config == nil {
		return nil, nil
	}
	otel.SetErrorHandler(newErrorLog(log))
	otel.SetLogger(log)
	provider, err := componenttracing.NewProvider(ctx, config, nil, []resource.Option{
		resource.WithAttributes(semconv.ServiceName(name), semconv.ServiceVersion(version),
			semconv.ServiceInstanceID(process)),
		resource.WithFromEnv(),
	})
	if err != nil {
		return nil, fmt.Errorf("configure tracing: %w", err)
	}
	return &Tracer{provider: provider, tracer: provider.Tracer(scope)}, nil
}

// shutdownTimeout is the maximum time to export the remaining spans.
const shutdownTimeout = 3 * time.Second

// Shutdown exports the remaining spans for at most three seconds, and closes the connection to the collector.
func (t *Tracer) Shutdown(log logr.Logger) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		log.Info("Traces lost at shutdown", keyProblem, err.Error())
	}
}

// Middleware records a span for each call to a handler. controller is the name of the engine. For a nil Tracer, it
// returns a middleware that returns the handler itself. It must be used inside [Identify].
func (t *Tracer) Middleware(controller string) handlers.Middleware {
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		if t == nil {
			return handler
		}
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) (err error) {
			ctx, span := t.start(ctx, controller, id)
			outcome := outcomePanic
			defer func() { // runs even if the handler panics or calls runtime.Goexit
				span.SetAttributes(attributeOutcome.String(outcome))
				if outcome == outcomePanic {
					span.SetStatus(codes.Error, "the handler panicked")
				}
				span.End()
			}()
			err = handler(ctx, id)
			outcome = t.outcomeOf(span, err)
			return err
		}
	}
}

// start starts the span of a reconcile.
func (t *Tracer) start(
	ctx context.Context, controller string, id dynamiccontroller.ObjectIdentifiers,
) (context.Context, trace.Span) {
	ctx, span := t.tracer.Start(ctx, "reconcile "+id.GVR.GroupResource().String())
	if !span.IsRecording() {
		return ctx, span
	}
	span.SetAttributes(
		attributeController.String(controller), attributeGroup.String(id.GVR.Group),
		attributeVersion.String(id.GVR.Version), attributeResource.String(id.GVR.Resource),
		attributeObject.String(id.Name()),
	)
	if namespace := id.Namespace(); namespace != "" {
		span.SetAttributes(semconv.K8SNamespaceName(namespace))
	}
	span.SetAttributes(causeOf(ctx)...)
	if s := sinkOf(ctx); s != nil {
		s.reconcile.span = span.SpanContext()
		span.SetAttributes(attributeReconcileID.String(s.reconcile.ID()))
		if term := s.reconcile.term; term > 0 {
			span.SetAttributes(attributeTerm.Int64(term))
		}
	}
	return ctx, span
}

// causeOf returns the attributes for the cause of a reconcile.
func causeOf(ctx context.Context) (attributes []attribute.KeyValue) {
	cause := dynamiccontroller.CauseOf(ctx)
	var kinds []string
	for kind := range cause.Kinds() {
		kinds = append(kinds, kind.String())
	}
	if len(kinds) > 0 {
		attributes = append(attributes, attributeCauseKinds.StringSlice(kinds))
	}
	if object, ok := cause.Object(); ok {
		attributes = append(attributes, attributeCauseObject.String(object.String()))
	}
	if retry := cause.Retry(); retry > 0 {
		attributes = append(attributes, attributeCauseRetry.Int(retry))
	}
	return attributes
}

// maxMessage is the maximum length of the description of an error, in bytes.
const maxMessage = 1024

// outcomeOf returns the outcome of a reconcile, and records an error. Handlers return errors in which data from Secrets
// has been redacted, because conditions and the log contain the same errors.
func (t *Tracer) outcomeOf(span trace.Span, err error) string {
	if err == nil {
		return outcomeSuccess
	}
	if _, requeue := dynamiccontroller.RequeueDelay(err); requeue {
		return outcomeRequeue
	}
	if span.IsRecording() {
		span.SetStatus(codes.Error, blueprint.Cut(err.Error(), maxMessage))
	}
	return outcomeError
}

const keyProblem = "problem"

// errorInterval is the minimum time between two log messages about exporter errors.
const errorInterval = time.Minute

// newErrorLog returns a handler that logs exporter errors. While the collector cannot be reached, it is called
// every few seconds.
func newErrorLog(log logr.Logger) otel.ErrorHandler {
	limited := newLimiter(errorInterval)
	return otel.ErrorHandlerFunc(func(err error) {
		if !errors.Is(err, context.Canceled) && limited.allow() {
			log.Info("Traces not exported", keyProblem, err.Error())
		}
	})
}
