package typewatch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
)

// server holds the objects of one type and their history, like an API server. client-go's fake does not report a
// deletion that happens between a list and the watch that follows it. Tests can make requests for metadata and requests
// for whole objects fail or lag independently of each other.
type server struct {
	mu        sync.Mutex // guards the fields below
	objects   map[string]*unstructured.Unstructured
	history   []apiwatch.Event
	version   int
	bookmarks int
	news      chan struct{} // closed and replaced on each event
	closing   chan struct{} // closed and replaced by closeWatches
	open      int           // number of open watches
	linger    time.Duration // how long a watch stays open after it is stopped
	slow      time.Duration // how long the response to a list takes after the state has been read
	lists     []listRequest
	lagging   *snapshot // the response to lists that accept any version, if not nil
	expired   bool      // lists that request a version get a 410 response
	outdated  bool      // lists that request a version have an older one

	refuseIn      map[string]error // lists of a namespace
	refusesLate   bool             // whether refuseIn takes a millisecond
	refuseLists   map[Projection]error
	refuseWatches map[Projection]error
	hang          map[Projection]bool // lists are never answered
	paused        map[Projection]bool // watches receive nothing
}

type listRequest struct {
	metav1.ListOptions
	projection Projection
	namespace  string
	time       time.Time
}

// snapshot is the result of a list.
type snapshot struct {
	items   []*unstructured.Unstructured
	version string
}

func newServer(names ...string) *server {
	s := &server{
		objects: map[string]*unstructured.Unstructured{}, news: make(chan struct{}), closing: make(chan struct{}),
		refuseIn: map[string]error{}, refuseLists: map[Projection]error{}, refuseWatches: map[Projection]error{},
		hang: map[Projection]bool{}, paused: map[Projection]bool{},
	}
	for _, name := range names {
		s.put(name)
	}
	return s
}

func (s *server) source() recordclient.Source {
	return recordclient.Clients{Dynamic: dynamicClient{s: s}, Metadata: metadataClient{s: s}}
}

func (s *server) recordLocked(kind apiwatch.EventType, object *unstructured.Unstructured) {
	s.version++
	object.SetResourceVersion(strconv.Itoa(s.version))
	s.history = append(s.history, apiwatch.Event{Type: kind, Object: object})
	s.notifyLocked()
}

func (s *server) notifyLocked() {
	close(s.news)
	s.news = make(chan struct{})
}

// put creates or changes an object. Its namespace is "ns", unless the name has the form namespace/name.
func (s *server) put(name string) { s.putWith(name, nil) }

func (s *server) putWith(name string, labels map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "spec": "some",
	}}
	object.SetNamespace("ns")
	object.SetName(name)
	if namespace, rest, found := strings.Cut(name, "/"); found {
		object.SetNamespace(namespace)
		object.SetName(rest)
	}
	if labels != nil {
		object.SetLabels(labels)
	}
	kind := apiwatch.Modified
	if s.objects[name] == nil {
		kind = apiwatch.Added
	}
	s.objects[name] = object
	s.recordLocked(kind, object)
}

// delete deletes an object if it exists.
func (s *server) delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object := s.objects[name]; object != nil {
		delete(s.objects, name)
		s.recordLocked(apiwatch.Deleted, object.DeepCopy())
	}
}

// deleteNameless deletes an object. The event has neither its name nor its UID.
func (s *server) deleteNameless(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[name]
	delete(s.objects, name)
	s.recordNamelessLocked(apiwatch.Deleted, object)
}

// changeNameless changes an object. The event has neither its name nor its UID.
func (s *server) changeNameless(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordNamelessLocked(apiwatch.Modified, s.objects[name])
}

func (s *server) recordNamelessLocked(kind apiwatch.EventType, object *unstructured.Unstructured) {
	object = object.DeepCopy()
	object.SetName("")
	object.SetUID("")
	s.recordLocked(kind, object)
}

// set changes the server's behavior.
func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.notifyLocked()
}

func (s *server) bookmark() { s.set(func() { s.bookmarks++ }) }

func (s *server) versions() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := map[string]string{}
	for _, object := range s.objects {
		versions[object.GetNamespace()+"/"+object.GetName()] = object.GetResourceVersion()
	}
	return versions
}

func (s *server) openWatches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// closeWatches ends all watches before their timeout.
func (s *server) closeWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.closing)
	s.closing = make(chan struct{})
}

// setSpec changes all objects in the same way as a change to their schema: without events and without new versions.
func (s *server) setSpec(spec string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, object := range s.objects {
		object = object.DeepCopy()
		object.Object["spec"] = spec
		s.objects[name] = object
	}
}

// setLabel changes an object's metadata in the same way as a change to the type's conversion: without an event and
// without a new version.
func (s *server) setLabel(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[name].DeepCopy()
	object.SetLabels(map[string]string{"label": value})
	s.objects[name] = object
}

// lag makes all later lists that accept any version return the state at the time of this call.
func (s *server) lag() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.snapshotLocked("", labels.Everything())
	s.lagging = &now
}

// restore reverts all changes after the version, as if etcd had been restored from a backup, and closes all watches.
func (s *server) restore(version int) {
	s.mu.Lock()
	s.version, s.history, s.objects = version, s.history[:version:version], map[string]*unstructured.Unstructured{}
	for _, event := range s.history {
		object := event.Object.(*unstructured.Unstructured)
		name := strings.TrimPrefix(object.GetNamespace()+"/"+object.GetName(), "ns/")
		s.objects[name] = object
		if event.Type == apiwatch.Deleted {
			delete(s.objects, name)
		}
	}
	s.mu.Unlock()
	s.closeWatches()
}

// listed returns all list requests so far.
func (s *server) listed() []listRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lists)
}

func (s *server) snapshotLocked(namespace string, selector labels.Selector) snapshot {
	now := snapshot{version: strconv.Itoa(s.version)}
	for _, object := range s.objects {
		if isSelected(object, namespace, selector) {
			now.items = append(now.items, object.DeepCopy())
		}
	}
	return now
}

func isSelected(o *unstructured.Unstructured, namespace string, selector labels.Selector) bool {
	return (namespace == "" || o.GetNamespace() == namespace) && selector.Matches(labels.Set(o.GetLabels()))
}

func (s *server) list(
	ctx context.Context, projection Projection, namespace string, options metav1.ListOptions,
) (snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	request := listRequest{ListOptions: options, projection: projection, namespace: namespace, time: time.Now()}
	s.lists = append(s.lists, request)
	switch wanted, _ := strconv.Atoi(options.ResourceVersion); {
	case s.hang[projection]:
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return snapshot{}, ctx.Err()
	case s.refuseLists[projection] != nil:
		return snapshot{}, s.refuseLists[projection]
	case s.refuseIn[namespace] != nil:
		err := s.refuseIn[namespace]
		if s.refusesLate {
			s.mu.Unlock()
			time.Sleep(time.Millisecond) // after the other namespaces have begun to list, so that each state is observed
			s.mu.Lock()
		}
		return snapshot{}, err
	case s.expired && options.ResourceVersion != "":
		return snapshot{}, apierrors.NewResourceExpired("too old resource version")
	case options.ResourceVersion == "0" && s.lagging != nil:
		return *s.lagging, nil
	case wanted > s.version:
		err := apierrors.NewTimeoutError("Too large resource version", 1)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return snapshot{}, err
	}
	selector, err := labels.Parse(options.LabelSelector)
	if err != nil {
		return snapshot{}, err
	}
	now := s.snapshotLocked(namespace, selector)
	if s.outdated && options.ResourceVersion != "" {
		now = snapshot{version: "1"}
	}
	if slow := s.slow; slow > 0 {
		s.mu.Unlock()
		defer s.mu.Lock()
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return snapshot{}, ctx.Err()
		}
	}
	return now, nil
}

// stateFor returns the events that a stream may send next, the number of bookmarks, and a channel that is closed on the
// next event.
func (s *server) stateFor(projection Projection, at int) (events []apiwatch.Event, bookmarks int, news chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.paused[projection] && at <= len(s.history) {
		events = s.history[at:]
	}
	return events, s.bookmarks, s.news
}

func (s *server) watch(
	ctx context.Context, projection Projection, namespace string, options metav1.ListOptions,
) (apiwatch.Interface, error) {
	at, err := strconv.Atoi(options.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("invalid resourceVersion %q in a watch request", options.ResourceVersion)
	}
	selector, err := labels.Parse(options.LabelSelector)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if err := s.refuseWatches[projection]; err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.open++
	closing, bookmarks := s.closing, s.bookmarks
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	w := &stream{
		server: s, projection: projection, namespace: namespace, selector: selector, at: at, bookmarks: bookmarks,
		results: make(chan apiwatch.Event), ctx: ctx, cancel: cancel,
	}
	go w.run(time.Duration(ptr.Deref(options.TimeoutSeconds, 0))*time.Second, closing)
	return w, nil
}

// stream is an open watch.
type stream struct {
	server        *server
	projection    Projection
	namespace     string
	selector      labels.Selector
	at, bookmarks int
	results       chan apiwatch.Event
	ctx           context.Context // of the request
	cancel        context.CancelFunc
}

func (w *stream) Stop()                             { w.cancel() }
func (w *stream) ResultChan() <-chan apiwatch.Event { return w.results }

func (w *stream) run(timeout time.Duration, closing <-chan struct{}) {
	s := w.server
	defer close(w.results)
	defer func() {
		time.Sleep(s.linger)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}()
	expired, stop := context.WithTimeout(w.ctx, timeout)
	defer stop()
	for {
		events, bookmarks, news := s.stateFor(w.projection, w.at)
		if !w.sendAll(events, bookmarks) {
			return
		}
		select {
		case <-news:
		case <-closing:
			return
		case <-expired.Done():
			return
		}
	}
}

func (w *stream) sendAll(events []apiwatch.Event, bookmarks int) bool {
	for _, e := range events {
		object := e.Object.(*unstructured.Unstructured)
		if isSelected(object, w.namespace, w.selector) && !w.send(e.Type, object) {
			return false
		}
		w.at++
	}
	if bookmarks == w.bookmarks {
		return true
	}
	w.bookmarks = bookmarks
	mark := &unstructured.Unstructured{Object: map[string]any{}}
	mark.SetResourceVersion(strconv.Itoa(w.at))
	return w.send(apiwatch.Bookmark, mark)
}

func (w *stream) send(kind apiwatch.EventType, object *unstructured.Unstructured) bool {
	event := apiwatch.Event{Type: kind, Object: object.DeepCopy()}
	if w.projection != Full {
		event.Object = metadataOf(object)
	}
	select {
	case w.results <- event:
		return true
	case <-w.ctx.Done():
		return false
	}
}
