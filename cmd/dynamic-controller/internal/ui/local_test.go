package ui

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func newTestLocal(get func(context.Context) (*http.Response, error)) *Local {
	return NewLocal(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8001}, get)
}

// answer returns a function that returns a replica's response.
func answer(code int, body string) func(context.Context) (*http.Response, error) {
	return func(context.Context) (*http.Response, error) {
		header := http.Header{"Content-Type": {"text/html"}, "Set-Cookie": {"a=b"}, "Location": {"https://example.com"}}
		return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

func TestLocal_AcceptsOnlyRequestsForThePageAndItsStatus(t *testing.T) {
	l := newTestLocal(answer(http.StatusOK, `{"kind":"ReplicaStatus"}`))
	const host, own = "127.0.0.1:8001", "OWN"
	for name, test := range map[string]struct {
		method, host, path, site string
		want                     int
	}{
		"the page":                       {"GET", host, "/OWN/ui", "none", http.StatusOK},
		"the page without the header":    {"GET", host, "/OWN/ui", "", http.StatusOK},
		"the status":                     {"GET", host, "/OWN/status", "same-origin", http.StatusOK},
		"without the secret":             {"GET", host, "/ui", "none", http.StatusNotFound},
		"the status without the secret":  {"GET", host, "/status", "", http.StatusNotFound},
		"a wrong secret":                 {"GET", host, "/WRONG/status", "", http.StatusNotFound},
		"an empty secret":                {"GET", host, "//status", "", http.StatusNotFound},
		"a name that an attacker chose":  {"GET", "rebound.example.com:8001", "/OWN/status", "same-origin", 421},
		"a name without the port":        {"GET", "127.0.0.1", "/OWN/status", "", 421},
		"a name that is not the address": {"GET", "localhost:8001", "/OWN/status", "", 421},
		"another site":                   {"GET", host, "/OWN/status", "cross-site", http.StatusForbidden},
		"another port on the same host":  {"GET", host, "/OWN/ui", "same-site", http.StatusForbidden},
		"another method":                 {"POST", host, "/OWN/status", "same-origin", http.StatusNotFound},
		"another path of the replica":    {"GET", host, "/OWN/status/retry", "same-origin", http.StatusNotFound},
		"a profile":                      {"GET", host, "/OWN/debug/pprof/heap", "same-origin", http.StatusNotFound},
		"a path that leaves the folder":  {"GET", host, "/OWN/ui/../status", "same-origin", http.StatusNotFound},
	} {
		r := httptest.NewRequest(test.method, "http://"+test.host+strings.ReplaceAll(test.path, own, l.secret), nil)
		if test.site != "" {
			r.Header.Set("Sec-Fetch-Site", test.site)
		}
		w := httptest.NewRecorder()
		l.ServeHTTP(w, r)
		if w.Code != test.want || test.want != http.StatusOK && w.Body.Len() > 100 {
			t.Errorf("%s: got %d, %.200q, want %d", name, w.Code, w.Body, test.want)
		}
	}
	const bits, bitsPerCharacter = 128, 5
	if len(l.secret)*bitsPerCharacter < bits || newTestLocal(nil).secret == l.secret {
		t.Errorf("got the secret %q", l.secret)
	}
}

func TestLocal_ReturnsTheResponseOfTheReplica(t *testing.T) {
	for name, test := range map[string]struct {
		get  func(context.Context) (*http.Response, error)
		code int
		body string
	}{
		"data":          {answer(http.StatusOK, "{}"), http.StatusOK, "{}"},
		"no permission": {answer(http.StatusForbidden, "no permission"), http.StatusForbidden, "no permission"},
		"unreachable": {func(context.Context) (*http.Response, error) {
			return nil, errors.New("connection refused")
		}, http.StatusBadGateway, "connection refused\n"},
	} {
		l, w := newTestLocal(test.get), httptest.NewRecorder()
		l.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8001/"+l.secret+"/status", nil))
		if w.Code != test.code || w.Body.String() != test.body {
			t.Errorf("%s: got %d, %q", name, w.Code, w.Body)
		}
		for header, want := range map[string]string{
			"Set-Cookie": "", "Location": "", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		} {
			if got := w.Header().Get(header); got != want {
				t.Errorf("%s: %s: got %q, want %q", name, header, got, want)
			}
		}
		if got := w.Header().Get("Content-Type"); strings.Contains(got, "html") {
			t.Errorf("%s: got the type %s", name, got)
		}
	}
}

func TestLocal_URLReturnsThePage(t *testing.T) {
	l := newTestLocal(nil)
	w := httptest.NewRecorder()
	l.ServeHTTP(w, httptest.NewRequest(http.MethodGet, l.URL(), nil))
	if w.Code != http.StatusOK || !strings.HasPrefix(l.URL(), "http://127.0.0.1:8001/") {
		t.Errorf("%s: got %d", l.URL(), w.Code)
	}
}

// A partial document must not look complete.
func TestLocal_AbortsATruncatedResponse(t *testing.T) {
	l := newTestLocal(func(context.Context) (*http.Response, error) {
		body := io.MultiReader(strings.NewReader(`{"kind":`), iotest.ErrReader(io.ErrUnexpectedEOF))
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
	})
	server := httptest.NewServer(l)
	defer server.Close()
	l.host = server.Listener.Addr().String()
	response, err := http.Get(strings.TrimSuffix(l.URL(), Path) + statusPath)
	if err != nil {
		return
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("got the complete response %q", body)
	}
}

// Connecting to another replica can take longer than the server's timeouts.
func TestLocal_WaitsLongerThanTheServerTimeouts(t *testing.T) {
	const timeout, wait = 250 * time.Millisecond, 500 * time.Millisecond
	l := newTestLocal(func(ctx context.Context) (*http.Response, error) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
			return answer(http.StatusOK, "{}")(ctx)
		}
	})
	server := httptest.NewUnstartedServer(l)
	server.Config.ReadTimeout, server.Config.WriteTimeout = timeout, timeout
	server.Start()
	defer server.Close()
	l.host = server.Listener.Addr().String()
	response, err := http.Get(strings.TrimSuffix(l.URL(), Path) + statusPath)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK || string(body) != "{}" {
		t.Errorf("got %d, %q, error %v", response.StatusCode, body, err)
	}
}
