package listwatch

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// relistedThings is a RelistStore.
type relistedThings struct {
	things
	mu      sync.Mutex // guards the fields below
	ended   []string   // the versions of complete lists next to a watch, with their numbers of items
	aborted int
}

func (s *relistedThings) BeginRelist() Relist { return &relistedList{store: s} }

type relistedList struct {
	store *relistedThings
	items int
}

func (l *relistedList) Collect(runtime.Object) { l.items++ }

func (l *relistedList) End(version string) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	l.store.ended = append(l.store.ended, fmt.Sprint(version, " ", l.items))
}

func (l *relistedList) Abort() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	l.store.aborted++
}

// relistCase is what a Loop must do after the connection of the watch of a custom resource was cut.
type relistCase struct {
	lists   func(n int, o RequestOptions) (version string, err error)
	takes   time.Duration // the time that a list takes
	cuts    int           // how often the connection is cut, every minute
	want    []string
	ended   []string
	aborted int
	problem string // the last problem
}

// cutServer lists things, and cuts the first watches after a minute each.
type cutServer struct {
	relistCase
	script
	count int
}

func (s *cutServer) List(ctx context.Context, o RequestOptions, item func(runtime.Object)) (metav1.ListMeta, error) {
	s.next("list", o)
	s.count++
	if s.count == 1 {
		item(thing("a", "5"))
		return metav1.ListMeta{ResourceVersion: "10"}, nil
	}
	version, err := "12", error(nil)
	if s.relistCase.lists != nil {
		version, err = s.relistCase.lists(s.count-1, o)
	}
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return metav1.ListMeta{}, ctx.Err()
	}
	if err == nil {
		item(thing("a", "5"))
		item(thing("b", "11"))
	}
	return metav1.ListMeta{ResourceVersion: version}, err
}

func (s *cutServer) Watch(ctx context.Context, o RequestOptions) (Stream, error) {
	s.mu.Lock()
	cut := s.cuts > 0
	s.cuts--
	s.mu.Unlock()
	if cut {
		s.mu.Lock()
		s.answers = []answer{{end: errCut, after: time.Minute}}
		s.mu.Unlock()
	}
	return s.script.Watch(ctx, o)
}

var errCut = fmt.Errorf("read tcp: connection reset by peer: %w", context.Canceled)

func TestRelist_NextToTheWatch(t *testing.T) {
	tooLarge := func(n int, o RequestOptions) (string, error) {
		if o.ResourceVersion == "10" {
			return "", tooLargeError()
		}
		return "7", nil
	}
	for name, c := range map[string]relistCase{
		"the watch is resumed at once, and the list is requested next to it": {
			cuts: 1, takes: 40 * time.Second,
			want:  []string{"0s list 0", "0s watch 10", "1m0s watch 10", "1m0s list 10", "6m0s watch 10"},
			ended: []string{"12 2"},
		},
		"a list that fails is repeated": {
			cuts: 1,
			lists: func(n int, _ RequestOptions) (string, error) {
				if n < 3 {
					return "", refusal(500, 0)
				}
				return "12", nil
			},
			want: []string{"0s list 0", "0s watch 10", "1m0s watch 10", "1m0s list 10", "1m1s list 10", "1m3s list 10",
				"6m0s watch 10"},
			ended: []string{"12 2"}, aborted: 2, problem: "reason 500",
		},
		"a list that is cut with the watch is repeated": {
			cuts: 2, takes: 90 * time.Second,
			want: []string{"0s list 0", "0s watch 10", "1m0s watch 10", "1m0s list 10", "2m0s watch 10", "2m0s list 10",
				"7m0s watch 10"},
			ended: []string{"12 2"}, aborted: 1,
		},
		"a restored storage": {
			cuts: 1, lists: tooLarge,
			want:    []string{"0s list 0", "0s watch 10", "1m0s watch 10", "1m0s list 10", "1m0s list latest", "1m0s watch 7"},
			aborted: 1, problem: "Too large",
		},
		"a list that is older than requested": {
			cuts: 1, lists: func(n int, _ RequestOptions) (string, error) { return fmt.Sprint(8 + n), nil },
			want:    []string{"0s list 0", "0s watch 10", "1m0s watch 10", "1m0s list 10", "1m0s list latest", "1m0s watch 10"},
			aborted: 1, problem: "older than requested",
		},
		"a client that panics": {
			cuts: 1,
			lists: func(n int, _ RequestOptions) (string, error) {
				if n == 1 {
					panic("on purpose")
				}
				return "12", nil
			},
			want:  []string{"0s list 0", "0s watch 10", "1m0s watch 10", "1m0s list 10", "1m1s list 10", "6m0s watch 10"},
			ended: []string{"12 2"}, aborted: 1, problem: "on purpose",
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, c.run) })
	}
}

func (c relistCase) run(t *testing.T) {
	srv := &cutServer{relistCase: c, script: script{began: time.Now()}}
	store := &relistedThings{}
	l := NewLoop(srv, store, Options{
		Log: logr.Discard(), GVR: widgetsOf["custom"], Relists: NewRelistLimiter(), Random: func() float64 { return 0 },
	})
	stop := start(l)
	time.Sleep(65 * time.Second)
	if s := l.State(); s.Phase != Synced {
		t.Errorf("after the cut: %+v", s)
	}
	if c.takes > 0 && c.cuts == 1 {
		if s := l.State(); s.ListingSince.IsZero() {
			t.Errorf("the list is not visible: %+v", s)
		}
	}
	time.Sleep(7 * time.Minute)
	stop()
	if diff := cmp.Diff(c.want, srv.sent()[:min(len(c.want), len(srv.sent()))]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(c.ended, store.ended); diff != "" || store.aborted != c.aborted {
		t.Errorf("%d aborted, want %d; %s", store.aborted, c.aborted, diff)
	}
	if s := l.State(); !strings.Contains(s.LastProblem, c.problem) || c.problem == "" && s.LastProblem != "" {
		t.Errorf("the last problem is %q, want %q", s.LastProblem, c.problem)
	}
}

// A connection that is cut before the list is complete does not cause more lists than the limiter allows.
func TestRelist_CutListsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &cutServer{relistCase: relistCase{cuts: 60, takes: time.Hour}, script: script{began: time.Now()}}
		l := NewLoop(srv, &relistedThings{}, Options{
			Log: logr.Discard(), GVR: widgetsOf["custom"], Relists: NewRelistLimiter(), Random: func() float64 { return 0 },
		})
		stop := start(l)
		time.Sleep(time.Hour)
		stop()
		lists := 0
		for _, request := range srv.sent() {
			if strings.Contains(request, " list ") {
				lists++
			}
		}
		if most := 1 + maxEarlyRelists + int(time.Hour/earlyRelistPeriod); lists > most || lists < maxEarlyRelists {
			t.Errorf("%d lists, want at most %d", lists, most)
		}
	})
}

// A command during the list next to the watch ends both.
func TestRelist_EndsWithTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &cutServer{relistCase: relistCase{cuts: 1, takes: time.Minute}, script: script{began: time.Now()}}
		store := &relistedThings{}
		l := NewLoop(srv, store, Options{
			Log: logr.Discard(), GVR: widgetsOf["custom"], Relists: NewRelistLimiter(), Random: func() float64 { return 0 },
		})
		stop := start(l)
		time.Sleep(61 * time.Second)
		l.Vanish()
		synctest.Wait()
		if store.clears != 1 || store.aborted != 1 || len(store.ended) != 0 {
			t.Errorf("%d clears, %d aborted, %v ended", store.clears, store.aborted, store.ended)
		}
		stop()
	})
}

// While a list that follows a command takes long, the message describes its progress.
func TestFailing_SaysWhatItWaitsFor(t *testing.T) {
	p := &pager{items: 500, token: func(int) string { return "" }}
	inPages(t, p, func(t *testing.T, l *Loop) {
		time.Sleep(time.Minute)
		synctest.Wait()
		p.takes = time.Minute
		l.Relist()
		time.Sleep(6 * time.Second)
		s := l.State()
		if s.Phase != Failing || s.Message != "the watch is not open; no response to the list request yet" {
			t.Errorf("got %+v", s)
		}
	})
}
