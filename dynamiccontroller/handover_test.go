package dynamiccontroller_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/internal/writes"
)

// sorted returns the objects for which the handler was called, in the order of their names, because a run adds them to
// the queue in any order.
func (l *lagging) sorted() []string {
	calls := l.called()
	slices.Sort(calls)
	return calls
}

// waits returns the number of objects that wait for writes, and how often a wait was too long.
func (l *lagging) waits() (waiting int, lags int64) {
	l.t.Helper()
	status, err := l.controller.TypeStatusOf(lagParents)
	if err != nil {
		l.t.Fatal(err)
	}
	return status.Settling, status.WriteLags
}

// wantSorted checks the calls like wantCalls, in any order, and the number of objects that wait. None must have waited
// for too long.
func (l *lagging) wantSorted(when string, waiting int, want ...string) {
	l.t.Helper()
	if got := l.sorted(); !slices.Equal(got, want) {
		l.t.Errorf("%s: the handler was called for %v, want %v", when, got, want)
	}
	if got, lags := l.waits(); got != waiting || lags != 0 {
		l.t.Errorf("%s: %d objects wait, and %d have waited for too long, want %d and none", when, got, lags, waiting)
	}
}

// startWarm starts a controller that keeps its caches warm.
func (l *lagging) startWarm(config dynamiccontroller.Config) *dynamiccontroller.DynamicController {
	l.controller = controllertest.NewController(l.t, l.server, config)
	l.controller.SetServer("api:6443")
	l.serve(dynamiccontroller.Owns(lagChildren))
	controllertest.Run(l.t, l.controller.RunWatches)
	controllertest.WaitIdle(l.t, l.controller)
	return l.controller
}

// runWith runs the controller with a ledger, which can be nil.
func (l *lagging) runWith(ledger *writes.Ledger) (stop func()) {
	controller := l.controller
	return controllertest.Run(l.t, func(ctx context.Context) error {
		return controller.Run(writes.WithLedger(ctx, ledger))
	})
}

// passOn returns the ledger of the next process after the release of a Lease.
func (l *lagging) passOn(ledger *writes.Ledger, server string) *writes.Ledger {
	l.t.Helper()
	text, _ := ledger.Recent().Encode(1 << 20)
	note, err := writes.ParseNote(text)
	if err != nil {
		l.t.Fatal(err)
	}
	next := &writes.Ledger{Server: server}
	next.Replace(note)
	return next
}

// onlyFor returns a handler that calls another one for one object.
func onlyFor(name string, handle func(context.Context, string) error) func(context.Context, string) error {
	return func(ctx context.Context, called string) error {
		if called != name {
			return nil
		}
		return handle(ctx, called)
	}
}

// When a run ends, the caches lack the write of a handler. The next run begins with this object when they contain the
// write, whether it is in the same process or in another one.
func TestH5_L6_NextRunWaitsForTheWritesOfTheLastOne(t *testing.T) {
	for name, test := range map[string]struct {
		config  dynamiccontroller.Config
		another bool   // the next run is one of another process
		server  string // of the other process
		waiting int    // the object a
	}{
		"in the same process":        {waiting: 1},
		"in another one":             {another: true, waiting: 1},
		"with another API server":    {another: true, server: "other:6443"},
		"with the promise disabled":  {config: dynamiccontroller.Config{MaxWriteLag: -1}},
		"with a limit of one second": {config: dynamiccontroller.Config{MaxWriteLag: time.Second}, waiting: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLagServer(t)
				l.write = onlyFor("a", l.createOnce(nil))
				first := l.startWarm(test.config)
				next, ledger := first, (*writes.Ledger)(nil)
				if test.another {
					next, ledger = l.startWarm(test.config), &writes.Ledger{Server: "api:6443"}
				}
				l.server.Apply(lagObject(lagParents, "a", nil))
				l.server.Apply(lagObject(lagParents, "b", nil))
				synctest.Wait()
				release := l.server.HoldWatches(lagChildren)
				defer release()
				l.controller = first
				stop := l.runWith(ledger)
				if got := l.sorted(); !slices.Equal(got, []string{"a", "b"}) {
					t.Errorf("the first run called the handler for %v", got)
				}
				stop()
				if test.another {
					ledger = l.passOn(ledger, test.server)
				}
				l.controller = next
				l.runWith(ledger)
				l.wantSorted("in the next run", test.waiting, []string{"a", "b"}[test.waiting:]...)
				want := []string{"a"}[:test.waiting]
				if limit := test.config.MaxWriteLag; limit > 0 {
					time.Sleep(limit)
					l.wantCalls("after the limit", want...)
					if got, lags := l.waits(); got != 0 || lags != 1 {
						t.Errorf("%d objects wait, and %d have waited for too long, want none and 1", got, lags)
					}
					return
				}
				release()
				l.wantSorted("when the child has arrived", 0, want...)
			})
		})
	}
}

// noted is the child c in a note.
func noted(w writes.Write) writes.Write {
	w.Resource, w.Namespace, w.Name = lagChildren.GroupResource(), "default", "c"
	return w
}

// writtenTo is a note of a call for the object a that has written a version of the child.
func writtenTo(version string) writes.Note {
	return writes.Note{{
		Resource: lagParents.GroupResource(), Object: "default/a",
		Writes: []writes.Write{noted(writes.Write{States: []writes.State{{Version: version}}})},
	}}
}

// What a note can say about the object a. Other objects never wait.
func TestH5_L6_NextRunWaitsForWritesInTheNote(t *testing.T) {
	// with returns a note of a call that the function has changed.
	with := func(change func(*writes.Call)) func(string, types.UID) writes.Note {
		return func(version string, _ types.UID) writes.Note {
			note := writtenTo(version)
			change(&note[0])
			return note
		}
	}
	for name, test := range map[string]struct {
		lag  time.Duration // Config.MaxWriteLag
		gone bool          // the child is deleted
		// local is true if this process has made the call.
		local bool
		note  func(version string, uid types.UID) writes.Note

		waits, absent bool // the object a waits, or an absent one does
	}{
		"nothing":                            {note: func(string, types.UID) writes.Note { return nil }},
		"a write":                            {note: with(func(*writes.Call) {}), waits: true},
		"a write, with the promise disabled": {lag: -1, note: with(func(*writes.Call) {})},
		"an older one":                       {note: func(string, types.UID) writes.Note { return writtenTo("1") }},
		"two calls": {
			note:  func(v string, _ types.UID) writes.Note { return append(writtenTo("1"), writtenTo(v)...) },
			waits: true,
		},
		"a call before": {
			note:  func(v string, _ types.UID) writes.Note { return append(writtenTo(v), writtenTo("1")...) },
			waits: true,
		},
		"a deletion": {gone: true, waits: true, note: func(_ string, uid types.UID) writes.Note {
			return with(func(c *writes.Call) { c.Writes[0] = noted(writes.Write{UID: uid, Gone: true}) })("", "")
		}},
		"the deletion of another child with the name": {gone: true, note: with(func(c *writes.Call) {
			c.Writes[0] = noted(writes.Write{UID: "another", Gone: true})
		})},
		"a lost response": {waits: true, note: with(func(c *writes.Call) {
			c.Writes = nil
			c.Unknown = []writes.Target{{Resource: lagChildren.GroupResource(), Namespace: "default", Name: "c"}}
		})},
		"an object of another type":     {note: with(func(c *writes.Call) { c.Resource = lagOthers.GroupResource() })},
		"an object that does not exist": {absent: true, note: with(func(c *writes.Call) { c.Object = "default/x" })},
		"a resource that is not watched": {note: with(func(c *writes.Call) {
			c.Writes[0].Resource = lagOthers.GroupResource()
		})},
		"of another history, because this process has noticed a restore": {waits: true, note: with(func(c *writes.Call) {
			c.Writes[0].History = -1
		})},
		"in this process": {local: true, waits: true, note: with(func(*writes.Call) {})},
		"in this process, before a restore of etcd": {local: true, note: with(func(c *writes.Call) {
			c.Writes[0].History = -1
		})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLagServer(t)
				l.startWarm(dynamiccontroller.Config{MaxWriteLag: test.lag})
				l.server.Apply(lagObject(lagParents, "a", nil))
				l.server.Apply(lagObject(lagParents, "b", nil))
				id := l.server.Apply(lagObject(lagChildren, "c", nil))
				synctest.Wait()
				release := l.server.HoldWatches(lagChildren)
				defer release()
				l.server.Apply(lagObject(lagChildren, "c", map[string]string{"x": "y"}))
				child := must(l.server.Resource(lagChildren).Namespace("default").Get(t.Context(), "c", metav1.GetOptions{}))
				if test.gone {
					l.server.Delete(id)
				}
				ledger := &writes.Ledger{}
				note := test.note(child.GetResourceVersion(), child.GetUID())
				if test.local {
					ledger.Add(note[0])
				} else {
					ledger.Replace(note)
				}
				l.runWith(ledger)
				switch {
				case test.waits:
					l.wantSorted("at first", 1, "b")
					release()
					l.wantSorted("when the write has arrived", 0, "a")
				case test.absent:
					l.wantSorted("at first", 1, "a", "b")
					release()
					l.wantSorted("when the write has arrived", 0)
				default:
					l.wantSorted("at first", 0, "a", "b")
				}
			})
		})
	}
}

// A process that has just started lists its types when it begins to lead. However long this takes, no limit is reached,
// because no object is reconciled before. The limit counts from then. The limits of other types do not change.
func TestH5_L6_LimitCountsFromTheFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 3, dynamiccontroller.Config{Workers: 1, MaxWriteLag: time.Second})
		slow, other := f.types[0], f.types[2]
		version := f.put(slow, "a")
		f.put(slow, "b")
		f.put(other, "a")
		listing := make(chan struct{})
		c, others := newCalls(succeed), newCalls(succeed)
		f.serve(slow, c.handle, dynamiccontroller.WithTransform(func(object any) (any, error) {
			<-listing
			return object, nil
		}))
		f.serve(other, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(others.times("a")) == 0 {
				time.Sleep(500 * time.Millisecond)
				writes.Record(ctx, writes.Write{
					Resource: other.GroupResource(), Namespace: "default", Name: "a", UID: "u",
					States: []writes.State{{Version: "1000"}},
				})
				f.controller.Enqueue(id)
			}
			return others.handle(ctx, id)
		})
		ledger := &writes.Ledger{}
		for name, version := range map[string]string{"a": version, "b": "1000"} {
			ledger.Add(writes.Call{
				Resource: slow.GroupResource(), Object: f.id(slow, name).NamespacedKey, Writes: []writes.Write{{
					Resource: slow.GroupResource(), Namespace: "default", Name: name, States: []writes.State{{Version: version}},
				}},
			})
		}
		began := time.Now()
		stop := f.stopper(inBackground(f.shard(0, func(ctx context.Context) error {
			return f.controller.Run(writes.WithLedger(ctx, ledger))
		})))
		defer stop()
		want := func(waiting int, lags int64, a, b int) {
			t.Helper()
			synctest.Wait()
			status := must(f.controller.TypeStatusOf(slow))
			atA, atB := c.times("a"), c.times("b")
			if status.Settling != waiting || status.WriteLags != lags || len(atA) != a || len(atB) != b {
				t.Errorf("%d objects wait, %d have waited for too long, the handler was called for a at %v, for b at %v",
					status.Settling, status.WriteLags, atA, atB)
			}
		}
		time.Sleep(5500 * time.Millisecond)
		want(2, 0, 0, 0)
		if at := others.times("a"); len(at) != 2 || at[1].Sub(began).Round(100*time.Millisecond) != 1500*time.Millisecond {
			t.Errorf("the other handler was called at %v, want the second call 1.5 s after %v", at, began)
		}
		close(listing)
		want(1, 0, 1, 0)
		time.Sleep(900 * time.Millisecond)
		want(1, 0, 1, 0)
		time.Sleep(200 * time.Millisecond)
		want(0, 1, 1, 1)
	})
}
