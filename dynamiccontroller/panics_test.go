package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// nilError has an Error method that dereferences its receiver, as most error types do.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// errorList has methods that work on a nil value.
type errorList []error

func (errorList) Error() string { return "no errors" }

// brokenError panics in the selected method.
type brokenError struct {
	panics string
	value  any
}

func (e brokenError) try(method string) {
	if e.panics == method {
		panic(e.value)
	}
}
func (e brokenError) Error() string     { e.try("Error"); return "broken" }
func (e brokenError) Unwrap() error     { e.try("Unwrap"); return nil }
func (e brokenError) As(any) bool       { e.try("As"); return false }
func (e brokenError) Interrupted() bool { e.try("Interrupted"); return false }

// endlessError wraps itself.
type endlessError struct{}

func (e *endlessError) Error() string { return "endless" }
func (e *endlessError) Unwrap() error { return e }

// exitingError ends the goroutine that calls Error.
type exitingError struct{}

func (exitingError) Error() string { runtime.Goexit(); return "" }

// brokenStringer cannot be formatted, because its String method panics with a value that cannot be formatted either.
type brokenStringer struct{ depth int }

func (s brokenStringer) String() string { panic(brokenStringer{s.depth + 1}) }

// outcomes records the outcomes reported to Metrics.
type outcomes struct {
	dynamiccontroller.NoMetrics
	mu  sync.Mutex
	got []dynamiccontroller.Outcome
}

func (o *outcomes) Reconciled(done dynamiccontroller.Reconcile) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.got = append(o.got, done.Outcome)
}

func (*outcomes) Forget(schema.GroupVersionResource) {}

// logBuffer collects log lines. Its logger formats errors, as real loggers do.
type logBuffer struct {
	mu    sync.Mutex
	lines []string
}

func (b *logBuffer) logger(verbosity int) logr.Logger {
	return funcr.New(func(prefix, args string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lines = append(b.lines, prefix+args)
	}, funcr.Options{Verbosity: verbosity})
}

func (b *logBuffer) count(text string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// invalidErrorCase is a case of TestD5_InvalidErrorFailsOnlyItsObject.
type invalidErrorCase struct {
	name  string
	err   error
	panic any
	want  string // in the status and the log
	first dynamiccontroller.Outcome
}

// run reconciles one object whose handler call fails with the error or panic, and another one whose call succeeds.
func (test invalidErrorCase) run(t *testing.T) {
	counts, logged := &outcomes{}, &logBuffer{}
	f := newFixtureWithLogger(t, logged.logger(1), 1, retryEverySecond(1), dynamiccontroller.WithMetrics(counts))
	stop := f.run()
	c := newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		switch {
		case id.Name() == "good":
			return nil
		case test.panic != nil:
			panic(test.panic)
		default:
			return test.err
		}
	})
	f.serve(f.types[0], c.handle)
	f.put(f.types[0], "bad")
	time.Sleep(time.Minute)
	f.put(f.types[0], "good")
	if n := len(c.at["good"]); n != 1 {
		t.Errorf("%d calls for the other object, want 1", n)
	}
	want := []dynamiccontroller.Outcome{
		test.first, dynamiccontroller.OutcomeParked, dynamiccontroller.OutcomeSuccess,
	}
	if test.first == dynamiccontroller.OutcomePanic && !slices.Equal(counts.got, want) {
		t.Errorf("the outcomes are %v, want %v", counts.got, want)
	}
	if counts.got[0] != test.first {
		t.Errorf("the first outcome is %v, want %v", counts.got[0], test.first)
	}
	parked := f.status(f.types[0]).NewestParked
	if len(parked) != 1 || !strings.Contains(parked[0].LastError, test.want) {
		t.Errorf("the parked objects are %+v, want one whose error contains %q", parked, test.want)
	}
	if logged.count(test.want) == 0 {
		t.Errorf("%q is not in the log: %q", test.want, logged.lines)
	}
	stop()
}

func TestD5_InvalidErrorFailsOnlyItsObject(t *testing.T) {
	const (
		isPanic      = dynamiccontroller.OutcomePanic
		isTerminal   = dynamiccontroller.OutcomeTerminal
		methodPanics = "type dynamiccontroller_test.brokenError with a method that panics: panic: on purpose"
	)
	var nilPointer *nilError
	var nilStatus *apierrors.StatusError
	var nilList errorList
	for _, test := range []invalidErrorCase{
		{name: "a nil pointer", err: nilPointer,
			want: "handler returned a nil *dynamiccontroller_test.nilError", first: isPanic},
		{name: "a nil StatusError", err: nilStatus, want: "handler returned a nil *errors.StatusError", first: isPanic},
		{name: "a nil slice with working methods", err: nilList,
			want: "handler returned a nil dynamiccontroller_test.errorList", first: isPanic},
		{name: "a wrapped nil pointer", err: fmt.Errorf("outer: %w", nilPointer),
			want: "outer: <nil> (it wraps a nil *dynamiccontroller_test.nilError)", first: dynamiccontroller.OutcomeFailure},
		{name: "a joined nil pointer", err: errors.Join(errOnPurpose, nilPointer),
			want: "wraps a nil *dynamiccontroller_test.nilError", first: isPanic},
		{name: "a terminal nil pointer", err: dynamiccontroller.Terminal(nilPointer),
			want: "Terminal was called with a nil *dynamiccontroller_test.nilError", first: isTerminal},
		{name: "Error panics", err: brokenError{"Error", "on purpose"}, want: methodPanics, first: isPanic},
		{name: "Error panics in a terminal error", err: dynamiccontroller.Terminal(brokenError{"Error", "on purpose"}),
			want: "on purpose", first: isPanic},
		{name: "Error panics with a value that cannot be formatted", err: brokenError{"Error", brokenStringer{}},
			want: "brokenStringer", first: isPanic},
		{name: "Error ends the goroutine", err: exitingError{}, want: "called runtime.Goexit", first: isPanic},
		{name: "Unwrap panics", err: brokenError{"Unwrap", "on purpose"}, want: methodPanics, first: isPanic},
		{name: "As panics", err: brokenError{"As", "on purpose"}, want: methodPanics, first: isPanic},
		{name: "Interrupted panics", err: brokenError{"Interrupted", "on purpose"}, want: methodPanics, first: isPanic},
		{name: "Unwrap never ends", err: &endlessError{}, want: "endlessError", first: isPanic},
		{name: "a panic with a value that cannot be formatted", panic: brokenStringer{},
			want: "brokenStringer", first: isPanic},
		{name: "a panic with an error whose Error panics", panic: brokenError{"Error", "on purpose"},
			want: "on purpose", first: isPanic},
		{name: "a panic with a nil pointer error", panic: nilPointer, want: "nil", first: isPanic},
		{name: "a runtime error", panic: func() (err error) {
			defer func() { err = recover().(error) }()
			_ = []int{}[len(errOnPurpose.Error())]
			return nil
		}(), want: "index out of range", first: isPanic},
	} {
		t.Run(test.name, func(t *testing.T) { synctest.Test(t, test.run) })
	}
}

// With GODEBUG=panicnil=1, the recovered value of a panic can be nil.
func TestD5_PanicWithNilIsAFailure(t *testing.T) {
	t.Setenv("GODEBUG", "panicnil=1")
	synctest.Test(t, func(t *testing.T) {
		counts := &outcomes{}
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(counts))
		stop := f.run()
		f.serve(f.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error { panic(nil) })
		f.put(f.types[0], "w")
		if len(counts.got) == 0 || counts.got[0] != dynamiccontroller.OutcomePanic {
			t.Errorf("the outcomes are %v, want a panic first", counts.got)
		}
		stop()
	})
}

// unformattable is a panic value that makes fmt panic.
var unformattable = brokenStringer{}

type unformattableMetrics struct{ dynamiccontroller.NoMetrics }

func (unformattableMetrics) Reconciled(dynamiccontroller.Reconcile) {
	panic(unformattable)
}
func (unformattableMetrics) Synced(dynamiccontroller.Sync)      { panic(unformattable) }
func (unformattableMetrics) Forget(schema.GroupVersionResource) { panic(unformattable) }

type unformattableLimiter struct{}

func (unformattableLimiter) When(dynamiccontroller.ObjectIdentifiers) time.Duration {
	panic(unformattable)
}
func (unformattableLimiter) Forget(dynamiccontroller.ObjectIdentifiers)          { panic(unformattable) }
func (unformattableLimiter) NumRequeues(dynamiccontroller.ObjectIdentifiers) int { return 0 }

// unformattableCase is a case of TestD5_PanicsThatCannotBeFormatted.
type unformattableCase struct {
	name    string
	opts    []dynamiccontroller.Option
	serve   dynamiccontroller.ServeOption
	mapFunc dynamiccontroller.MapFunc
	want    string // in the log
}

// run reconciles an object twice. The user code of the test case panics in the meantime.
func (test unformattableCase) run(t *testing.T) {
	logged := &logBuffer{}
	config := dynamiccontroller.Config{Workers: 1, MaxRetryDelay: time.Second, ResyncPeriod: -1}
	f := newFixtureWithLogger(t, logged.logger(0), 2, config, test.opts...)
	gvr, other := f.types[0], f.types[1]
	stop := f.run()
	c := newCalls(nil)
	c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		if len(c.at[id.Name()]) == 1 {
			return errOnPurpose
		}
		return nil
	}
	var opts []dynamiccontroller.ServeOption
	if test.serve != nil {
		opts = append(opts, test.serve)
	}
	if test.mapFunc != nil {
		opts = append(opts, dynamiccontroller.Watches(other, test.mapFunc))
	}
	f.serve(gvr, c.handle, opts...)
	f.put(gvr, "w")
	f.put(other, "o")
	time.Sleep(time.Minute)
	synctest.Wait()
	if n := len(c.at["w"]); n != 2 {
		t.Errorf("the handler was called %d times, want one failure and one success", n)
	}
	if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
		t.Error(err)
	}
	stop()
	if test.want != "" && (logged.count(test.want) == 0 || logged.count("brokenStringer") == 0) {
		t.Errorf("%q or the panic's value is not in the log: %q", test.want, logged.lines)
	}
	if test.want == "" && logged.count("panic") > 0 {
		t.Errorf("the log contains an unexpected panic: %q", logged.lines)
	}
}

// User code can panic with any value and in any callback. The controller logs the panic and continues.
func TestD5_PanicsThatCannotBeFormatted(t *testing.T) {
	withTypeEvents := func(subscribe dynamiccontroller.TypeEvents) []dynamiccontroller.Option {
		return []dynamiccontroller.Option{dynamiccontroller.WithTypeEvents(subscribe)}
	}
	for _, test := range []unformattableCase{
		{name: "metrics", want: "Metrics panicked",
			opts: []dynamiccontroller.Option{dynamiccontroller.WithMetrics(unformattableMetrics{})}},
		{name: "rate limiter", want: "Rate limiter panicked",
			serve: dynamiccontroller.WithRateLimiter(unformattableLimiter{})},
		{name: "predicate", want: "Predicate panicked",
			serve: dynamiccontroller.WithPredicate(func(_ context.Context, _, _ dynamiccontroller.Object) bool {
				panic(unformattable)
			})},
		{name: "transform", want: "Transform failed",
			serve: dynamiccontroller.WithTransform(func(any) (any, error) { panic(unformattable) })},
		{name: "MapFunc", want: "MapFunc panicked",
			mapFunc: func(context.Context, dynamiccontroller.Object) []string { panic(unformattable) }},
		{name: "type events", want: "TypeEvents panicked", opts: withTypeEvents(
			func(func(schema.GroupVersionResource, bool)) func() { panic(unformattable) })},
		{name: "cancelling type events", want: "TypeEvents panicked", opts: withTypeEvents(
			func(func(schema.GroupVersionResource, bool)) func() { return func() { panic(unformattable) } })},
		{name: "type events without a cancel function", opts: withTypeEvents(
			func(func(schema.GroupVersionResource, bool)) func() { return nil })},
		{name: "nil metrics", opts: []dynamiccontroller.Option{dynamiccontroller.WithMetrics(nil)}},
	} {
		t.Run(test.name, func(t *testing.T) { synctest.Test(t, test.run) })
	}
}

func TestD5_PanicOfTheParkedFunctionIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := &logBuffer{}
		f := newFixtureWithLogger(t, logged.logger(0), 1, retryEverySecond(1),
			dynamiccontroller.WithParked(func(dynamiccontroller.ObjectIdentifiers) { panic(unformattable) }))
		stop := f.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.Terminal(errOnPurpose)
		})
		f.serve(f.types[0], c.handle)
		for _, name := range []string{"a", "b"} {
			f.put(f.types[0], name)
			time.Sleep(time.Second)
		}
		stop()
		if n := logged.count("Parked function panicked"); n != 2 || len(c.at["b"]) != 1 {
			t.Errorf("%d panics are logged, and b was reconciled %d times: %q", n, len(c.at["b"]), logged.lines)
		}
	})
}
