package typewatch

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
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
}

func newServer() *server {
	return &server{objects: map[string]*unstructured.Unstructured{}, news: make(chan struct{}), refuse: map[Depth]error{}}
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

func (s *server) list(depth Depth) (items []*unstructured.Unstructured, version string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse[depth]; err != nil {
		return nil, "", err
	}
	for _, object := range s.objects {
		items = append(items, object.DeepCopy())
	}
	return items, strconv.Itoa(s.version), nil
}

func (s *server) watch(ctx context.Context, options metav1.ListOptions, shape func(*unstructured.Unstructured) apiwatch.Event) (apiwatch.Interface, error) {
	from, err := strconv.Atoi(options.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("a watch from %q", options.ResourceVersion)
	}
	s.mu.Lock()
	s.open++
	s.most = max(s.most, s.open)
	s.mu.Unlock()
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
			case <-ctx.Done():
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

func (c dynamicClient) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	items, version, err := c.s.list(Full)
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetResourceVersion(version)
	for _, item := range items {
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

func (c metadataClient) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	items, version, err := c.s.list(Metadata)
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	for _, item := range items {
		list.Items = append(list.Items, *metadataOf(item))
	}
	return list, nil
}

func (c metadataClient) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	return c.s.watch(ctx, options, func(o *unstructured.Unstructured) apiwatch.Event { return apiwatch.Event{Object: metadataOf(o)} })
}
