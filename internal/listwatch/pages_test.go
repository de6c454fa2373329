package listwatch

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// pager is a server that pages its list.
type pager struct {
	token   func(page int) string // the continue token after a page; empty for the last page
	items   int                   // in each page
	takes   time.Duration         // the time that each page takes
	pages   atomic.Int64          // requested pages
	lists   atomic.Int64          // requested lists
	watches atomic.Int64
}

func (p *pager) IsWatchListSemanticsUnSupported() bool { return true }

func (p *pager) List(
	ctx context.Context, options RequestOptions, item func(runtime.Object),
) (metav1.ListMeta, error) {
	if options.Continue == "" {
		p.lists.Add(1)
		p.pages.Store(0)
	}
	page := int(p.pages.Add(1))
	select {
	case <-time.After(p.takes):
	case <-ctx.Done():
		return metav1.ListMeta{}, ctx.Err()
	}
	for i := range p.items {
		item(thing(fmt.Sprintf("%d-%d", page, i), "5"))
	}
	return metav1.ListMeta{ResourceVersion: "10", Continue: p.token(page)}, nil
}

func (p *pager) Watch(ctx context.Context, _ RequestOptions) (Stream, error) {
	p.watches.Add(1)
	return silentStream{}, nil
}

type silentStream struct{}

func (silentStream) Next(ctx context.Context) (e watch.Event, err error) {
	<-ctx.Done()
	return e, ctx.Err()
}
func (silentStream) Close() {}

func inPages(t *testing.T, p *pager, test func(t *testing.T, l *Loop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := NewLoop(p, &things{}, Options{
			Log: logr.Discard(), GVR: widgetsOf["built-in"], Random: func() float64 { return 0 },
		})
		stop := start(l)
		test(t, l)
		stop()
	})
}

// Without a limit, a server that always returns a continue token received thousands of requests per second.
func TestPages_RepeatedContinueTokenIsMalformed(t *testing.T) {
	for name, token := range map[string]func(page int) string{
		"the same token":           func(int) string { return "next" },
		"two tokens in turn":       func(page int) string { return fmt.Sprint(page % 2) },
		"a token of an early page": func(page int) string { return fmt.Sprint(min(page%7, 5)) },
	} {
		t.Run(name, func(t *testing.T) {
			p := &pager{token: token, items: 500, takes: time.Millisecond}
			inPages(t, p, func(t *testing.T, l *Loop) {
				time.Sleep(30 * time.Second)
				if s := l.State(); s.Phase != Failing || !strings.Contains(s.Message, "continue token") {
					t.Errorf("got %+v", s)
				}
				if n := p.lists.Load(); n < 5 || n > 20 {
					t.Errorf("%d lists within 30 s, want a backoff", n)
				}
			})
		})
	}
}

// Pages without items follow one another slowly, and their number is limited.
func TestPages_AreBoundedAndPaced(t *testing.T) {
	p := &pager{token: func(page int) string { return fmt.Sprint("page ", page) }}
	inPages(t, p, func(t *testing.T, l *Loop) {
		time.Sleep(30 * time.Second)
		if n := p.pages.Load(); n < 200 || n > 400 {
			t.Errorf("%d empty pages within 30 s, want about 10 per second", n)
		}
		if s := l.State(); s.Phase != Syncing || !strings.Contains(s.Message, "not complete") {
			t.Errorf("got %+v", s)
		}
	})
	defer func(n int) { maxPages = n }(maxPages)
	maxPages = 3000
	p.items, p.takes = fewItems, time.Millisecond
	inPages(t, p, func(t *testing.T, l *Loop) {
		time.Sleep(time.Duration(maxPages)*p.takes - time.Second)
		if s := l.State(); p.pages.Load() < 1900 || s.Phase != Syncing {
			t.Errorf("%d full pages, which must not be delayed; %+v", p.pages.Load(), s)
		}
		time.Sleep(2 * time.Second)
		if s := l.State(); s.Phase != Failing || !strings.Contains(s.Message, "pages") {
			t.Errorf("after %d pages: %+v", maxPages, s)
		}
	})
}

// A list that takes long is visible: its items so far, and since when.
func TestSyncing_SaysWhatItWaitsForAfterTenSeconds(t *testing.T) {
	p := &pager{items: 500, takes: 4 * time.Second, token: func(page int) string {
		if page == 5 {
			return ""
		}
		return fmt.Sprint(page)
	}}
	inPages(t, p, func(t *testing.T, l *Loop) {
		began := time.Now()
		time.Sleep(9 * time.Second)
		s := l.State()
		if s.Message != "" || s.ListItems != 1000 || !s.ListingSince.Equal(began) {
			t.Errorf("after 9 s: %+v", s)
		}
		time.Sleep(4 * time.Second)
		s = l.State()
		if s.Phase != Syncing || s.Message != "the list is not complete yet; items so far: 1500" || s.Err != nil {
			t.Errorf("after 13 s: %+v", s)
		}
		time.Sleep(10 * time.Second)
		if s = l.State(); s.Phase != Synced || s.Message != "" || s.ListItems != 0 || !s.ListingSince.IsZero() {
			t.Errorf("after the list: %+v", s)
		}
	})
	p.takes = time.Minute
	inPages(t, p, func(t *testing.T, l *Loop) {
		time.Sleep(11 * time.Second)
		if s := l.State(); s.Phase != Syncing || s.Message != "no response to the list request yet" {
			t.Errorf("without a response: %+v", s)
		}
	})
}

// throttledPager has a rate limiter that allows no request.
type throttledPager struct{ *pager }

func (throttledPager) Throttle(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestSyncing_SaysThatItWaitsForTheRateLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLoop(throttledPager{&pager{}}, &things{}, Options{Log: logr.Discard(), GVR: widgetsOf["built-in"]})
		stop := start(l)
		time.Sleep(time.Minute)
		if s := l.State(); s.Phase != Syncing || s.Message != "the client's rate limiter delays the list" {
			t.Errorf("got %+v", s)
		}
		stop()
	})
}
