package listwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// inLoop runs a Loop with the server and the store while test runs.
func inLoop(t *testing.T, srv *script, store *things, test func(t *testing.T, l *Loop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv.began = time.Now()
		l := NewLoop(srv, store, Options{
			Log: logr.Discard(), GVR: widgetsOf["built-in"], Random: func() float64 { return 0 },
		})
		stop := start(l)
		synctest.Wait()
		test(t, l)
		stop()
	})
}

// start starts Run, and returns a function that stops it.
func start(l *Loop) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func TestLoop_StoresTheObjects(t *testing.T) {
	for name, streams := range map[string]bool{"list": false, "streaming list": true} {
		t.Run(name, func(t *testing.T) {
			answers := []answer{{
				items: []watch.Event{event(watch.Added, "a", "5"), event(watch.Added, "b", "6"), event(watch.Added, "c", "7")},
			}, {
				events: []watch.Event{
					event(watch.Added, "d", "11"), event(watch.Modified, "a", "12"), event(watch.Deleted, "b", "13"),
				},
			}}
			if streams { // changes that the server sends before the initial events are complete
				answers[0].items = append(answers[0].items, event(watch.Modified, "a", "8"), event(watch.Deleted, "c", "9"))
				answers[0].events = answers[1].events
			}
			store := &things{}
			inLoop(t, &script{streams: streams, answers: answers}, store, func(t *testing.T, _ *Loop) {
				want := map[string]string{"a": "12", "c": "7", "d": "11"}
				if streams {
					delete(want, "c")
				}
				if diff := cmp.Diff(want, store.versions); diff != "" || store.lists != 1 {
					t.Errorf("%d lists: %s", store.lists, diff)
				}
			})
		})
	}
}

// A later run lists again, and its list is not older than the store.
func TestLoop_CanRunAgain(t *testing.T) {
	srv, store := &script{answers: []answer{healthy, healthy, {version: "20"}}}, &things{}
	inLoop(t, srv, store, func(t *testing.T, l *Loop) {
		store.min = "20"
		l.Relist()
		synctest.Wait()
		if want := []string{"0s list 0", "0s watch 10", "0s list 20", "0s watch 20"}; !slices.Equal(srv.sent(), want) {
			t.Errorf("got %v", srv.sent())
		}
	})
	store.min = "x" // versions that cannot be compared
	srv = &script{}
	inLoop(t, srv, store, func(t *testing.T, _ *Loop) {
		if want := []string{"0s list latest", "0s watch 10"}; !slices.Equal(srv.sent(), want) {
			t.Errorf("got %v", srv.sent())
		}
	})
}

// versionsCase is what a Loop must do when versions go back after the version 15.
type versionsCase struct {
	command  func(*Loop)
	versions []string // of the lists
	want     []string
	lists    []ListResult
}

func (c versionsCase) server(streams bool) *script {
	srv := &script{streams: streams}
	if !streams {
		srv.answers = []answer{healthy}
	}
	srv.answers = append(srv.answers, answer{events: []watch.Event{event(watch.Bookmark, "", "15")}})
	for _, version := range c.versions {
		srv.answers = append(srv.answers, answer{version: version})
	}
	return srv
}

func (c versionsCase) requests(streams bool) (requests []string) {
	for _, request := range c.want {
		if streams && strings.HasPrefix(request, "watch") {
			continue // the stream continues as a watch
		}
		if streams {
			request = strings.Replace(request, "list", "stream", 1)
		}
		requests = append(requests, "0s "+request)
	}
	return requests
}

// A list of the most recent version that is older than the last version belongs to another history. Another list that
// is older than requested is not stored, because the server may lag behind.
func TestLoop_VersionsThatGoBack(t *testing.T) {
	relist, newHistory := (*Loop).Relist, (*Loop).NewHistory
	for name, test := range map[string]versionsCase{
		"a server that lags behind": {
			relist, []string{"9", "20"}, []string{"list 15", "list latest", "watch 20"}, []ListResult{{"20", false}},
		},
		"a restore": {
			relist, []string{"9", "9"}, []string{"list 15", "list latest", "watch 9"}, []ListResult{{"9", true}},
		},
		"a restore that was noticed elsewhere": {
			newHistory, []string{"9"}, []string{"list latest", "watch 9"}, []ListResult{{"9", true}},
		},
		"a restore that was noticed elsewhere, of another storage": {
			newHistory, []string{"16"}, []string{"list latest", "watch 16"}, []ListResult{{"16", false}},
		},
		"versions that cannot be compared": {
			relist, []string{"x"}, []string{"list 15", "watch x"}, []ListResult{{"x", false}},
		},
	} {
		for _, streams := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streams: %t", name, streams), func(t *testing.T) {
				srv, store := test.server(streams), &things{}
				inLoop(t, srv, store, func(t *testing.T, l *Loop) {
					before := len(srv.sent())
					test.command(l)
					synctest.Wait()
					if diff := cmp.Diff(test.requests(streams), srv.sent()[before:]); diff != "" {
						t.Errorf("requests: %s", diff)
					}
					if diff := cmp.Diff(test.lists, store.results[1:]); diff != "" {
						t.Errorf("stored lists: %s", diff)
					}
					if phase := l.State().Phase; phase != Synced {
						t.Errorf("the phase is %s", phase)
					}
				})
			})
		}
	}
}

// A store that hangs, for example in an event handler, is not a silent server.
func TestLoop_StoreThatHangsDoesNotEndTheWatch(t *testing.T) {
	srv := &script{answers: []answer{healthy, {events: []watch.Event{
		event(watch.Bookmark, "", "11"), event(watch.Modified, "a", "12"),
	}}}}
	store := &things{}
	synctest.Test(t, func(t *testing.T) {
		store.hang = make(chan struct{}, 1)
		store.hang <- struct{}{} // for the bookmark
		srv.began = time.Now()
		l := NewLoop(srv, store, Options{Log: logr.Discard(), Random: func() float64 { return 0 }})
		stop := start(l)
		time.Sleep(4 * time.Minute)
		close(store.hang)
		synctest.Wait()
		if got := srv.sent(); len(got) != 2 || store.versions["a"] != "12" || l.State().Phase != Synced {
			t.Errorf("requests %v, objects %v, state %+v", got, store.versions, l.State())
		}
		stop()
	})
}

func TestLoop_VanishedTypeEmptiesTheStore(t *testing.T) {
	srv := &script{answers: []answer{healthy, healthy, {err: refusal(404, 0)}, {err: refusal(404, time.Minute)}}}
	store := &things{}
	inLoop(t, srv, store, func(t *testing.T, l *Loop) {
		l.Vanish()
		synctest.Wait()
		if names, phase := store.names(), l.State().Phase; names != "" || phase != NotFound {
			t.Errorf("%s, objects %q", phase, names)
		}
		time.Sleep(2 * time.Minute)
		if names, phase := store.names(), l.State().Phase; names != "a" || phase != Synced {
			t.Errorf("served again: %s, objects %q", phase, names)
		}
	})
}

// The first list of a run determines whether the type exists.
func TestLoop_VanishBeforeTheFirstRequestKeepsTheObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, store := &script{began: time.Now()}, &things{versions: map[string]string{"kept": "1"}}
		l := NewLoop(srv, store, Options{Log: logr.Discard()})
		l.Vanish()
		if l.State().Phase != Stopped || store.names() != "kept" {
			t.Errorf("%+v", l.State())
		}
		l.health.begin() // as in Run, before the first request
		l.Vanish()
		if l.State().Phase != NotFound || store.names() != "kept" {
			t.Errorf("%+v", l.State())
		}
		stop := start(l)
		synctest.Wait()
		if l.State().Phase != Synced || store.names() != "a" || len(srv.sent()) != 2 || store.clears != 0 {
			t.Errorf("%+v, cleared %d times", l.State(), store.clears)
		}
		stop()
	})
}

func TestLoop_StopsAtAnyTime(t *testing.T) {
	for name, first := range map[string]answer{
		"in a delay": {err: refusal(500, time.Hour)}, "in a list": {hangs: true}, "in a watch": healthy,
	} {
		t.Run(name, func(t *testing.T) {
			srv := &script{answers: []answer{first}}
			inLoop(t, srv, &things{}, func(*testing.T, *Loop) {})
			if srv.open != 0 {
				t.Errorf("%d watches are open", srv.open)
			}
		})
	}
}

// The store decides what to do with an object that has no metadata.
func TestLoop_PassesOnObjectsWithoutMetadata(t *testing.T) {
	for name, streams := range map[string]bool{"list": false, "streaming list": true} {
		t.Run(name, func(t *testing.T) {
			items := []watch.Event{{Type: watch.Added, Object: &metav1.Status{}}, event(watch.Added, "a", "5")}
			changes := []watch.Event{{Type: watch.Modified, Object: &metav1.APIGroup{}}, event(watch.Modified, "a", "12")}
			answers := []answer{{items: items}, {events: changes}}
			if streams {
				answers[0].events = changes
			}
			store := &things{}
			inLoop(t, &script{streams: streams, answers: answers}, store, func(t *testing.T, l *Loop) {
				want := map[string]string{"*v1.Status": "", "*v1.APIGroup": "", "a": "12"}
				if diff := cmp.Diff(want, store.versions); diff != "" || l.State().Phase != Synced {
					t.Errorf("%+v: %s", l.State(), diff)
				}
			})
		})
	}
}

// The items of a list that the store rejects are not stored.
func TestLoop_RejectedListIsNotCompleted(t *testing.T) {
	rejected := answer{items: []watch.Event{
		event(watch.Added, "x", "5"), event(watch.Added, rejectedName, "6"), event(watch.Added, "y", "7"),
	}}
	for name, streams := range map[string]bool{"list": false, "streaming list": true} {
		t.Run(name, func(t *testing.T) {
			store := &things{}
			inLoop(t, &script{streams: streams, answers: []answer{rejected}}, store, func(t *testing.T, l *Loop) {
				if s := l.State(); store.lists != 1 || store.names() != "a" || s.LastProblem != errRejected.Error() {
					t.Errorf("%d lists, objects %q, %+v", store.lists, store.names(), s)
				}
			})
		})
	}
}

func TestState_ReportsTimes(t *testing.T) {
	srv := &script{answers: []answer{
		healthy, {events: []watch.Event{event(watch.Modified, "a", "12")}, end: io.EOF, after: time.Minute},
		{err: refusal(429, 20*time.Second)},
	}}
	var observed atomic.Int64
	synctest.Test(t, func(t *testing.T) {
		srv.began = time.Now()
		l := NewLoop(srv, &things{}, Options{
			Log: logr.Discard(), Random: func() float64 { return 0 }, Observe: func() { observed.Add(1) },
		})
		stop := start(l)
		time.Sleep(30 * time.Second)
		if s := l.State(); !s.Open.Equal(srv.began) || !s.LastEvent.Equal(srv.began) || s.LastProblem != "" {
			t.Errorf("while the watch is open: %+v", s)
		}
		time.Sleep(40 * time.Second)
		closed := srv.began.Add(time.Minute)
		if s := l.State(); !s.Open.IsZero() || !s.NextAttempt.Equal(closed.Add(20*time.Second)) ||
			!s.ProblemAt.Equal(closed) || s.LastProblem != "reason 429" || !s.Since.Equal(closed.Add(Tolerance)) {
			t.Errorf("during the delay: %+v", s)
		}
		time.Sleep(time.Minute)
		if s := l.State(); !s.Open.Equal(closed.Add(20*time.Second)) || !s.NextAttempt.IsZero() || s.LastProblem == "" {
			t.Errorf("after the delay: %+v", s)
		}
		stop()
		if want := len([]Phase{Syncing, Synced, Failing, Synced, Stopped}); int(observed.Load()) != want {
			t.Errorf("observed %d changes, want %d", observed.Load(), want)
		}
	})
}

// A client of the user's can wait inside client-go.
func TestLoop_ReportsAClientThatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists atomic.Int64
		l := NewLoop(NewRequests(client{
			list: emptyList(&lists),
			watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents != nil {
					return nil, refusal(422, 0)
				}
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}), &things{}, Options{Log: logr.Discard()})
		stop := start(l)
		for _, want := range []string{"no response to the watch request yet", "no response to the watch request within 30s"} {
			time.Sleep(20 * time.Second)
			if s := l.State(); s.Phase != Failing || !strings.Contains(s.Message, want) {
				t.Errorf("got %+v, want %q", s, want)
			}
		}
		stop()
	})
}

func TestClientRequests_PassOnListsAndWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := watch.NewFake()
		list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{{Object: map[string]any{}}}}
		list.Items[0].SetName("a")
		list.SetResourceVersion("7")
		r := NewRequests(client{
			list:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return list, nil },
			watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return fake, nil },
		})
		var names []string
		m, err := r.List(t.Context(), RequestOptions{}, func(object runtime.Object) {
			names = append(names, object.(metav1.Object).GetName())
		})
		if err != nil || m.ResourceVersion != "7" || !slices.Equal(names, []string{"a"}) {
			t.Errorf("list: %v, %+v, %v", names, m, err)
		}
		w, err := r.Watch(t.Context(), RequestOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go fake.Add(thing("b", "8"))
		if event, err := w.Next(t.Context()); err != nil || event.Type != watch.Added {
			t.Errorf("got %v, %v", event, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		fake.Stop()
		if _, err := w.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("stopped: %v", err)
		}
		w.Close()
	})
}

// What a server was found to lack is tried again after an hour. What the client lacks is not.
func TestMemory_ForgetsWhatTheServerLacks(t *testing.T) {
	m := memory{
		random: func() float64 { return 0 }, early: &earlyRelists{}, maxDelay: longDelay,
		lacks: NoStreaming, client: NoStreaming,
	}
	now := time.Now()
	refused := outcome{kind: noWatch, err: errors.New("x")}
	m.decide(watchRequest, refused, now)
	if m.lacks.Has(NoWatch) {
		t.Error("a single refusal is remembered")
	}
	m.decide(watchRequest, refused, now)
	if s := m.decide(listRequest, outcome{kind: listed}, now.Add(forgetAfter-1)); s.request != listRequest {
		t.Errorf("the next request is a %s", s.request)
	}
	s := m.decide(listRequest, outcome{kind: listed}, now.Add(forgetAfter))
	if s.request != watchRequest || s.delay != 0 || m.lacks != NoStreaming {
		t.Errorf("the next request is a %s after %s, lacks %b", s.request, s.delay, m.lacks)
	}
	m.decide(watchRequest, refused, now)
	m.decide(watchRequest, refused, now)
	m.decide(watchRequest, outcome{kind: vanished}, now)
	if m.lacks != NoStreaming {
		t.Errorf("lacks %b after the type was gone", m.lacks)
	}
}

// lostBefore returns the memory of a custom resource whose watch is lost now. Its relist is allowed later.
func lostBefore(now time.Time, allowed time.Duration) *memory {
	early := &earlyRelists{own: rate.NewLimiter(1, 1), shared: rate.NewLimiter(rate.Every(allowed), 1)}
	early.shared.AllowN(now, 1)
	return &memory{random: func() float64 { return 0 }, early: early, maxDelay: longDelay}
}

// A watch that must end because a relist is allowed later ends at the same time when it is rejected.
func TestMemory_RejectedWatchEndsForItsRelist(t *testing.T) {
	now := time.Now()
	m := lostBefore(now, time.Minute)
	for _, o := range []outcome{
		{kind: closedEarly, open: time.Minute}, {kind: busy, err: errors.New("x")}, {kind: unreachable, err: errors.New("x")},
	} {
		if s := m.decide(watchRequest, o, now); s.request != watchRequest || s.delay+s.timeout != time.Minute {
			t.Errorf("after %d: a %s after %s with timeout %s", o.kind, s.request, s.delay, s.timeout)
		}
	}
}

// When an API server restarts, all watches are lost and then fail. The watch of a type whose relist is allowed shortly
// afterwards would cost a request and be open for a few seconds only.
func TestMemory_FailedWatchWaitsForItsRelist(t *testing.T) {
	now, lost := time.Now(), outcome{kind: closedEarly, open: time.Minute}
	refused := outcome{kind: unreachable, err: errors.New("x")}
	m := lostBefore(now, Tolerance)
	if s := m.decide(watchRequest, lost, now); s.request != watchRequest || s.timeout != Tolerance {
		t.Errorf("after a lost connection: a %s with timeout %s", s.request, s.timeout)
	}
	if s := m.decide(watchRequest, refused, now); s.request != streamRequest || s.delay != Tolerance {
		t.Errorf("after a failure: a %s after %s", s.request, s.delay)
	}
	m.failures = 30 // the backoff is longer
	if s := m.decide(watchRequest, refused, now); s.request != streamRequest || s.delay != briefDelay {
		t.Errorf("after many failures: a %s after %s", s.request, s.delay)
	}
}

func TestIsLost(t *testing.T) {
	text := "read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer"
	status := refusal(500, 0)
	status.ErrStatus.Message = text + ": EOF"
	if isLost(status) || outcomeOf(watchRequest, status).kind != failed {
		t.Error("an error event from the server counts as a lost connection")
	}
	status.ErrStatus.Details = &metav1.StatusDetails{
		Causes: []metav1.StatusCause{{Type: causeWatchDecoding, Message: "http2: client connection lost"}},
	}
	status.ErrStatus.Message = "unable to decode an event from the watch stream: http2: client connection lost"
	if !isLost(status) {
		t.Error("a lost connection of a watch of client-go is not recognized")
	}
}

// throttled is a server whose client has a rate limiter.
type throttled struct {
	*script
	delay time.Duration
}

func (r throttled) Throttle(ctx context.Context) error {
	select {
	case <-time.After(r.delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A list that waits for the client's rate limiter does not exceed its time limit.
func TestLoop_ThrottledListIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &script{began: time.Now()}
		l := NewLoop(throttled{srv, 10 * listLimit}, &things{}, Options{Log: logr.Discard()})
		stop := start(l)
		time.Sleep(10*listLimit + time.Second)
		if l.State().Phase != Synced || len(srv.sent()) != 2 {
			t.Errorf("got %+v after the requests %v", l.State(), srv.sent())
		}
		stop()
		stop = start(l) // ends while it waits
		time.Sleep(time.Second)
		stop()
	})
}

// Wake ends a delay that is in progress, not one that begins hours later.
func TestLoop_WakeIsForgottenWhenTheWatchOpens(t *testing.T) {
	srv := &script{}
	inLoop(t, srv, &things{}, func(t *testing.T, l *Loop) {
		l.Wake()
		time.Sleep(time.Hour + time.Minute)
		srv.mu.Lock()
		srv.answers = []answer{{err: refusal(429, time.Minute)}}
		srv.mu.Unlock()
		before := len(srv.sent())
		l.Relist()
		time.Sleep(30 * time.Second)
		if requests := srv.sent()[before:]; len(requests) != 1 {
			t.Errorf("got %v", requests)
		}
	})
}

// Some transports ask for tables, which client-go decodes as lists without items.
func TestClientRequests_RefusesTables(t *testing.T) {
	table := &unstructured.UnstructuredList{Object: map[string]any{"kind": "Table", "apiVersion": "meta.k8s.io/v1"}}
	requests := NewRequests(client{list: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		return table, nil
	}})
	if _, err := requests.List(t.Context(), RequestOptions{}, nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("got %v", err)
	}
}

// The delays grow, are random, and stay below their limits.
func TestDelays(t *testing.T) {
	for _, random := range []float64{0, 0.999} {
		m := memory{random: func() float64 { return random }, early: &earlyRelists{}, maxDelay: longDelay}
		last := time.Duration(0)
		for range 30 {
			s := m.decide(watchRequest, outcome{kind: forbidden, err: errors.New("x")}, time.Now())
			if s.delay < last || s.delay > longDelay*3/2 || s.delay < minDelay {
				t.Errorf("delay %s after %s", s.delay, last)
			}
			last = s.delay
		}
		if last < longDelay {
			t.Errorf("the longest delay is %s", last)
		}
		// A proxy ends each watch after 50 seconds.
		early := outcome{kind: closedEarly, open: 50 * time.Second}
		rejected := outcome{kind: busy, err: errors.New("x"), open: time.Second}
		m.decide(watchRequest, early, time.Now())
		if s := m.decide(watchRequest, rejected, time.Now()); s.delay < time.Second {
			t.Errorf("the backoff is reset after less than a minute: %s", s.delay)
		}
		m.decide(watchRequest, early, time.Now())
		m.decide(watchRequest, early, time.Now())
		if s := m.decide(watchRequest, rejected, time.Now()); s.delay > 2*minDelay {
			t.Errorf("the backoff is not reset: %s", s.delay)
		}
	}
}
