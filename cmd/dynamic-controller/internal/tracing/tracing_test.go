package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/tracing/tracingtest"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers"
)

var object = dynamiccontroller.ObjectIdentifiers{
	NamespacedKey: "shop/flowers",
	GVR:           schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "websites"},
}

const always = 1_000_000

func newTracer(t *testing.T, endpoint string, rate *int32) *Tracer {
	t.Helper()
	config := &tracingapi.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: rate}
	tracer, err := New(t.Context(), logr.Discard(), config, "test", "v1")
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// callLogged calls a handler as the engine does, and returns the lines that are logged at the end.
func callLogged(t *testing.T, handler dynamiccontroller.Handler) (lines []string, err error) {
	log := NewLogger(funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	log = log.WithValues("object", object.NamespacedKey)
	err = handler(logr.NewContext(t.Context(), log), object)
	log.Info("settled")
	log.Error(errors.New("on purpose"), "parked")
	return lines, err
}

func TestIdentify_AddsTheReconcileToAllItsLines(t *testing.T) {
	handler := Identify(func() int64 { return 3 })(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		logr.FromContextOrDiscard(ctx).WithValues("a", 1).WithName("b").Info("handled")
		return nil
	})
	ids := map[string]bool{}
	for range 2 {
		lines, _ := callLogged(t, handler)
		for _, line := range lines {
			_, rest, found := strings.Cut(line, `"reconcileID"="`+process+"-")
			id, rest, _ := strings.Cut(rest, `"`)
			if !found || rest != ` "term"=3` || !strings.Contains(line, `"object"="shop/flowers"`) {
				t.Errorf("got line %s", line)
			}
			ids[id] = true
		}
		if len(lines) != 3 {
			t.Errorf("got %d lines, want 3", len(lines))
		}
	}
	if len(ids) != 2 {
		t.Errorf("got the IDs %v for two reconciles", ids)
	}
	lines, _ := callLogged(t, Identify(nil)(handlers.Chain()(nothing)))
	if strings.Contains(strings.Join(lines, ""), "term") {
		t.Errorf("an engine without a term logged %q", lines)
	}
	lines, _ = callLogged(t, nothing)
	if strings.Contains(strings.Join(lines, ""), "reconcileID") {
		t.Errorf("outside of a reconcile, %q were logged", lines)
	}
}

func nothing(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }

func TestNewLogger_KeepsTheCaller(t *testing.T) {
	var out string
	log := NewLogger(funcr.New(func(_, args string) { out = args }, funcr.Options{LogCaller: funcr.All}))
	log.WithValues("a", 1).WithName("b").Info("logged")
	if !strings.Contains(out, "tracing_test.go") {
		t.Errorf("got line %s", out)
	}
}

func TestTracer_CostsNothingIfDisabled(t *testing.T) {
	tracer, err := New(t.Context(), logr.Discard(), nil, "test", "v1")
	if tracer != nil || err != nil {
		t.Fatalf("got %v, %v", tracer, err)
	}
	cfg := &rest.Config{}
	tracer.Wrap(cfg)
	if cfg.WrapTransport != nil {
		t.Error("the transport is wrapped")
	}
	tracer.Shutdown(logr.Discard())
	handler := handlers.Chain(Identify(func() int64 { return 3 }), tracer.Middleware("instances"))(nothing)
	ctx := logr.NewContext(t.Context(), NewLogger(funcr.New(func(string, string) {}, funcr.Options{})))
	if n := testing.AllocsPerRun(100, func() { _ = handler(ctx, object) }); n != 0 {
		t.Errorf("a reconcile allocates %v times", n)
	}
}

func TestTracer_ExportsReconcilesWithTheirRequests(t *testing.T) {
	collector := tracingtest.Start(t)
	received := make(chan http.Header, 2)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header }))
	defer server.Close()
	tracer := newTracer(t, collector.Endpoint, ptr.To[int32](always))
	cfg := &rest.Config{Host: server.URL, Transport: &http.Transport{DisableKeepAlives: true}}
	tracer.Wrap(cfg)
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	get := func(ctx context.Context) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet,
			server.URL+"/api/v1/namespaces/shop/configmaps?labelSelector=secret", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	get(t.Context()) // not in a reconcile
	if header := <-received; header.Get("Traceparent") != "" {
		t.Errorf("a request outside of a reconcile has the headers %v", header)
	}
	handler := handlers.Chain(Identify(func() int64 { return 3 }), tracer.Middleware("instances"))
	lines, err := callLogged(t, handler(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		get(ctx)
		return errors.New("on purpose")
	}))
	if err == nil || err.Error() != "on purpose" {
		t.Errorf("got error %v", err)
	}
	tracer.Shutdown(logr.Discard())

	if n := len(collector.Spans()); n != 2 {
		t.Fatalf("got %d spans, want 2", n)
	}
	root := find(t, collector, "reconcile websites.example.com")
	for key, want := range map[string]string{
		"service.name": "test", "service.version": "v1", "service.instance.id": process, "k8s.namespace.name": "shop",
		"dynamiccontroller.resource.group": "example.com", "dynamiccontroller.resource.version": "v1",
		"dynamiccontroller.resource.name": "websites", "dynamiccontroller.object.name": "flowers",
		"dynamiccontroller.controller": "instances", "dynamiccontroller.term": "3", "dynamiccontroller.outcome": "error",
	} {
		if got := root.Attributes[key]; got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	if s := root.GetStatus(); s.GetCode() != tracepb.Status_STATUS_CODE_ERROR || s.GetMessage() != "on purpose" {
		t.Errorf("got status %v", s)
	}
	for _, line := range lines {
		if !strings.Contains(line, root.Attributes["dynamiccontroller.reconcile.id"]) || !strings.Contains(line, "traceID") {
			t.Errorf("got line %s for span %v", line, root.Attributes)
		}
	}
	child := find(t, collector, "GET /api/v1/namespaces/{namespace}/configmaps")
	if string(child.GetParentSpanId()) != string(root.GetSpanId()) || child.GetKind() != tracepb.Span_SPAN_KIND_CLIENT {
		t.Errorf("got span %v, want a child of %v", child, root)
	}
	if got := child.Attributes["url.full"]; got != server.URL+"/api/v1/namespaces/shop/configmaps" {
		t.Errorf("got URL %q", got)
	}
	if data, err := json.Marshal(child.Attributes); err != nil || bytes.Contains(data, []byte("secret")) {
		t.Errorf("got attributes %s, %v", data, err)
	}
	if header := <-received; header.Get("Traceparent") == "" {
		t.Errorf("a request in a reconcile has the headers %v", header)
	}
}

// The first reconcile is because of the existing object, and the second one because of a child, and a failure.
func TestTracer_ExportsCauses(t *testing.T) {
	collector := tracingtest.Start(t)
	tracer := newTracer(t, collector.Endpoint, ptr.To[int32](always))
	child := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	synctest.Test(t, func(t *testing.T) {
		server := controllertest.NewServer(controllertest.Type{GVR: object.GVR, Kind: "Website"},
			controllertest.Type{GVR: child, Kind: "ConfigMap"})
		controller := controllertest.NewController(t, server, dynamiccontroller.Config{MinRetryDelay: time.Minute})
		calls := 0
		handler := tracer.Middleware("instances")(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			if calls++; calls == 1 {
				return errors.New("on purpose")
			}
			return nil
		})
		if err := controller.StartServingGVK(t.Context(), object.GVR, handler, dynamiccontroller.Owns(child)); err != nil {
			t.Fatal(err)
		}
		website := &unstructured.Unstructured{}
		website.SetGroupVersionKind(object.GVR.GroupVersion().WithKind("Website"))
		website.SetNamespace("shop")
		website.SetName("flowers")
		server.Apply(website)
		controllertest.Run(t, controller.Run)
		controllertest.WaitIdle(t, controller)
		owned := &unstructured.Unstructured{}
		owned.SetGroupVersionKind(child.GroupVersion().WithKind("ConfigMap"))
		owned.SetNamespace("shop")
		owned.SetName("petals")
		owned.SetOwnerReferences([]metav1.OwnerReference{
			*metav1.NewControllerRef(server.Get(object), website.GroupVersionKind()),
		})
		server.Apply(owned)
		controllertest.WaitIdle(t, controller)
	})
	tracer.Shutdown(logr.Discard())
	var got []string
	for _, span := range collector.Spans() {
		for _, key := range []string{"kinds", "object", "retry"} {
			got = append(got, span.Attributes["dynamiccontroller.cause."+key])
		}
	}
	want := []string{"initial_list", "", "", "secondary_event retry", "configmaps.v1 shop/petals", "1"}
	if !slices.Equal(got, want) {
		t.Errorf("got the causes %q, want %q", got, want)
	}
}

func find(t *testing.T, collector *tracingtest.Collector, name string) tracingtest.Span {
	t.Helper()
	for _, span := range collector.Spans() {
		if span.GetName() == name {
			return span
		}
	}
	t.Fatalf("no span %s in %v", name, collector.Spans())
	return tracingtest.Span{}
}

func TestTracer_RecordsOutcomes(t *testing.T) {
	collector := tracingtest.Start(t)
	tracer := newTracer(t, collector.Endpoint, ptr.To[int32](always))
	outcomes := map[string]dynamiccontroller.Handler{
		outcomeSuccess: nothing,
		outcomeRequeue: func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.RequeueAfter(time.Second)
		},
		outcomeError: func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return errors.New(strings.Repeat("long", maxMessage))
		},
		outcomePanic: func(context.Context, dynamiccontroller.ObjectIdentifiers) error { panic("secret") },
	}
	for name, handler := range outcomes {
		func() {
			defer func() {
				if got := recover(); (got != nil) != (name == outcomePanic) {
					t.Errorf("%s: recovered %v", name, got)
				}
			}()
			_ = tracer.Middleware(name)(handler)(t.Context(), object)
		}()
	}
	tracer.Shutdown(logr.Discard())
	for _, span := range collector.Spans() {
		controller, outcome := span.Attributes["dynamiccontroller.controller"], span.Attributes["dynamiccontroller.outcome"]
		isError := span.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR
		if outcome != controller || isError != (outcome == outcomeError || outcome == outcomePanic) {
			t.Errorf("%s: got outcome %s and status %v", controller, outcome, span.GetStatus())
		}
		message := span.GetStatus().GetMessage()
		if len(message) > maxMessage+len("…") || strings.Contains(message, "secret") {
			t.Errorf("%s: got message %q", controller, message)
		}
		delete(outcomes, outcome)
	}
	if len(outcomes) > 0 {
		t.Errorf("no spans with the outcomes %v", outcomes)
	}
}

func TestTracer_SendsNothingWithoutASamplingRate(t *testing.T) {
	collector := tracingtest.Start(t)
	tracer := newTracer(t, collector.Endpoint, nil)
	lines, err := callLogged(t, tracer.Middleware("instances")(nothing))
	tracer.Shutdown(logr.Discard())
	if n := collector.Requests(); n > 0 || err != nil || strings.Contains(strings.Join(lines, ""), "traceID") {
		t.Errorf("got %d requests, error %v and lines %q", n, err, lines)
	}
}

// If the collector does not respond, handlers are not delayed, and Shutdown gives up.
func TestTracer_CollectorThatDoesNotAnswer(t *testing.T) {
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "1000") // milliseconds
	before := goleak.IgnoreCurrent()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	tracer := newTracer(t, listener.Addr().String(), ptr.To[int32](always))
	// The listener never answers. If the handlers waited for exports of 512 spans, each of which takes one second, they
	// would take more than three minutes.
	const reconciles = 100_000
	returns(t, "handlers", func() {
		handler := tracer.Middleware("instances")(nothing)
		for range reconciles {
			if err := handler(t.Context(), object); err != nil {
				t.Error(err)
			}
		}
	})
	var logged string
	returns(t, "shutdown", func() {
		tracer.Shutdown(funcr.New(func(_, args string) { logged = args }, funcr.Options{}))
	})
	if !strings.Contains(logged, "Traces lost at shutdown") {
		t.Errorf("logged %q", logged)
	}
	// The exporter exits when its pending requests have timed out.
	for deadline := time.Now().Add(time.Minute); goleak.Find(before) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("the exporter has not ended")
		}
	}
}

// returns fails the test if f does not return within a minute.
func returns(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s: not returned within a minute", what)
	}
}

func TestErrorLog_LimitsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		handler := newErrorLog(funcr.New(func(string, string) { n++ }, funcr.Options{}))
		for range 4 {
			handler.Handle(errors.New("on purpose"))
			time.Sleep(errorInterval / 2)
		}
		if n != 2 {
			t.Errorf("got %d messages, want 2", n)
		}
	})
}

func TestTemplateOf(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/namespaces/shop/configmaps/flowers": "/api/v1/namespaces/{namespace}/configmaps/{name}",
		"/api/v1/namespaces/shop/configmaps":         "/api/v1/namespaces/{namespace}/configmaps",
		"/api/v1/namespaces/shop":                    "/api/v1/namespaces/{name}",
		"/apis/a.b/v1/namespaces/shop/a/c/status":    "/apis/a.b/v1/namespaces/{namespace}/a/{name}/status",
		"/apis/example.com/v1/a/flowers":             "/apis/example.com/v1/a/{name}",
		"/clusters/c/apis/example.com/v1/a":          "/clusters/c/apis/example.com/v1/a",
		"/api":                                       "/api",
		"/openapi/v3":                                "/openapi/v3",
	} {
		if got := templateOf(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
