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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
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
	// discoveryPeriod is the interval at which the garbage collector looks for new types. kube-controller-manager's
	// interval of 30 s is too long for tests that define a type and expect objects of that type to be collected.
	discoveryPeriod = time.Second
	namespaceResync = 5 * time.Minute // The default of kube-controller-manager.
)

// startControllers runs Kubernetes controllers in this process until ctx is cancelled or stop is called. The stop
// function waits until the controllers have stopped. The controllers write to a log file in d.
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
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		restartControllers(ctx, d, config)
	}()
	return func() {
		cancel()
		<-stopped
	}, nil
}

// restartControllers runs the controllers and replaces them whenever a server has been restarted. The reflectors of the
// old controllers could back off for up to 30 seconds after the restart.
func restartControllers(ctx context.Context, d dir, config *rest.Config) {
	for {
		if err := waitServing(ctx, config); err != nil {
			return
		}
		runCtx, cancel := context.WithCancel(ctx)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			if err := runControllers(runCtx, config); err != nil {
				klog.ErrorS(err, "Controllers failed to start")
			}
		}()
		waitRestart(ctx, d)
		cancel()
		<-stopped
	}
}

// waitRestart waits until the process of a server changes or ctx is cancelled.
func waitRestart(ctx context.Context, d dir) {
	const interval = 500 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for now := serverPIDs(d); slices.Equal(now, serverPIDs(d)); {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// serverPIDs returns the contents of the servers' PID files for comparison. Read errors are ignored.
func serverPIDs(d dir) []string {
	var pids []string
	for _, component := range []string{etcdName, apiServerName} {
		pid, _ := os.ReadFile(d.pidFile(component))
		pids = append(pids, string(pid))
	}
	return pids
}

// runControllers runs the controllers in the same way as kube-controller-manager, until ctx is cancelled and all of
// them have returned.
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

	discover, err := neverEmpty(ctx, client.Discovery().ServerPreferredNamespacedResources)
	if err != nil {
		return err
	}
	namespaces := namespace.NewNamespaceController(ctx, client, metadataClient, discover,
		shared.Core().V1().Namespaces(), namespaceResync, corev1.FinalizerKubernetes)
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

type discoverFunc = func() ([]*metav1.APIResourceList, error)

// neverEmpty waits until discover returns resources. The function that it returns calls discover. If discover returns
// no resources, the function returns the first ones and the error. The namespace controller's constructor exits the
// process if there are no resources, for example because a test has just stopped the API server.
func neverEmpty(ctx context.Context, discover discoverFunc) (discoverFunc, error) {
	const interval = 100 * time.Millisecond
	var first []*metav1.APIResourceList
	err := wait.PollUntilContextCancel(ctx, interval, true, func(context.Context) (bool, error) {
		var err error
		if first, err = discover(); err != nil {
			klog.ErrorS(err, "Discovery failed")
		}
		return len(first) > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return func() ([]*metav1.APIResourceList, error) {
		resources, err := discover()
		if len(resources) == 0 {
			return first, err
		}
		return resources, err
	}, nil
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

// monitors provides the garbage collector with a separate watch for each type. A watch is stopped when its type is
// removed. The shared informers of kube-controller-manager would keep retrying removed types indefinitely, and would be
// slow to recover when a type is defined again.
type monitors struct {
	client metadata.Interface
}

func (m monitors) ForResource(gvr schema.GroupVersionResource) (informers.GenericInformer, error) {
	generic := metadatainformer.NewFilteredMetadataInformer(m.client, gvr, corev1.NamespaceAll, 0, cache.Indexers{}, nil)
	return monitor{generic}, generic.Informer().SetTransform(dropManagedFields)
}

// Start does nothing because the garbage collector runs the controllers returned by GetController.
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
