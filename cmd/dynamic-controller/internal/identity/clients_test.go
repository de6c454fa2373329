package identity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestCanRead_AsksAsTheIdentityAndCachesTheAnswer(t *testing.T) {
	m, s, clock := newFake(t, Options{})
	canRead := func(id Identity, namespace string) bool {
		t.Helper()
		allowed, err := m.CanRead(t.Context(), id, configMaps, namespace)
		if err != nil {
			t.Error(err)
		}
		return allowed
	}
	for name, test := range map[string]struct {
		id        Identity
		namespace string
		want      bool
	}{
		"permitted":                   {web, "shop", true},
		"another namespace":           {web, "other", false},
		"all namespaces":              {web, "", false},
		"another identity":            {Identity{"shop", "other"}, "shop", false},
		"the platform's own identity": {Identity{}, "other", true},
	} {
		if got := canRead(test.id, test.namespace); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
	before := s.count()
	s.change(func() { s.allowed = nil })
	clock.SetTime(clock.Now().Add(time.Minute - time.Nanosecond))
	if !canRead(web, "shop") || s.count() != before {
		t.Error("the answer is not cached for a minute")
	}
	clock.SetTime(clock.Now().Add(time.Nanosecond))
	if canRead(web, "shop") {
		t.Error("the answer is cached for more than a minute")
	}
}

func TestCanRead_DoesNotCacheErrors(t *testing.T) {
	m, s, _ := newFake(t, Options{})
	s.change(func() { s.err = errDown })
	if allowed, err := m.CanRead(t.Context(), web, configMaps, "shop"); err == nil || allowed {
		t.Errorf("got %t, %v; want an error", allowed, err)
	}
	s.change(func() { s.err = nil })
	if allowed, err := m.CanRead(t.Context(), web, configMaps, "shop"); err != nil || !allowed {
		t.Errorf("got %t, %v; want true", allowed, err)
	}
}

func TestCanRead_ConcurrentCallersShareOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s, _ := newFake(t, Options{})
		s.block = make(chan struct{})
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				if allowed, err := m.CanRead(t.Context(), web, configMaps, "shop"); err != nil || !allowed {
					t.Errorf("got %t, %v; want true", allowed, err)
				}
			})
		}
		synctest.Wait()
		if got := s.count(); got != 1 {
			t.Errorf("%d requests, want one", got)
		}
		close(s.block)
		callers.Wait()
	})
}

func TestCanRead_CancelledCallerDoesNotFailTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s, _ := newFake(t, Options{})
		s.block = make(chan struct{})
		errStop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		var callers sync.WaitGroup
		callers.Go(func() {
			if _, err := m.CanRead(ctx, web, configMaps, "shop"); !errors.Is(err, errStop) {
				t.Errorf("got %v for the cancelled caller, want %v", err, errStop)
			}
		})
		synctest.Wait()
		callers.Go(func() {
			if allowed, err := m.CanRead(t.Context(), web, configMaps, "shop"); err != nil || !allowed {
				t.Errorf("got %t, %v for the other caller; want true", allowed, err)
			}
		})
		synctest.Wait()
		cancel(errStop)
		synctest.Wait()
		close(s.block)
		callers.Wait()
	})
}

func TestCanRead_RequestsTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s, _ := newFake(t, Options{})
		s.block = make(chan struct{}) // never closed
		began := time.Now()
		if _, err := m.CanRead(t.Context(), web, configMaps, "shop"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a timeout", err)
		}
		if took := time.Since(began); took != requestTimeout {
			t.Errorf("the request took %s", took)
		}
	})
}

func TestClient_ImpersonatesOnlyTheUserName(t *testing.T) {
	m, s, _ := newFake(t, Options{})
	for _, id := range []Identity{web, {}} {
		client, err := m.Client(id)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Resource(serviceAccounts).Namespace("shop").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Error(err)
		}
		got := map[string][]string{}
		for header, values := range s.last().Header {
			if strings.HasPrefix(header, "Impersonate-") {
				got[header] = values
			}
		}
		want := map[string][]string{}
		if !id.IsPlatform() {
			want["Impersonate-User"] = []string{id.Username()}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got headers %v, want %v", id, got, want)
		}
	}
}

func TestClient_RejectsAnInvalidName(t *testing.T) {
	m, _, _ := newFake(t, Options{})
	for _, id := range []Identity{{"shop", "web:admin"}, {"shop", ""}, {"", "web"}, {"sh:op", "web"}} {
		if _, err := m.Client(id); err == nil {
			t.Errorf("got a client for %#v", id)
		}
	}
}

func TestClient_SharesOneRateLimiter(t *testing.T) {
	s := &fakeServer{accounts: map[string]map[string]string{"shop/web": nil}}
	limiter := &countingLimiter{RateLimiter: flowcontrol.NewFakeAlwaysRateLimiter()}
	for name, cfg := range map[string]*rest.Config{
		"given":                {RateLimiter: limiter},
		"from QPS":             {QPS: 3, Burst: 3},
		"client-go's defaults": {},
		"disabled":             {QPS: -1},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Host, cfg.Transport = "http://api", s
			m, err := New(cfg, Options{Namespace: platformNamespace, Clock: clocktesting.NewFakePassiveClock(time.Now())})
			if err != nil {
				t.Fatal(err)
			}
			if (m.config.RateLimiter == nil) != (cfg.QPS < 0) {
				t.Errorf("got limiter %v", m.config.RateLimiter)
			}
			for i := range 5 {
				client, err := m.Client(Identity{"shop", fmt.Sprint("web", i)})
				if err != nil {
					t.Fatal(err)
				}
				if name == "given" {
					_, _ = client.Resource(serviceAccounts).Namespace("shop").Get(t.Context(), "web", metav1.GetOptions{})
				}
			}
			if cfg.Impersonate.UserName != "" || cfg.UserAgent != "" {
				t.Error("the given config was changed")
			}
		})
	}
	if got := limiter.waits.Load(); got != 5 {
		t.Errorf("got %d calls to the limiter, want 5", got)
	}
}

type countingLimiter struct {
	flowcontrol.RateLimiter
	waits atomic.Int64
}

func (l *countingLimiter) Wait(context.Context) error {
	l.waits.Add(1)
	return nil
}

// The config has a dialer and a proxy function. For such a config, client-go creates a transport per client.
func TestClient_EvictedClientsLeakNothing(t *testing.T) {
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	m, err := New(&rest.Config{
		Host: server.URL, QPS: -1, Dial: (&net.Dialer{}).DialContext,
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
	}, Options{MaxClients: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer utilnet.CloseIdleConnectionsFor(m.transport)
	get := func(i int) {
		client, err := m.Client(Identity{"shop", fmt.Sprint("web", i)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Resource(configMaps).Namespace("shop").Get(t.Context(), "x", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	get(0)
	goroutines := runtime.NumGoroutine()
	for i := range 100 {
		get(i)
	}
	if got := m.clients.Len(); got != 4 {
		t.Errorf("got %d cached clients, want 4", got)
	}
	if got := opened.Load(); got != 1 {
		t.Errorf("got %d connections, want one", got)
	}
	if got := runtime.NumGoroutine(); got > goroutines+2 {
		t.Errorf("got %d goroutines after 100 clients, and %d after the first", got, goroutines)
	}
	first, err1 := m.Client(web)
	second, err2 := m.Client(web)
	if err1 != nil || err2 != nil || first != second {
		t.Errorf("the client is not cached: %v, %v", err1, err2)
	}
}

func TestResponseBudget(t *testing.T) {
	const size = 1000
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, strings.Repeat("x", size))
	}))
	defer server.Close()
	m, err := New(&rest.Config{Host: server.URL}, Options{Namespace: platformNamespace})
	if err != nil {
		t.Fatal(err)
	}
	defer utilnet.CloseIdleConnectionsFor(m.transport)
	client, err := m.Client(web)
	if err != nil {
		t.Fatal(err)
	}
	read := func(ctx context.Context) error {
		_, err := client.Resource(configMaps).Namespace("shop").Get(ctx, "x", metav1.GetOptions{})
		return err
	}
	budget := &ResponseBudget{Bytes: 2 * (size + 100)}
	ctx := WithResponseBudget(t.Context(), budget)
	for i, want := range []error{nil, nil, ErrResponseTooLarge, ErrResponseTooLarge} {
		if err := read(ctx); !errors.Is(err, want) {
			t.Errorf("request %d: got %v, want %v", i, err, want)
		}
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("%d requests were sent, want 3", n)
	}
	if err := read(t.Context()); err != nil {
		t.Errorf("without a budget: %v", err)
	}
}
