package replica

import (
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

// fleetClients are the clients that a fleet needs in addition to that of its own Lease.
type fleetClients struct {
	requests    coordinationclient.LeasesGetter // with a timeout
	connections *connections                    // of requests
	watches     coordinationclient.LeasesGetter // without a timeout
}

func newFleetClients(cfg *rest.Config, o Options) (*fleetClients, error) {
	requests, connections, err := newLeaseClient(cfg, o)
	if err != nil {
		return nil, err
	}
	own := rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election")
	own.QPS, own.RateLimiter, own.Timeout = -1, nil, 0
	watches, err := coordinationclient.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("create a client for the leases of the fleet: %w", err)
	}
	return &fleetClients{requests, connections, watches}, nil
}

// leaseOf returns the lock for a Lease of the fleet.
func leaseOf(client coordinationclient.LeasesGetter, o Options, name string) *resourcelock.LeaseLock {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.LeaseNamespace, Name: name},
		Client:     client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		Labels:     fencedLabels(o, leasename.Labels(o.LeaseName, o.Labels)),
	}
}

// fencedLabels returns the labels with the one by which the policy of package serverfence finds the Lease.
func fencedLabels(o Options, labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[serverfence.Label] = leasename.LabelValue(o.LeaseName)
	return labels
}
