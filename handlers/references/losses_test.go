package references

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// slowly makes a widget declare a selector that matches nothing, and that hangs until release is called, once hang has
// been called.
func (f *fixture) slowly(widget string, gvr schema.GroupVersionResource) (hang, release func()) {
	f.Helper()
	parsed, err := labels.Parse("app,!app")
	if err != nil {
		f.Fatal(err)
	}
	var hangs atomic.Bool
	released := make(chan struct{})
	selector := userSelector{parsed, func() {
		if hangs.Load() {
			<-released
		}
	}}
	f.on(widget, func(_ context.Context, refs *References) error { return refs.Objects(gvr, "default", selector) })
	f.put(widgets, "default", widget, "")
	return func() { hangs.Store(true) }, func() {
		hangs.Store(false)
		close(released)
		synctest.Wait()
	}
}

// change puts an object and waits until the watch has received it.
func (f *fixture) change(gvr schema.GroupVersionResource, name, app string) {
	f.Helper()
	f.put(gvr, "default", name, app)
	synctest.Wait()
}

func metadataOnly(schema.GroupVersionResource) []dynamiccontroller.WatchesOption { return nil }

// A burst of changes to objects to which nothing refers reconciles nothing, even if the changes arrive faster than they
// are looked up, so that changes to the same object are combined.
func TestABurstToWhichNothingRefersReconcilesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects, changes = 1200, 1500
		f := newFixture(t)
		f.tracker.config.WatchOptions = metadataOnly
		for i := range objects {
			f.change(secrets, strconv.Itoa(i), "other")
		}
		f.serve(widgets)
		f.serve(gadgets)
		for i := range 20 {
			f.selects(fmt.Sprint("w", i), secrets, "default", fmt.Sprint("owner=", i))
			f.put(widgets, "default", fmt.Sprint("w", i), "")
			f.refersTo(fmt.Sprint("g", i), secrets, fmt.Sprint("named", i))
			f.put(gadgets, "default", fmt.Sprint("g", i), "")
		}
		hang, release := f.slowly("slow", secrets)
		stop := f.runSynced()
		hang()
		for i := range changes {
			f.change(secrets, strconv.Itoa(i%objects), "other")
		}
		release()
		f.want("the burst")
		stop()
	})
}

// After states of objects were lost, the objects are reconciled that can refer to these states, and no others. Objects
// that refer by name to an object that exists are not among them, unless the options of the watch can exclude changes.
func TestALossReconcilesReferrers(t *testing.T) {
	for name, test := range map[string]struct {
		options func(schema.GroupVersionResource) []dynamiccontroller.WatchesOption
		want    []string
	}{
		"metadata":      {metadataOnly, []string{"selects", "selects too", "absent", "slow"}},
		"whole objects": {wholeObjects, []string{"selects", "selects too", "absent", "slow", "named"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.tracker.config.WatchOptions = test.options
				f.change(secrets, "exists", "")
				f.serve(widgets)
				f.serve(gadgets)
				f.selects("selects", secrets, "default", "app=x")
				f.selects("selects too", secrets, "", "app!=y")
				f.refersTo("named", secrets, "exists")
				f.refersTo("absent", secrets, "absent")
				f.refersTo("elsewhere", configMaps, "m")
				for _, name := range []string{"selects", "named", "elsewhere", "none"} {
					f.put(widgets, "default", name, "")
				}
				for _, name := range []string{"selects too", "absent"} {
					f.put(gadgets, "default", name, "")
				}
				hang, release := f.slowly("slow", secrets)
				stop := f.runSynced()
				hang()
				for i := range 1200 { // "x" is lost
					f.change(secrets, "changes", map[bool]string{false: "y", true: "x"}[i == 1100])
				}
				release()
				f.wantAtLeastOnce("after the loss", test.want...)
				stop()
			})
		})
	}
}

// An object that was created and deleted before it could be looked up is reconciled for those that refer to it by name.
func TestALossReconcilesReferrersOfAnObjectThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.tracker.config.WatchOptions = metadataOnly
		f.serve(widgets)
		f.refersTo("named", secrets, "brief")
		f.put(widgets, "default", "named", "")
		hang, release := f.slowly("slow", secrets)
		stop := f.runSynced()
		hang()
		for i := range 1100 {
			f.change(secrets, strconv.Itoa(i), "")
		}
		f.change(secrets, "brief", "")
		f.delete(secrets, "default", "brief")
		f.want("while the lookup hangs")
		release()
		f.want("after the loss", "named", "slow")
		stop()
	})
}

// Before the watch has synced, a loss reconciles nothing, because all referrers are reconciled after the sync.
func TestALossBeforeTheSyncReconcilesNothing(t *testing.T) {
	f := newFixture(t)
	id := identifiers{GVR: widgets, NamespacedKey: "default/a"}
	if err := f.tracker.Begin(t.Context(), id).Object(secrets, "default", "s"); err != nil {
		t.Fatal(err)
	}
	run := f.tracker.runs.For(t.Context())
	k := run.index.kinds[secrets]
	if ids := run.afterLoss(k, false); len(ids) != 0 {
		t.Errorf("before the sync, a loss affects %v, want none", ids)
	}
	k.watch.synced = true
	if ids := run.afterLoss(k, true); len(ids) != 1 || ids[0] != id {
		t.Errorf("after the sync, a loss affects %v, want %v", ids, id)
	}
	f.tracker.ForgetType(widgets)
}
