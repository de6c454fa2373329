package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

const (
	workers = 10
	// discoveryPeriod is how often the garbage collector looks for new types. kube-controller-manager's 30 s are
	// longer than a test waits for the dependents of a type that it has just defined.
	discoveryPeriod = time.Second
	namespaceResync = 5 * time.Minute // kube-controller-manager's
)

// startControllers runs Kubernetes' own controllers in this process, with their log in the directory, until ctx ends
// or stop is called, which returns when they have ended.
func startControllers(ctx context.Context, d dir) (stop func(), err error) {
	config, err := d.adminConfig()
	if err != nil {
		return nil, err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	log, err := os.OpenFile(d.logFile("controllers"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log))))
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keepControllers(ctx, d, config)
	}()
	return func() {
		cancel()
		<-ended
	}, nil
}

// keepControllers runs the controllers, and others in their stead whenever a server was restarted: the old ones'
// reflectors may be backing off for half a minute by then.
func keepControllers(ctx context.Context, d dir, config *rest.Config) {
	for {
		if err := waitServing(ctx, config); err != nil {
			return
		}
		term, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := runControllers(term, config); err != nil {
				klog.ErrorS(err, "The controllers cannot run")
			}
		}()
		waitRestart(ctx, d)
		cancel()
		<-ended
	}
}

// waitRestart returns when a server is another process than now, or ctx ends.
func waitRestart(ctx context.Context, d dir) {
	const pause = 500 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for now := serverPIDs(d); slices.Equal(now, serverPIDs(d)); {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// serverPIDs are only compared, so that a file which cannot be read is as good as an answer.
func serverPIDs(d dir) []string {
	var pids []string
	for _, part := range []string{etcdPart, apiServerPart} {
		pid, _ := os.ReadFile(d.pidFile(part))
		pids = append(pids, string(pid))
	}
	return pids
}

// runControllers runs them as kube-controller-manager does, and returns when all have ended.
func runControllers(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(client, 0)

	namespaces := namespace.NewNamespaceController(ctx, client, metadataClient,
		client.Discovery().ServerPreferredNamespacedResources, shared.Core().V1().Namespaces(), namespaceResync,
		corev1.FinalizerKubernetes)
	roles := clusterroleaggregation.NewClusterRoleAggregation(shared.Rbac().V1().ClusterRoles(), client.RbacV1())
	collector, err := newGarbageCollector(ctx, client, metadataClient)
	if err != nil {
		return fmt.Errorf("garbage collector: %w", err)
	}

	var wg sync.WaitGroup
	wg.Go(func() { namespaces.Run(ctx, workers) })
	wg.Go(func() { roles.Run(ctx, workers) })
	wg.Go(func() { collector.Run(ctx, workers, discoveryPeriod) })
	wg.Go(func() { collector.Sync(ctx, client.Discovery(), discoveryPeriod) })
	shared.StartWithContext(ctx)
	wg.Wait()
	shared.Shutdown()
	return nil
}

func newGarbageCollector(
	ctx context.Context, client kubernetes.Interface, metadataClient metadata.Interface,
) (*garbagecollector.GarbageCollector, error) {
	started := make(chan struct{})
	close(started)
	return garbagecollector.NewGarbageCollector(ctx, client, metadataClient,
		restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
		garbagecollector.DefaultIgnoredResources(), monitors{client: metadataClient}, started)
}

// monitors gives the garbage collector a watch of its own for each type, which ends when the type goes. The shared
// informers that kube-controller-manager gives it would go on asking for a removed type for ever, and be slow to
// notice when it is back.
type monitors struct {
	client metadata.Interface
}

func (m monitors) ForResource(gvr schema.GroupVersionResource) (informers.GenericInformer, error) {
	generic := metadatainformer.NewFilteredMetadataInformer(m.client, gvr, corev1.NamespaceAll, 0, cache.Indexers{}, nil)
	return monitor{generic}, generic.Informer().SetTransform(dropManagedFields)
}

// Start does nothing: the garbage collector runs what GetController returns.
func (monitors) Start(<-chan struct{}) {}

type monitor struct {
	informers.GenericInformer
}

func (m monitor) Informer() cache.SharedIndexInformer {
	return monitorInformer{m.GenericInformer.Informer()}
}

type monitorInformer struct {
	cache.SharedIndexInformer
}

func (m monitorInformer) GetController() cache.Controller { return m.SharedIndexInformer }

func dropManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
