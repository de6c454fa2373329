package typewatch

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// Clients make the requests: Dynamic for [Full], Metadata for the others.
type Clients struct {
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
}

// requests makes the requests of one watch, tells its health how they end, and joins what they leave running.
type requests struct {
	spec   Spec
	client any // that serves the requests
	list   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch  func(context.Context, metav1.ListOptions) (apiwatch.Interface, error)
	health *health
	newest func() string // returns the newest resourceVersion in the cache, if any

	// resumption decides whether a watch that has ended is resumed.
	resumption *resumption

	mu    sync.Mutex // guards over, and lists against an Add beside Wait
	over  bool       // the run is: no list begins any more
	lists sync.WaitGroup
	// stream is the newest watch. Only the goroutine that runs the watch uses it.
	stream apiwatch.Interface
}

func newRequests(spec Spec, clients Clients, relists *rate.Limiter, health *health, newest func() string) *requests {
	r := &requests{spec: spec, health: health, newest: newest, resumption: newResumption(spec.GVR.Group, relists)}
	if spec.Depth == Full {
		c := clients.Dynamic.Resource(spec.GVR).Namespace(spec.Namespace)
		r.client, r.watch = clients.Dynamic, c.Watch
		r.list = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return c.List(ctx, options)
		}
		return r
	}
	c := clients.Metadata.Resource(spec.GVR).Namespace(spec.Namespace)
	r.client, r.watch = clients.Metadata, c.Watch
	r.list = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.List(ctx, options)
	}
	return r
}

func (r *requests) listerWatcher() cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  r.listAll,
		WatchFuncWithContext: r.openWatch,
	}, r.client)
}

// probe asks for one object. A type whose CRD was just established is not found at first, and while a list answers a
// few milliseconds later, a watch that comes too early is told to come back in a second.
func (r *requests) probe(ctx context.Context) error {
	_, err := r.list(ctx, metav1.ListOptions{LabelSelector: r.spec.Selector, Limit: 1})
	r.health.listed(ctx, err)
	return err
}

func (r *requests) listAll(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if !r.beginList() {
		return nil, context.Cause(ctx)
	}
	defer r.lists.Done()
	options.LabelSelector = r.spec.Selector
	r.notOlderThanCache(&options)
	list, err := r.list(ctx, options)
	r.health.listed(ctx, err)
	if ctx.Err() == nil {
		r.resumption.listed()
	}
	return list, err
}

// notOlderThanCache changes the options of a list, plain or streaming, so that its result is not older than the cache. A
// reflector's first list accepts any version. An API server whose watch cache lags could return a state without objects that
// the cache already holds, and they would be reported as deleted. If the API server's etcd was restored from a backup and has
// lost the version, the request fails and the reflector asks for the most recent version.
func (r *requests) notOlderThanCache(options *metav1.ListOptions) {
	isAny, isPage := options.ResourceVersion == "0", options.Continue != ""
	isExact := options.ResourceVersionMatch == metav1.ResourceVersionMatchExact
	if options.ResourceVersion == "" || isPage || isExact {
		return
	}
	newest := r.newest()
	if newest == "" {
		return
	}
	_, err := resourceversion.CompareResourceVersion(newest, newest)
	switch {
	case err != nil && isAny: // no minimum can be computed: read the most recent version
		options.ResourceVersion = ""
	case err == nil && (isAny || newer(newest, options.ResourceVersion)):
		options.ResourceVersion, options.ResourceVersionMatch = newest, metav1.ResourceVersionMatchNotOlderThan
		options.Limit = 0 // with a limit, the API server may read from etcd rather than from its watch cache
	}
}

// beginList counts a list in: the reflector lists in a goroutine that it does not wait for when its context ends.
func (r *requests) beginList() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.lists.Add(1)
	}
	return !r.over
}

// begin makes another run possible after join.
func (r *requests) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = false
}

func (r *requests) openWatch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	ended := time.Now()
	r.joinStream()
	options.LabelSelector = r.spec.Selector
	if ptr.Deref(options.SendInitialEvents, false) {
		r.notOlderThanCache(&options)
	} else if err := r.resumption.check(&options, ended); err != nil {
		return nil, err
	}
	requested := time.Now()
	stream, err := r.watch(ctx, options)
	r.health.watching(ctx, err)
	if err != nil {
		return nil, err
	}
	r.stream = stream
	r.resumption.watching(requested, options)
	return stream, nil
}

// join waits for what the requests left running. Their context must have ended.
func (r *requests) join() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.joinStream()
	r.lists.Wait()
}

// joinStream waits for the goroutine that reads the stream: Stop alone does not.
func (r *requests) joinStream() {
	if r.stream == nil {
		return
	}
	r.stream.Stop()
	for range r.stream.ResultChan() { // emptied until its sender closes it
	}
	r.stream = nil
}
