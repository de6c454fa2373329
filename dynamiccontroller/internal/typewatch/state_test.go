package typewatch

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestState_SinceIsKeptWhileListsFail(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		srv.set(func() { srv.refuseLists[Full] = errors.New("webhook failed") })
		phases := &phaseLog{}
		s := p.Subscribe(options(Full), phases.observe)
		began := time.Now()
		time.Sleep(5 * time.Minute)
		srv.set(func() { srv.refuseLists[Full] = errors.New("webhook failed again") })
		time.Sleep(5 * time.Minute)
		state := s.State()
		if state.Phase != Failing || time.Since(state.Since) < 9*time.Minute || state.Since.Before(began) {
			t.Errorf("got state %+v after %s", state, time.Since(began))
		}
		if want := []Phase{Syncing, Failing}; !slices.Equal(phases.all(), want) {
			t.Errorf("observed %v, want %v", phases.all(), want)
		}
		if lists := len(srv.listed()); lists < 10 {
			t.Errorf("only %d lists", lists)
		}
		srv.set(func() { clear(srv.refuseLists) })
		time.Sleep(time.Minute)
		if state := s.State(); state.Phase != Synced {
			t.Errorf("got state %+v", state)
		}
		closeAndWait(s)
	})
}

// If watch requests are rejected but lists succeed, the watch is retried and its phase does not change between the
// attempts.
func TestState_RejectedWatchDoesNotChangeThePhase(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		srv.set(func() {
			srv.refuseWatches[Full] = apierrors.NewForbidden(widgets.GroupResource(), "", errors.New("not allowed"))
		})
		phases := &phaseLog{}
		s := p.Subscribe(options(Full), phases.observe)
		time.Sleep(10 * time.Minute)
		if state := s.State(); state.Phase != Forbidden || time.Since(state.Since) < 9*time.Minute || !s.HasSynced() {
			t.Errorf("got state %+v", state)
		}
		if want := []Phase{Syncing, Synced, Forbidden}; !slices.Equal(phases.all(), want) {
			t.Errorf("observed %v, want %v", phases.all(), want)
		}
		srv.put("b")
		time.Sleep(time.Minute)
		if !s.View().Store().Has("ns/b") {
			t.Error("the results of the lists between the attempts were not stored")
		}
		srv.set(func() { clear(srv.refuseWatches) })
		time.Sleep(time.Minute)
		if state := s.State(); state.Phase != Synced || srv.openWatches() != 1 {
			t.Errorf("got state %+v", state)
		}
		closeAndWait(s)
	})
}

// A list that is accepted but never answered fails after a timeout.
func TestState_ListWithoutResponseFails(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.set(func() { srv.hang[Full] = true })
		s := p.Subscribe(options(Full), nil)
		time.Sleep(119 * time.Second)
		if state := s.State(); state.Phase != Syncing {
			t.Errorf("got state %+v", state)
		}
		time.Sleep(2 * time.Second)
		if state := s.State(); state.Phase != Failing {
			t.Errorf("got state %+v", state)
		}
		srv.set(func() { clear(srv.hang) })
		time.Sleep(3 * time.Minute)
		if state := s.State(); state.Phase != Synced {
			t.Errorf("got state %+v", state)
		}
		closeAndWait(s)
	})
}

func TestObserve_ReportsTheStateAfterASwitch(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		keeps := p.Subscribe(options(Metadata), nil)
		synctest.Wait()
		srv.set(func() { srv.refuseLists[Full] = errors.New("on purpose") })
		phases := &phaseLog{}
		s := p.Subscribe(options(Full), phases.observe)
		time.Sleep(time.Minute)
		s.Replace(options(Metadata), noop, noop)
		synctest.Wait()
		if want := []Phase{Syncing, Failing, Synced}; !slices.Equal(phases.all(), want) {
			t.Errorf("observed %v, want %v", phases.all(), want)
		}
		closeAndWait(s)
		closeAndWait(keeps)
	})
}

// The state of a watch is that of the first namespace that has a problem. It has synced when all namespaces have.
func TestState_SummarizesTheNamespaces(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a/1")
		srv.put("b/1")
		phases := &phaseLog{}
		srv.set(func() { srv.refuseIn["b"], srv.refusesLate = errors.New("on purpose"), true })
		s := p.Subscribe(in("a,b", Full), phases.observe)
		time.Sleep(time.Minute)
		state := s.State()
		if state.Phase != Failing || state.Message != "on purpose" || !state.Open.IsZero() {
			t.Errorf("one namespace fails: %+v", state)
		}
		srv.set(func() { clear(srv.refuseIn) })
		time.Sleep(time.Minute)
		if state = s.State(); state.Phase != Synced || state.Open.IsZero() || state.LastEvent.IsZero() {
			t.Errorf("no namespace fails: %+v", state)
		}
		if want := []Phase{Syncing, Failing, Synced}; !slices.Equal(phases.all(), want) {
			t.Errorf("observed %v, want %v", phases.all(), want)
		}
		closeAndWait(s)
	})
}

// While the watch is not synced, nothing is removed from the store, and there is no second initial sync.
func TestState_LosingSyncedKeepsTheObjects(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		srv.set(func() { srv.refuseLists[Full], srv.refuseWatches[Full] = errors.New("down"), errors.New("down") })
		srv.closeWatches()
		time.Sleep(time.Hour)
		if state := s.State(); state.Phase != Failing || !s.HasSynced() || !s.View().Store().Has("ns/a") {
			t.Errorf("%+v", state)
		}
		srv.set(func() { clear(srv.refuseLists); clear(srv.refuseWatches) })
		time.Sleep(time.Minute)
		r.expect(t, "nothing has changed")
		if state := s.State(); state.Phase != Synced {
			t.Errorf("%+v", state)
		}
		closeAndWait(s)
	})
}
