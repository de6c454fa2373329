package typewatch_test

import (
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

func Example() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	kinds := map[schema.GroupVersionResource]string{widgets: "WidgetList"}
	pool := typewatch.NewPool(typewatch.Config{
		Source: recordclient.Clients{Dynamic: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)},
		Log:    func(schema.GroupVersionResource) logr.Logger { return logr.Discard() },
	})
	stop := pool.Start()

	options := typewatch.Options{Key: typewatch.Key{
		Selection: typewatch.Selection{GVR: widgets}, Projection: objects.Full,
	}}
	one, other := pool.Subscribe(options, nil), pool.Subscribe(options, nil)
	<-one.Synced()
	<-other.Synced()
	fmt.Println(one.State().Phase, pool.Watches(widgets))

	one.Close()
	other.Close()
	<-other.Ended()
	fmt.Println(other.State().Phase, pool.Watches(widgets))
	stop()
	// Output:
	// Synced 1
	// Stopped 0
}
