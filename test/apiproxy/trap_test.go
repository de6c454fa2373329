package apiproxy

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/client-go/rest"
)

func TestTrap_StopsClientAtMatchingCall(t *testing.T) {
	t.Run("before", func(t *testing.T) { testTrap(t, false) })
	t.Run("after", func(t *testing.T) { testTrap(t, true) })
}

func testTrap(t *testing.T, after bool) {
	var received []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		received = append(received, CallOf(r).Kind())
	}))
	defer server.Close()
	var receivedBeforeKill []string
	kills := 0
	trap := NewTrap(func() { kills, receivedBeforeKill = kills+1, slices.Clone(received) })
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
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s %s: got %s, want %d", method, path, response.Status, want)
		}
	}
	call(http.MethodPost, "/api/v1/namespaces/a/pods", http.StatusOK)
	trap.Set(Call.IsWrite, 2, after)
	call(http.MethodPost, "/api/v1/namespaces/a/pods", http.StatusOK)
	call(http.MethodGet, "/api/v1/namespaces/a/pods", http.StatusOK)
	if c := trap.Caught(); c != nil {
		t.Errorf("caught %+v before the second write", c)
	}
	call(http.MethodPatch, "/api/v1/namespaces/a/pods/b/status", http.StatusBadGateway)
	want := []string{"create pods", "create pods", "list pods"}
	if after {
		want = append(want, "patch pods/status")
	}
	if c := trap.Caught(); c == nil || c.Kind() != "patch pods/status" || kills != 1 {
		t.Errorf("caught %+v with %d kills, want the patch and 1 kill", c, kills)
	}
	if !slices.Equal(receivedBeforeKill, want) {
		t.Errorf("the API server received %v before the kill, want %v", receivedBeforeKill, want)
	}
	call(http.MethodPatch, "/api/v1/namespaces/a/pods/b/status", http.StatusOK)
}
