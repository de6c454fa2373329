package typewatch

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// projections returns the projections of the pool's watches.
func (p *Pool) projections() (projections []Projection) {
	for _, w := range p.watches(widgets) {
		projections = append(projections, w.key.Projection)
	}
	slices.Sort(projections)
	return projections
}

func expectWatches(t testing.TB, srv *server, p *Pool, step string, want ...Projection) {
	t.Helper()
	synctest.Wait()
	if got := p.projections(); !slices.Equal(got, want) || srv.openWatches() != len(want) {
		t.Errorf("%s: watches with projections %v, %d open, want %v", step, got, srv.openWatches(), want)
	}
}

func TestS6_SubscriptionsJoinWatchesOfTheSameOrAWiderProjection(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		full := attachModel(t, p.Subscribe(options(Full), nil))
		expectWatches(t, srv, p, "one", Full)
		keys := attachModel(t, p.Subscribe(options(Keys), nil))
		metadata := attachModel(t, p.Subscribe(options(Metadata), nil))
		expectWatches(t, srv, p, "narrower subscriptions join", Full)
		srv.put("a")
		srv.put("b")
		full.close()
		expectWatches(t, srv, p, "the other subscriptions move to the widest remaining projection", Metadata)
		srv.delete("a")
		srv.put("c")
		synctest.Wait()
		for _, m := range []*model{keys, metadata} {
			if diff := m.diff(srv.versions()); diff != "" {
				t.Error(diff)
			}
		}
		again := attachModel(t, p.Subscribe(options(Full), nil))
		expectWatches(t, srv, p, "a wider subscription gets its own watch", Metadata, Full)
		again.close()
		metadata.close()
		expectWatches(t, srv, p, "keys", Keys)
		srv.put("d")
		synctest.Wait()
		if diff := keys.diff(srv.versions()); diff != "" {
			t.Error(diff)
		}
		namespace, field := options(Keys), options(Keys)
		namespace.Namespaces, field.FieldSelector = "ns", "metadata.name=a"
		for _, o := range []Options{namespace, field, selecting(Keys), transformed(Keys)} {
			s := p.Subscribe(o, nil)
			expectWatches(t, srv, p, fmt.Sprintf("%+v", o.Key), Keys, Keys)
			closeAndWait(s)
		}
		keys.close()
		expectWatches(t, srv, p, "none")
	})
}

// If a wide subscription is added again, the other subscriptions keep their watch.
func TestS6_MoveIsCancelledWhenTheProjectionIsNeededAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		full, metadata := p.Subscribe(options(Full), nil), p.Subscribe(options(Metadata), nil)
		synctest.Wait()
		srv.set(func() { srv.refuseLists[Metadata] = errors.New("later") })
		closeAndWait(full)
		time.Sleep(time.Minute)
		if got := p.projections(); !slices.Equal(got, []Projection{Metadata, Full}) {
			t.Errorf("while the move is pending: %v", got)
		}
		if _, pending := metadata.Replacement(); pending {
			t.Error("the pool's own move is reported as a replacement")
		}
		full = p.Subscribe(options(Full), nil)
		expectWatches(t, srv, p, "needed again", Full)
		srv.set(func() { clear(srv.refuseLists) })
		closeAndWait(full)
		expectWatches(t, srv, p, "not needed", Metadata)
		closeAndWait(metadata)
	})
}

// A wide subscription whose watch fails does not prevent a narrower one from syncing, whether the narrower one is
// added before, during or after the failure.
func TestS6_FailingWideSubscriptionDoesNotBlockANarrowerOne(t *testing.T) {
	failures := map[string]error{
		"failing":   errors.New("on purpose"),
		"forbidden": apierrors.NewForbidden(widgets.GroupResource(), "", errors.New("not allowed")),
	}
	for name, failure := range failures {
		for _, order := range []string{"before the failure", "at the failure", "after the failure", "by Replace"} {
			t.Run(name+", "+order, func(t *testing.T) {
				inBubble(t, func(t *testing.T, srv *server, p *Pool) { failDeepSubscription(t, srv, p, failure, order) })
			})
		}
	}
}

// failDeepSubscription makes the watch of whole objects fail. It subscribes to metadata before, during or after the
// failure.
func failDeepSubscription(t *testing.T, srv *server, p *Pool, failure error, order string) {
	srv.put("a")
	srv.set(func() { srv.refuseLists[Full] = failure })
	var metadata *Subscription
	subscribe := func() { metadata = p.Subscribe(options(Metadata), nil) }
	var atFailure sync.Once
	full := p.Subscribe(options(Full), func(state State) {
		if order == "at the failure" && (state.Phase == Failing || state.Phase == Forbidden) {
			atFailure.Do(subscribe)
		}
	})
	if order == "before the failure" {
		subscribe()
	}
	synctest.Wait()
	switch order {
	case "after the failure":
		subscribe()
	case "by Replace":
		metadata = p.Subscribe(selecting(Metadata), nil)
		synctest.Wait()
		metadata.Replace(options(Metadata), noop, noop)
	}
	m := attachModel(t, metadata)
	time.Sleep(time.Minute)
	srv.put("b")
	synctest.Wait()
	if diff := m.diff(srv.versions()); diff != "" || full.HasSynced() {
		t.Errorf("full: %+v, metadata: %+v, difference from the server: %s", full.State(), metadata.State(), diff)
	}
	srv.set(func() { clear(srv.refuseLists) })
	time.Sleep(time.Minute)
	if !full.HasSynced() {
		t.Errorf("the full subscription has state %+v", full.State())
	}
	closeAndWait(full)
	m.close()
}

func TestPool_WatchesRunFromStartToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a", "b")
		p := newTestPool(srv)
		s := p.Subscribe(options(Full), nil)
		if s.HasSynced() || IsClosed(s.Synced()) || s.State().Phase != Stopped || p.Watches(widgets) != 1 {
			t.Errorf("before Start: %+v", s.State())
		}
		stop := p.Start()
		expectWatches(t, srv, p, "started", Full)
		if running := p.Running(); !slices.Equal(running, []schema.GroupVersionResource{widgets}) || !s.HasSynced() {
			t.Errorf("running: %v", running)
		}
		synced := s.Synced()
		stop()
		stop()
		if s.HasSynced() || IsClosed(s.Synced()) || !IsClosed(synced) ||
			s.State().Phase != Stopped || len(p.Running()) > 0 {
			t.Errorf("after the stop function was called twice: %+v", s.State())
		}
		r := attachRecorder(s)
		srv.delete("a")
		srv.put("c")
		if !s.View().Store().Has("ns/a") || s.View().Store().Has("ns/c") {
			t.Error("the store was not kept")
		}
		stop = p.Start()
		synctest.Wait()
		r.expect(t, "the next run", "known ns/b", "known ns/c", "ns/a 1>-", "synced")
		stop()
		closeAndWait(s)
	})
}

// A hung transform delays the stop function. It also delays the next run of its watch, but not that of other watches.
func TestPool_WatchWaitsForItsPreviousGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a")
		p := newTestPool(srv)
		release, hanging := make(chan struct{}), options(Full)
		hanging.Transform = func(obj any) (any, error) { <-release; return obj, nil }
		hangs, healthy := p.Subscribe(hanging, nil), p.Subscribe(selecting(Full), nil)
		stop := p.Start()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { stop(); close(stopped) }()
		synctest.Wait()
		if IsClosed(stopped) || !slices.Equal(p.Running(), []schema.GroupVersionResource{widgets}) {
			t.Errorf("stopped: %t, running: %v", IsClosed(stopped), p.Running())
		}
		again := p.Start()
		synctest.Wait()
		if !healthy.HasSynced() || srv.openWatches() != 1 {
			t.Errorf("in the next run: %+v, %d open watches", healthy.State(), srv.openWatches())
		}
		hangs.Close()
		synctest.Wait()
		if IsClosed(hangs.Ended()) {
			t.Error("the subscription has ended while its transform runs")
		}
		close(release)
		<-stopped
		<-hangs.Ended()
		closeAndWait(healthy)
		again()
	})
}

// Ended waits for the watch that a pending replacement has started.
func TestS1_SubscriptionEndsAfterItsUnsharedWatches(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.linger = time.Minute
		keeps, s := p.Subscribe(options(Metadata), nil), p.Subscribe(options(Metadata), nil)
		synctest.Wait()
		srv.set(func() { srv.paused[Full] = true })
		s.Replace(transformed(Full), noop, noop)
		time.Sleep(time.Second)
		srv.put("a")
		synctest.Wait()
		s.Replace(transformed(Full), noop, noop) // the first watch ends a minute later
		time.Sleep(time.Second)
		began := time.Now()
		s.Close()
		if IsClosed(s.Ended()) {
			t.Error("Ended was closed while a watch was running")
		}
		<-s.Ended()
		if waited := time.Since(began); waited != time.Minute {
			t.Errorf("Ended was closed after %s", waited)
		}
		closeAndWait(keeps)
	})
}

// A subscription that is closed before it has synced is not reported as synced.
func TestClose_DoesNotCloseSynced(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.set(func() { srv.refuseLists[Full] = errors.New("on purpose") })
		s := p.Subscribe(options(Full), nil)
		synctest.Wait()
		synced := s.Synced()
		closeAndWait(s)
		if s.HasSynced() || IsClosed(synced) || IsClosed(s.Synced()) {
			t.Error("the subscription is reported as synced")
		}
	})
}

func TestPool_AppliesItsTransformFirstAndReportsAllStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, observed := newServer("a"), &phaseLog{}
		label := func(text string) cache.TransformFunc {
			return func(obj any) (any, error) {
				o := obj.(metav1.Object)
				o.SetLabels(map[string]string{"order": o.GetLabels()["order"] + text})
				return obj, nil
			}
		}
		p := NewPool(Config{
			Source: srv.source(), Transform: label("a"),
			Log:     func(schema.GroupVersionResource) logr.Logger { return logr.Discard() },
			Observe: func(_ Key, state State, _ time.Duration) { observed.observe(state) },
		})
		o := options(Full)
		o.Transform = label("ab")
		stop := p.Start()
		s := p.Subscribe(o, nil)
		<-s.Synced()
		stored, _ := s.View().Store().Get("ns/a")
		if got := stored.GetLabels()["order"]; got != "aab" {
			t.Errorf("the label is %q after both transforms, want %q", got, "aab")
		}
		closeAndWait(s)
		stop()
		if want := []Phase{Syncing, Synced, Stopped}; !slices.Equal(observed.all(), want) {
			t.Errorf("observed %v, want %v", observed.all(), want)
		}
	})
}
