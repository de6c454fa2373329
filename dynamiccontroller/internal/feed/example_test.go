package feed_test

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/shards"
)

// printer is a target that prints the keys that it receives.
type printer struct{ resumed, changed chan struct{} }

func (printer) Pause()                               { fmt.Println("pause") }
func (p printer) Resume()                            { fmt.Println("resume"); close(p.resumed) }
func (printer) AddExisting(keys []string)            { fmt.Println("existing", keys) }
func (p printer) AddChanged(keys []string)           { fmt.Println("changed", keys); close(p.changed) }
func (printer) AddCallers([]string)                  {}
func (printer) AddAllAfterLoss()                     {}
func (printer) AddAllAfterSwap()                     {}
func (printer) Deleted(string, bool)                 {}
func (printer) Normalize(key string) (string, error) { return key, nil }
func (printer) Malformed(string, string, error)      {}
func (printer) AddAffected([]string, schema.GroupVersionResource, string) {
}

func Example() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	kinds := map[schema.GroupVersionResource]string{widgets: "WidgetList"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	create := func(name, version string) {
		widget := &unstructured.Unstructured{}
		widget.SetAPIVersion("example.com/v1")
		widget.SetKind("Widget")
		widget.SetName(name)
		widget.SetResourceVersion(version)
		_, err := client.Resource(widgets).Create(context.Background(), widget, metav1.CreateOptions{})
		if err != nil {
			panic(err)
		}
	}
	create("a", "2")
	pool := typewatch.NewPool(typewatch.Config{
		Source: recordclient.Clients{Dynamic: client},
		Log:    func(schema.GroupVersionResource) logr.Logger { return logr.Discard() },
	})
	stop := pool.Start()

	source := &feed.Source{
		Name: "widgets.v1.example.com",
		Watch: typewatch.Options{Key: typewatch.Key{
			Selection: typewatch.Selection{GVR: widgets}, Projection: objects.Full,
		}},
	}
	target := printer{resumed: make(chan struct{}), changed: make(chan struct{})}
	f := feed.New(pool, logr.Discard(), target, &feed.Options{Primary: source}, true, shards.Shard{})
	<-f.Attach(nil, context.Background)
	<-target.resumed
	for f.Primary().State().Open.IsZero() { // client-go's fake does not send what happens between a list and a watch
		time.Sleep(time.Millisecond)
	}
	create("b", "3")
	<-target.changed

	f.Close()
	<-f.Ended()
	stop()
	// Output:
	// pause
	// existing [a]
	// resume
	// changed [b]
}
