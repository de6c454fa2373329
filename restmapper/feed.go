package restmapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// feed lists and watches one type and tells what its objects are, reduced to what is kept of them.
type feed struct {
	gvr      schema.GroupVersionResource
	client   rest.Interface
	selector string
	// newObject returns what an object is decoded into.
	newObject func() runtime.Object
	// reduce leaves of an object what is to be kept of it, with its name and resource version.
	reduce cache.TransformFunc
	// replace and set tell all objects, and one object's new state, nil if it is gone. They are called by one goroutine.
	replace func(objects []any)
	set     func(name string, object any)
	// ended tells how a request ended.
	ended func(error)

	mu    sync.Mutex // guards over, and lists against an Add beside Wait
	over  bool       // the run is: no list begins any more
	lists sync.WaitGroup
	// stream is the newest watch. Only the goroutine that runs the feed uses it.
	stream watch.Interface
}

// newFeedClient returns a client that decodes the kind into this type.
func newFeedClient(cfg *rest.Config, gvk schema.GroupVersionKind, object runtime.Object) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(gvk, object)
	metav1.AddToGroupVersion(scheme, gvk.GroupVersion())
	gv := gvk.GroupVersion()
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = "/apis", &gv
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.Timeout = 0 // a watch has no end
	return rest.RESTClientFor(cfg)
}

// run feeds until ctx ends and returns when its goroutines have ended.
func (f *feed) run(ctx context.Context, log logr.Logger) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, log))
	f.begin()
	defer f.join()
	defer cancel()
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  f.list,
		WatchFuncWithContext: f.watch,
	}, f.client), nil, feedStore{f}, cache.ReflectorOptions{
		Name:            "restmapper",
		TypeDescription: f.gvr.String(),
		Logger:          &log,
		Clock:           stoppableClock{after: func(d time.Duration) <-chan time.Time { return after(ctx, d) }},
		Backoff:         &wait.Backoff{Duration: 20 * time.Millisecond, Cap: longestRetry, Steps: 12, Factor: 2, Jitter: 0.5},
	})
	retry := newRetry(longestRetry)
	for ctx.Err() == nil {
		began := time.Now()
		_ = reflector.ListAndWatchWithContext(ctx) // list and watch have told of it
		if time.Since(began) > time.Minute {
			retry = newRetry(longestRetry)
		}
		<-after(ctx, retry())
	}
}

// longestRetry is short, because one request every few seconds is little and what is waited for is the API server.
const longestRetry = 5 * time.Second

func newRetry(longest time.Duration) wait.DelayFunc {
	return wait.Backoff{Duration: 20 * time.Millisecond, Cap: longest, Steps: 20, Factor: 2, Jitter: 0.5}.DelayFunc()
}

func (f *feed) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if !f.beginList() {
		return nil, context.Cause(ctx)
	}
	defer f.lists.Done()
	options.LabelSelector = f.selector
	list, err := f.listReduced(ctx, options)
	if ctx.Err() == nil {
		f.ended(err)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// listReduced reads a list object by object, each reduced at once. A server that cannot send its objects through a watch
// may not heed a limit either, and all CRDs with their schemas are more than to hold at once.
func (f *feed) listReduced(ctx context.Context, options metav1.ListOptions) (*metainternalversion.List, error) {
	body, err := f.client.Get().Resource(f.gvr.Resource).VersionedParams(&options, metav1.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list := &metainternalversion.List{}
	if err := f.decodeList(json.NewDecoder(body), list); err != nil {
		return nil, fmt.Errorf("list %s: %w", f.gvr, err)
	}
	return list, nil
}

func (f *feed) decodeList(d *json.Decoder, list *metainternalversion.List) error {
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		var err error
		switch field, _ := d.Token(); field {
		case "metadata":
			err = d.Decode(&list.ListMeta)
		case "items":
			err = f.decodeItems(d, list)
		default:
			var other json.RawMessage
			err = d.Decode(&other)
		}
		if err != nil {
			return err
		}
	}
	return expect(d, json.Delim('}'))
}

func (f *feed) decodeItems(d *json.Decoder, list *metainternalversion.List) error {
	switch begin, err := d.Token(); {
	case err != nil:
		return err
	case begin == nil: // null: there are none
		return nil
	case begin != json.Delim('['):
		return fmt.Errorf("unexpected %v", begin)
	}
	for d.More() {
		object := f.newObject()
		if err := d.Decode(object); err != nil {
			return err
		}
		reduced, err := f.reduce(object)
		if err != nil {
			return err
		}
		list.Items = append(list.Items, reduced.(runtime.Object))
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, delim json.Delim) error {
	token, err := d.Token()
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case token != delim:
		return fmt.Errorf("%v instead of %v", token, delim)
	}
	return nil
}

func (f *feed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	f.joinStream()
	options.LabelSelector, options.Watch = f.selector, true
	stream, err := f.client.Get().Resource(f.gvr.Resource).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	if ctx.Err() == nil {
		f.ended(err)
	}
	if err != nil {
		return nil, err
	}
	f.stream = stream
	return stream, nil
}

// beginList counts a list in: the reflector lists in a goroutine that it does not wait for when its context ends.
func (f *feed) beginList() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		f.lists.Add(1)
	}
	return !f.over
}

func (f *feed) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = false
}

// join waits for what the requests left running. Their context must have ended.
func (f *feed) join() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	f.joinStream()
	f.lists.Wait()
}

// joinStream waits for the goroutine that reads the stream: Stop alone does not.
func (f *feed) joinStream() {
	if f.stream == nil {
		return
	}
	f.stream.Stop()
	for range f.stream.ResultChan() { // emptied until its sender closes it
	}
	f.stream = nil
}

// feedStore is what the reflector writes to.
type feedStore struct{ *feed }

var _ cache.TransformingStore = feedStore{}

// Transformer lets the reflector keep no more while it collects a list.
func (s feedStore) Transformer() cache.TransformFunc { return s.reduce }

func (s feedStore) Add(object any) error { return s.Update(object) }

func (s feedStore) Update(object any) error {
	object, err := s.reduce(object)
	if err != nil {
		return err
	}
	name, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	s.set(name, object)
	return nil
}

func (s feedStore) Delete(object any) error {
	name, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	s.set(name, nil)
	return nil
}

func (s feedStore) Replace(objects []any, _ string) error {
	reduced := make([]any, len(objects))
	for i, object := range objects {
		var err error
		if reduced[i], err = s.reduce(object); err != nil {
			return err
		}
	}
	s.replace(reduced)
	return nil
}

func (s feedStore) Resync() error { return nil }

// reduceMeta leaves of an object's metadata what a store needs, and these labels.
func reduceMeta(m metav1.ObjectMeta, keepLabel string) metav1.ObjectMeta {
	out := metav1.ObjectMeta{Name: m.Name, ResourceVersion: m.ResourceVersion}
	if keepLabel != "" {
		out.Labels = maps.Clone(m.Labels)
		maps.DeleteFunc(out.Labels, func(key, _ string) bool { return key != keepLabel })
	}
	return out
}

func unexpected(object any) error { return fmt.Errorf("unexpected object %T", object) }

// after fires when d is over or ctx ends.
func after(ctx context.Context, d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ctx, func() {
		cancel()
		fired <- time.Now()
	})
	return fired
}

// stoppableClock is the real clock but for After: the reflector waits through its backoff without looking at its
// context (watchList, client-go v0.37).
type stoppableClock struct {
	clock.RealClock
	after func(time.Duration) <-chan time.Time
}

func (c stoppableClock) After(d time.Duration) <-chan time.Time { return c.after(d) }
