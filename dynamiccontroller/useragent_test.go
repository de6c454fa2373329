package dynamiccontroller_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// countingTransport counts requests.
type countingTransport struct {
	http.RoundTripper
	requests atomic.Int64
}

func (c *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

func TestNewForConfigAndClient_UsesTheClient(t *testing.T) {
	config, lists := serveLists(t)
	transport := &countingTransport{RoundTripper: http.DefaultTransport}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	c, err := dynamiccontroller.NewForConfigAndClient(logr.Discard(), dynamiccontroller.Config{}, config,
		&http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.StartServingGVK(t.Context(), widgetsGVR, succeed); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-lists
	if transport.requests.Load() == 0 {
		t.Error("the requests were not sent with the given client")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNewForConfig_UserAgentNamesTheEngine(t *testing.T) {
	for configured, want := range map[string]string{
		"":     rest.DefaultKubernetesUserAgent() + "/dynamiccontroller",
		"mine": "mine",
	} {
		config, agents := serveLists(t)
		config.UserAgent = configured
		c, err := dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{}, config)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.StartServingGVK(t.Context(), widgetsGVR, succeed); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		if got := <-agents; got != want {
			t.Errorf("got the User-Agent %q, want %q", got, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
