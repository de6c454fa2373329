package restmapper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/internal/listwatch"
)

const (
	// maxRequestDelay limits the delay before a failed request is repeated. It is short, because one request every few
	// seconds costs little, and the API server is expected to recover.
	maxRequestDelay = 5 * time.Second
	// maxRelistDelay limits the delay after errors that usually persist, such as a missing permission, and the delay
	// between lists of all objects.
	maxRelistDelay = 30 * time.Second
	// steadyTime is how long a watch must stay open before earlier errors are cleared.
	steadyTime = 5 * time.Second
	// resetTime is how long an attempt must last to reset the backoff.
	resetTime = time.Minute
)

// errWatchEnded is wrapped by the error reported for a watch that ended soon after it was opened.
var errWatchEnded = errors.New("the watch ended early")

// watcher lists and watches the objects of one type. It implements the reflector's store and the client that makes the
// reflector's requests.
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
	// report is called with the error from each failed request and each watch that ended early. It is called with nil when
	// a watch has been open for steadyTime.
	report func(error)

	requests *listwatch.ListWatch
	version  atomic.Pointer[string] // the resourceVersion of the newest list, event or bookmark

	mu      sync.Mutex // guards the fields below; held while report is called
	err     error      // the error from the newest request
	opened  time.Time  // when the current watch was opened; zero if no watch is open
	cleared *time.Timer
}

var (
	_ cache.TransformingStore      = (*watcher)(nil)
	_ cache.ReflectorBookmarkStore = (*watcher)(nil)
	_ listwatch.Client             = (*watcher)(nil)
)

// init sets the fields that are derived from the others.
func (w *watcher) init(cfg *rest.Config) (err error) {
	w.client, err = newWatchClient(cfg, w.gvk, w.newObject())
	w.requests = listwatch.New(w, listwatch.Config{
		GVR: w.gvr, LabelSelector: w.selector,
		MinVersion:  func() string { return *w.version.Load() },
		ListError:   w.requestFailed,
		WatchResult: w.watchResult,
	})
	w.setVersion("")
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
	cfg.Wrap(listwatch.RetryEarly)
	return rest.RESTClientFor(cfg)
}

// run lists and watches until ctx is cancelled, and returns when its goroutines have ended. It can be called again.
func (w *watcher) run(ctx context.Context, log logr.Logger) {
	log = log.V(1) // the mapper itself logs failures at the default level; see setFailure
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, log))
	w.requests.Begin()
	defer w.closeWatch()
	defer w.requests.Join()
	defer cancel()
	reflector := w.requests.NewReflector(log, "restmapper", maxRequestDelay, w)
	retry := newRetry(maxRelistDelay)
	for ctx.Err() == nil {
		began := time.Now()
		w.requests.BeginAttempt(ctx)
		err := reflector.ListAndWatchWithContext(ctx)
		err = w.endAttempt(ctx, err)
		if time.Since(began) >= resetTime {
			retry = newRetry(maxRelistDelay)
		}
		delay := retry()
		if !usuallyLasts(err) {
			delay = min(delay, maxRequestDelay)
		}
		<-listwatch.After(ctx, delay)
	}
}

// newRetry returns the delays between attempts.
func newRetry(longest time.Duration) wait.DelayFunc {
	return wait.Backoff{Duration: 20 * time.Millisecond, Cap: longest, Steps: 20, Factor: 2, Jitter: 0.5}.DelayFunc()
}

// usuallyLasts reports whether the request is likely to fail again if it is repeated within seconds.
func usuallyLasts(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) ||
		errors.Is(err, errWatchEnded)
}

// endAttempt is called when the reflector has returned. It returns the attempt's error, if any, and reports it.
func (w *watcher) endAttempt(ctx context.Context, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	opened := w.opened
	w.closeWatchLocked()
	switch {
	case ctx.Err() != nil:
		return nil
	case w.err != nil:
		return w.err // already reported
	case err == nil && time.Since(opened) < steadyTime:
		err = fmt.Errorf("%w, after %s", errWatchEnded, time.Since(opened).Round(time.Millisecond))
	}
	if err != nil {
		w.report(err)
	}
	return err
}

// requestFailed is called when a request has failed.
func (w *watcher) requestFailed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeWatchLocked()
	w.err = err
	w.report(err)
}

// watchResult is called when a watch was opened or refused.
func (w *watcher) watchResult(err error) {
	if err != nil {
		w.requestFailed(err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeWatchLocked()
	opened := time.Now()
	w.err, w.opened = nil, opened
	w.cleared = time.AfterFunc(steadyTime, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.opened.Equal(opened) {
			w.report(nil)
		}
	})
}

func (w *watcher) closeWatch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeWatchLocked()
}

// closeWatchLocked records that no watch is open.
func (w *watcher) closeWatchLocked() {
	w.opened = time.Time{}
	if w.cleared != nil {
		w.cleared.Stop()
		w.cleared = nil
	}
}

// Watch opens a watch.
func (w *watcher) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return w.client.Get().Resource(w.gvr.Resource).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
}

// Transformer returns the function that the reflector applies to objects while it collects a streaming list.
func (w *watcher) Transformer() cache.TransformFunc { return w.reduce }

func (w *watcher) Add(object any) error { return w.Update(object) }

func (w *watcher) Update(object any) error {
	object, err := w.reduce(object)
	if err != nil {
		return err
	}
	m := object.(metav1.Object)
	w.set(m.GetName(), object)
	w.setVersion(m.GetResourceVersion())
	return nil
}

func (w *watcher) Delete(object any) error {
	m, ok := object.(metav1.Object)
	if !ok {
		return unexpectedType(object)
	}
	w.set(m.GetName(), nil)
	w.setVersion(m.GetResourceVersion())
	return nil
}

func (w *watcher) Replace(objects []any, resourceVersion string) error {
	reduced := make([]any, len(objects))
	for i, object := range objects {
		var err error
		if reduced[i], err = w.reduce(object); err != nil {
			return err
		}
	}
	w.replace(reduced)
	w.setVersion(resourceVersion)
	if isWatching := w.requests.Completed(); isWatching {
		w.watchResult(nil)
	}
	return nil
}

func (w *watcher) Bookmark(resourceVersion string) error {
	w.setVersion(resourceVersion)
	return nil
}

func (w *watcher) Resync() error { return nil }

func (w *watcher) setVersion(resourceVersion string) { w.version.Store(&resourceVersion) }

// reduceMeta returns the metadata that the store and client-go's consistency check need, and the given label.
func reduceMeta(m metav1.ObjectMeta, keepLabel string) metav1.ObjectMeta {
	out := metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	if keepLabel != "" {
		out.Labels = maps.Clone(m.Labels)
		maps.DeleteFunc(out.Labels, func(key, _ string) bool { return key != keepLabel })
	}
	return out
}

func unexpectedType(object any) error { return fmt.Errorf("unexpected object of type %T", object) }
