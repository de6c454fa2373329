package dynamiccontroller_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// causes records why a handler was called for the object a.
type causes struct {
	f     *fixture
	gvr   schema.GroupVersionResource
	other schema.GroupVersionResource // a second type
	stop  func()                      // ends the run

	mu   sync.Mutex
	got  []string
	errs []error       // of the next calls
	hold chan struct{} // if not nil, the next call waits until it is closed, or its context is cancelled
	do   func(ctx context.Context) error
}

func (c *causes) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) (err error) {
	if id.Name() != "a" {
		return nil
	}
	c.mu.Lock()
	c.got = append(c.got, dynamiccontroller.CauseOf(ctx).String())
	if len(c.errs) > 0 {
		err, c.errs = c.errs[0], c.errs[1:]
	}
	hold, do := c.hold, c.do
	c.hold, c.do = nil, nil
	c.mu.Unlock()
	if do != nil {
		return do(ctx)
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (c *causes) returns(errs ...error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = errs
}

// take returns the causes of the calls since the last time.
func (c *causes) take() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.got
	c.got = nil
	return got
}

// want compares the causes of the calls since the last time.
func (c *causes) want(step string, want ...string) {
	c.f.t.Helper()
	if got := c.take(); !slices.Equal(got, want) {
		c.f.t.Errorf("%s: the causes are %q, want %q", step, got, want)
	}
}

func (c *causes) put()                                    { c.f.put(c.gvr, "a") }
func (c *causes) id() dynamiccontroller.ObjectIdentifiers { return c.f.id(c.gvr, "a") }
func (c *causes) serve(opts ...dynamiccontroller.ServeOption) {
	c.f.t.Helper()
	c.f.serve(c.gvr, c.handle, opts...)
}

// held makes a call wait while change is called.
func (c *causes) held(change func()) {
	release := make(chan struct{})
	c.hold = release
	c.f.controller.Enqueue(c.id())
	c.want("the call that waits", "enqueue")
	change()
	close(release)
}

func TestCauseOf_ReturnsWhyTheHandlerWasCalled(t *testing.T) {
	const ofChild = "secondary_event of type1s.v1.example.com default/c"
	toA := func(context.Context, dynamiccontroller.Object) []string { return []string{"default/a"} }
	for name, test := range map[string]func(c *causes){
		"an existing object": func(c *causes) {
			c.put()
			c.serve()
			c.want("the first call", "initial_list")
		},
		"existing objects of several types": func(c *causes) {
			c.put()
			c.f.put(c.other, "c", c.id())
			c.serve(dynamiccontroller.Owns(c.other))
			c.want("the first call", "initial_list")
		},
		"events of the object": func(c *causes) {
			c.serve()
			for range 2 {
				c.put()
			}
			c.f.delete(c.gvr, "a")
			c.want("a creation, a change and a deletion", "event", "event", "event")
		},
		"events of an owned object": func(c *causes) {
			c.put()
			c.serve(dynamiccontroller.Owns(c.other))
			c.take()
			c.f.put(c.other, "c", c.id())
			c.f.delete(c.other, "c")
			c.want("a creation and a deletion", ofChild, ofChild)
		},
		"an event of a watched object": func(c *causes) {
			c.serve(dynamiccontroller.Watches(c.other, toA))
			c.f.put(c.other, "c")
			c.want("a creation", ofChild)
		},
		"a standalone watch": func(c *causes) {
			c.serve()
			c.f.put(c.other, "b")
			startWatch(c.f, c.other, func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
				return []dynamiccontroller.ObjectIdentifiers{c.id()}
			})
			c.want("existing objects", "initial_list")
			c.f.put(c.other, "c")
			c.want("an event", ofChild)
		},
		"a resync": func(c *causes) {
			c.put()
			c.serve()
			c.take()
			time.Sleep(3 * time.Hour)
			got := c.take()
			if len(got) < 2 || slices.ContainsFunc(got, func(cause string) bool { return cause != "resync" }) {
				c.f.t.Errorf("the causes are %q, want resyncs", got)
			}
		},
		"failures": func(c *causes) {
			c.returns(errOnPurpose, errOnPurpose)
			c.serve()
			c.put()
			time.Sleep(5 * time.Second)
			c.want("two failures", "event", "retry 1", "retry 2")
			c.put()
			c.want("after a success", "event")
		},
		"an event before the retry": func(c *causes) {
			c.returns(errOnPurpose)
			c.serve()
			c.put()
			c.put()
			c.want("an early retry", "event", "event, retry 1")
			time.Sleep(time.Minute)
			c.want("later")
		},
		"a parked object": func(c *causes) {
			c.returns(dynamiccontroller.Terminal(errOnPurpose))
			c.serve()
			c.put()
			c.put()
			c.want("the event after parking", "event", "event")
		},
		"requeues": func(c *causes) {
			c.returns(dynamiccontroller.RequeueAfter(time.Second), dynamiccontroller.RequeueAfter(1),
				dynamiccontroller.RequeueAfter(0))
			c.serve()
			c.put()
			time.Sleep(time.Minute)
			c.want("requeues", "event", "requeue", "requeue", "requeue")
		},
		"an event before the requeue": func(c *causes) {
			c.returns(dynamiccontroller.RequeueAfter(time.Hour))
			c.serve()
			c.put()
			c.put()
			time.Sleep(30 * time.Minute)
			c.want("an early requeue", "event", "event, requeue")
		},
		"an event before a requeue that is kept": func(c *causes) {
			c.returns(dynamiccontroller.RequeueAfter(time.Minute))
			c.serve(dynamiccontroller.KeepRequeues())
			c.put()
			c.put()
			time.Sleep(2 * time.Minute)
			c.want("an event and the requeue", "event", "event", "requeue")
		},
		"a kept retry after a success": func(c *causes) {
			c.returns(errOnPurpose)
			c.serve(dynamiccontroller.KeepRequeues())
			c.put()
			c.put()
			time.Sleep(2 * time.Minute)
			c.want("a failure, a success and the retry", "event", "event, retry 1", "retry")
		},
		"Enqueue": func(c *causes) {
			c.serve()
			c.f.controller.Enqueue(c.id())
			c.want("Enqueue", "enqueue")
			c.f.controller.EnqueueAfter(time.Second, c.id())
			time.Sleep(time.Minute)
			c.want("EnqueueAfter", "enqueue")
		},
		"an Interrupted error": func(c *causes) {
			c.returns(interruption(true))
			c.serve()
			c.put()
			time.Sleep(time.Minute)
			c.want("an interruption", "event", "interrupted")
		},
		"an interrupted run": func(c *causes) {
			c.serve()
			c.hold = make(chan struct{})
			c.f.controller.Enqueue(c.id()) // not in the cache
			c.want("the first run", "enqueue")
			c.restart()
			c.want("the second run", "initial_list, interrupted")
			c.restart()
			c.want("the third run")
		},
		"an interrupted run whose object is in the cache": func(c *causes) {
			c.put()
			c.hold = make(chan struct{})
			c.serve()
			c.want("the first run", "initial_list")
			c.restart()
			c.want("the second run", "initial_list")
		},
		"a promotion while an object fails": func(c *causes) {
			c.put()
			c.returns(errOnPurpose)
			c.serve()
			c.restart()
			c.want("two runs", "initial_list", "initial_list, retry 1")
		},
		"a new handler": func(c *causes) {
			c.put()
			c.serve()
			c.serve()
			c.want("two handlers", "initial_list", "replaced")
		},
		"a watch that the handler has added": func(c *causes) {
			c.do = func(ctx context.Context) error {
				return c.f.controller.AddWatches(ctx, c.gvr, dynamiccontroller.Owns(c.other))
			}
			c.serve()
			c.put()
			time.Sleep(time.Minute)
			c.want("the call that adds it, and another one", "event", "initial_list")
		},
		"several": func(c *causes) {
			c.serve(dynamiccontroller.Owns(c.other))
			c.put()
			c.take()
			c.held(func() {
				for range 2 {
					c.f.put(c.other, "c", c.id())
				}
				c.f.put(c.other, "d", c.id())
				c.put()
				c.f.delete(c.other, "d")
				c.f.controller.Enqueue(c.id())
			})
			c.want("the next call", "event, "+ofChild+" and 2 others, enqueue")
			c.put()
			c.want("the call after it", "event")
		},
		"many": func(c *causes) {
			c.serve(dynamiccontroller.Owns(c.other))
			c.put()
			c.take()
			c.held(func() {
				for i := range 100 {
					c.f.put(c.other, fmt.Sprint("c", i), c.id())
				}
			})
			c.want("the next call", "secondary_event of type1s.v1.example.com default/c0 and 99 others")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, MinRetryDelay: time.Second}
				if name == "a resync" {
					config.ResyncPeriod = time.Hour
				}
				f := newFixture(t, 2, config)
				c := &causes{f: f, gvr: f.types[0], other: f.types[1]}
				stopWatches := f.runWatches()
				c.stop = f.run()
				test(c)
				c.stop()
				stopWatches()
			})
		})
	}
}

// restart ends the run and begins another one.
func (c *causes) restart() {
	c.stop()
	c.stop = c.f.run()
	synctest.Wait()
}

func TestCauseOf_IsZeroOutsideHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		var ofHandler context.Context
		f.serve(f.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			ofHandler = ctx
			return nil
		})
		f.controller.Enqueue(f.id(f.types[0], "a"))
		synctest.Wait()
		for name, test := range map[string]struct {
			ctx  context.Context
			want string
		}{
			"a context derived from a handler's": {context.WithoutCancel(ofHandler), "enqueue"},
			"the context of the run":             {dynamiccontroller.RunContext(ofHandler), ""},
			"another context":                    {t.Context(), ""},
		} {
			cause := dynamiccontroller.CauseOf(test.ctx)
			if got := cause.String(); got != test.want || (cause == dynamiccontroller.Cause{}) != (test.want == "") {
				t.Errorf("%s: the cause is %q, want %q", name, got, test.want)
			}
		}
		stop()
	})
}

// A call does not begin if the context of the run has expired. If the object is reconciled
// nevertheless, its causes are kept.
func TestCauseOf_ContainsTheCauseOfACallThatDidNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		c := &causes{f: f, gvr: f.types[0]}
		var ctx *clocked
		stop := inBackground(func(parent context.Context) error {
			ctx = &clocked{Context: parent}
			return f.controller.Run(ctx)
		})
		c.serve()
		ctx.isOver.Store(true)
		f.controller.Enqueue(c.id())
		c.want("while the context has expired")
		ctx.isOver.Store(false)
		time.Sleep(2 * time.Second)
		c.want("later", "enqueue, interrupted")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestCause_ReturnsItsParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, MinRetryDelay: time.Hour})
		gvr, child := f.types[0], f.types[1]
		f.put(gvr, "a")
		stop := f.run()
		var got dynamiccontroller.Cause
		f.serve(gvr, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			got = dynamiccontroller.CauseOf(ctx)
			return errOnPurpose
		}, dynamiccontroller.Owns(child))
		if id, ok := got.Object(); ok || id != (dynamiccontroller.ObjectIdentifiers{}) || got.Others() != 0 {
			t.Errorf("the first call is because of %v", id)
		}
		f.put(child, "c", f.id(gvr, "a"))
		if id, ok := got.Object(); !ok || id != f.id(child, "c") || got.Others() != 0 || got.Retry() != 1 {
			t.Errorf("the second call is because of %v and %d others, retry %d", id, got.Others(), got.Retry())
		}
		want := []dynamiccontroller.CauseKind{dynamiccontroller.CauseSecondaryEvent, dynamiccontroller.CauseRetry}
		if kinds := slices.Collect(got.Kinds()); !slices.Equal(kinds, want) {
			t.Errorf("the kinds are %v, want %v", kinds, want)
		}
		for range got.Kinds() { // an early end of the loop
			break
		}
		if !got.Has(dynamiccontroller.CauseRetry) || got.Has(dynamiccontroller.CauseEvent) {
			t.Errorf("Has returns wrong results for %v", got)
		}
		stop()
	})
}

func TestCauseKind_HasAName(t *testing.T) {
	for kind, want := range map[dynamiccontroller.CauseKind]string{
		dynamiccontroller.CauseInitialList:    "initial_list",
		dynamiccontroller.CauseEvent:          "event",
		dynamiccontroller.CauseSecondaryEvent: "secondary_event",
		dynamiccontroller.CauseResync:         "resync",
		dynamiccontroller.CauseRetry:          "retry",
		dynamiccontroller.CauseRequeue:        "requeue",
		dynamiccontroller.CauseEnqueue:        "enqueue",
		dynamiccontroller.CauseInterrupted:    "interrupted",
		dynamiccontroller.CauseReplaced:       "replaced",
		0:                                     "CauseKind(0)",
		3:                                     "CauseKind(3)",
		1 << 15:                               "CauseKind(32768)",
	} {
		if got := kind.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// With V(1), all log lines of a reconcile have its cause, including those of the handler.
func TestCause_IsLoggedAtV1(t *testing.T) {
	for verbosity, want := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var log lines
			f := newFixtureWithLogger(t, log.logger(verbosity), 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
			stop := f.run()
			f.serve(f.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
				logr.FromContextOrDiscard(ctx).Info("a line of the handler")
				return dynamiccontroller.Terminal(errOnPurpose)
			})
			f.controller.Enqueue(f.id(f.types[0], "a"))
			synctest.Wait()
			for _, line := range []string{"a line of the handler", "Reconcile failed, object parked"} {
				if !log.contain(line) || log.contain(line, `"cause"="enqueue"`) != want {
					t.Errorf("at V(%d), a cause is wanted: %t; got %q", verbosity, want, log.all())
				}
			}
			stop()
		})
	}
}

// A call with its cause fills a size class of 48 bytes.
func TestCause_TakesFewBytes(t *testing.T) {
	if size := unsafe.Sizeof(dynamiccontroller.Cause{}); size > 16 {
		t.Errorf("a cause takes %d bytes, want at most 16", size)
	}
}

// The cause is stored in the call, which the context of a handler contains anyway.
func TestCauseOf_AllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		allocations := -1.0
		f.serve(f.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			allocations = testing.AllocsPerRun(100, func() {
				for kind := range dynamiccontroller.CauseOf(ctx).Kinds() {
					_ = kind.String()
				}
			})
			return nil
		})
		f.controller.Enqueue(f.id(f.types[0], "a"))
		synctest.Wait()
		if allocations != 0 {
			t.Errorf("%.1f allocations, want none", allocations)
		}
		stop()
	})
}
