package apiproxy

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/client-go/rest"
)

// The client is killed at the call that was meant, which the API server sees or does not.
func TestTrap(t *testing.T) {
	for name, after := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			var seen []string
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				seen = append(seen, CallOf(r).Kind())
			}))
			defer server.Close()
			var seenAtDeath []string
			kills := 0
			trap := NewTrap(func() { kills, seenAtDeath = kills+1, slices.Clone(seen) })
			p, err := Start(&rest.Config{Host: server.URL}, trap.Wrap)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			client := &http.Client{Transport: p.server.Client().Transport}
			call := func(method, path string, want int) {
				t.Helper()
				request, err := http.NewRequestWithContext(t.Context(), method, p.URL()+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				if answer.StatusCode != want {
					t.Errorf("%s %s: %s", method, path, answer.Status)
				}
			}
			call(http.MethodPost, "/api/v1/namespaces/a/pods", http.StatusOK)
			trap.Set(Call.IsWrite, 2, after)
			call(http.MethodPost, "/api/v1/namespaces/a/pods", http.StatusOK)
			call(http.MethodGet, "/api/v1/namespaces/a/pods", http.StatusOK)
			if trap.Caught() != nil {
				t.Error("it caught what it was not set for")
			}
			call(http.MethodPatch, "/api/v1/namespaces/a/pods/b/status", http.StatusBadGateway)
			want := []string{"create pods", "create pods", "list pods"}
			if after {
				want = append(want, "patch pods/status")
			}
			if c := trap.Caught(); c == nil || c.Kind() != "patch pods/status" || kills != 1 || !slices.Equal(seenAtDeath, want) {
				t.Errorf("caught %+v, %d kills, the API server had seen %v", c, kills, seenAtDeath)
			}
			call(http.MethodPatch, "/api/v1/namespaces/a/pods/b/status", http.StatusOK)
		})
	}
}
