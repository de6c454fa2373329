package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// The Reconciler's cache lags: it holds an earlier version of a child, or none.
func TestApplyCache_LaggingCacheCausesNoWrites(t *testing.T) {
	server, cache := newFakeServer(newWidget()), fakeserver.Cache{}
	reconciler := newReconciler(t, Config{Client: server, Cache: cache})
	parent := newWidget()
	reconcile := func(ctx context.Context, value string) (child *unstructured.Unstructured) {
		t.Helper()
		result, err := reconciler.Reconcile(ctx, first, parent, oneStage(newConfigMap("a", value)))
		children := result.Existing()
		if err != nil || len(children) != 1 {
			t.Errorf("got %v, %v", children, err)
			return nil
		}
		return children[0]
	}
	var versions []*unstructured.Unstructured
	fakeserver.InRun(t, func(ctx context.Context) {
		versions = append(versions, nil, reconcile(ctx, "one"), reconcile(ctx, "two"))
		server.TakeWrites()
		for i, version := range versions {
			cache["a"] = version
			reconcile(ctx, "two")
			if writes := server.TakeWrites(); len(writes) != 0 {
				t.Errorf("with version %d in the cache: wrote %q", i, writes)
			}
		}
	})
	// Another leader may have written in the meantime, so an old version must be treated as drift. The apply is rejected
	// because of the old version, and the child is read.
	cache["a"] = versions[1]
	fakeserver.InRun(t, func(ctx context.Context) {
		before := len(server.Actions())
		reconcile(ctx, "two")
		var verbs []string
		for _, action := range server.Actions()[before:] {
			verbs = append(verbs, action.GetVerb())
		}
		if !slices.Equal(verbs, []string{"patch", "get"}) {
			t.Errorf("in the next run: sent %q", verbs)
		}
	})
}

func TestApplyCache_LaggingCacheDoesNotHideChange(t *testing.T) {
	server, cache := newFakeServer(newWidget()), fakeserver.Cache{}
	reconciler, parent := newReconciler(t, Config{Client: server, Cache: cache}), newWidget()
	for _, value := range []string{"one", "two", "one"} {
		result, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("a", value)))
		children := result.Existing()
		if err != nil {
			t.Fatal(err)
		}
		if cache["a"] == nil {
			cache["a"] = children[0]
		}
	}
	current, err := handlers.Live(server).Get(t.Context(), configMaps, "default", "a")
	if err != nil || fmt.Sprint(current.Object["data"]) != "map[key:one]" {
		t.Errorf("got %v, %v", current, err)
	}
}

// The API server stores a value in a different form, so the configuration never equals the object.
func TestApplyCache_NormalizedValuesAreWrittenOnce(t *testing.T) {
	server, cache := newFakeServer(newWidget()), fakeserver.Cache{}
	reconciler, parent := newReconciler(t, Config{Client: server, Cache: cache}), newWidget()
	writes := 0
	server.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		writes++
		written := &unstructured.Unstructured{}
		if err := written.UnmarshalJSON(action.(clienttesting.PatchAction).GetPatch()); err != nil {
			return true, nil, err
		}
		written.Object["data"] = map[string]any{"key": "1"}
		written.SetUID("child-uid")
		written.SetResourceVersion("100")
		cache["a"] = written.DeepCopy() // without managed fields
		written.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: "platform.example.com", Operation: metav1.ManagedFieldsOperationApply,
			FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:key":{}}}`),
		}})
		return true, written, nil
	})
	for range 3 {
		if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("a", "1000m"))); err != nil {
			t.Fatal(err)
		}
	}
	if writes != 1 {
		t.Errorf("wrote %d times, want 1", writes)
	}
}

func TestApplyCache_DropsUndesiredChildren(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	for n := range 5 {
		name := fmt.Sprintf("child-%d", n)
		if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap(name, "x"))); err != nil {
			t.Fatal(err)
		}
		objects := server.Resource(configMaps).Namespace("default")
		if err := objects.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if children := entriesOf(cacheOf(t, reconciler))[first].children; len(children) != 1 {
		t.Errorf("got the cached children %v, want one", children)
	}
}

func TestApplyCache_DroppedByForgetAndAtEndOfRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newFakeServer(newWidget())
		reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
		fakeserver.InRun(t, func(ctx context.Context) {
			cache := reconciler.memory.caches.For(ctx)
			a, b := newConfigMap("a", "x"), newConfigMap("b", "x")
			for _, desired := range []Desired{oneStage(a, b), oneStage(a)} {
				if _, err := reconciler.Reconcile(ctx, first, parent, desired); err != nil {
					t.Error(err)
				}
			}
			if entries := entriesOf(cache); len(entries) != 1 || len(entries[first].children) != 1 {
				t.Errorf("got the cache %v, want one parent with one child", entries)
			}
			if err := reconciler.Forget(ctx, first); err != nil {
				t.Error(err)
			}
			if entries := entriesOf(cache); len(entries) != 0 {
				t.Errorf("got the cache %v after Forget", entries)
			}
		})
		synctest.Wait()
		if caches := reconciler.memory.caches.All(); len(caches) != 0 {
			t.Errorf("%d caches are left after the run", len(caches))
		}
	})
}

func TestReconcile_ListerFindsTheChildrenToPrune(t *testing.T) {
	server := newFakeServer(newWidget())
	cache := &listing{&fakeserver.Lister{}, fmt.Errorf("configmaps: %w", dynamiccontroller.ErrNotServed)}
	reconciler := newReconciler(t, Config{Client: server, Cache: cache})
	parent := newWidget()
	reconcile := func(names ...string) error {
		var stage []*unstructured.Unstructured
		for _, name := range names {
			stage = append(stage, newConfigMap(name, "x"))
		}
		result, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(stage...))
		cache.lister.Found = append(cache.lister.Found, result.Existing()...)
		return err
	}
	if err := errors.Join(reconcile("a", "b", "c"), reconcile("a", "b")); err != nil {
		t.Fatal(err)
	}
	server.TakeWrites()
	cache.err = nil
	cache.lister.Found = cache.lister.Found[:3] // a, b, and c, which no longer exists
	if err := reconcile("a"); err != nil {
		t.Fatal(err)
	}
	if writes := server.TakeWrites(); !slices.Contains(writes, "delete configmaps b") {
		t.Errorf("wrote %q", writes)
	}
	cache.err = errors.New("failed")
	if err := reconcile("a"); !errors.Is(err, cache.err) {
		t.Errorf("got %v", err)
	}
}

// After a restore, the versions of the cached objects are older than those of the last writes, and yet current.
func TestApplyCache_DroppedByANewHistory(t *testing.T) {
	var cache applyCache
	entry := cache.forHistory(0).entry(first)
	if cache.forHistory(0).entry(first) != entry {
		t.Error("the entry was dropped without a restore")
	}
	restored := cache.forHistory(1).entry(first)
	if restored == entry {
		t.Error("the entry was not dropped")
	}
	// A call that has begun before the restore ends.
	if cache.forHistory(0).entry(first) != restored || cache.forHistory(1).entry(first) != restored {
		t.Error("the entry was dropped twice")
	}
}

func TestApplyCache_PollIntervalGrowsWithTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cache parentEntry
		for _, seconds := range []time.Duration{1, 1, 2, 4, 8, 16, 30, 30} {
			interval := cache.pollInterval()
			if interval != seconds*time.Second {
				t.Errorf("got %s, want %ds", interval, seconds)
			}
			time.Sleep(interval)
		}
		cache.waitStarted = time.Time{}
		if interval := cache.pollInterval(); interval != minPollInterval {
			t.Errorf("got %s for the next wait", interval)
		}
	})
}
