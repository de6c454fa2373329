package main

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
)

// failReviews returns a wrapper that answers access reviews with an error while failing is true.
func failReviews(failing *atomic.Bool) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !failing.Load() || !strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
				return next.RoundTrip(r)
			}
			return &http.Response{
				StatusCode: http.StatusInternalServerError, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
				Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader("reviews fail")),
			}, nil
		})
	}
}

// While the newest generation of a Blueprint cannot be validated, the condition, the metric and the status of the
// replica report the state Unknown, although the previous generation is served.
func TestUnvalidatedBlueprint_IsUnknownEverywhere(t *testing.T) {
	a := newAPI(t)
	var failing atomic.Bool
	kubeconfig, _ := a.proxied(failReviews(&failing))
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	roots := x509.NewCertPool()
	roots.AddCert(writeCertificate(t, certFile, keyFile))
	p := startServing(t, kubeconfig, "--"+flagMetrics, "127.0.0.1:0", "--"+flagCertFile, certFile,
		"--"+flagKeyFile, keyFile).diagnostics(roots)
	token := a.token("reader", rbacv1.PolicyRule{
		NonResourceURLs: []string{"/metrics", status.Path}, Verbs: []string{"get"},
	})
	wantState := func(served, unknown int) {
		t.Helper()
		eventually(t, func() error {
			_, body := p.send(token, http.MethodGet, "/metrics", "")
			for state, n := range map[string]int{"Served": served, "Unknown": unknown} {
				if text := fmt.Sprintf("dynamiccontroller_blueprints{state=%q} %d\n", state, n); !strings.Contains(body, text) {
					return errors.New(text + " is missing in:\n" + body)
				}
			}
			return nil
		})
	}
	a.apply(websites)
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 1 is served"))

	failing.Store(true)
	// Another kind needs other permissions, which are reviewed.
	a.apply(changed(websites, change{"kind: ConfigMap", "kind: Secret"}, change{"data: {address", "stringData: {address"}))
	a.waitBlueprint("websites", is("Accepted", "Unknown", "NotValidated", "review the platform's permission"),
		is("Serving", "True", "generation 1 is served"))
	wantState(0, 1)
	code, body := p.send(token, http.MethodGet, status.Path, "")
	var replica status.Replica
	if err := json.Unmarshal([]byte(body), &replica); code != http.StatusOK || err != nil {
		t.Fatalf("got %d, %v, %s", code, err, body)
	}
	b := replica.Blueprints[0]
	if b.State != "Unknown" || b.Reason != "NotValidated" || b.ServedGeneration != 1 ||
		replica.Summary.Blueprints["Unknown"] != 1 {
		t.Errorf("got status %+v, %v", b, replica.Summary.Blueprints)
	}
	a.waitWhy("blueprint/websites.GROUP", 1, "NotValidated: ", "review the platform's permission")

	failing.Store(false)
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 2 is served"))
	wantState(1, 0)
}
