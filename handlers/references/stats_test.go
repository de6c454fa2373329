package references

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// recordedHooks records the calls to hooks.
type recordedHooks struct {
	tracker *Tracker
	mu      sync.Mutex // guards calls
	calls   []string
}

func (h *recordedHooks) record(format string, args ...any) {
	h.tracker.Stats() // no lock is held
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, fmt.Sprintf(format, args...))
}

func (h *recordedHooks) hooks() Hooks {
	return Hooks{
		WatchStarted: func(gvr schema.GroupVersionResource) { h.record("started %s", gvr.Resource) },
		WatchStopped: func(gvr schema.GroupVersionResource) { h.record("stopped %s", gvr.Resource) },
		Routed:       func(gvr schema.GroupVersionResource, n int) { h.record("%s to %d", gvr.Resource, n) },
	}
}

// want compares the calls since the last call to want, in any order, and the stats.
func (h *recordedHooks) want(t *testing.T, step string, stats Stats, calls ...string) {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.calls)
	slices.Sort(calls)
	if !slices.Equal(h.calls, calls) {
		t.Errorf("%s: the hooks were called for %q, want %q", step, h.calls, calls)
	}
	h.calls = nil
	if got := h.tracker.Stats(); got != stats {
		t.Errorf("%s: got %+v, want %+v", step, got, stats)
	}
}

func TestStats_CountsReferencesWatchesAndEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		recorded := &recordedHooks{tracker: f.tracker}
		f.tracker.config.Hooks = recorded.hooks()
		recorded.want(t, "at first", Stats{})
		f.put(secrets, "default", "s", "x") // exists before the watch does
		f.serve(widgets)
		f.refersTo("a", secrets, "s", "s", "other")
		f.selects("b", secrets, "default", "app=x")
		f.put(widgets, "default", "a", "")
		f.put(widgets, "default", "b", "")
		stop := f.runSynced()
		recorded.want(t, "after the sync", Stats{Referrers: 2, References: 3, Watches: 1}, "started secrets")
		f.put(secrets, "default", "s", "x")
		recorded.want(t, "a change", Stats{Referrers: 2, References: 3, Watches: 1, Events: 2, Routed: 4},
			"secrets to 2", "secrets to 2")
		f.put(secrets, "default", "unknown", "")
		recorded.want(t, "an object to which none refers",
			Stats{Referrers: 2, References: 3, Watches: 1, Events: 3, Routed: 4}, "secrets to 0")
		f.refersTo("b", configMaps, "m")
		f.put(widgets, "default", "b", "")
		recorded.want(t, "another reference", Stats{Referrers: 2, References: 3, Watches: 2, Events: 3, Routed: 4},
			"started configmaps")
		f.tracker.Forget(identifiers{GVR: widgets, NamespacedKey: "default/a"})
		recorded.want(t, "Forget", Stats{Referrers: 1, References: 1, Watches: 1, Events: 3, Routed: 4},
			"stopped secrets")
		stop()
		recorded.want(t, "after the run", Stats{Events: 3, Routed: 4}, "stopped configmaps")
	})
}

func TestHooks_AreNotCalledIfAWatchDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		recorded := &recordedHooks{tracker: f.tracker}
		f.tracker.config.Hooks = recorded.hooks()
		f.tracker.config.WatchOptions = func(schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{nil}
		}
		refs := f.tracker.Begin(t.Context(), identifiers{GVR: widgets, NamespacedKey: "default/a"})
		if err := refs.Object(secrets, "default", "s"); err == nil {
			t.Error("Object accepted invalid options")
		}
		recorded.want(t, "invalid options", Stats{})
	})
}

// A hook that panics or ends its goroutine is logged. The watches start and stop, and no event is lost.
func TestHooks_CannotEndAnything(t *testing.T) {
	for name, misbehave := range map[string]func(){
		"panic":  func() { panic("on purpose") },
		"Goexit": goruntime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.tracker.config.Hooks = Hooks{
					WatchStarted: func(schema.GroupVersionResource) { misbehave() },
					WatchStopped: func(schema.GroupVersionResource) { misbehave() },
					Routed:       func(schema.GroupVersionResource, int) { misbehave() },
				}
				var mu sync.Mutex
				var logged []string
				log := funcr.New(func(_, args string) {
					mu.Lock()
					defer mu.Unlock()
					logged = append(logged, args)
				}, funcr.Options{})
				f.serve(widgets)
				f.put(widgets, "default", "a", "")
				stop := f.run()
				f.want("the start", "a")
				id := identifiers{GVR: widgets, NamespacedKey: "default/a"}
				f.fail(secrets, errors.New("on purpose")) // so that the watch syncs after the declaration
				if err := f.tracker.Begin(logr.NewContext(t.Context(), log), id).Object(secrets, "default", "s"); err != nil {
					t.Fatal(err)
				}
				f.fail(secrets, nil)
				time.Sleep(time.Minute)
				f.want("the sync", "a")
				f.put(secrets, "default", "s", "")
				f.want("a change", "a")
				f.tracker.Forget(id)
				f.wantWatches("after Forget", secrets, 0)
				stop()
				mu.Lock()
				defer mu.Unlock()
				for _, hook := range []string{"WatchStarted", "Routed", "WatchStopped"} {
					if !slices.ContainsFunc(logged, func(line string) bool { return strings.Contains(line, `"hook"="`+hook+`"`) }) {
						t.Errorf("%s is not in the log: %q", hook, logged)
					}
				}
			})
		})
	}
}
