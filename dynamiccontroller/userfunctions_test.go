package dynamiccontroller_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/internal/testkit"
)

// userFunctions maps each parameter of the package that can contain user code to the case of userFunctionCases that
// calls it. A new parameter is added here, with a case in which it panics and calls runtime.Goexit.
var userFunctions = map[string]string{
	"AddIndex.f":  "index function",
	"AfterLoss.f": "AfterLoss",
	"DynamicController.AddEventHandler.handler": "event handler",
	"DynamicController.StartServingGVK.handler": "handler",
	"DynamicController.StartWatch.mapFunc":      "MapAnyFunc",
	"EventHandler.OnAdd":                        "event handler",
	"EventHandler.OnDelete":                     "event handler",
	"EventHandler.OnUpdate":                     "event handler",
	"NewDynamicController.kubeClient":           "client",
	"NewForConfig.cfg":                          "transport",
	"NewForConfigAndClient.cfg":                 "transport",
	"NewForConfigAndClient.httpClient":          "transport of an HTTP client",
	"Terminal.err":                              "error",
	"TypedTransform.f":                          "typed transform",
	"Watches.mapFunc":                           "MapFunc",
	"WithDefaultTransform.f":                    "default transform",
	"WithFlow.flowOf":                           "flow function",
	"WithIndex.f":                               "index function",
	"WithMetadataClient.client":                 "metadata client",
	"WithMetrics.m":                             "metrics",
	"WithParked.f":                              "parked function",
	"WithPredicate.f":                           "predicate",
	"WithRESTMapper.mapper":                     "REST mapper",
	"WithRateLimiter.l":                         "rate limiter",
	"WithReduce.f":                              "reduce",
	"WithTransform.f":                           "transform",
	"WithTypeEvents.events":                     "type events",
	"WithWatchErrors.f":                         "watch error function",
}

// calledByCallers are the parameters whose functions are only called in the goroutine of the caller.
var calledByCallers = []string{
	"AddIndex.to", "DecodeInto.into", "DecodeInto.object", "GetInto.from", "GetInto.into", "NewTypedLister.from",
	"RecordWrites.cfg", "RequeueDelay.err", "ResourceFor.mapper", "WithFieldSelector.selector",
	"WithLabelSelector.selector",
}

// dataTypes are the types of parameters without user code. Options are created by functions of the package, and
// loggers are trusted.
var dataTypes = []string{
	"...ObjectIdentifiers", "...Option", "...OwnsOption", "...ServeOption", "...Watch", "...WatchKey",
	"...WatchesOption", "...string", "<-chan struct{}", "CacheMode", "Cause", "CauseKind", "Config",
	"ObjectIdentifiers", "Outcome", "Reconcile", "Sync", "TypeState", "WatchKey", "[]ParkedObject", "[]SecondaryStatus",
	"*ReplacementStatus", "*RunningFunction", "[]schema.GroupVersionResource", "bool", "context.Context", "int", "int64",
	"logr.Logger", "schema.GroupResource", "schema.GroupVersionKind", "schema.GroupVersionResource", "string",
	"time.Duration", "time.Time", "types.UID", "uint8",
}

func TestD5_EachUserFunctionHasACase(t *testing.T) {
	parameters, err := testkit.Parameters(".")
	if err != nil {
		t.Fatal(err)
	}
	for name, typeName := range parameters {
		isData := slices.Contains(dataTypes, typeName) || slices.Contains(calledByCallers, name) ||
			strings.HasPrefix(name, "TypedLister") || strings.HasPrefix(name, "Reconcile.") || name == "WatchError.Err"
		if _, known := userFunctions[name]; !known && !isData {
			t.Errorf("%s %s: add it to userFunctions, with a case in which it panics, or to dataTypes", name, typeName)
		}
	}
	for name, testCase := range userFunctions {
		if parameters[name] == "" {
			t.Errorf("%s does not exist any more", name)
		}
		if userFunctionCases[testCase].run == nil {
			t.Errorf("%s: the case %q does not exist", name, testCase)
		}
	}
	for name := range userFunctionCases {
		if !slices.Contains(slices.Collect(maps.Values(userFunctions)), name) {
			t.Errorf("the case %q is not used", name)
		}
	}
}

// misbehavior is what user code does while it is on: it panics, or calls runtime.Goexit.
type misbehavior struct {
	name string
	f    func()
	text string // in the log or in a status
	on   atomic.Bool
}

func (m *misbehavior) call() {
	if m.on.Load() {
		m.f()
	}
}

func panicAndGoexit() []*misbehavior {
	return []*misbehavior{
		{name: "panics", f: func() { panic("on purpose") }, text: "on purpose"},
		{name: "calls Goexit", f: goruntime.Goexit, text: "called runtime.Goexit"},
	}
}

// userFunctionCase is a case of TestD5_UserFunctionsCannotEndAnything.
type userFunctionCase struct {
	run func(t *testing.T, m *misbehavior)
}

var userFunctionCases map[string]userFunctionCase

func init() { // the cases refer to functions that use the map
	userFunctionCases = map[string]userFunctionCase{
		"handler":                     functionCase{kind: "handler"}.of(nil),
		"error":                       functionCase{kind: "error"}.of(nil),
		"default transform":           functionCase{visible: "Transform failed"}.ofOption(withDefaultTransform),
		"reduce":                      functionCase{visible: "Reduce function panicked"}.ofOption(withReduce),
		"metrics":                     functionCase{visible: "Metrics panicked"}.ofOption(withMetrics),
		"parked function":             functionCase{visible: "Parked function panicked", parks: true}.ofOption(withParked),
		"REST mapper":                 functionCase{kind: "mapper", serve: withMetadata}.ofOption(withRESTMapper),
		"type events":                 functionCase{visible: "TypeEvents panicked"}.ofOption(withTypeEvents),
		"watch error function":        functionCase{visible: watchErrorPanics, serve: failingWatch}.ofOption(withWatchErrors),
		"client":                      functionCase{kind: "client"}.of(nil),
		"metadata client":             functionCase{kind: "client"}.of(withMetadata),
		"flow function":               functionCase{visible: "Flow function panicked"}.of(withFlow),
		"index function":              functionCase{kind: "index"}.of(withIndex),
		"predicate":                   functionCase{visible: "Predicate panicked"}.of(withPredicate),
		"rate limiter":                functionCase{visible: "Rate limiter panicked", parks: true}.of(withRateLimiter),
		"transform":                   functionCase{visible: "Transform failed"}.of(withTransform),
		"typed transform":             functionCase{visible: "Transform failed"}.of(withTypedTransform),
		"MapFunc":                     functionCase{visible: "MapFunc panicked"}.of(withMapFunc),
		"MapAnyFunc":                  functionCase{kind: "MapAnyFunc", visible: "MapAnyFunc panicked"}.of(nil),
		"AfterLoss":                   functionCase{kind: "AfterLoss", visible: "AfterLoss panicked"}.of(nil),
		"event handler":               functionCase{visible: "of an event handler panicked"}.of(withEventHandler),
		"transport":                   {runTransport},
		"transport of an HTTP client": {runTransport},
	}
}

// Whatever user code does, the process lives, the failure is visible, other types are reconciled, and the type itself
// is reconciled again as soon as the code behaves.
func TestD5_UserFunctionsCannotEndAnything(t *testing.T) {
	for name, test := range userFunctionCases {
		for _, m := range panicAndGoexit() {
			t.Run(name+" "+m.name, func(t *testing.T) {
				m.on.Store(true)
				synctest.Test(t, func(t *testing.T) { test.run(t, m) })
			})
		}
	}
}

// No change is lost, not even the one for which a predicate or MapFunc calls runtime.Goexit for the first time.
func TestD5_ChangesAreProcessedIfAFunctionCallsGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		exits := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
			goruntime.Goexit()
			return false
		}
		mapFunc := func(_ context.Context, object dynamiccontroller.Object) []string {
			if object.GetName() == "exits" {
				goruntime.Goexit()
			}
			return []string{"default/mapped"}
		}
		c := newCalls(succeed)
		f.serve(f.types[0], c.handle, dynamiccontroller.WithPredicate(exits),
			dynamiccontroller.Watches(f.types[1], mapFunc, dynamiccontroller.WithPredicate(exits)))
		f.put(f.types[0], "a")
		c.want(t, "after the first change", named("a"))
		f.put(f.types[0], "a")
		c.want(t, "after the second change", named("a"))
		f.put(f.types[1], "exits")
		c.want(t, "after a change for which the MapFunc exits", named())
		f.put(f.types[1], "b")
		c.want(t, "after another change", named("mapped"))
		stop()
	})
}

// functionCase is how most cases are run: with two types that are served, and a third one that is watched.
type functionCase struct {
	visible string // in the log, together with the text of the misbehavior; by default, only this text
	parks   bool   // the handler fails
	kind    string // of what misbehaves, apart from options
	option  func(*misbehavior) []dynamiccontroller.Option
	serve   func(*misbehavior, *fixture) []dynamiccontroller.ServeOption
}

func (c functionCase) of(
	serve func(*misbehavior, *fixture) []dynamiccontroller.ServeOption,
) userFunctionCase {
	c.serve = serve
	return userFunctionCase{c.run}
}

func (c functionCase) ofOption(option func(*misbehavior) []dynamiccontroller.Option) userFunctionCase {
	c.option = option
	return userFunctionCase{c.run}
}

func (c functionCase) run(t *testing.T, m *misbehavior) {
	logged := &logBuffer{}
	var opts []dynamiccontroller.Option
	if c.option != nil {
		opts = c.option(m)
	}
	config := dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, QueueMaxRetries: 1, MaxRetryDelay: time.Second}
	f := newFixtureWithLogger(t, logged.logger(0), 3, config, opts...)
	subject, other := f.types[0], f.types[1]
	if c.kind == "client" {
		f.client.PrependReactor("list", subject.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			m.call()
			return false, nil, nil
		})
	}
	stop := f.run()
	handled, others := newCalls(nil), newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		return nil
	})
	handled.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error { return c.handle(f, m, id) }
	var serve []dynamiccontroller.ServeOption
	if c.serve != nil {
		serve = c.serve(m, f)
	}
	f.serve(other, others.handle)
	f.serve(subject, handled.handle, serve...)
	if c.kind == "MapAnyFunc" {
		if _, err := f.controller.StartWatch(f.types[2],
			func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
				m.call()
				return nil
			},
		); err != nil {
			t.Fatal(err)
		}
	}
	if c.kind == "AfterLoss" {
		startWatchWithLosses(f, m)
	}
	putAll := func() {
		if c.kind == "AfterLoss" {
			f.burst(f.types[2])
		}
		for i, gvr := range f.types {
			f.put(gvr, fmt.Sprint("o", i))
			f.put(gvr, fmt.Sprint("o", i)) // a change, not an addition
		}
		time.Sleep(2 * time.Minute)
	}
	putAll()
	if len(others.times("o1")) == 0 {
		t.Error("the other type was not reconciled")
	}
	visible := logged.count(c.visible) > 0 && logged.count(m.text) > 0
	if inStatus := fmt.Sprintf("%+v", f.status(subject)); !visible && !strings.Contains(inStatus, m.text) {
		t.Errorf("neither %q nor %q is in the log: %q", c.visible, m.text, logged.lines)
	}
	m.on.Store(false)
	before, othersBefore := len(handled.times("o0")), len(others.times("o1"))
	putAll()
	if n := len(handled.times("o0")); n == before {
		t.Errorf("the type was not reconciled again: %+v", f.status(subject).WatchStatus)
	}
	if len(others.times("o1")) == othersBefore {
		t.Error("the other type was not reconciled again")
	}
	stop()
}

// startWatchWithLosses starts a watch whose function is so slow that a burst of changes leads to losses.
func startWatchWithLosses(f *fixture, m *misbehavior) {
	startWatch(f, f.types[2], func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
		time.Sleep(time.Millisecond)
		return nil
	}, dynamiccontroller.AfterLoss(func(context.Context) []dynamiccontroller.ObjectIdentifiers {
		m.call()
		return nil
	}))
}

// handle is the handler of the type whose user code misbehaves.
func (c functionCase) handle(f *fixture, m *misbehavior, id dynamiccontroller.ObjectIdentifiers) error {
	switch {
	case c.kind == "handler":
		m.call()
	case c.kind == "error" && m.on.Load():
		return misbehavingError{m}
	case c.parks && m.on.Load():
		return errOnPurpose
	case c.kind == "mapper" || c.kind == "index":
		lister, err := f.controller.Lister(id.GVR)
		if err != nil {
			return err
		}
		if c.kind == "index" {
			_, err = lister.ByIndex("index", "x")
			return err
		}
		_, err = lister.Get(id.NamespacedKey)
		return err
	}
	return nil
}

// misbehavingError is an error with a method that misbehaves.
type misbehavingError struct{ *misbehavior }

func (e misbehavingError) Error() string { e.call(); return "behaves" }

func withDefaultTransform(m *misbehavior) []dynamiccontroller.Option {
	return []dynamiccontroller.Option{dynamiccontroller.WithDefaultTransform(func(o any) (any, error) {
		m.call()
		return o, nil
	})}
}

func withReduce(m *misbehavior) []dynamiccontroller.Option {
	return []dynamiccontroller.Option{
		dynamiccontroller.WithReduce(func(object []byte) []byte { m.call(); return object }),
		dynamiccontroller.WithDefaultTransform(func(o any) (any, error) { return o, nil }),
	}
}

type misbehavingMetrics struct {
	dynamiccontroller.NoMetrics
	*misbehavior
}

func (m misbehavingMetrics) Reconciled(dynamiccontroller.Reconcile)  { m.call() }
func (m misbehavingMetrics) Synced(dynamiccontroller.Sync)           { m.call() }
func (m misbehavingMetrics) Forget(schema.GroupVersionResource)      { m.call() }
func (m misbehavingMetrics) WriteLagged(schema.GroupVersionResource) { m.call() }
func withMetrics(m *misbehavior) []dynamiccontroller.Option {
	return []dynamiccontroller.Option{dynamiccontroller.WithMetrics(misbehavingMetrics{misbehavior: m})}
}

func withParked(m *misbehavior) []dynamiccontroller.Option {
	return []dynamiccontroller.Option{dynamiccontroller.WithParked(func(dynamiccontroller.ObjectIdentifiers) { m.call() })}
}

type misbehavingMapper struct {
	meta.RESTMapper
	*misbehavior
}

func (m misbehavingMapper) KindFor(schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	m.call()
	return schema.GroupVersionKind{}, nil
}

func withRESTMapper(m *misbehavior) []dynamiccontroller.Option {
	return []dynamiccontroller.Option{dynamiccontroller.WithRESTMapper(misbehavingMapper{misbehavior: m})}
}

func withTypeEvents(m *misbehavior) []dynamiccontroller.Option {
	return []dynamiccontroller.Option{dynamiccontroller.WithTypeEvents(
		func(func(schema.GroupVersionResource, bool)) func() { m.call(); return m.call })}
}

const watchErrorPanics = "Watch error function panicked"

func withWatchErrors(m *misbehavior) []dynamiccontroller.Option {
	return []dynamiccontroller.Option{dynamiccontroller.WithWatchErrors(func(dynamiccontroller.WatchError) { m.call() })}
}

// failingWatch makes the lists of the type that misbehaves fail as long as it does.
func failingWatch(m *misbehavior, f *fixture) []dynamiccontroller.ServeOption {
	f.client.PrependReactor("list", f.types[0].Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		if m.on.Load() {
			return true, nil, errOnPurpose
		}
		return false, nil, nil
	})
	return nil
}

func withFlow(m *misbehavior, _ *fixture) []dynamiccontroller.ServeOption {
	return []dynamiccontroller.ServeOption{dynamiccontroller.WithFlow(func(dynamiccontroller.ObjectIdentifiers) string {
		m.call()
		return ""
	})}
}

func withPredicate(m *misbehavior, _ *fixture) []dynamiccontroller.ServeOption {
	return []dynamiccontroller.ServeOption{dynamiccontroller.WithPredicate(
		func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool { m.call(); return true })}
}

type misbehavingLimiter struct{ *misbehavior }

func (l misbehavingLimiter) When(dynamiccontroller.ObjectIdentifiers) time.Duration {
	l.call()
	return time.Second
}
func (l misbehavingLimiter) Forget(dynamiccontroller.ObjectIdentifiers)          { l.call() }
func (l misbehavingLimiter) NumRequeues(dynamiccontroller.ObjectIdentifiers) int { l.call(); return 0 }

func withRateLimiter(m *misbehavior, _ *fixture) []dynamiccontroller.ServeOption {
	return []dynamiccontroller.ServeOption{dynamiccontroller.WithRateLimiter(misbehavingLimiter{m})}
}

func withTransform(m *misbehavior, _ *fixture) []dynamiccontroller.ServeOption {
	return []dynamiccontroller.ServeOption{dynamiccontroller.WithTransform(func(o any) (any, error) {
		m.call()
		return o, nil
	})}
}

func withTypedTransform(m *misbehavior, _ *fixture) []dynamiccontroller.ServeOption {
	return []dynamiccontroller.ServeOption{dynamiccontroller.WithTransform(dynamiccontroller.TypedTransform(
		func(*typed) error { m.call(); return nil }))}
}

func withMetadata(*misbehavior, *fixture) []dynamiccontroller.ServeOption {
	return []dynamiccontroller.ServeOption{dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)}
}

func withMapFunc(m *misbehavior, f *fixture) []dynamiccontroller.ServeOption {
	return []dynamiccontroller.ServeOption{dynamiccontroller.Watches(f.types[2],
		func(context.Context, dynamiccontroller.Object) []string { m.call(); return nil })}
}

// withEventHandler adds an event handler, all of whose functions misbehave.
func withEventHandler(m *misbehavior, f *fixture) []dynamiccontroller.ServeOption {
	addEventHandler(f, f.types[2], dynamiccontroller.EventHandler{
		OnAdd:    func(context.Context, dynamiccontroller.Object, bool) { m.call() },
		OnUpdate: func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) { m.call() },
		OnDelete: func(context.Context, dynamiccontroller.Object) { m.call() },
	})
	return nil
}

func withIndex(m *misbehavior, _ *fixture) []dynamiccontroller.ServeOption {
	return []dynamiccontroller.ServeOption{dynamiccontroller.WithIndex("index", func(dynamiccontroller.Object) []string {
		m.call()
		return nil
	})}
}

// memoryServer is an API server in memory that lists one object of each type. The version of the object is that of the
// list. Its watches receive nothing.
type memoryServer struct{ version atomic.Int64 }

func (s *memoryServer) RoundTrip(r *http.Request) (*http.Response, error) {
	response := &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
	}
	switch query := r.URL.Query(); {
	case query.Get("sendInitialEvents") != "":
		response.StatusCode = http.StatusUnprocessableEntity
		response.Body = io.NopCloser(strings.NewReader(
			`{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid"}`))
	case query.Get("watch") != "":
		response.Body = silentBody{r.Context()}
	default:
		version := s.version.Add(1)
		response.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(
			`{"apiVersion":"example.com/v1","items":[%s],"kind":"WidgetList","metadata":{"resourceVersion":"%d"}}`,
			widget(fmt.Sprintf(`"namespace":"ns","name":"a","uid":"a","resourceVersion":"%d"`, version)), version)))
	}
	return response, nil
}

// silentBody is the body of a watch that receives nothing.
type silentBody struct{ ctx context.Context }

func (b silentBody) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, b.ctx.Err() }
func (b silentBody) Close() error             { return nil }

// misbehavingTransport misbehaves when it sends requests for one type, or reads or closes the responses.
type misbehavingTransport struct {
	*misbehavior
	where string
	next  http.RoundTripper
}

func (t misbehavingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, widgetsGVR.Resource) {
		return t.next.RoundTrip(r)
	}
	if t.where == "RoundTrip" {
		t.call()
	}
	response, err := t.next.RoundTrip(r)
	if err == nil {
		response.Body = misbehavingBody{response.Body, t}
	}
	return response, err
}

type misbehavingBody struct {
	io.ReadCloser
	transport misbehavingTransport
}

func (b misbehavingBody) Read(p []byte) (int, error) {
	if b.transport.where == "Read" {
		b.transport.call()
	}
	return b.ReadCloser.Read(p)
}

func (b misbehavingBody) Close() error {
	if b.transport.where == "Close" {
		b.transport.call()
	}
	return b.ReadCloser.Close()
}

// runTransport runs a controller of NewForConfig or NewForConfigAndClient whose transport misbehaves for one type.
func runTransport(t *testing.T, m *misbehavior) {
	for _, where := range []string{"RoundTrip", "Read", "Close"} {
		for _, ownClient := range []bool{false, true} {
			m.on.Store(true)
			runTransportCase(t, m, where, ownClient)
		}
	}
}

func runTransportCase(t *testing.T, m *misbehavior, where string, ownClient bool) {
	wrap := func(next http.RoundTripper) http.RoundTripper { return misbehavingTransport{m, where, next} }
	cfg := &rest.Config{Host: "http://server.example.com", Transport: &memoryServer{}, WrapTransport: wrap}
	logged := &logBuffer{}
	config := dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}
	c, err := dynamiccontroller.NewForConfig(logged.logger(0), config, cfg)
	if ownClient {
		c, err = dynamiccontroller.NewForConfigAndClient(logged.logger(0), config, &rest.Config{Host: cfg.Host},
			&http.Client{Transport: wrap(&memoryServer{})})
	}
	if err != nil {
		t.Fatal(err)
	}
	other := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "others"}
	counts := map[schema.GroupVersionResource]*atomic.Int64{widgetsGVR: {}, other: {}}
	handle := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		counts[id.GVR].Add(1)
		return nil
	}
	for _, gvr := range []schema.GroupVersionResource{widgetsGVR, other} {
		if err := c.StartServingGVK(t.Context(), gvr, handle); err != nil {
			t.Fatal(err)
		}
	}
	stop := inBackground(c.Run)
	time.Sleep(2 * time.Minute)
	if counts[other].Load() == 0 {
		t.Errorf("%s: the other type was not reconciled", where)
	}
	status, err := c.TypeStatusOf(widgetsGVR)
	if logged.count(m.text) == 0 || err != nil || !strings.Contains(status.LastProblem, m.text) {
		t.Errorf("%s: %q is not in the log %q, or not in the status %+v", where, m.text, logged.lines, status.WatchStatus)
	}
	m.on.Store(false)
	before := counts[widgetsGVR].Load()
	time.Sleep(12 * time.Minute)
	status, _ = c.TypeStatusOf(widgetsGVR)
	if status.State != dynamiccontroller.TypeSynced || counts[widgetsGVR].Load() == before {
		t.Errorf("%s: %d calls, then %d; %+v", where, before, counts[widgetsGVR].Load(), status.WatchStatus)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
