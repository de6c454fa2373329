package typewatch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/ptr"
)

// server has one type's objects and all that ever happened to them, as an API server does: client-go's fake loses what
// is deleted between a list and the watch after it.
type server struct {
	mu      sync.Mutex // guards what follows
	objects map[string]*unstructured.Unstructured
	history []apiwatch.Event
	version int
	news    chan struct{} // closed and renewed with each event
	open    int           // watches
	most    int           // that were open at once
	refuse  map[Depth]error
	linger  time.Duration // for which a watch is open after it was stopped
	closing chan struct{} // closed and renewed by closeWatches
	lists   []metav1.ListOptions
	lagging *snapshot // answers lists that accept any version, if not nil
	expired bool      // lists that ask for a version get 410
}

// snapshot is what a list returns.
type snapshot struct {
	items   []*unstructured.Unstructured
	version string
}

func newServer() *server {
	return &server{
		objects: map[string]*unstructured.Unstructured{}, refuse: map[Depth]error{},
		news: make(chan struct{}), closing: make(chan struct{}),
	}
}

func (s *server) clients() Clients {
	return Clients{Dynamic: dynamicClient{s: s}, Metadata: metadataClient{s: s}}
}

func (s *server) happen(kind apiwatch.EventType, object *unstructured.Unstructured) {
	s.version++
	object.SetResourceVersion(strconv.Itoa(s.version))
	s.history = append(s.history, apiwatch.Event{Type: kind, Object: object})
	close(s.news)
	s.news = make(chan struct{})
}

// put creates or changes an object, and delete takes it away if it is there.
func (s *server) put(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "spec": "some"}}
	object.SetNamespace("ns")
	object.SetName(name)
	kind := apiwatch.Modified
	if s.objects[name] == nil {
		kind = apiwatch.Added
	}
	s.objects[name] = object
	s.happen(kind, object)
}

func (s *server) delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object := s.objects[name]; object != nil {
		delete(s.objects, name)
		s.happen(apiwatch.Deleted, object.DeepCopy())
	}
}

func (s *server) versions() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := map[string]string{}
	for name, object := range s.objects {
		versions["ns/"+name] = object.GetResourceVersion()
	}
	return versions
}

// opened is how many watches were open at once, and isOpen how many are.
func (s *server) opened() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

func (s *server) isOpen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// refuseAll refuses the lists of a depth's client, until it is called with nil.
func (s *server) refuseAll(depth Depth, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[depth] = err
}

// closeWatches ends all watches before their timeout.
func (s *server) closeWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.closing)
	s.closing = make(chan struct{})
}

// setSpec changes all objects like a change of their schema: without events, and without new versions.
func (s *server) setSpec(spec string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, object := range s.objects {
		object = object.DeepCopy()
		object.Object["spec"] = spec
		s.objects[name] = object
	}
}

// expire makes lists that ask for a version fail from now on.
func (s *server) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired = true
}

// setLabel changes an object's metadata like a change of the type's conversion: without an event, and without a new version.
func (s *server) setLabel(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[name].DeepCopy()
	object.SetLabels(map[string]string{"label": value})
	s.objects[name] = object
}

// lag makes lists that accept any version return the present state from now on.
func (s *server) lag() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.snapshotLocked()
	s.lagging = &now
}

// restore reverts all changes after the version.
func (s *server) restore(version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.history, s.objects = version, s.history[:version], map[string]*unstructured.Unstructured{}
	for _, event := range s.history {
		object := event.Object.(*unstructured.Unstructured)
		s.objects[object.GetName()] = object
		if event.Type == apiwatch.Deleted {
			delete(s.objects, object.GetName())
		}
	}
}

// listed returns the options of all lists so far, without the probes for one object.
func (s *server) listed() []metav1.ListOptions {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.lists), func(o metav1.ListOptions) bool { return o.Limit == 1 })
}

func (s *server) snapshotLocked() snapshot {
	now := snapshot{version: strconv.Itoa(s.version)}
	for _, object := range s.objects {
		now.items = append(now.items, object.DeepCopy())
	}
	return now
}

func (s *server) list(depth Depth, options metav1.ListOptions) (snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists = append(s.lists, options)
	if err := s.refuse[depth]; err != nil {
		return snapshot{}, err
	}
	if s.expired && options.ResourceVersion != "" {
		return snapshot{}, apierrors.NewResourceExpired("too old resource version")
	}
	if options.ResourceVersion == "0" && s.lagging != nil {
		return *s.lagging, nil
	}
	if wanted, _ := strconv.Atoi(options.ResourceVersion); wanted > s.version {
		err := apierrors.NewTimeoutError("Too large resource version", 1)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return snapshot{}, err
	}
	return s.snapshotLocked(), nil
}

func (s *server) watch(ctx context.Context, options metav1.ListOptions, shape func(*unstructured.Unstructured) apiwatch.Event) (apiwatch.Interface, error) {
	from, err := strconv.Atoi(options.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("a watch from %q", options.ResourceVersion)
	}
	s.mu.Lock()
	s.open++
	s.most = max(s.most, s.open)
	closing := s.closing
	s.mu.Unlock()
	timeout := time.Duration(ptr.Deref(options.TimeoutSeconds, 0)) * time.Second
	ctx, cancel := context.WithCancel(ctx)
	w := &stream{results: make(chan apiwatch.Event), cancel: cancel}
	go func() {
		defer close(w.results)
		defer func() {
			time.Sleep(s.linger)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.open--
		}()
		expired, stop := context.WithTimeout(ctx, timeout)
		defer stop()
		for at := from; ; {
			s.mu.Lock()
			events, news := s.history[at:], s.news
			s.mu.Unlock()
			for _, e := range events {
				shaped := shape(e.Object.(*unstructured.Unstructured).DeepCopy())
				shaped.Type = e.Type
				select {
				case w.results <- shaped:
					at++
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-news:
			case <-closing:
				return
			case <-expired.Done():
				return
			}
		}
	}()
	return w, nil
}

type stream struct {
	results chan apiwatch.Event
	cancel  context.CancelFunc
}

func (w *stream) Stop()                             { w.cancel() }
func (w *stream) ResultChan() <-chan apiwatch.Event { return w.results }

type dynamicClient struct {
	dynamic.NamespaceableResourceInterface
	s *server
}

func (c dynamicClient) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return c
}
func (c dynamicClient) Namespace(string) dynamic.ResourceInterface { return c }
func (dynamicClient) IsWatchListSemanticsUnSupported() bool        { return true }

func (c dynamicClient) List(_ context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	now, err := c.s.list(Full, options)
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetResourceVersion(now.version)
	for _, item := range now.items {
		list.Items = append(list.Items, *item)
	}
	return list, nil
}

func (c dynamicClient) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	return c.s.watch(ctx, options, func(o *unstructured.Unstructured) apiwatch.Event { return apiwatch.Event{Object: o} })
}

type metadataClient struct {
	metadata.ResourceInterface
	s *server
}

func (c metadataClient) Resource(schema.GroupVersionResource) metadata.Getter { return c }
func (c metadataClient) Namespace(string) metadata.ResourceInterface          { return c }
func (metadataClient) IsWatchListSemanticsUnSupported() bool                  { return true }

func (c metadataClient) List(_ context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	now, err := c.s.list(Metadata, options)
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: now.version}}
	for _, item := range now.items {
		list.Items = append(list.Items, *metadataOf(item))
	}
	return list, nil
}

func (c metadataClient) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	return c.s.watch(ctx, options, func(o *unstructured.Unstructured) apiwatch.Event { return apiwatch.Event{Object: metadataOf(o)} })
}
