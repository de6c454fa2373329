package children

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// versioned returns a ConfigMap named "a" with a UID and a resourceVersion.
func versioned(uid, version string) *unstructured.Unstructured {
	object := newConfigMap("a", "of version "+version)
	object.SetUID(types.UID(uid))
	object.SetResourceVersion(version)
	return object
}

func TestOwnWrite_StandingOfTheCache(t *testing.T) {
	deleting := versioned("x", "10")
	deleting.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
	expired := ownWrite{versionOf(versioned("x", "10")), versioned("x", "10")}
	expired.Written = expired.Written.Add(-2 * decide.MaxLag)
	written := ownWrite{versionOf(versioned("x", "10")), versioned("x", "10")}
	gone := ownWrite{Version: versionOf(versioned("x", "10"))}
	for name, test := range map[string]struct {
		last   ownWrite
		cached *unstructured.Unstructured
		want   standing
	}{
		"an older version":                             {written, versioned("x", "9"), behind},
		"an older version with fewer digits":           {written, versioned("x", "2"), behind},
		"the version that was written":                 {written, versioned("x", "10"), current},
		"a newer version":                              {written, versioned("x", "11"), current},
		"the object that had the name before":          {written, versioned("w", "9"), behind},
		"an object that got the name later":            {written, versioned("y", "11"), current},
		"no object after a write":                      {written, nil, missing},
		"a version that cannot be compared":            {written, versioned("x", "abc"), current},
		"the object that was deleted":                  {gone, versioned("x", "10"), deleted},
		"an older version of the deleted object":       {gone, versioned("x", "9"), deleted},
		"a newer version of the deleted object":        {gone, versioned("x", "11"), deleted},
		"the deleted object, which has finalizers":     {gone, deleting, current},
		"the object before the deleted one":            {gone, versioned("w", "9"), deleted},
		"an object that got the name after a deletion": {gone, versioned("y", "11"), current},
		"no object after a deletion":                   {gone, nil, current},
		"an older version after the longest lag":       {expired, versioned("x", "9"), current},
		"no object after the longest lag":              {expired, nil, current},
	} {
		if got := test.last.standingOf(test.cached); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestOwnWrites_KeepTheNewestVersion(t *testing.T) {
	var o ownWrites
	id := identify(configMaps, "default", "a")
	o.record(id, versioned("x", "10"))
	if got := o.record(id, versioned("x", "9")); got.GetResourceVersion() != "10" {
		t.Errorf("an older version replaced a newer one: got %s", got.GetResourceVersion())
	}
	o.recordDeleted(id, versioned("x", "9"))
	if got := o.newest(id, versioned("x", "10")); got != nil {
		t.Errorf("got %v after the deletion", got)
	}
	if got := o.record(id, versioned("x", "11")); got != nil {
		t.Errorf("a late response brought the deleted object back: got %v", got)
	}
	o.record(id, versioned("y", "12"))
	o.recordDeleted(id, versioned("x", "9"))
	if got := o.newest(id, versioned("x", "10")); got.GetUID() != "y" {
		t.Errorf("the deletion of an earlier object hid a later one: got %v", got)
	}
	o.recordGone(id)
	if got := o.newest(id, versioned("y", "12")); got != nil {
		t.Errorf("got %v, although the API server has no object with the name", got)
	}
}

// Objects are held only as long as the cache lacks them.
func TestOwnWrites_AreDroppedWhenTheCacheHasThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o ownWrites
		id := identify(configMaps, "default", "a")
		held := func(want int) {
			t.Helper()
			if got := len(o.ids()); got != want {
				t.Errorf("%d objects are held, want %d", got, want)
			}
		}
		o.record(id, versioned("x", "10"))
		o.newest(id, versioned("x", "9"))
		held(1)
		o.newest(id, versioned("x", "10"))
		held(0)
		o.recordDeleted(id, versioned("x", "10"))
		o.newest(id, nil)
		held(0)
		o.record(id, versioned("x", "10"))
		time.Sleep(decide.MaxLag)
		o.expire()
		held(1)
		time.Sleep(time.Second)
		o.expire()
		held(0)
	})
}

// listedCache is a cache with a List that finds the objects by their namespace.
type listedCache struct{ fakeserver.Cache }

func (c listedCache) List(
	_ context.Context, _ schema.GroupVersionResource, _ string, selector labels.Selector,
) (all []*unstructured.Unstructured, err error) {
	for _, object := range c.Cache {
		if object != nil && selector.Matches(labels.Set(object.GetLabels())) {
			all = append(all, object.DeepCopy())
		}
	}
	return all, nil
}

// The cache lacks the last writes. Latest returns them, in every call of the same run.
func TestLatest_NeverReturnsWhatIsOlderThanTheLastWrite(t *testing.T) {
	server, cache := newFakeServer(newWidget()), fakeserver.Cache{}
	reconciler, parent := newReconciler(t, Config{Client: server, Cache: cache}), newWidget()
	latest := reconciler.Latest(first, listedCache{cache})
	reconcile := func(ctx context.Context, stage ...*unstructured.Unstructured) (objects []*unstructured.Unstructured) {
		t.Helper()
		result, err := reconciler.Reconcile(ctx, first, parent, oneStage(stage...))
		if err != nil && failureOf(err) != nil {
			t.Fatal(err)
		}
		return result.Existing()
	}
	want := func(ctx context.Context, when, value string) {
		t.Helper()
		read := func(object *unstructured.Unstructured) (value string) {
			value, _, _ = unstructured.NestedString(object.Object, "data", "key")
			return value
		}
		switch got, err := latest.Get(ctx, configMaps, "default", "a"); {
		case value == "" && !apierrors.IsNotFound(err):
			t.Errorf("%s: got %v, %v, want a NotFound", when, got, err)
		case value != "" && (err != nil || read(got) != value):
			t.Errorf("%s: got %v, %v, want %s", when, got, err, value)
		}
		list, err := latest.List(ctx, configMaps, "default", labels.Everything())
		switch {
		case err != nil, value == "" && len(list) != 0, value != "" && (len(list) != 1 || read(list[0]) != value):
			t.Errorf("%s: listed %v, %v, want %q", when, list, err, value)
		}
	}
	fakeserver.InRun(t, func(ctx context.Context) {
		one := reconcile(ctx, newConfigMap("a", "one"))[0]
		want(ctx, "after creating", "one")
		cache["a"] = one.DeepCopy()
		want(ctx, "after the cache has caught up", "one")
		two := reconcile(ctx, newConfigMap("a", "two"))[0]
		want(ctx, "after an update", "two")
		if again := reconcile(ctx, newConfigMap("a", "two"))[0]; again.GetResourceVersion() != two.GetResourceVersion() {
			t.Errorf("the next call returned version %s, want %s", again.GetResourceVersion(), two.GetResourceVersion())
		}
		if got := latest.Newest(ctx, configMaps, one); got.GetResourceVersion() != two.GetResourceVersion() {
			t.Errorf("Newest returned version %s, want %s", got.GetResourceVersion(), two.GetResourceVersion())
		}
		cache["a"] = two.DeepCopy()
		desired := Desired{Absent: []*unstructured.Unstructured{newConfigMap("a", "")}, Partial: true}
		if _, err := reconciler.Reconcile(ctx, first, parent, desired); failureOf(err) != nil {
			t.Fatal(err)
		}
		want(ctx, "after deleting", "")
		delete(cache, "a")
		three := reconcile(ctx, newConfigMap("a", "three"))[0]
		cache["a"] = two.DeepCopy()
		want(ctx, "after creating again", "three")
		cache["a"] = three.DeepCopy()
		want(ctx, "at the end", "three")
	})
}

func versionOf(object metav1.Object) decide.Version { return decide.VersionOf(object, time.Now()) }
