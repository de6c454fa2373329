package typewatch

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestWatchState_ReportsTheNewestResult(t *testing.T) {
	notFound := apierrors.NewNotFound(widgets.GroupResource(), "")
	forbidden := apierrors.NewForbidden(widgets.GroupResource(), "", errors.New("not allowed"))
	unauthorized := apierrors.NewUnauthorized("invalid token")
	failed := errors.New("webhook failed")
	observed := &phaseLog{}
	s := newWatchState(1, observed.observe).reflectors[0]
	for _, step := range []struct {
		name    string
		do      func()
		phase   Phase
		message string
	}{
		{"before the run", func() {}, Stopped, ""},
		{"a type event before the run", s.markVanished, Stopped, ""},
		{"the run begins", s.begin, Syncing, ""},
		{"the type is not served", func() { s.listFailed(notFound) }, NotFound, notFound.Error()},
		{"the list completes", func() { s.listed(false) }, Synced, ""},
		{"the watch opens", func() { s.watchResult(nil) }, Synced, ""},
		{"the watch is forbidden", func() { s.watchResult(forbidden) }, Forbidden, forbidden.Error()},
		{"a list does not reopen the watch", func() { s.listed(false) }, Forbidden, forbidden.Error()},
		{"a newer list error", func() { s.listFailed(failed) }, Failing, failed.Error()},
		{"the list works again, but the watch does not", func() { s.listed(false) }, Forbidden, forbidden.Error()},
		{"the token is invalid", func() { s.watchResult(unauthorized) }, Forbidden, unauthorized.Error()},
		{"a streaming list opens the watch", func() { s.listed(true) }, Synced, ""},
		{"the type vanishes", s.markVanished, NotFound, errVanished.Error()},
		{"the watch opens again", func() { s.watchResult(nil) }, Synced, ""},
		{"the run ends", s.end, Stopped, ""},
	} {
		step.do()
		if got := *s.current.Load(); got.Phase != step.phase || got.Message != step.message || got.Since.IsZero() {
			t.Errorf("%s: %+v", step.name, got)
		}
	}
	want := []Phase{Syncing, NotFound, Synced, Forbidden, Failing, Forbidden, Synced, NotFound, Synced, Stopped}
	if !slices.Equal(observed.all(), want) {
		t.Errorf("observed %v, want %v", observed.all(), want)
	}
}

// An attempt can fail even if it began after the type event, because the API server returns NotFound for a few
// milliseconds after a CRD has been established. There must be no backoff after it.
func TestAppeared_EndsTheBackoffAfterTheCurrentAttempt(t *testing.T) {
	s := newWatchState(1, func(State) {}).reflectors[0]
	s.endBackoff()
	_, end := s.beginAttempt(t.Context())
	end()
	select {
	case <-s.wake:
	default:
		t.Error("the type event is lost")
	}
}

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

func TestWatchState_SummarizesItsReflectors(t *testing.T) {
	failed := errors.New("on purpose")
	s := newWatchState(2, func(State) {})
	one, two := s.reflectors[0], s.reflectors[1]
	for _, step := range []struct {
		name    string
		do      func()
		phase   Phase
		message string
	}{
		{"one begins", one.begin, Stopped, ""},
		{"both have begun", two.begin, Syncing, ""},
		{"one has listed", func() { one.listed(true) }, Syncing, ""},
		{"the other one fails", func() { two.listFailed(failed) }, Failing, failed.Error()},
		{"both have listed", func() { two.listed(true) }, Synced, ""},
		{"the type vanishes", s.markVanished, NotFound, errVanished.Error()},
		{"the type is served in one namespace", func() { one.listed(true) }, NotFound, errVanished.Error()},
		{"the type is served again", func() { two.listed(true) }, Synced, ""},
		{"one ends", one.end, Stopped, ""},
	} {
		step.do()
		if got := *s.current.Load(); got.Phase != step.phase || got.Message != step.message {
			t.Errorf("%s: %+v", step.name, got)
		}
	}
}
