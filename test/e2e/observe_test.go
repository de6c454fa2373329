package e2e

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

// observe logs the holders of the lease and the writes of the replicas, each with its resourceVersion. It uses the
// test's own watches, which do not pass through the proxies.
func (f *fleet) observe() {
	f.Helper()
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(f.client, 0, f.namespace, nil)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	f.Cleanup(func() {
		cancel()
		running.Wait()
	})
	records := map[schema.GroupVersionResource]func(old, now *unstructured.Unstructured){
		coordinationv1.SchemeGroupVersion.WithResource("leases"): f.recordLease,
		corev1.SchemeGroupVersion.WithResource("configmaps"):     f.recordProbe,
	}
	for _, gvr := range f.types {
		records[gvr] = f.recordObject
	}
	for gvr, record := range records {
		informer := factory.ForResource(gvr).Informer()
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(now any) { record(&unstructured.Unstructured{}, now.(*unstructured.Unstructured)) },
			UpdateFunc: func(old, now any) { record(old.(*unstructured.Unstructured), now.(*unstructured.Unstructured)) },
		})
		f.noError(err)
		running.Go(func() { informer.RunWithContext(ctx) })
	}
}

func (f *fleet) recordLease(_, now *unstructured.Unstructured) {
	if now.GetName() == leaseName+"-plan" {
		f.recordPlan(now)
	}
	if !slices.Contains(f.leases(), now.GetName()) {
		return
	}
	holder, _, _ := unstructured.NestedString(now.Object, "spec", "holderIdentity")
	f.log.Add(history.Event{
		Kind: history.Held, Lease: now.GetName(), Version: now.GetResourceVersion(), Holder: identityIn(holder),
	})
}

// recordPlan logs the copies of each shard in the plan.
func (f *fleet) recordPlan(lease *unstructured.Unstructured) {
	p, err := f.decodePlan(lease.GetAnnotations()[planAnnotation])
	if err != nil {
		return // As for the replicas, an invalid plan has no effect.
	}
	for i, row := range p.Shards {
		var copies []string
		for _, m := range row[:min(2, len(row))] { // The leader and the standby.
			if m != none {
				copies = append(copies, p.Members[m])
			}
		}
		f.log.Add(history.Event{Kind: history.Planned, Lease: shardLease(leaseName, i), Holder: strings.Join(copies, " ")})
	}
}

// recordObject logs writes by replicas. Only the replicas change the status. The test changes only the spec.
func (f *fleet) recordObject(old, now *unstructured.Unstructured) {
	by, _, _ := unstructured.NestedString(now.Object, "status", "by")
	if by == "" || reflect.DeepEqual(old.Object["status"], now.Object["status"]) {
		return
	}
	if !reflect.DeepEqual(old.Object["spec"], now.Object["spec"]) {
		return // After a relist, the version can be that of a change by the test.
	}
	f.log.Add(history.Event{
		Kind: history.Arrived, Process: by, Lease: f.leaseOf(now.GetName()), Object: now.GetName(),
		Version: now.GetResourceVersion(),
	})
}

func (f *fleet) recordProbe(_, now *unstructured.Unstructured) {
	if by, _, _ := unstructured.NestedString(now.Object, "data", "by"); by != "" {
		lease, _, _ := unstructured.NestedString(now.Object, "data", "lease")
		f.log.Add(history.Event{
			Kind: history.Arrived, Process: by, Lease: lease, Object: now.GetName(), Version: now.GetResourceVersion(),
		})
	}
}
