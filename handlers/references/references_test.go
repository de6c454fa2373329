package references

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

func TestObject_ReconcilesReferrersOfAnyType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.serve(widgets)
		f.serve(gadgets)
		f.refersTo("a", secrets, "s", "other")
		f.refersTo("b", secrets, "s")
		f.refersTo("g", secrets, "s")
		f.put(widgets, "default", "a", "")
		f.put(widgets, "default", "b", "")
		f.put(widgets, "default", "c", "")
		f.put(gadgets, "default", "g", "")
		f.put(secrets, "default", "s", "")
		stop := f.runSynced()
		f.put(secrets, "default", "s", "")
		f.want("an update", "a", "b", "g")
		f.put(secrets, "default", "other", "")
		f.want("a creation", "a")
		f.delete(secrets, "default", "s")
		f.want("a deletion", "a", "b", "g")
		f.put(secrets, "elsewhere", "s", "")
		f.put(secrets, "default", "unused", "")
		f.want("objects that no object refers to")
		f.wantWatches("with three referrers", secrets, 1)
		stop()
	})
}

func TestObject_RefersToClusterScopedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.serve(widgets)
		f.on("a", func(_ context.Context, refs *References) error { return refs.Object(nodes, "", "n") })
		f.put(widgets, "default", "a", "")
		stop := f.run()
		f.want("the start", "a", "a")
		f.put(nodes, "", "n", "")
		f.want("a creation", "a")
		f.selects("a", nodes, "", "app=x")
		f.put(nodes, "", "n", "")
		f.want("an update", "a")
		f.put(nodes, "", "n", "")
		f.want("an update that does not match")
		f.put(nodes, "", "n", "x")
		f.want("an update that matches", "a")
		stop()
	})
}

func TestObjects_ReconcilesWhenAnObjectBeginsOrCeasesToMatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.serve(widgets)
		f.selects("here", secrets, "default", "app=x")
		f.selects("same", secrets, "default", "app=x")
		f.selects("everywhere", secrets, "", "app=x")
		f.on("all", func(_ context.Context, refs *References) error { return refs.Objects(secrets, "default", nil) })
		f.on("none", func(_ context.Context, refs *References) error {
			return refs.Objects(secrets, "default", labels.Nothing())
		})
		for _, name := range []string{"here", "same", "everywhere", "all", "none"} {
			f.put(widgets, "default", name, "")
		}
		stop := f.runSynced()
		f.put(secrets, "default", "s", "")
		f.want("an object that does not match", "all")
		f.put(secrets, "default", "s", "x")
		f.want("the object begins to match", "here", "same", "everywhere", "all")
		f.put(secrets, "default", "s", "y")
		f.want("the object ceases to match", "here", "same", "everywhere", "all")
		f.put(secrets, "elsewhere", "s", "x")
		f.want("another namespace", "everywhere")
		f.put(secrets, "default", "s", "x")
		f.want("the object matches again", "here", "same", "everywhere", "all")
		f.delete(secrets, "default", "s")
		f.want("a deletion", "here", "same", "everywhere", "all")
		stop()
	})
}

// The list of a new watch does not contain an object that a handler has read and that was then deleted.
func TestDeletionBeforeTheFirstListIsNotLost(t *testing.T) {
	for name, declare := range map[string]func(f *fixture){
		"by name":     func(f *fixture) { f.refersTo("a", secrets, "s") },
		"by selector": func(f *fixture) { f.selects("a", secrets, "default", "app=x") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.serve(widgets)
				declare(f)
				f.put(secrets, "default", "s", "x")
				f.put(widgets, "default", "a", "")
				f.fail(secrets, errors.New("on purpose"))
				stop := f.run()
				f.want("the list fails", "a")
				f.delete(secrets, "default", "s")
				f.fail(secrets, nil)
				time.Sleep(time.Minute)
				f.want("the watch has synced", "a")
				stop()
			})
		})
	}
}

// Objects that exist when the watch syncs cause no reconcile in addition to the one after the sync.
func TestSyncCausesOneReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.serve(widgets)
		f.refersTo("a", secrets, "s", "t", "u")
		f.refersTo("b", secrets, "s")
		for _, name := range []string{"s", "t", "u"} {
			f.put(secrets, "default", name, "")
		}
		for _, name := range []string{"a", "b", "c"} {
			f.put(widgets, "default", name, "")
		}
		f.fail(secrets, errors.New("on purpose"))
		stop := f.run()
		f.want("the start", "a", "b", "c")
		f.fail(secrets, nil)
		time.Sleep(time.Minute)
		f.want("the sync", "a", "b")
		f.refersTo("c", secrets, "s")
		f.put(widgets, "default", "c", "")
		f.want("a reference after the sync", "c")
		stop()
	})
}

func TestCommit_ReplacesTheEarlierReferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.serve(widgets)
		f.refersTo("a", secrets, "old", "both")
		f.put(widgets, "default", "a", "")
		stop := f.run()
		f.want("the start", "a", "a")
		f.refersTo("a", secrets, "both", "new")
		f.put(secrets, "default", "old", "")
		f.want("a change that replaces the references", "a")
		f.put(secrets, "default", "old", "")
		f.want("the old reference")
		f.put(secrets, "default", "both", "")
		f.want("the reference that stayed", "a")
		f.put(secrets, "default", "new", "")
		f.want("the new reference", "a")
		stop()
	})
}

func TestAbort_KeepsTheEarlierAndTheNewReferences(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("on purpose") },
		"panic": func() error { panic("on purpose") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.serve(widgets)
				f.refersTo("a", secrets, "old")
				f.put(widgets, "default", "a", "")
				stop := f.run()
				f.want("the start", "a", "a")
				f.on("a", func(_ context.Context, refs *References) error {
					if err := refs.Object(secrets, "default", "new"); err != nil {
						t.Error(err)
					}
					return fail()
				})
				for range 2 {
					f.put(secrets, "default", "old", "")
					f.want("the old reference", "a")
				}
				f.put(secrets, "default", "new", "")
				f.want("the new reference", "a")
				f.refersTo("a", secrets, "new")
				f.put(secrets, "default", "old", "")
				f.want("a reconcile that succeeds", "a")
				f.put(secrets, "default", "old", "")
				f.want("the old reference after the commit")
				stop()
			})
		})
	}
}

func TestWatchEndsWithTheLastReference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.serve(widgets)
		f.serve(gadgets)
		f.refersTo("a", secrets, "s")
		f.selects("b", secrets, "default", "app=x")
		f.refersTo("g", configMaps, "m")
		f.put(widgets, "default", "a", "")
		f.put(widgets, "default", "b", "")
		f.put(gadgets, "default", "g", "")
		stop := f.runSynced()
		f.on("a", nil)
		f.put(widgets, "default", "a", "")
		f.want("a commit without references", "a")
		f.wantWatches("one reference is left", secrets, 1)
		f.tracker.Forget(identifiers{GVR: widgets, NamespacedKey: "default/b"})
		f.wantWatches("no reference is left", secrets, 0)
		f.refersTo("a", secrets, "s")
		f.put(widgets, "default", "a", "")
		f.want("a new reference, and the sync of the new watch", "a", "a")
		f.wantWatches("a new reference", secrets, 1)
		f.put(secrets, "default", "s", "")
		f.want("a change", "a")

		f.wantWatches("before ForgetType", configMaps, 1)
		if err := f.controller.StopServiceGVK(t.Context(), gadgets); err != nil {
			t.Error(err)
		}
		f.tracker.ForgetType(gadgets)
		f.wantWatches("after ForgetType", configMaps, 0)
		f.wantWatches("after ForgetType of another type", secrets, 1)
		stop()
	})
}

// An object that no longer refers to a type when the watch syncs is not reconciled, then or later.
func TestReferencesRemovedBeforeTheSync(t *testing.T) {
	for name, remove := range map[string]func(f *fixture){
		"by Forget": func(f *fixture) { f.tracker.Forget(identifiers{GVR: widgets, NamespacedKey: "default/a"}) },
		"by Commit": func(f *fixture) {
			f.on("a", nil)
			f.put(widgets, "default", "a", "")
			f.want("a commit without references", "a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.serve(widgets)
				f.refersTo("a", secrets, "s")
				f.refersTo("b", secrets, "s")
				f.selects("c", secrets, "default", "app=x")
				for _, name := range []string{"a", "b", "c"} {
					f.put(widgets, "default", name, "")
				}
				f.fail(secrets, errors.New("on purpose"))
				stop := f.run()
				f.want("the start", "a", "b", "c")
				remove(f)
				f.fail(secrets, nil)
				time.Sleep(time.Minute)
				f.want("the sync", "b", "c")
				f.put(secrets, "default", "s", "x")
				f.want("a change", "b", "c")
				stop()
			})
		})
	}
}

// If all references to a type are removed before its watch has synced, the watch ends. A later reference starts
// another one.
func TestWatchEndsBeforeTheSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.serve(widgets)
		f.refersTo("a", secrets, "s")
		f.put(widgets, "default", "a", "")
		f.fail(secrets, errors.New("on purpose"))
		stop := f.run()
		f.want("the start", "a")
		f.on("a", nil)
		f.put(widgets, "default", "a", "")
		f.want("a commit without references", "a")
		f.fail(secrets, nil)
		time.Sleep(time.Minute)
		f.want("nothing")
		f.wantWatches("no reference is left", secrets, 0)
		f.refersTo("a", secrets, "s")
		f.put(widgets, "default", "a", "")
		f.want("a new reference, and the sync of the new watch", "a", "a")
		f.wantWatches("a new reference", secrets, 1)
		stop()
	})
}

// A handler that does not return keeps its run's state, but neither the references nor the watches.
func TestReferencesEndWithTheRun_EvenIfAHandlerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		watches, cancelWatches := context.WithCancel(t.Context())
		watchesEnded := make(chan error, 1)
		go func() { watchesEnded <- f.controller.RunWatches(watches) }()
		f.serve(widgets)
		f.serve(gadgets)
		hang := make(chan struct{})
		f.refersTo("a", secrets, "s")
		f.on("g", func(context.Context, *References) error {
			<-hang
			return nil
		})
		f.put(widgets, "default", "a", "")
		f.put(gadgets, "default", "g", "")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.controller.Run(ctx) }()
		f.want("the start", "a", "a", "g")
		f.wantWatches("during the run", secrets, 1)
		cancel()
		if err := <-ended; !errors.Is(err, dynamiccontroller.ErrStillRunning) {
			t.Errorf("Run returned %v, want ErrStillRunning", err)
		}
		f.wantWatches("after the run", secrets, 0)
		f.on("a", nil)
		stop := f.run()
		f.want("the next run", "a")
		f.put(secrets, "default", "s", "")
		f.want("the references of the earlier run")
		close(hang)
		f.want("the handler returns", "g")
		stop()
		cancelWatches()
		if err := <-watchesEnded; err != nil {
			t.Error(err)
		}
	})
}

func TestReferencesEndWithTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.controller.RunWatches(ctx) }()
		f.serve(widgets)
		var kept *References
		var keptCtx context.Context
		f.on("a", func(ctx context.Context, refs *References) error {
			kept, keptCtx = refs, ctx
			return refs.Object(secrets, "default", "s")
		})
		f.put(widgets, "default", "a", "")
		stop := f.run()
		f.want("the start", "a", "a")
		f.wantWatches("during the run", secrets, 1)
		stop()
		f.wantWatches("after the run", secrets, 0)
		f.wantWatches("after the run", widgets, 1)
		if n := len(f.tracker.runs.All()); n != 0 {
			t.Errorf("%d runs are left", n)
		}
		f.put(secrets, "default", "s", "")
		f.want("a change between runs")
		f.on("a", nil)
		stop = f.run()
		f.want("the next run", "a")
		f.put(secrets, "default", "s", "")
		f.want("the references of the earlier run")
		for name, refs := range map[string]*References{
			"begun during the run": {run: kept.run, id: kept.id, attempt: 10},
			"begun after the run":  f.tracker.Begin(keptCtx, kept.id),
		} {
			if err := refs.Object(secrets, "default", "s"); !errors.Is(err, dynamiccontroller.ErrRunEnded) {
				t.Errorf("%s: Object returned %v, want ErrRunEnded", name, err)
			}
		}
		f.wantWatches("after late declarations", secrets, 0)
		stop()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A watch that every replica starts is shared with the references of a leader.
func TestPromotionSendsNoRequestsForSharedWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.controller.RunWatches(ctx) }()
		f.serve(widgets)
		none := func(context.Context, dynamiccontroller.Object) []identifiers { return nil }
		shared, err := f.controller.StartWatch(secrets, none, wholeObjects(secrets)...)
		if err != nil {
			t.Fatal(err)
		}
		f.refersTo("a", secrets, "s")
		f.put(widgets, "default", "a", "")
		f.wantWatches("on the standby", secrets, 1)
		for range 3 {
			stop := f.run()
			f.wantAtLeastOnce("a promotion", "a") // the sync of the watch can be over before the first reconcile
			f.put(secrets, "default", "s", "")
			f.want("a change", "a")
			stop()
		}
		f.wantWatches("after three runs", secrets, 1)
		f.mu.Lock()
		if n := f.lists[secrets]; n != 1 {
			t.Errorf("%d list requests, want 1", n)
		}
		f.mu.Unlock()
		if err := shared.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		f.wantWatches("after Stop", secrets, 0)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// probing is a Reader that returns the number of objects to reconcile after a change to the object that is being read.
type probing struct {
	referrers func(gvr schema.GroupVersionResource) int
}

func (p probing) Get(
	_ context.Context, gvr schema.GroupVersionResource, _, _ string,
) (*unstructured.Unstructured, error) {
	return &unstructured.Unstructured{Object: map[string]any{"referrers": p.referrers(gvr)}}, nil
}

func (p probing) List(
	_ context.Context, gvr schema.GroupVersionResource, _ string, _ labels.Selector,
) ([]*unstructured.Unstructured, error) {
	return make([]*unstructured.Unstructured, p.referrers(gvr)), nil
}

func TestReader_DeclaresBeforeItReads(t *testing.T) {
	f := newFixture(t)
	id := identifiers{GVR: widgets, NamespacedKey: "default/a"}
	refs := f.tracker.Begin(t.Context(), id)
	reader := refs.Reader(probing{func(gvr schema.GroupVersionResource) int {
		if k := refs.run.index.kinds[gvr]; k != nil {
			return len(referrersOf(k, newObject("default", "s", "x")))
		}
		return 0
	}})
	object, err := reader.Get(t.Context(), secrets, "default", "s")
	if err != nil || object.Object["referrers"] != 1 {
		t.Errorf("Get read %v, %v before the declaration", object, err)
	}
	objects, err := reader.List(t.Context(), configMaps, "default", labels.SelectorFromSet(labels.Set{"app": "x"}))
	if err != nil || len(objects) != 1 {
		t.Errorf("List read %v, %v before the declaration", objects, err)
	}
	f.tracker.Forget(id)
}

// A handler reads from the cache of the watch. Before the sync, it can return nil.
func TestLister_ReadsFromTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.serve(widgets)
		f.put(secrets, "default", "s", "x")
		var apps []string
		f.on("a", func(ctx context.Context, refs *References) error {
			if _, err := refs.Lister(secrets); len(apps) == 0 && !errors.Is(err, dynamiccontroller.ErrNotServed) {
				t.Errorf("without a reference, Lister returned %v, want ErrNotServed", err)
			}
			secret, err := refs.Reader(handlers.Cached(refs.Lister)).Get(ctx, secrets, "default", "s")
			if errors.Is(err, dynamiccontroller.ErrNotSynced) {
				apps = append(apps, "not synced")
				return nil
			}
			if err == nil {
				apps = append(apps, secret.GetLabels()["app"])
			}
			return err
		})
		f.put(widgets, "default", "a", "")
		f.fail(secrets, errors.New("on purpose"))
		stop := f.run()
		f.want("the start", "a")
		f.fail(secrets, nil)
		time.Sleep(time.Minute)
		f.want("the sync", "a")
		f.put(secrets, "default", "s", "y")
		f.want("a change", "a")
		if want := []string{"not synced", "x", "y"}; !slices.Equal(apps, want) {
			t.Errorf("read %q, want %q", apps, want)
		}
		stop()
	})
}

// Changes that the options of the watch exclude are not delivered.
func TestWatchOptions_ExcludeChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.tracker.config.WatchOptions = func(gvr schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
			isDeletion := func(_ context.Context, _, newObj dynamiccontroller.Object) bool { return newObj == nil }
			return append(wholeObjects(gvr),
				dynamiccontroller.WithPredicate(isDeletion), dynamiccontroller.WithNamespaces("default"))
		}
		f.serve(widgets)
		f.selects("a", secrets, "", "app=x")
		f.put(widgets, "default", "a", "")
		stop := f.run()
		f.want("the start", "a", "a")
		f.put(secrets, "default", "s", "x")
		f.put(secrets, "elsewhere", "s", "x")
		f.want("creations")
		f.delete(secrets, "elsewhere", "s")
		f.want("a deletion in another namespace")
		f.delete(secrets, "default", "s")
		f.want("a deletion", "a")
		stop()
	})
}

func TestDeclarationErrors(t *testing.T) {
	f := newFixture(t)
	id := identifiers{GVR: widgets, NamespacedKey: "default/a"}
	selector := labels.SelectorFromSet(labels.Set{"app": "x"})
	if err := f.tracker.Begin(t.Context(), id).Object(secrets, "default", ""); err == nil {
		t.Error("an empty name was accepted")
	}
	for name, end := range map[string]func(*References){"Commit": (*References).Commit, "Abort": (*References).Abort} {
		refs := f.tracker.Begin(t.Context(), id)
		end(refs)
		if refs.Object(secrets, "default", "s") == nil || refs.Objects(secrets, "default", selector) == nil {
			t.Errorf("a declaration after %s was accepted", name)
		}
		reader := refs.Reader(handlers.Live(f.client))
		if _, err := reader.Get(t.Context(), secrets, "default", "s"); err == nil {
			t.Errorf("Get returned nil after %s", name)
		}
		if _, err := reader.List(t.Context(), secrets, "default", selector); err == nil {
			t.Errorf("List returned nil after %s", name)
		}
	}
	invalid, err := New(Config{
		Controller: f.controller, WatchOptions: func(schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := invalid.Begin(t.Context(), id).Object(secrets, "default", "s"); err == nil {
		t.Error("invalid options were accepted")
	}
	for _, run := range append(invalid.runs.All(), f.tracker.runs.All()...) {
		if len(run.index.kinds) > 0 || len(run.index.referrers) > 0 {
			t.Errorf("a rejected declaration left %+v", run.index)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("New accepted an empty Config")
	}
}

// If a reconcile overlaps with a later one of the same object, it does not remove what the later one has declared.
func TestCommit_OfAnEarlierReconcile(t *testing.T) {
	f := newFixture(t)
	id := identifiers{GVR: widgets, NamespacedKey: "default/a"}
	earlier, later := f.tracker.Begin(t.Context(), id), f.tracker.Begin(t.Context(), id)
	declare := func(refs *References, name string) {
		if err := refs.Object(secrets, "default", name); err != nil {
			t.Error(err)
		}
	}
	declare(earlier, "earlier")
	declare(later, "later")
	declare(earlier, "later") // must not make it a reference of the earlier reconcile only
	referrers := func(name string) int {
		k := f.tracker.runs.For(t.Context()).index.kinds[secrets]
		return len(referrersOf(k, newObject("default", name, "")))
	}
	earlier.Commit()
	if referrers("earlier") != 1 || referrers("later") != 1 {
		t.Error("the commit of the earlier reconcile removed a reference")
	}
	later.Commit()
	later.Commit()
	if referrers("earlier") != 0 || referrers("later") != 1 {
		t.Error("the commit of the later reconcile did not replace the references")
	}
	f.tracker.Forget(id)
}

// metadata is an object of which only the metadata is used.
type metadata struct{ *metav1.PartialObjectMetadata }

func (m metadata) Object() runtime.Object { return m.PartialObjectMetadata }

func newObject(namespace, name, app string) dynamiccontroller.Object {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if app != "" {
		m.Labels = map[string]string{"app": app}
	}
	return metadata{m}
}

// newObjectWithLabels returns an object in the namespace default.
func newObjectWithLabels(name string, set labels.Set) dynamiccontroller.Object {
	return metadata{&metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: set},
	}}
}
