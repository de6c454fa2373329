package tracingtest

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Collector is an OTLP receiver on a loopback address.
type Collector struct {
	collectorpb.UnimplementedTraceServiceServer
	// Endpoint is the address of the collector.
	Endpoint string

	mu       sync.Mutex // guards the fields below
	spans    []Span
	requests int
}

// Span is a received span. The keys of Attributes include those of the resource. The items of a list are separated by
// spaces.
type Span struct {
	*tracepb.Span
	Attributes map[string]string
}

// Start starts a collector. It is stopped at the end of the test.
func Start(t *testing.T) *Collector {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{Endpoint: listener.Addr().String()}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return c
}

// Export implements [collectorpb.TraceServiceServer].
func (c *Collector) Export(
	_ context.Context, r *collectorpb.ExportTraceServiceRequest,
) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans = append(c.spans, Span{span, attributes(resource.GetResource().GetAttributes(), span.GetAttributes())})
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func attributes(lists ...[]*commonpb.KeyValue) map[string]string {
	texts := map[string]string{}
	for _, list := range lists {
		for _, attribute := range list {
			switch value := attribute.GetValue().GetValue().(type) {
			case *commonpb.AnyValue_IntValue:
				texts[attribute.GetKey()] = strconv.FormatInt(value.IntValue, 10)
			case *commonpb.AnyValue_ArrayValue:
				var items []string
				for _, item := range value.ArrayValue.GetValues() {
					items = append(items, item.GetStringValue())
				}
				texts[attribute.GetKey()] = strings.Join(items, " ")
			default:
				texts[attribute.GetKey()] = attribute.GetValue().GetStringValue()
			}
		}
	}
	return texts
}

// Spans returns the spans that have been received.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Children returns the received spans whose parent is the given span.
func (c *Collector) Children(parent Span) (children []Span) {
	for _, s := range c.Spans() {
		if string(s.GetParentSpanId()) == string(parent.GetSpanId()) {
			children = append(children, s)
		}
	}
	return children
}

// Requests returns the number of requests that have been received.
func (c *Collector) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}
