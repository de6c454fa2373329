package main

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/restmapper"
)

// engines are what a replica is made of: a mapper that knows the types, an engine that follows Blueprints and decides
// what is served, on every replica, and one that reconciles their instances on the leader. As its watches run on every
// replica, promotion asks the API server for nothing.
type engines struct {
	mapper                 *restmapper.Mapper
	definitions, instances *dynamiccontroller.DynamicController
	metrics                []prometheus.Collector
	warm                   atomic.Bool
}

func newEngines(log logr.Logger, config dynamiccontroller.Config, cfg *rest.Config) (*engines, error) {
	e := &engines{}
	reconciles := metrics.NewReconciles()
	measured := dynamiccontroller.WithMetrics(reconciles)
	var err1, err2, err3 error
	if e.mapper, err1 = restmapper.New(log.WithName("mapper"), cfg); err1 != nil {
		return nil, err1
	}
	types := typeEvents(e.mapper)
	e.definitions, err2 = dynamiccontroller.NewForConfig(log.WithName("definitions"), config, cfg, measured,
		dynamiccontroller.WithTypeEvents(types), dynamiccontroller.WithDefaultTransform(platform.DefinitionsTransform))
	e.instances, err3 = dynamiccontroller.NewForConfig(log, config, cfg, measured,
		dynamiccontroller.WithTypeEvents(types), dynamiccontroller.WithDefaultTransform(platform.InstancesTransform))
	e.metrics = []prometheus.Collector{reconciles, metrics.NewStatus(e)}
	return e, errors.Join(err2, err3)
}

// register puts each part into the half of the replica where it belongs.
func (e *engines) register(r *replica.Replica, p *platform.Platform) error {
	return errors.Join(
		r.RegisterWithoutLeaderElection("restmapper", e.mapper),
		r.RegisterWithoutLeaderElection("watches", replica.RunFunc(e.instances.RunWatches)),
		r.RegisterWithoutLeaderElection("definitions", followed{e, p}),
		r.Register("blueprints", replica.RunFunc(p.Install)),
		r.Register("dynamic-controller", e.instances),
	)
}

// followed is the definitions' engine as a runnable that says when it has caught up.
type followed struct {
	*engines
	platform *platform.Platform
}

func (f followed) Run(ctx context.Context) error {
	defer f.mapper.Subscribe(func(c restmapper.Change) { f.platform.KindChanged(c.Kind) })()
	return f.definitions.Run(ctx)
}

// HasSynced tells whether this replica could lead without a cold cache: each type that was defined when the process
// began has been listed, or cannot be. A type that comes later does not make the replica unready.
func (f followed) HasSynced() bool {
	if f.warm.Load() {
		return true
	}
	for _, t := range f.definitions.Status() {
		if !t.Synced || t.Live+t.Background+t.Running > 0 {
			return false
		}
	}
	for _, t := range f.instances.Status() {
		if isFilling(t.State) {
			return false
		}
		for _, secondary := range t.Secondaries {
			if isFilling(secondary.State) {
				return false
			}
		}
	}
	f.warm.Store(true)
	return true
}

func isFilling(state dynamiccontroller.TypeState) bool {
	return state == dynamiccontroller.TypeStopped || state == dynamiccontroller.TypeSyncing
}

// Status tells of all types that are served: Blueprints once, as those who write their status serve them.
func (e *engines) Status() []dynamiccontroller.TypeStatus { return e.instances.Status() }
