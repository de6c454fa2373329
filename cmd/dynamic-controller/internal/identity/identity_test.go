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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	clocktesting "k8s.io/utils/clock/testing"
)

var (
	web        = Identity{"shop", "web"}
	websites   = Request{Blueprint: "websites", ServiceAccountName: "web", Namespace: "shop"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	errDown    = apierrors.NewServiceUnavailable("down")
)

func TestIdentity_HasTheUserOfItsServiceAccount(t *testing.T) {
	if got := web.Username(); got != "system:serviceaccount:shop:web" {
		t.Errorf("got the user %s", got)
	}
	platform := Identity{}
	if !platform.IsPlatform() || web.IsPlatform() {
		t.Error("the zero value is not the platform's own identity")
	}
}

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct {
		options         Options
		request         Request
		want            Identity
		reason, message string
	}{
		"the ServiceAccount consents": {request: websites, want: web},
		"the default ServiceAccount consents": {
			options: Options{DefaultServiceAccount: "web"}, request: Request{Blueprint: "shops", Namespace: "shop"}, want: web,
		},
		"the default takes precedence over the platform's own identity": {
			options: Options{DefaultServiceAccount: "web", AllowPlatformIdentity: true},
			request: Request{Blueprint: "shops", Namespace: "shop"}, want: web,
		},
		"spec.serviceAccountName takes precedence over the default": {
			options: Options{DefaultServiceAccount: "other"}, request: websites, want: web,
		},
		"a cluster-scoped type uses a ServiceAccount of the platform's namespace": {
			request: Request{Blueprint: "teams", ServiceAccountName: "teams"}, want: Identity{platformNamespace, "teams"},
		},
		"the platform's own identity is allowed": {
			options: Options{AllowPlatformIdentity: true}, request: Request{Blueprint: "websites", Namespace: "shop"},
		},
		"no ServiceAccount": {
			request: Request{Blueprint: "websites", Namespace: "shop"}, reason: ReasonIdentityRequired,
			message: "spec.serviceAccountName: required; set it, or ask the operator for --default-service-account",
		},
		"no consent": {
			request: Request{Blueprint: "other", ServiceAccountName: "web", Namespace: "shop"}, reason: ReasonConsentMissing,
			message: "ServiceAccount shop/web: does not allow Blueprint other; " +
				"run kubectl annotate serviceaccount -n shop web " +
				"platform.example.com/allowed-blueprints=other, or add the name to the list",
		},
		"consent to a Blueprint with a longer name": {
			request: Request{Blueprint: "shop", ServiceAccountName: "web", Namespace: "shop"}, reason: ReasonConsentMissing,
			message: "does not allow Blueprint shop;",
		},
		"no annotation": {
			request: Request{Blueprint: "websites", ServiceAccountName: "silent", Namespace: "shop"},
			reason:  ReasonConsentMissing, message: "does not allow Blueprint websites",
		},
		"a ServiceAccount of the same name in another namespace": {
			request: Request{Blueprint: "websites", ServiceAccountName: "web", Namespace: "other"},
			reason:  ReasonServiceAccountNotFound,
			message: "ServiceAccount other/web: not found; create it with the annotation " +
				"platform.example.com/allowed-blueprints=websites",
		},
		"the platform's own ServiceAccount": {
			request: Request{Blueprint: "teams", ServiceAccountName: "controller"},
			reason:  ReasonServiceAccountNotAllowed, message: "the platform's own ServiceAccount is not allowed",
		},
		"an instance in the platform's namespace": {
			request: Request{Blueprint: "teams", ServiceAccountName: "teams", Namespace: platformNamespace},
			reason:  ReasonServiceAccountNotAllowed, message: "allowed only for cluster-scoped types",
		},
		"an instance in a kube-* namespace": {
			request: Request{Blueprint: "websites", ServiceAccountName: "web", Namespace: "kube-public"},
			reason:  ReasonServiceAccountNotAllowed, message: "ServiceAccounts in kube-* namespaces are not allowed",
		},
		"a name that is not a user of a ServiceAccount": {
			request: Request{Blueprint: "websites", ServiceAccountName: "web:x", Namespace: "shop"},
			reason:  ReasonServiceAccountNotAllowed, message: `spec.serviceAccountName: "web:x" is not the name`,
		},
		"a name with a path": {
			request: Request{Blueprint: "websites", ServiceAccountName: "../secrets/web", Namespace: "shop"},
			reason:  ReasonServiceAccountNotAllowed, message: "is not the name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, _ := newFake(t, test.options)
			s.accounts["shop/silent"] = nil
			for _, account := range []string{"platform-system/teams", "platform-system/controller", "kube-public/web"} {
				s.accounts[account] = map[string]string{AllowedBlueprints: "teams,websites"}
			}
			got, err := m.Resolve(t.Context(), test.request)
			if test.reason == "" {
				if err != nil || got != test.want {
					t.Errorf("got %s, %v; want %s", got, err, test.want)
				}
				return
			}
			wantRejection(t, err, test.reason, test.message)
			if !got.IsPlatform() {
				t.Errorf("got %s with the rejection", got)
			}
		})
	}
}

func wantRejection(t *testing.T, err error, reason, message string) {
	t.Helper()
	var rejection *Rejection
	if !errors.As(err, &rejection) || rejection.Reason != reason || !strings.Contains(rejection.Message, message) {
		t.Errorf("got the error %v (%T), want the reason %s and %q", err, err, reason, message)
	}
}

// The author cannot choose the namespace of the ServiceAccount.
func TestResolve_ClusterScopedTypeOfAPlatformInAProtectedNamespace(t *testing.T) {
	m, _, _ := newFake(t, Options{})
	m.options.Namespace = "kube-system"
	_, err := m.Resolve(t.Context(), Request{Blueprint: "teams", ServiceAccountName: "teams"})
	wantRejection(t, err, ReasonServiceAccountNotAllowed, "ServiceAccount kube-system/teams: cluster-scoped types are "+
		"not supported while the platform runs in a kube-* namespace; ask the operator to run it in another namespace")
}

func TestResolve_FailsWhileThePlatformsOwnUserIsUnknown(t *testing.T) {
	m, s, _ := newFake(t, Options{})
	s.change(func() { s.err = errDown })
	var rejection *Rejection
	if id, err := m.Resolve(t.Context(), websites); err == nil || errors.As(err, &rejection) {
		t.Errorf("got %s, %v; want a temporary error", id, err)
	}
	s.change(func() { s.err, s.user = nil, "" })
	if id, err := m.Resolve(t.Context(), websites); err == nil {
		t.Errorf("got %s from a review without a user", id)
	}
	s.change(func() { s.user = platformUser })
	if id, err := m.Resolve(t.Context(), websites); err != nil || id != web {
		t.Errorf("got %s, %v; want %s", id, err, web)
	}
}

func TestResolve_PlatformThatIsNotAServiceAccount(t *testing.T) {
	m, s, _ := newFake(t, Options{})
	s.user = "admin"
	if id, err := m.Resolve(t.Context(), websites); err != nil || id != web {
		t.Errorf("got %s, %v; want %s", id, err, web)
	}
}

func TestResolve_ReportsThatTheServiceAccountCannotBeRead(t *testing.T) {
	m, s, _ := newFake(t, Options{AllowPlatformIdentity: true})
	if _, err := m.own.get(t.Context(), "", m.review); err != nil {
		t.Fatal(err)
	}
	s.err = apierrors.NewForbidden(serviceAccounts.GroupResource(), "web", errors.New("no role"))
	_, err := m.Resolve(t.Context(), websites)
	wantRejection(t, err, ReasonPermissionMissing, "ServiceAccount shop/web: the platform is not permitted to read it; "+
		"bind the platform's ServiceAccount to a Role in namespace shop: verbs [get, impersonate], "+
		"resources [serviceaccounts], resourceNames [web]")
}

func TestResolve_CachesConsentForOneMinute(t *testing.T) {
	m, s, clock := newFake(t, Options{})
	resolve := func() error {
		_, err := m.Resolve(t.Context(), websites)
		return err
	}
	if err := resolve(); err != nil {
		t.Fatal(err)
	}
	s.change(func() { s.accounts["shop/web"] = nil })
	before := s.count()
	clock.SetTime(clock.Now().Add(time.Minute - time.Nanosecond))
	if err := resolve(); err != nil || s.count() != before {
		t.Errorf("before the minute is over: %v, %d requests", err, s.count()-before)
	}
	clock.SetTime(clock.Now().Add(time.Nanosecond))
	wantRejection(t, resolve(), ReasonConsentMissing, "does not allow")

	// A consent takes effect within seconds.
	s.change(func() { s.accounts["shop/web"] = map[string]string{AllowedBlueprints: "websites"} })
	before = s.count()
	wantRejection(t, resolve(), ReasonConsentMissing, "does not allow")
	if s.count() != before {
		t.Error("the missing consent is not cached")
	}
	clock.SetTime(clock.Now().Add(3 * time.Second))
	if err := resolve(); err != nil {
		t.Error(err)
	}
}

func TestResolve_ConsentIsNotSharedBetweenBlueprints(t *testing.T) {
	m, s, _ := newFake(t, Options{})
	s.accounts["shop/web"] = map[string]string{AllowedBlueprints: "websites"}
	if _, err := m.Resolve(t.Context(), websites); err != nil {
		t.Fatal(err)
	}
	other := websites
	other.Blueprint = "shops"
	_, err := m.Resolve(t.Context(), other)
	wantRejection(t, err, ReasonConsentMissing, "does not allow Blueprint shops")
}

func TestAnswers_AgeIsMeasuredFromTheRequest(t *testing.T) {
	m, _, clock := newFake(t, Options{})
	ask := func(context.Context) (bool, error) {
		clock.SetTime(clock.Now().Add(40 * time.Second)) // as a slow API server
		return true, nil
	}
	asked := 0
	again := func(context.Context) (bool, error) { asked++; return false, nil }
	if _, err := m.access.get(t.Context(), accessQuestion{}, ask); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(20 * time.Second))
	if allowed, err := m.access.get(t.Context(), accessQuestion{}, again); err != nil || allowed || asked != 1 {
		t.Errorf("got %t, %v after 60 s; asked %d times, want once", allowed, err, asked)
	}
}

func TestAnswers_AreBounded(t *testing.T) {
	m, _, _ := newFake(t, Options{})
	ask := func(context.Context) (bool, error) { return true, nil }
	for i := range maxAnswers + 10 {
		if _, err := m.access.get(t.Context(), accessQuestion{namespace: fmt.Sprint(i)}, ask); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.access.cache.Len(); got != maxAnswers {
		t.Errorf("%d answers are cached, want %d", got, maxAnswers)
	}
}

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
		"permitted":              {web, "shop", true},
		"another namespace":      {web, "other", false},
		"all namespaces":         {web, "", false},
		"another identity":       {Identity{"shop", "other"}, "shop", false},
		"the platform's own one": {Identity{}, "other", true},
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
			t.Errorf("%s: got the headers %v, want %v", id, got, want)
		}
	}
}

func TestClient_RefusesAnInvalidName(t *testing.T) {
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
		"given":            {RateLimiter: limiter},
		"from QPS":         {QPS: 3, Burst: 3},
		"client-go's own":  {},
		"none is required": {QPS: -1},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Host, cfg.Transport = "http://api", s
			m, err := New(cfg, Options{Namespace: platformNamespace, Clock: clocktesting.NewFakePassiveClock(time.Now())})
			if err != nil {
				t.Fatal(err)
			}
			if (m.config.RateLimiter == nil) != (cfg.QPS < 0) {
				t.Errorf("got the limiter %v", m.config.RateLimiter)
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
		t.Errorf("the limiter was asked %d times, want 5", got)
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

// TestClient_EvictedClientsLeakNothing uses a config with a dialer and a proxy function, for which client-go creates a
// transport per client.
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
		t.Errorf("%d clients are cached, want 4", got)
	}
	if got := opened.Load(); got != 1 {
		t.Errorf("%d connections were opened, want one", got)
	}
	if got := runtime.NumGoroutine(); got > goroutines+2 {
		t.Errorf("%d goroutines after 100 clients, and %d after the first", got, goroutines)
	}
	first, err1 := m.Client(web)
	second, err2 := m.Client(web)
	if err1 != nil || err2 != nil || first != second {
		t.Errorf("the client is not cached: %v, %v", err1, err2)
	}
}

func TestIsImpersonationForbidden(t *testing.T) {
	const user = `User "system:serviceaccount:platform-system:controller" cannot `
	forbidden := func(resource, name, message string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, errors.New(message))
	}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"impersonate": {
			forbidden("serviceaccounts", "web", user+`impersonate resource "serviceaccounts" in API group ""`),
			true,
		},
		"wrapped": {
			fmt.Errorf("apply: %w", forbidden("serviceaccounts", "web", user+`impersonate resource "serviceaccounts"`)), true,
		},
		"constrained": {
			forbidden("serviceaccounts", "web", user+`impersonate:serviceaccount resource "x"`), true,
		},
		"constrained to a request": {
			forbidden("configmaps", "", user+`impersonate-on:serviceaccount:get resource "x"`), true,
		},
		"denied to the identity": {
			forbidden("configmaps", "page", `User "system:serviceaccount:shop:web" cannot get resource "configmaps"`), false,
		},
		"a message of an admission webhook": {
			forbidden("configmaps", "page", `admission webhook "x" denied the request: `+user+`impersonate resource "y"`), false,
		},
		"a message within a message": {
			forbidden("configmaps", "page", `denied: x is forbidden: `+user+`impersonate resource "y"`), false,
		},
		"a name with a message": {
			forbidden("configmaps", `x" is forbidden: `+user+`impersonate resource`, `User "web" cannot get resource "x"`),
			false,
		},
		"another code": {apierrors.NewBadRequest(`x is forbidden: ` + user + `impersonate resource "y"`), false},
		"no status":    {errors.New(`x is forbidden: ` + user + `impersonate resource "y"`), false},
		"nil":          {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsImpersonationForbidden(test.err); got != test.want {
				t.Errorf("got %t for %v", got, test.err)
			}
		})
	}
	if !IsPermissionMissing(forbidden("configmaps", "a", `User "web" cannot delete resource "configmaps"`)) ||
		IsPermissionMissing(forbidden("configmaps", "a", `the policy says: User "web" cannot delete resource "x"`)) {
		t.Error("a missing permission is confused with the message of a policy")
	}
	wantRejection(t, ImpersonationRejection(web), ReasonPermissionMissing,
		"ServiceAccount shop/web: the platform is not permitted to impersonate it; "+
			"bind the platform's ServiceAccount to a Role in namespace shop")
}
