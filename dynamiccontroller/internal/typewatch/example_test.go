package typewatch_test

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

func Example() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{widgets: "WidgetList"})
	pool := typewatch.NewPool(typewatch.Clients{Dynamic: client},
		func(schema.GroupVersionResource) logr.Logger { return logr.Discard() },
		func(schema.GroupVersionResource, typewatch.State) {})
	pool.Begin(context.Background())

	want := typewatch.Want{Spec: typewatch.Spec{GVR: widgets, Depth: typewatch.Full}}
	one, other := pool.Acquire(want), pool.Acquire(want)
	<-one.Synced()
	<-other.Synced()
	fmt.Println(one.State().Phase, pool.Watches(widgets))

	one.Release()
	other.Release()
	<-other.Ended()
	fmt.Println(other.State().Phase, pool.Watches(widgets))
	pool.End()
	// Output:
	// Synced 1
	// Stopped 0
}
