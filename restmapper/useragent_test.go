package restmapper

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

func TestNew_RejectsAMissingConfig(t *testing.T) {
	if _, err := New(logr.Discard(), nil); err == nil || !strings.Contains(err.Error(), "cfg must not be nil") {
		t.Errorf("got %v, want an error that names cfg", err)
	}
}

// Both the watches and the requests for discovery documents have the header.
func TestNew_UserAgentNamesTheMapper(t *testing.T) {
	byDefault := rest.DefaultKubernetesUserAgent() + "/restmapper"
	for configured, want := range map[string]string{"": byDefault, "mine": "mine"} {
		agents := make(chan string, 1000)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case agents <- r.UserAgent():
			default:
			}
			w.WriteHeader(http.StatusForbidden)
		}))
		m, err := New(logr.Discard(), &rest.Config{Host: server.URL, UserAgent: configured})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		for range 4 {
			if got := <-agents; got != want {
				t.Errorf("got the User-Agent %q, want %q", got, want)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		server.CloseClientConnections()
		server.Close()
	}
}
