package dynamiccontroller_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/internal/writes"
)

var (
	lagParents  = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "parents"}
	lagChildren = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "children"}
	lagOthers   = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "others"}
)

// lagging is a controller whose handler writes, and a server whose watches can be held back.
type lagging struct {
	t          *testing.T
	server     *controllertest.Server
	controller *dynamiccontroller.DynamicController
	write      func(ctx context.Context, name string) error // called by the handler

	mu    sync.Mutex // guards calls
	calls []string   // names of the objects
}

func newLagging(t *testing.T, config dynamiccontroller.Config, opts ...dynamiccontroller.ServeOption) *lagging {
	l := newLagServer(t)
	l.controller = controllertest.NewController(t, l.server, config)
	l.serve(opts...)
	controllertest.Run(t, l.controller.Run)
	controllertest.WaitIdle(t, l.controller)
	return l
}

func newLagServer(t *testing.T) *lagging {
	return &lagging{t: t, server: controllertest.NewServer(
		controllertest.Type{GVR: lagParents, Kind: "Parent"}, controllertest.Type{GVR: lagChildren, Kind: "Child"},
		controllertest.Type{GVR: lagOthers, Kind: "Other"},
	)}
}

func (l *lagging) serve(opts ...dynamiccontroller.ServeOption) {
	l.t.Helper()
	if err := l.controller.StartServingGVK(l.t.Context(), lagParents, l.handle, opts...); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lagging) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	l.mu.Lock()
	l.calls = append(l.calls, id.Name())
	l.mu.Unlock()
	if l.write == nil {
		return nil
	}
	return l.write(ctx, id.Name())
}

// called waits until nothing happens any more, and returns the calls since the last time.
func (l *lagging) called() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := l.calls
	l.calls = nil
	return calls
}

func (l *lagging) wantCalls(when string, want ...string) {
	l.t.Helper()
	if got := l.called(); !slices.Equal(got, want) {
		l.t.Errorf("%s: the handler was called for %v, want %v", when, got, want)
	}
}

func lagObject(gvr schema.GroupVersionResource, name string, set map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("example.com/v1")
	o.SetKind(map[schema.GroupVersionResource]string{
		lagParents: "Parent", lagChildren: "Child", lagOthers: "Other",
	}[gvr])
	o.SetNamespace("default")
	o.SetName(name)
	o.SetLabels(set)
	return o
}

func (l *lagging) id(name string) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/" + name, GVR: lagParents}
}

// createOnce returns a write that creates a child with a generated name once for each parent.
func (l *lagging) createOnce(set map[string]string) func(context.Context, string) error {
	var created sync.Map
	return func(ctx context.Context, name string) error {
		if _, exists := created.LoadOrStore(name, true); exists {
			return nil
		}
		child := lagObject(lagChildren, "", set)
		child.SetGenerateName(name + "-")
		_, err := l.server.Resource(lagChildren).Namespace("default").Create(ctx, child, metav1.CreateOptions{})
		return err
	}
}

// The next call for the object waits until the cache of a secondary contains the write. Neither Enqueue nor an event of
// the object itself ends the wait, and other objects do not wait.
func TestD12_NextCallWaitsForTheWritesOfTheLastOne(t *testing.T) {
	for name, test := range map[string]struct {
		config dynamiccontroller.Config
		opts   []dynamiccontroller.ServeOption
		labels map[string]string // of the child
		other  bool              // the write has the context of no call
		waits  bool
	}{
		"a child": {waits: true},
		"a child that the watch selects": {
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.Owns(lagChildren,
				dynamiccontroller.WithLabelSelector(labels.SelectorFromSet(labels.Set{"a": "b"})))},
			labels: map[string]string{"a": "b"}, waits: true,
		},
		"a child that no watch selects": {
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.Owns(lagChildren,
				dynamiccontroller.WithLabelSelector(labels.SelectorFromSet(labels.Set{"a": "b"})))},
			labels: map[string]string{"a": "c"},
		},
		"a child in another namespace": {
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.Owns(lagChildren,
				dynamiccontroller.WithNamespaces("other"))},
		},
		"no watch":                  {opts: []dynamiccontroller.ServeOption{}},
		"another context":           {other: true},
		"the promise is turned off": {config: dynamiccontroller.Config{MaxWriteLag: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if test.opts == nil {
					test.opts = []dynamiccontroller.ServeOption{dynamiccontroller.Owns(lagChildren)}
				}
				l := newLagging(t, test.config, test.opts...)
				create := l.createOnce(test.labels)
				l.write = create
				if test.other {
					l.write = func(_ context.Context, name string) error { return create(t.Context(), name) }
				}
				release := l.server.HoldWatches(lagChildren)
				defer release()
				l.server.Apply(lagObject(lagParents, "first", nil))
				l.wantCalls("created", "first")
				l.controller.Enqueue(l.id("first"))
				l.server.Apply(lagObject(lagParents, "first", map[string]string{"changed": "yes"}))
				if !test.waits {
					if got := l.called(); len(got) == 0 {
						t.Error("the object waits")
					}
					return
				}
				l.wantCalls("enqueued and changed")
				if status, err := l.controller.TypeStatusOf(lagParents); err != nil || status.Settling != 1 || status.Running != 0 {
					t.Errorf("got %d waiting, %d running, error %v", status.Settling, status.Running, err)
				}
				l.write = nil
				l.server.Apply(lagObject(lagParents, "second", nil))
				l.wantCalls("another object", "second")
				release()
				l.wantCalls("the write has arrived", "first")
			})
		})
	}
}

// All kinds of writes are waited for, in all caches that the type reads.
func TestD12_WritesOfAllKinds(t *testing.T) {
	child := func(l *lagging) *unstructured.Unstructured { return lagObject(lagChildren, "c", nil) }
	for name, test := range map[string]ownWriteCase{
		"an update of the object": {holds: lagParents, write: func(ctx context.Context, l *lagging) error {
			_, err := l.server.Resource(lagParents).Namespace("default").Apply(ctx, "first",
				lagObject(lagParents, "first", map[string]string{"x": "y"}), metav1.ApplyOptions{FieldManager: "h", Force: true})
			return err
		}},
		"its status": {holds: lagParents, write: func(ctx context.Context, l *lagging) error {
			o := l.server.Get(l.id("first"))
			o.Object["status"] = map[string]any{"x": "y"}
			_, err := l.server.Resource(lagParents).Namespace("default").UpdateStatus(ctx, o, metav1.UpdateOptions{})
			return err
		}},
		"a patch of a child": {holds: lagChildren, write: func(ctx context.Context, l *lagging) error {
			_, err := l.server.Resource(lagChildren).Namespace("default").Patch(ctx, "c", "application/merge-patch+json",
				[]byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
			return err
		}},
		"a child of a standalone watch": {
			holds: lagChildren, standalone: true, write: func(ctx context.Context, l *lagging) error {
				_, err := l.server.Resource(lagChildren).Namespace("default").Patch(ctx, "c", "application/merge-patch+json",
					[]byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
				return err
			},
		},
		"a deletion": {holds: lagChildren, write: func(ctx context.Context, l *lagging) error {
			return l.server.Resource(lagChildren).Namespace("default").Delete(ctx, "c", metav1.DeleteOptions{})
		}},
		"a deletion with finalizers": {
			holds: lagChildren, finalizers: []string{"example.com/f"}, write: func(ctx context.Context, l *lagging) error {
				return l.server.Resource(lagChildren).Namespace("default").Delete(ctx, "c", metav1.DeleteOptions{})
			},
		},
		"the removal of the last finalizer, which the API server answers with the version before it": {
			holds: lagChildren, finalizers: []string{"example.com/f"}, deleted: true,
			write: func(ctx context.Context, l *lagging) error {
				_, err := l.server.Resource(lagChildren).Namespace("default").Patch(ctx, "c", "application/merge-patch+json",
					[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				return err
			},
		},
		"a child that was created and removed": {
			holds: lagChildren, write: func(ctx context.Context, l *lagging) error {
				children := l.server.Resource(lagChildren).Namespace("default")
				if _, err := children.Create(ctx, lagObject(lagChildren, "d", nil), metav1.CreateOptions{}); err != nil {
					return err
				}
				return children.Delete(ctx, "d", metav1.DeleteOptions{})
			},
		},
		"a deletion and the removal of the last finalizer": {
			holds: lagChildren, finalizers: []string{"example.com/f"}, write: func(ctx context.Context, l *lagging) error {
				children := l.server.Resource(lagChildren).Namespace("default")
				if err := children.Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
					return err
				}
				_, err := children.Patch(ctx, "c", "application/merge-patch+json",
					[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				return err
			},
		},
		"an apply that changes nothing": {
			holds: lagChildren, noWait: true, write: func(ctx context.Context, l *lagging) error {
				_, err := l.server.Resource(lagChildren).Namespace("default").Apply(ctx, "c", child(l),
					metav1.ApplyOptions{FieldManager: "controllertest", Force: true})
				return err
			},
		},
		"a dry run": {holds: lagChildren, noWait: true, write: func(ctx context.Context, l *lagging) error {
			return l.server.Resource(lagChildren).Namespace("default").Delete(ctx, "c",
				metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		}},
		"a conflict": {holds: lagChildren, noWait: true, write: func(ctx context.Context, l *lagging) error {
			o := child(l)
			o.SetResourceVersion("1")
			_, err := l.server.Resource(lagChildren).Namespace("default").Update(ctx, o, metav1.UpdateOptions{})
			if err == nil {
				return errors.New("there was no conflict")
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test.run) })
	}
}

// ownWriteCase is a write of a handler to its object, to an existing child or to another one.
type ownWriteCase struct {
	holds      schema.GroupVersionResource
	finalizers []string // of the existing child
	deleted    bool     // the existing child is being deleted
	standalone bool     // the children are watched by StartWatch
	write      func(ctx context.Context, l *lagging) error
	noWait     bool
}

func (c ownWriteCase) run(t *testing.T) {
	opts := []dynamiccontroller.ServeOption{dynamiccontroller.Owns(lagChildren)}
	if c.standalone {
		opts = nil
	}
	l := newLagging(t, dynamiccontroller.Config{}, opts...)
	if c.standalone {
		_, err := l.controller.StartWatch(lagChildren,
			func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers { return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	existing := lagObject(lagChildren, "c", nil)
	existing.SetFinalizers(c.finalizers)
	l.server.Apply(existing)
	if c.deleted {
		l.server.Delete(dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/c", GVR: lagChildren})
	}
	l.server.Apply(lagObject(lagParents, "first", nil))
	controllertest.WaitIdle(t, l.controller)
	l.called()
	l.wantWait(c.holds, !c.noWait, func(ctx context.Context) error { return c.write(ctx, l) })
}

// wantWait calls the handler, which calls write while the watch of a type is held. It then enqueues the object again.
func (l *lagging) wantWait(holds schema.GroupVersionResource, waits bool, write func(context.Context) error) {
	l.t.Helper()
	release := l.server.HoldWatches(holds)
	defer release()
	l.write = func(ctx context.Context, _ string) error {
		l.write = nil
		return write(ctx)
	}
	l.controller.Enqueue(l.id("first"))
	l.wantCalls("the first time", "first")
	l.controller.Enqueue(l.id("first"))
	if !waits {
		l.wantCalls("at once", "first")
		return
	}
	l.wantCalls("while the write has not arrived")
	release()
	if got := l.called(); len(got) == 0 {
		l.t.Error("the handler was not called after the write has arrived")
	}
}

// If the response to a request is lost, the object is read once, and the next call waits for what was read. A creation
// that was not executed is not waited for.
func TestD12_LostResponses(t *testing.T) {
	remove := func(ctx context.Context, children dynamic.ResourceInterface) error {
		return children.Delete(ctx, "c", metav1.DeleteOptions{})
	}
	relabel := func(ctx context.Context, children dynamic.ResourceInterface) error {
		return patch(ctx, children, "c", `{"metadata":{"labels":{"x":"y"}}}`)
	}
	for name, test := range map[string]struct {
		write   func(context.Context, dynamic.ResourceInterface) error
		execute func(*controllertest.Server) // nil if the request is not executed
		unread  bool                         // the object cannot be read either
		waits   bool
	}{
		"a creation": {createNamed, func(server *controllertest.Server) {
			server.Apply(lagObject(lagChildren, "d", nil))
		}, false, true},
		"a patch": {relabel, func(server *controllertest.Server) {
			server.Apply(lagObject(lagChildren, "c", map[string]string{"x": "y"}))
		}, false, true},
		"a deletion": {remove, func(server *controllertest.Server) {
			server.Delete(dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/c", GVR: lagChildren})
		}, false, true},
		"a creation that was not executed": {write: createNamed},
		"an object that cannot be read": {write: relabel, execute: func(server *controllertest.Server) {
			server.Apply(lagObject(lagChildren, "c", map[string]string{"x": "y"}))
		}, unread: true},
		"a creation with a generated name": {write: createGenerated, execute: func(server *controllertest.Server) {
			server.Apply(lagObject(lagChildren, "d-1", nil))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLagging(t, dynamiccontroller.Config{}, dynamiccontroller.Owns(lagChildren))
				l.server.Apply(lagObject(lagChildren, "c", nil))
				l.server.Apply(lagObject(lagParents, "first", nil))
				controllertest.WaitIdle(t, l.controller)
				l.called()
				l.server.PrependReactor("*", lagChildren.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
					if isRead := action.GetVerb() == "list"; isRead && !test.unread || action.GetVerb() == "watch" {
						return false, nil, nil
					} else if !isRead && test.execute != nil {
						test.execute(l.server)
					}
					return true, nil, errLost
				})
				l.wantWait(lagChildren, test.waits, func(ctx context.Context) error {
					if err := test.write(ctx, l.in(lagChildren)); !errors.Is(err, errLost) {
						t.Errorf("got error %v", err)
					}
					return nil
				})
			})
		})
	}
}

var errLost = errors.New("the response is lost")

func createNamed(ctx context.Context, children dynamic.ResourceInterface) error {
	_, err := children.Create(ctx, lagObject(lagChildren, "d", nil), metav1.CreateOptions{})
	return err
}

func createGenerated(ctx context.Context, children dynamic.ResourceInterface) error {
	child := lagObject(lagChildren, "", nil)
	child.SetGenerateName("d-")
	_, err := children.Create(ctx, child, metav1.CreateOptions{})
	return err
}

type lagCounter struct {
	dynamiccontroller.NoMetrics
	n atomic.Int64
}

func (c *lagCounter) WriteLagged(schema.GroupVersionResource) { c.n.Add(1) }

// A watch that never shows a write delays the object for MaxWriteLag. This is counted.
func TestD12_LimitOfTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 3 * time.Second
		var lags lagCounter
		l := newLagServer(t)
		l.controller = controllertest.NewController(t, l.server, dynamiccontroller.Config{MaxWriteLag: limit},
			dynamiccontroller.WithMetrics(&lags))
		l.serve(dynamiccontroller.Owns(lagChildren))
		controllertest.Run(t, l.controller.Run)
		controllertest.WaitIdle(t, l.controller)
		l.write = l.createOnce(nil)
		defer l.server.HoldWatches(lagChildren)()
		l.server.Apply(lagObject(lagParents, "first", nil))
		l.wantCalls("created", "first")
		l.controller.Enqueue(l.id("first"))
		time.Sleep(limit - time.Millisecond)
		l.wantCalls("before the limit")
		time.Sleep(time.Millisecond)
		l.wantCalls("at the limit", "first")
		if status, err := l.controller.TypeStatusOf(lagParents); err != nil || status.WriteLags != 1 || status.Settling != 0 {
			t.Errorf("got %d lags, %d waiting, error %v, want 1 and none", status.WriteLags, status.Settling, err)
		}
		if got := lags.n.Load(); got != 1 {
			t.Errorf("the metrics counted %d lags, want 1", got)
		}
	})
}

// A type is served with another selector, whose list fails, so that the replacement never takes effect. The limit
// counts from the call nevertheless.
func TestD12_LimitDuringAReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLagging(t, dynamiccontroller.Config{MaxWriteLag: 10 * time.Second}, dynamiccontroller.Owns(lagChildren))
		defer l.server.HoldWatches(lagChildren)()
		l.write = l.createOnce(nil)
		l.server.Apply(lagObject(lagParents, "first", nil))
		l.wantCalls("created", "first")
		l.server.PrependReactor("list", lagParents.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errLost
		})
		l.serve(dynamiccontroller.Owns(lagChildren),
			dynamiccontroller.WithLabelSelector(labels.SelectorFromSet(labels.Set{"a": "b"})))
		l.controller.Enqueue(l.id("first"))
		time.Sleep(9 * time.Second)
		l.wantCalls("before the limit")
		time.Sleep(time.Second)
		l.wantCalls("at the limit", "first")
	})
}

// A type does not end later because the cache of a standalone watch, which remains, lacks a write.
func TestD12_WaitForAStandaloneWatchEndsWithTheType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLagging(t, dynamiccontroller.Config{MaxWriteLag: time.Hour})
		_, err := l.controller.StartWatch(lagChildren,
			func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers { return nil })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		release := l.server.HoldWatches(lagChildren)
		defer release()
		l.write = l.createOnce(nil)
		l.server.Apply(lagObject(lagParents, "first", nil))
		l.wantCalls("created", "first")
		l.controller.Enqueue(l.id("first"))
		l.wantCalls("enqueued")
		if err := l.controller.StopServiceGVK(t.Context(), lagParents); err != nil {
			t.Error(err)
		}
		l.serve()
		l.wantCalls("served again") // because the cache still lacks the write
		release()
		l.wantCalls("released", "first")
	})
}

// A type is stopped and served again. The cache of its children, which another type uses too, still lacks a write.
func TestD12_NextRegistrationWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLagging(t, dynamiccontroller.Config{}, dynamiccontroller.Owns(lagChildren))
		idle := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
		err := l.controller.StartServingGVK(t.Context(), lagOthers, idle, dynamiccontroller.Owns(lagChildren))
		if err != nil {
			t.Fatal(err)
		}
		controllertest.WaitIdle(t, l.controller)
		release := l.server.HoldWatches(lagChildren)
		defer release()
		l.write = l.createOnce(nil)
		l.server.Apply(lagObject(lagParents, "first", nil))
		l.wantCalls("created", "first")
		if err := l.controller.StopServiceGVK(t.Context(), lagParents); err != nil {
			t.Error(err)
		}
		l.serve(dynamiccontroller.Owns(lagChildren))
		l.wantCalls("served again")
		release()
		l.wantCalls("released", "first")
	})
}

// A cache that a type begins to read during the wait counts, too.
func TestD12_WaitIncludesNewSecondaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLagging(t, dynamiccontroller.Config{}, dynamiccontroller.Owns(lagChildren))
		idle := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
		if err := l.controller.StartServingGVK(t.Context(), lagOthers, idle); err != nil { // whose watch is then shared
			t.Fatal(err)
		}
		controllertest.WaitIdle(t, l.controller)
		l.write = func(ctx context.Context, name string) error {
			l.write = nil
			if err := l.createOnce(nil)(ctx, name); err != nil {
				return err
			}
			_, err := l.server.Resource(lagOthers).Namespace("default").Create(ctx,
				lagObject(lagOthers, "o", nil), metav1.CreateOptions{})
			return err
		}
		releaseOthers := l.server.HoldWatches(lagOthers)
		defer releaseOthers()
		releaseChildren := l.server.HoldWatches(lagChildren)
		defer releaseChildren()
		l.server.Apply(lagObject(lagParents, "first", nil))
		l.wantCalls("created", "first")
		l.serve(dynamiccontroller.Owns(lagChildren), dynamiccontroller.Owns(lagOthers))
		l.wantCalls("while neither write has arrived")
		releaseChildren()
		l.wantCalls("while one write has not arrived")
		releaseOthers()
		if got := l.called(); len(got) == 0 {
			t.Error("the handler was not called after the writes have arrived")
		}
	})
}

// A write that is recorded for another API server has a version that the caches do not know.
func TestD12_WritesToOtherServersAreNotWaitedFor(t *testing.T) {
	const other = "other:6443"
	for server, waits := range map[string]bool{"": true, other: false} {
		synctest.Test(t, func(t *testing.T) {
			l := newLagServer(t)
			l.controller = controllertest.NewController(t, l.server, dynamiccontroller.Config{})
			l.controller.SetServer("api:6443")
			l.serve(dynamiccontroller.Owns(lagChildren))
			controllertest.Run(t, l.controller.Run)
			controllertest.WaitIdle(t, l.controller)
			l.write = func(ctx context.Context, _ string) error {
				writes.Record(ctx, writes.Write{
					Server: server, Resource: lagChildren.GroupResource(), Namespace: "default", Name: "c", UID: "u",
					States: []writes.State{{Version: "1000"}},
				})
				return nil
			}
			l.server.Apply(lagObject(lagParents, "first", nil))
			l.wantCalls("created", "first")
			l.controller.Enqueue(l.id("first"))
			if got := l.called(); (len(got) == 0) != waits {
				t.Errorf("server %q: the object waits: %t", server, len(got) == 0)
			}
		})
	}
}

// A wait ends with its run, and when the type is no longer served. It continues when the watch is replaced.
func TestD12_WaitEndsWithTheRunOrTheType(t *testing.T) {
	for name, end := range map[string]func(l *lagging, stop func()){
		"the run ends": func(_ *lagging, stop func()) { stop() },
		"the type is stopped": func(l *lagging, _ func()) {
			if err := l.controller.StopServiceGVK(l.t.Context(), lagParents); err != nil {
				l.t.Error(err)
			}
		},
		"the watch is replaced": func(l *lagging, _ func()) {
			l.serve(dynamiccontroller.Owns(lagChildren, dynamiccontroller.WithCache(dynamiccontroller.CacheFull)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLagServer(t)
				l.controller = controllertest.NewController(t, l.server, dynamiccontroller.Config{MaxWriteLag: time.Hour})
				l.serve(dynamiccontroller.Owns(lagChildren))
				controllertest.Run(t, l.controller.RunWatches) // otherwise, the watches end with the run
				stop := controllertest.Run(t, l.controller.Run)
				controllertest.WaitIdle(t, l.controller)
				l.write = l.createOnce(nil)
				release := l.server.HoldWatches(lagChildren)
				defer release()
				l.server.Apply(lagObject(lagParents, "first", nil))
				l.wantCalls("created", "first")
				l.controller.Enqueue(l.id("first"))
				l.wantCalls("enqueued")
				began := time.Now()
				end(l, stop)
				synctest.Wait()
				if time.Since(began) > time.Second {
					t.Errorf("the end took %s", time.Since(began))
				}
				if name == "the watch is replaced" {
					if got := l.called(); len(got) == 0 {
						t.Error("the new watch contains the write, but the object still waits")
					}
					return
				}
				if name == "the run ends" {
					controllertest.Run(t, l.controller.Run)
					l.wantCalls("in the next run")
					release()
				} else {
					l.serve(dynamiccontroller.Owns(lagChildren))
				}
				controllertest.WaitIdle(t, l.controller)
				if got := l.called(); len(got) == 0 {
					t.Error("the object was not reconciled afterwards")
				}
			})
		})
	}
}
