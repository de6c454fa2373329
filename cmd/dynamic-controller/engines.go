package main

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/restmapper"
)

// engines contains the components of a replica. The definitions engine reads Blueprints and determines the served
// types, on every replica. The instances engine reconciles instances on the leader. Its watches run on every replica,
// so that a standby that becomes the leader does not have to send list or watch requests.
type engines struct {
	mapper                 *restmapper.Mapper
	definitions, instances *dynamiccontroller.DynamicController
	metrics                []prometheus.Collector
	synced                 atomic.Bool
}

func newEngines(log logr.Logger, config dynamiccontroller.Config, cfg *rest.Config) (*engines, error) {
	e := &engines{}
	reconciles := metrics.NewReconciles()
	withMetrics := dynamiccontroller.WithMetrics(reconciles)
	var err1, err2, err3 error
	if e.mapper, err1 = restmapper.New(log.WithName("mapper"), cfg); err1 != nil {
		return nil, err1
	}
	types := typeEvents(e.mapper)
	e.definitions, err2 = dynamiccontroller.NewForConfig(log.WithName("definitions"), config, cfg, withMetrics,
		dynamiccontroller.WithTypeEvents(types), dynamiccontroller.WithDefaultTransform(instances.BlueprintTransform))
	e.instances, err3 = dynamiccontroller.NewForConfig(log, config, cfg, withMetrics,
		dynamiccontroller.WithTypeEvents(types), dynamiccontroller.WithDefaultTransform(instances.Transform))
	// The status of the instances engine includes Blueprints: the leader reconciles their status.
	e.metrics = []prometheus.Collector{reconciles, metrics.NewStatus(e.instances)}
	return e, errors.Join(err2, err3)
}

// typeEvents converts the events of a mapper for an engine, because their packages do not import each other.
func typeEvents(mapper *restmapper.Mapper) dynamiccontroller.TypeEvents {
	return func(notify func(gvr schema.GroupVersionResource, served bool)) (cancel func()) {
		unsubscribe := mapper.Subscribe(func(c restmapper.Change) {
			for _, old := range c.Old {
				if !slices.ContainsFunc(c.New, func(m *meta.RESTMapping) bool { return m.Resource == old.Resource }) {
					notify(old.Resource, false)
				}
			}
			for _, now := range c.New {
				notify(now.Resource, true)
			}
		})
		return func() { <-unsubscribe() }
	}
}

// register registers the components with the replica.
func (e *engines) register(r *replica.Replica, p *platform.Platform) error {
	return errors.Join(
		r.RegisterWithoutLeaderElection("restmapper", e.mapper),
		r.RegisterWithoutLeaderElection("watches", replica.RunFunc(e.instances.RunWatches)),
		r.RegisterWithoutLeaderElection("definitions", &definitions{engines: e, platform: p}),
		r.Register("blueprints", replica.RunFunc(p.Install)),
		r.Register("dynamic-controller", e.instances),
	)
}

// definitions runs the definitions engine, and reports whether the replica has warm caches.
type definitions struct {
	*engines
	platform *platform.Platform
}

// Run determines the served types until ctx is cancelled.
func (d *definitions) Run(ctx context.Context) error {
	unsubscribe := d.mapper.Subscribe(func(c restmapper.Change) { d.platform.KindChanged(c.Kind) })
	defer func() { <-unsubscribe() }()
	return d.engines.definitions.Run(ctx)
}

// HasSynced reports whether each type that existed at startup has been listed or cannot be listed. Types that are
// defined later do not make the replica unready.
func (d *definitions) HasSynced() bool {
	if d.synced.Load() {
		return true
	}
	for _, t := range d.engines.definitions.Status() {
		if !t.Synced || t.Live+t.Background+t.Running > 0 {
			return false
		}
	}
	for _, t := range d.instances.Status() {
		if isSyncing(t.State) {
			return false
		}
		for _, secondary := range t.Secondaries {
			if isSyncing(secondary.State) {
				return false
			}
		}
	}
	d.synced.Store(true)
	return true
}

func isSyncing(state dynamiccontroller.TypeState) bool {
	return state == dynamiccontroller.TypeStopped || state == dynamiccontroller.TypeSyncing
}
