package dynamiccontroller_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// memory is a source of objects in memory, for benchmarks. Like the API server's metadata, they are protobuf, so that
// the engine reads the same records as in production. Unlike client-go's fake client, it takes almost no CPU time.
type memory struct {
	objects map[schema.GroupVersionResource][]*objects.Record
	events  map[schema.GroupVersionResource]chan watch.Event // types without a channel have no events
}

func (m memory) Check(objects.Projection) error { return nil }

func (m memory) Requests(gvr schema.GroupVersionResource, _ string, _ objects.Projection) listwatch.Requests {
	return memoryRequests{m.objects[gvr], m.events[gvr]}
}

// memoryRequests lists and watches the objects of one type. It is also the stream of a watch.
type memoryRequests struct {
	objects []*objects.Record
	events  <-chan watch.Event
}

func (r memoryRequests) IsWatchListSemanticsUnSupported() bool { return true }

func (r memoryRequests) List(
	_ context.Context, _ listwatch.RequestOptions, item func(runtime.Object),
) (metav1.ListMeta, error) {
	for _, object := range r.objects {
		item(object)
	}
	return metav1.ListMeta{ResourceVersion: "1"}, nil
}

func (r memoryRequests) Watch(context.Context, listwatch.RequestOptions) (listwatch.Stream, error) {
	return r, nil
}

func (r memoryRequests) Next(ctx context.Context) (watch.Event, error) {
	select {
	case event := <-r.events:
		return event, nil
	case <-ctx.Done():
		return watch.Event{}, ctx.Err()
	}
}

func (r memoryRequests) Close() {}

// benchTypes returns the GVRs of n types.
func benchTypes(n int) []schema.GroupVersionResource {
	gvrs := make([]schema.GroupVersionResource, n)
	for i := range gvrs {
		gvrs[i] = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprintf("type%ds", i)}
	}
	return gvrs
}

// benchID returns the nth object of a type.
func benchID(gvr schema.GroupVersionResource, n int) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{GVR: gvr, NamespacedKey: fmt.Sprintf("default/object-%d", n)}
}

// benchRecord returns a version of an object. It has the metadata of a typical child: labels, annotations and an owner,
// which can be the zero value.
func benchRecord(id, owner dynamiccontroller.ObjectIdentifiers, version int) *objects.Record {
	o := metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: id.Name(), UID: benchUID(id), ResourceVersion: fmt.Sprint(version), Generation: 1,
			CreationTimestamp: metav1.Unix(1_750_000_000, 0),
			Labels: map[string]string{
				"app.kubernetes.io/name": id.Name(), "app.kubernetes.io/part-of": "shop",
				"app.kubernetes.io/managed-by": "dynamic-controller", "version": fmt.Sprint(version),
			},
			Annotations: map[string]string{"example.com/description": "an object of a benchmark"},
		},
	}
	if owner.NamespacedKey != "" {
		o.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "example.com/v1", Kind: "Type", Name: owner.Name(), UID: benchUID(owner), Controller: ptr.To(true),
		}}
	}
	return must(objects.ParseProtobuf(must(o.Marshal()), objects.Metadata))
}

func benchUID(id dynamiccontroller.ObjectIdentifiers) types.UID {
	return types.UID(id.GVR.Resource + "/" + id.NamespacedKey)
}

// benchController returns a controller that reads objects from memory. It caches only their metadata.
func benchController(objects memory, opts ...dynamiccontroller.Option) *dynamiccontroller.DynamicController {
	return dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{ResyncPeriod: -1}, nil,
		append(opts, dynamiccontroller.WithSource(objects))...)
}

func benchServe(
	b *testing.B, c *dynamiccontroller.DynamicController, gvrs []schema.GroupVersionResource,
	handler dynamiccontroller.Handler, opts ...dynamiccontroller.ServeOption,
) {
	b.Helper()
	opts = append(opts, dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata))
	for _, gvr := range gvrs {
		if err := c.StartServingGVK(b.Context(), gvr, handler, opts...); err != nil {
			b.Fatal(err)
		}
	}
}

// benchRun calls run in a goroutine. The function stop ends it and waits until it has returned.
func benchRun(b *testing.B, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
}

// benchWatches runs the watches until the end of the benchmark. It waits until all of them have synced.
func benchWatches(b *testing.B, c *dynamiccontroller.DynamicController) {
	b.Helper()
	b.Cleanup(benchRun(b, c.RunWatches))
	for _, served := range c.Status() {
		for !allSynced(must(c.TypeStatusOf(served.GVR))) {
			time.Sleep(time.Millisecond)
		}
	}
}

func allSynced(status dynamiccontroller.TypeStatus) bool {
	synced := status.Synced
	for _, secondary := range status.Secondaries {
		synced = synced && secondary.Synced
	}
	return synced
}

// countdown is a counter that can be waited for.
type countdown struct {
	left atomic.Int64
	zero chan struct{}
}

// newCountdown returns a counter that starts at n.
func newCountdown(n int) *countdown {
	c := &countdown{zero: make(chan struct{})}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) done() {
	if c.left.Add(-1) == 0 {
		close(c.zero)
	}
}

// cpuTime returns the user and system time of this process.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err) // the call fails only for invalid arguments
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
