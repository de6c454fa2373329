package main

import (
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/ui"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// newStatusSources returns the sources of the status document of this process.
func newStatusSources(
	e *engines, leadership func() replica.Status, blueprints func() []acceptance.Summary, info buildInfo,
) *status.Sources {
	return &status.Sources{
		Version: info.Version, Started: time.Now(), Leadership: leadership, CheckCache: e.checkCaches,
		Types: e.instances.Status, Reconciles: e.reconciles, Blueprints: blueprints, Mapper: e.mapper, Kinds: e.kinds.Load,
	}
}

// newPages returns the handlers that describe the state of the platform.
func newPages(log logr.Logger, e *engines, sources *status.Sources) pages {
	return pages{
		ui.Path:     ui.New(),
		status.Path: status.Handler(sources),
		status.RetryPath: &status.Retrier{
			Log: log, Leadership: sources.Leadership, Parked: e.parked, Enqueue: e.instances.Enqueue,
		},
	}
}
