package dynamiccontroller_test

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

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
