package feed

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

func TestInitialSync_HasNoTimeLimitForThePrimarySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.put(widgets, "a")
		f.put(gadgets, "of-a", "a")
		unblock := f.block(widgets)
		end := f.start(serving(owned(gadgets)))
		f.attach()
		f.expectPaused(time.Hour, true)
		unblock()
		f.expectPaused(time.Minute, false)                   // the hung request may have to time out before
		f.target.expect(t, "the initial sync", "existing a") // the owner was not known when its child was passed on
		end()
	})
}

// The initial sync waits for a secondary for a limited time, which depends on the secondary's state.
func TestInitialSync_WaitsForASecondaryForALimitedTime(t *testing.T) {
	notFound := apierrors.NewNotFound(gadgets.GroupResource(), "")
	forbidden := apierrors.NewForbidden(gadgets.GroupResource(), "", errors.New("on purpose"))
	for name, test := range map[string]struct {
		err   error // of the lists; if it is nil, the lists hang
		limit time.Duration
	}{
		"the list hangs":          {nil, maxSecondaryWait},
		"the type does not exist": {notFound, maxUnavailableWait},
		"the type is forbidden":   {forbidden, maxUnavailableWait},
		"the lists fail":          {errors.New("on purpose"), maxFailingWait},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, serving(), func(f *fixture) {
				f.put(widgets, "a")
				f.attach()
				f.detach()
				f.target.expect(t, "the first run", "existing a")
				unblock := func() {}
				if test.err == nil {
					unblock = f.block(gadgets)
				} else {
					f.fail(gadgets, test.err)
				}
				f.add(owned(gadgets))
				synctest.Wait() // the lists fail before the run begins
				f.attach()
				began := time.Now()
				f.target.expect(t, "while the target is paused", "existing a")
				f.expectPaused(test.limit-10*time.Millisecond, true)
				f.expectPaused(time.Minute, false)
				if waited := f.target.resumed.Sub(began); waited > test.limit {
					t.Errorf("the target was resumed after %s, want at most %s", waited, test.limit)
				}
				f.fail(gadgets, nil)
				unblock()
				f.put(gadgets, "of-a", "a")
				time.Sleep(time.Minute)
				f.expectPaused(0, false)
			})
		})
	}
}

func TestInitialSync_EndsWhenTheLastSecondaryHasPassedOnItsObjects(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		f.put(widgets, "a")
		f.put(gadgets, "of-a", "a")
		unblockGadgets := f.block(gadgets)
		unblockGizmos := f.block(gizmos)
		f.add(owned(gadgets), owned(gizmos))
		f.attach()
		f.expectPaused(3*time.Second, true)
		unblockGizmos()
		f.expectPaused(3*time.Second, true)
		unblockGadgets()
		f.expectPaused(0, false)
		f.target.expect(t, "the initial sync", "existing a", "existing a")
	})
}

func TestInitialSync_DoesNotWaitForARemovedSecondary(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		unblock := f.block(gadgets)
		source := owned(gadgets)
		f.add(source)
		f.attach()
		f.expectPaused(time.Second, true)
		<-f.remove(source.Key())
		f.expectPaused(0, false)
		unblock()
	})
}

// A secondary that is added during the initial sync takes part in it. Later, it does not pause the target.
func TestInitialSync_IncludesSecondariesThatAreAddedMeanwhile(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		unblockGadgets, unblockGizmos := f.block(gadgets), f.block(gizmos)
		f.add(owned(gadgets))
		f.attach()
		f.add(owned(gizmos))
		unblockGadgets()
		f.expectPaused(5*time.Second, true)
		unblockGizmos()
		f.expectPaused(0, false)
		unblock := f.block(gadgets)
		f.add(mapped(gadgets, func() []string { return nil }))
		f.expectPaused(0, false)
		unblock()
	})
}

// The end of a run ends the initial sync. Its timers have no effect on the next run.
func TestInitialSync_EndsWithTheRun(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		unblock := f.block(gadgets)
		f.add(owned(gadgets))
		f.attach()
		f.expectPaused(maxSecondaryWait/2, true)
		f.detach()
		f.expectPaused(maxSecondaryWait, true) // the target was not resumed for a run that is over
		f.attach()
		f.expectPaused(maxSecondaryWait-time.Millisecond, true)
		f.expectPaused(time.Millisecond, false)
		unblock()
	})
}

// A swap that is pending at the beginning of a run delays it for a limited time only.
func TestInitialSync_WaitsForAPendingSwapForALimitedTime(t *testing.T) {
	for name, takesEffect := range map[string]bool{"the swap takes effect": true, "the new watch hangs": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, serving(), func(f *fixture) {
				f.put(widgets, "a")
				unblock := f.block(widgets)
				<-f.Swap(&Options{Primary: selected()})
				f.attach()
				f.expectPaused(maxFailingWait-time.Millisecond, true)
				if takesEffect {
					unblock()
					f.expectPaused(0, false)
					f.target.expect(t, "the initial sync", "existing a", "all objects")
					return
				}
				f.expectPaused(time.Millisecond, false)
				f.target.expect(t, "the initial sync", "existing a")
				unblock()
				f.target.expect(t, "the swap", "all objects")
				f.expectPaused(0, false)
			})
		})
	}
}

// The state of a secondary can change while it is being attached. The state that was read before must not replace the
// newer one, because nothing would report the newer one again.
func TestInitialSync_KeepsAStateThatIsObservedWhileASecondaryIsAttached(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		unblock := f.block(gadgets)
		source := owned(gadgets)
		f.add(source)
		f.attach()
		f.Feed.mu.Lock()
		sec := f.secondaries[source.Key()]
		f.initialSync.waiting[sec.sub] = typewatch.State{} // as before the secondary was attached
		f.Feed.mu.Unlock()
		f.observe(sec, typewatch.State{Phase: typewatch.Failing, Since: time.Now()})
		f.attachSecondary(f.t.Context(), sec) // reads the state Syncing
		f.expectPaused(maxFailingWait-time.Millisecond, true)
		f.expectPaused(time.Millisecond, false)
		unblock()
	})
}
