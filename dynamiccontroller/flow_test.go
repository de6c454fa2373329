package dynamiccontroller_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

var byNamespace = dynamiccontroller.WithFlow(dynamiccontroller.ObjectIdentifiers.Namespace)

// idsIn returns n objects of a namespace.
func (f *fixture) idsIn(namespace string, n int) []dynamiccontroller.ObjectIdentifiers {
	ids := make([]dynamiccontroller.ObjectIdentifiers, n)
	for i := range ids {
		ids[i] = dynamiccontroller.ObjectIdentifiers{GVR: f.types[0], NamespacedKey: fmt.Sprintf("%s/w%d", namespace, i)}
	}
	return ids
}

// busyNamespace is the outcome of reconciling many objects of one namespace, with one of another namespace in between.
type busyNamespace struct {
	waited time.Duration // by the object of the other namespace
	took   time.Duration // for all objects
	calls  int64
}

func reconcileBusyNamespace(t *testing.T, objects int, work time.Duration, opts ...dynamiccontroller.ServeOption) (
	result busyNamespace,
) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 10, ResyncPeriod: -1})
		stop := f.run()
		var calls atomic.Int64
		var asked time.Time
		f.serve(f.types[0], func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			calls.Add(1)
			if id.Namespace() == "quiet" {
				result.waited = time.Since(asked)
			}
			time.Sleep(work)
			return nil
		}, opts...)
		began := time.Now()
		f.controller.Enqueue(f.idsIn("busy", objects)...)
		time.Sleep(work + work/2)
		asked = time.Now()
		f.controller.Enqueue(f.idsIn("quiet", 1)...)
		for f.status(f.types[0]).Live+f.status(f.types[0]).Running > 0 {
			time.Sleep(work / 10)
			synctest.Wait()
		}
		result.took, result.calls = time.Since(began), calls.Load()
		stop()
	})
	return result
}

// One object of a quiet namespace does not wait for the waiting objects of a busy one. The busy namespace does not take
// longer, and no call is made in vain.
func TestF3_QuietFlowWaitsForAtMostOneRound(t *testing.T) {
	const objects, work = 5000, 20 * time.Millisecond
	without := reconcileBusyNamespace(t, objects, work)
	with := reconcileBusyNamespace(t, objects, work, byNamespace)
	if without.waited < 100*work {
		t.Errorf("without flows, the quiet namespace waited for only %s; the test proves nothing", without.waited)
	}
	if with.waited > 2*work {
		t.Errorf("the quiet namespace waited for %s, want at most the running call and one turn", with.waited)
	}
	if with.calls != objects+1 {
		t.Errorf("%d calls for %d objects", with.calls, objects+1)
	}
	if with.took > without.took*105/100 {
		t.Errorf("all objects took %s, without flows %s", with.took, without.took)
	}
}

// concurrent counts concurrent calls by flow.
type concurrent struct {
	flowOf  func(dynamiccontroller.ObjectIdentifiers) string
	mu      sync.Mutex // guards the fields below
	running map[string]int
	most    map[string]int
}

func newConcurrent(flowOf func(dynamiccontroller.ObjectIdentifiers) string) *concurrent {
	return &concurrent{flowOf: flowOf, running: map[string]int{}, most: map[string]int{}}
}

func (c *concurrent) handle(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	flow := c.flowOf(id)
	c.mu.Lock()
	c.running[flow]++
	c.most[flow] = max(c.most[flow], c.running[flow])
	c.mu.Unlock()
	time.Sleep(time.Second)
	c.mu.Lock()
	c.running[flow]--
	c.mu.Unlock()
	return nil
}

// total returns the number of running calls.
func (c *concurrent) total() (n int) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, running := range c.running {
		n += running
	}
	return n
}

// A limit holds for each flow, for objects that wait while the options change as well.
func TestF3_LimitHoldsPerFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 16, ResyncPeriod: -1})
		stop := f.run()
		byName := dynamiccontroller.ObjectIdentifiers.Name
		first := newConcurrent(dynamiccontroller.ObjectIdentifiers.Namespace)
		f.serve(f.types[0], first.handle, byNamespace, dynamiccontroller.WithFlowConcurrency(2))
		for _, namespace := range []string{"a", "b", "c"} {
			f.controller.Enqueue(f.idsIn(namespace, 20)...)
		}
		if n := first.total(); n != 6 {
			t.Errorf("%d calls are running, want two for each namespace", n)
		}
		time.Sleep(1500 * time.Millisecond)
		if n := first.total(); n != 6 {
			t.Errorf("%d calls are running, want two for each namespace", n)
		}
		second := newConcurrent(byName)
		f.serve(f.types[0], second.handle, dynamiccontroller.WithFlow(byName), dynamiccontroller.WithFlowConcurrency(1))
		time.Sleep(time.Minute)
		if n := second.total(); n != 0 || f.status(f.types[0]).Live > 0 {
			t.Errorf("%d calls are still running, and the status is %+v", n, f.status(f.types[0]))
		}
		if want := map[string]int{"a": 2, "b": 2, "c": 2}; !maps.Equal(first.most, want) {
			t.Errorf("concurrent calls by namespace: %v, want %v", first.most, want)
		}
		if len(second.most) != 16 { // the first handler was called for the first four names
			t.Errorf("the second handler was called for %d flows, want 16", len(second.most))
		}
		for name, most := range second.most {
			if most != 1 {
				t.Errorf("%d concurrent calls for %s", most, name)
			}
		}
		stop()
	})
}

// Calls of an earlier registration that are still running count toward the limit of their flow.
func TestF3_HungCallsOfAnEarlierRegistrationCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		h := newHung()
		stop := f.start()
		options := []dynamiccontroller.ServeOption{byNamespace, dynamiccontroller.WithFlowConcurrency(1)}
		f.serve(f.types[0], h.handle, options...)
		f.controller.Enqueue(f.idsIn("a", 1)...)
		synctest.Wait()
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := f.controller.StopServiceGVK(cancelled, f.types[0]); err == nil {
			t.Error("StopServiceGVK returned nil while a handler was hanging")
		}
		c := newCalls(succeed)
		f.serve(f.types[0], c.handle, options...)
		f.controller.Enqueue(f.idsIn("a", 3)[2], f.idsIn("b", 2)[1])
		c.want(t, "while a call for namespace a hangs", named("w1"))
		close(h.release)
		c.want(t, "after the call for namespace a has returned", named("w2"))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// An event precedes initial lists with objects of many flows.
func TestD10_EventsPrecedeInitialListsOfOtherFlows(t *testing.T) {
	const objects = 300
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		for i := range objects {
			f.put(f.types[0], fmt.Sprintf("w%d", i))
		}
		var mu sync.Mutex // guards order
		var order []string
		f.serve(f.types[0], func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			mu.Lock()
			order = append(order, id.NamespacedKey)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			return nil
		}, dynamiccontroller.WithFlow(dynamiccontroller.ObjectIdentifiers.Name))
		time.Sleep(10*time.Millisecond + time.Millisecond/2)
		f.controller.Enqueue(f.idsIn("other", 1)...)
		mu.Lock()
		before := len(order)
		mu.Unlock()
		time.Sleep(3 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		if next := order[before:]; !strings.Contains(strings.Join(next, " ")+" ", "other/w0 ") {
			t.Errorf("after the event, the handler was called for %v", next)
		}
		stop()
	})
}

// A flow function that panics or calls Goexit affects only the order of the objects.
func TestD5_FlowFunctionCanPanic(t *testing.T) {
	for name, mistake := range map[string]func(){
		"panic": func() { panic("on purpose") }, "Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
				stop := f.run()
				f.put(f.types[0], "listed")
				c := newCalls(succeed)
				wrong := dynamiccontroller.WithFlow(func(id dynamiccontroller.ObjectIdentifiers) string {
					if id.Name() != "w1" {
						mistake()
					}
					return "flow"
				})
				f.serve(f.types[0], c.handle, wrong, dynamiccontroller.WithFlowConcurrency(1))
				c.want(t, "the initial list", named("listed"))
				f.controller.Enqueue(f.idsIn("default", 3)...)
				c.want(t, "Enqueue", named("w0", "w1", "w2"))
				f.serve(f.types[0], c.handle, wrong)
				c.want(t, "a swap", named("listed"))
				stop()
			})
		})
	}
}

func TestStartServing_RejectsInvalidFlows(t *testing.T) {
	f := newFixture(t, 1, dynamiccontroller.Config{})
	for want, opts := range map[string][]dynamiccontroller.ServeOption{
		"WithFlowConcurrency(0): must be at least 1": {byNamespace, dynamiccontroller.WithFlowConcurrency(0)},
		"WithFlowConcurrency(2) requires WithFlow":   {dynamiccontroller.WithFlowConcurrency(2)},
	} {
		err := f.controller.StartServingGVK(t.Context(), f.types[0], succeed, opts...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := f.controller.StartServingGVK(t.Context(), f.types[0], succeed, dynamiccontroller.WithFlow(nil)); err != nil {
		t.Error(err)
	}
}
