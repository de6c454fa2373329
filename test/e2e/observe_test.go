package e2e

import (
	"context"
	"reflect"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

// observe notes, from watches of the test's own, who held the lease and whose writes took effect in which order, which is
// that of resourceVersions. The proxies are not in its way.
func (f *fleet) observe() {
	f.Helper()
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(f.client, 0, f.namespace, nil)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	f.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for gvr, see := range map[schema.GroupVersionResource]func(old, now *unstructured.Unstructured){
		coordinationv1.SchemeGroupVersion.WithResource("leases"): f.seeLease,
		corev1.SchemeGroupVersion.WithResource("configmaps"):     f.seeProbe,
		widgets: f.seeWidget,
	} {
		informer := factory.ForResource(gvr).Informer()
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(now any) { see(&unstructured.Unstructured{}, now.(*unstructured.Unstructured)) },
			UpdateFunc: func(old, now any) { see(old.(*unstructured.Unstructured), now.(*unstructured.Unstructured)) },
		})
		f.noError(err)
		running.Go(func() { informer.RunWithContext(ctx) })
	}
}

func (f *fleet) seeLease(_, now *unstructured.Unstructured) {
	holder, _, _ := unstructured.NestedString(now.Object, "spec", "holderIdentity")
	f.log.Add(history.Event{Kind: history.Held, Version: now.GetResourceVersion(), Holder: holder})
}

// seeWidget tells a replica's write from a change of the test's.
func (f *fleet) seeWidget(old, now *unstructured.Unstructured) {
	if by, _, _ := unstructured.NestedString(now.Object, "status", "by"); by != "" && !reflect.DeepEqual(old.Object["status"], now.Object["status"]) {
		f.log.Add(history.Event{Kind: history.Arrived, Who: by, Object: now.GetName(), Version: now.GetResourceVersion()})
	}
}

func (f *fleet) seeProbe(_, now *unstructured.Unstructured) {
	if by, _, _ := unstructured.NestedString(now.Object, "data", "by"); by != "" {
		f.log.Add(history.Event{Kind: history.Arrived, Who: by, Object: now.GetName(), Version: now.GetResourceVersion()})
	}
}
