package apiproxy

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCallOf_ReturnsRequestAttributes(t *testing.T) {
	for request, want := range map[string]Call{
		"GET /version": {Verb: "get"},
		"GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions?watch=true": {
			Verb: "watch", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		"GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions?limit=500": {
			Verb: "list", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		"PATCH /apis/example.com/v1/namespaces/a/widgets/one/status": {
			Verb: "patch", Group: "example.com", Resource: "widgets/status", Namespace: "a", Name: "one"},
		"PATCH /apis/example.com/v1/gadgets/one/status": {Verb: "patch", Group: "example.com", Resource: "gadgets/status",
			Name: "one"},
		"POST /apis/coordination.k8s.io/v1/namespaces/a/leases": {
			Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: "a"},
		"PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/it": {
			Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "a", Name: "it"},
		"GET /api/v1/namespaces/a":              {Verb: "get", Resource: "namespaces", Name: "a"},
		"GET /api/v1/namespaces/a/pods":         {Verb: "list", Resource: "pods", Namespace: "a"},
		"PUT /api/v1/namespaces/a/finalize":     {Verb: "update", Resource: "namespaces/finalize", Name: "a"},
		"DELETE /api/v1/namespaces/a/pods":      {Verb: "deletecollection", Resource: "pods", Namespace: "a"},
		"DELETE /api/v1/namespaces/a/pods/b":    {Verb: "delete", Resource: "pods", Namespace: "a", Name: "b"},
		"GET /apis/example.com/v1":              {Verb: "get"},
		"GET /api/v1/namespaces/a/pods/b?watch": {Verb: "get", Resource: "pods", Namespace: "a", Name: "b"},
	} {
		method, target, _ := strings.Cut(request, " ")
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		want.Path = u.Path
		if got := callOf(method, u); got != want {
			t.Errorf("%s: got %+v, want %+v", request, got, want)
		}
	}
}

func TestProxy_UsesOnlyClientCredentials(t *testing.T) {
	var authorization []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization = append(authorization, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	p, err := Start(&rest.Config{Host: server.URL, BearerToken: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	cfg := &rest.Config{Host: p.URL(), BearerToken: "limited", TLSClientConfig: rest.TLSClientConfig{CAData: p.CAData()}}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	pods, err := kubernetes.NewForConfigAndClient(cfg, client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pods.CoreV1().Pods("a").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("the API server's error was not forwarded")
	}
	if len(authorization) != 1 || authorization[0] != "Bearer limited" {
		t.Errorf("the API server received Authorization headers %q, want only the client's", authorization)
	}
	want := Call{Verb: "list", Resource: "pods", Namespace: "a", Path: "/api/v1/namespaces/a/pods",
		Status: http.StatusForbidden}
	if got := p.Calls(); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestProxy_ForwardsResponsesToRequestsWhoseBodyIsNotRead(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, strings.Repeat("denied ", 100), http.StatusForbidden)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p, err := Start(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: p.URL(), QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.CAData()},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				err := client.CoreV1().ConfigMaps("a").Delete(ctx, "b", *metav1.NewPreconditionDeleteOptions("c"))
				if !apierrors.IsForbidden(err) {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
