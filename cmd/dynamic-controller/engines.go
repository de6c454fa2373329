package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/restmapper"
)

// engines contains the components of a replica. The definitions engine runs on every replica. It reads Blueprints and
// determines which types are served. The instances engine reconciles instances on the leader. Its watches run on every
// replica, so that the caches of a standby are warm when it becomes the leader.
type engines struct {
	mapper                 *restmapper.Mapper
	definitions, instances *dynamiccontroller.DynamicController
	recorder               *events.Recorder
	metrics                []prometheus.Collector
	reconciles             *status.Reconciles // of the instances engine
	parked                 *status.ParkedKeys // of the instances engine
	synced                 atomic.Bool
	kinds                  atomic.Int64 // number of kinds that the mapper has mapped
}

func newEngines(
	log logr.Logger, config dynamiccontroller.Config, cfg *rest.Config, recorder *events.Recorder,
	metricsOptions ...metrics.Option,
) (*engines, error) {
	reconciles := metrics.NewReconciles(metricsOptions...)
	e := &engines{recorder: recorder, parked: &status.ParkedKeys{}}
	e.reconciles = &status.Reconciles{Metrics: e.parked.Metrics(reconciles)}
	withMetrics := dynamiccontroller.WithMetrics(reconciles)
	var err1, err2, err3 error
	if e.mapper, err1 = restmapper.New(log.WithName("mapper"), cfg); err1 != nil {
		return nil, err1
	}
	types := dynamiccontroller.WithTypeEvents(e.mapper.TypeEvents)
	e.definitions, err2 = dynamiccontroller.NewForConfig(log.WithName("definitions"), config, cfg, withMetrics,
		types, dynamiccontroller.WithDefaultTransform(instances.BlueprintTransform))
	e.instances, err3 = dynamiccontroller.NewForConfig(log, config, cfg, dynamiccontroller.WithMetrics(e.reconciles),
		types, dynamiccontroller.WithDefaultTransform(instances.Transform),
		dynamiccontroller.WithReduce(instances.ReduceCached),
		dynamiccontroller.WithParked(func(id dynamiccontroller.ObjectIdentifiers) {
			e.parked.Add(id)
			instances.RecordParked(e.instances.Lister, id, recorder.Record)
		}))
	// The status of the definitions engine is not exported. It serves only Blueprints, which the instances engine also
	// serves.
	e.metrics = []prometheus.Collector{reconciles, metrics.NewStatus(e.instances, metricsOptions...)}
	return e, errors.Join(err2, err3)
}

func (e *engines) register(r *replica.Replica, p *platform.Platform) error {
	return errors.Join(
		r.RegisterWithoutLeaderElection("restmapper", e.mapper),
		r.RegisterWithoutLeaderElection("watches", replica.RunFunc(e.instances.RunWatches)),
		r.RegisterWithoutLeaderElection("definitions", &definitions{engines: e, platform: p}),
		r.Register("blueprints", replica.RunFunc(p.Install), replica.ScopeLeader),
		r.Register("dynamic-controller", replica.RunFunc(func(ctx context.Context) error {
			defer p.EndTerm()
			return e.recorder.Run(ctx, e.instances.Run)
		}), replica.ScopeLeader),
	)
}

// definitions runs the definitions engine.
type definitions struct {
	*engines
	platform *platform.Platform
}

// Run runs the definitions engine until ctx is cancelled. It notifies the platform of changed kinds.
func (d *definitions) Run(ctx context.Context) error {
	unsubscribe := d.mapper.Subscribe(func(c restmapper.Change) {
		switch c.Type {
		case restmapper.Added:
			d.kinds.Add(1)
		case restmapper.Removed:
			d.kinds.Add(-1)
		}
		d.platform.KindChanged(c.Kind)
	})
	defer func() { <-unsubscribe() }()
	return d.engines.definitions.Run(ctx)
}

// maxListedTypes is the maximum number of types listed in the error from checkCaches.
const maxListedTypes = 3

// checkCaches returns an error until all types that existed at startup have been listed or cannot be listed. Types that
// are defined later do not make the replica unready.
func (e *engines) checkCaches() error {
	if e.synced.Load() {
		return nil
	}
	read, err := e.definitions.TypeStatusOf(blueprint.GroupVersionResource)
	if err != nil {
		return err
	}
	if !read.Synced || read.Live+read.Background+read.Running > 0 {
		return fmt.Errorf("not all %s have been read yet", read.GVR.GroupResource())
	}
	var waiting []string
	for _, t := range e.instances.Status() {
		if isSyncing(t) {
			waiting = append(waiting, t.GVR.GroupResource().String())
		}
	}
	if n := len(waiting); n > 0 {
		return fmt.Errorf("%d types have not been listed yet, including %s", n,
			strings.Join(waiting[:min(n, maxListedTypes)], ", "))
	}
	e.synced.Store(true)
	return nil
}

// isSyncing reports whether a type, or a type that it refers to, has not been listed yet.
func isSyncing(t dynamiccontroller.TypeStatus) bool {
	isSyncing := func(state dynamiccontroller.TypeState) bool {
		return state == dynamiccontroller.TypeStopped || state == dynamiccontroller.TypeSyncing
	}
	return isSyncing(t.State) || slices.ContainsFunc(t.Secondaries, func(s dynamiccontroller.SecondaryStatus) bool {
		return isSyncing(s.State)
	})
}
