package fakeserver

import (
	"context"
	"sync"
	"testing"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// InRun calls f from a controller's handler, with the context of the handler, and then ends the run. Each call to InRun
// is a separate run.
func InRun(t testing.TB, f func(ctx context.Context)) {
	t.Helper()
	config := dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), config, New(NewWidget()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var once sync.Once
	handler := func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		once.Do(func() {
			defer cancel()
			f(ctx)
		})
		return nil
	}
	full := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
	if err := controller.StartServingGVK(ctx, Widgets, handler, full); err != nil {
		t.Fatal(err)
	}
	if err := controller.Run(ctx); err != nil {
		t.Fatal(err)
	}
}
