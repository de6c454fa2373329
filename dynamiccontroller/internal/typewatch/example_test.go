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
	watch := typewatch.New(logr.Discard(), typewatch.Spec{GVR: widgets}, typewatch.Clients{Dynamic: client}, nil, nil)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		watch.Run(ctx, logr.Discard())
		close(ended)
	}()
	<-watch.Synced()
	fmt.Println(watch.State().Phase, watch.Len())
	cancel()
	<-ended
	fmt.Println(watch.State().Phase)
	// Output:
	// Synced 0
	// Stopped
}
