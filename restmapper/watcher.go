package restmapper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/internal/listwatch"
)

// maxRequestDelay limits the delay before a failed request is repeated. It is short, because one request every few
// seconds costs little, and the API server is expected to recover.
const maxRequestDelay = 5 * time.Second

// watcher lists and watches the objects of one type. It is the store of its loop, and sends the loop's requests.
type watcher struct {
	gvk       schema.GroupVersionKind
	gvr       schema.GroupVersionResource
	client    rest.Interface
	selector  string
	newObject func() runtime.Object
	// reduce removes the fields of an object that the mapper does not need.
	reduce cache.TransformFunc
	// replace is called with all objects after a list. set is called with the new state of one object, or with nil if
	// the object was deleted. Both are called by one goroutine.
	replace func(objects []any)
	set     func(name string, object any)
	// report is called with the error when the type's state reports a problem, and with nil when its watch is open.
	report func(error)
	// answered is called with the error of each request for a list or a watch, or with nil.
	answered func(err error)

	loop *listwatch.Loop

	items    map[string]any // the list that is being received; used only by the loop's goroutine
	progress progress

	mu sync.Mutex // held while report is called, so that it is called in order
}

var (
	_ listwatch.Store    = (*watcher)(nil)
	_ listwatch.Requests = (*watcher)(nil)
)

// init sets the fields that are derived from the others.
func (w *watcher) init(log logr.Logger, cfg *rest.Config) (err error) {
	w.client, err = newWatchClient(cfg, w.gvk, w.newObject())
	w.loop = listwatch.NewLoop(w, w, listwatch.Options{
		Log: log, GVR: w.gvr, LabelSelector: w.selector, MaxDelay: maxRequestDelay, Observe: w.stateChanged,
		// After a lost connection, a watch could be resumed from a version that does not exist after a restore of etcd.
		Relists: listwatch.NewRelistLimiter(),
	})
	return err
}

// newWatchClient returns a client that decodes objects of the kind into the type of object.
func newWatchClient(cfg *rest.Config, gvk schema.GroupVersionKind, object runtime.Object) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(gvk, object)
	metav1.AddToGroupVersion(scheme, gvk.GroupVersion())
	gv := gvk.GroupVersion()
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = "/apis", &gv
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.Timeout = 0 // a timeout would end watches
	return rest.RESTClientFor(cfg)
}

// stateChanged reports the state of the loop. The mapper itself logs failures; see setFailure.
func (w *watcher) stateChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch state := w.loop.State(); {
	case state.Err != nil:
		w.report(state.Err)
	case state.Phase == listwatch.Synced:
		w.report(nil)
	}
}

// newRetry returns the delays between attempts.
func newRetry(longest time.Duration) wait.DelayFunc {
	return wait.Backoff{Duration: 20 * time.Millisecond, Cap: longest, Steps: 20, Factor: 2, Jitter: 0.5}.DelayFunc()
}

func (w *watcher) request(options listwatch.RequestOptions) *rest.Request {
	return w.client.Get().Resource(w.gvr.Resource).MaxRetries(0).
		VersionedParams(&options.ListOptions, metav1.ParameterCodec)
}

// Watch opens a watch.
func (w *watcher) Watch(ctx context.Context, options listwatch.RequestOptions) (listwatch.Stream, error) {
	stream, err := w.request(options).Watch(ctx)
	w.answered(err)
	if err != nil {
		return nil, err
	}
	return listwatch.NewStream(stream), nil
}

// MinVersion returns the newest version of an earlier run.
func (w *watcher) MinVersion() string { return w.progress.newest() }

// BeginList begins to collect the items of a list.
func (w *watcher) BeginList() { w.items = map[string]any{} }

// Collect adds an item to the list, or removes it if it was deleted in the meantime.
func (w *watcher) Collect(event watch.Event) error {
	name, object, err := w.reduced(event)
	switch {
	case err != nil:
		return err
	case object == nil:
		delete(w.items, name)
	default:
		w.items[name] = object
	}
	return nil
}

// EndList replaces the mapper's objects.
func (w *watcher) EndList(list listwatch.ListResult, stored func()) {
	objects, versions := make([]any, 0, len(w.items)), make(map[string]string, len(w.items))
	for name, object := range w.items {
		objects, versions[name] = append(objects, object), object.(metav1.Object).GetResourceVersion()
	}
	w.items = nil
	w.progress.begin()
	w.replace(objects)
	w.progress.replace(list.ResourceVersion, versions)
	stored()
}

// Apply passes a change to the mapper.
func (w *watcher) Apply(event watch.Event) error {
	m, ok := event.Object.(metav1.Object)
	if !ok {
		return unexpectedType(event.Object)
	}
	version := m.GetResourceVersion()
	if event.Type == watch.Bookmark {
		w.progress.bookmark(version)
		return nil
	}
	name, object, err := w.reduced(event)
	if err != nil {
		return err
	}
	w.progress.begin()
	w.set(name, object)
	if object == nil {
		w.progress.set(version, name, "")
	} else {
		w.progress.set(version, name, version)
	}
	return nil
}

// reduced returns the name of an event's object, and the reduced object, or nil if it was deleted.
func (w *watcher) reduced(event watch.Event) (name string, object any, err error) {
	m, ok := event.Object.(metav1.Object)
	if !ok {
		return "", nil, unexpectedType(event.Object)
	}
	if event.Type != watch.Deleted {
		object, err = w.reduce(event.Object)
	}
	return m.GetName(), object, err
}

// Clear is never called, because no type event concerns these types.
func (w *watcher) Clear() {}

// reduceMeta returns the metadata that the mapper needs, and the given label.
func reduceMeta(m metav1.ObjectMeta, keepLabel string) metav1.ObjectMeta {
	out := metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	if keepLabel != "" {
		out.Labels = maps.Clone(m.Labels)
		maps.DeleteFunc(out.Labels, func(key, _ string) bool { return key != keepLabel })
	}
	return out
}

func unexpectedType(object any) error { return fmt.Errorf("unexpected object of type %T", object) }

// malformed returns the error from a response that cannot be parsed.
func malformed(err error) error { return errors.Join(listwatch.ErrMalformed, err) }
