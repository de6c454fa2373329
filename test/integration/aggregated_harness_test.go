package integration

import (
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	restful "github.com/emicklei/go-restful/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// aggregated is an aggregated API server. Its handlers are those of k8s.io/apiserver. It stores objects in a map, and
// serves them as several resources, each with a different storage.
type aggregated struct {
	*extension
	h       *harness
	handler http.Handler

	mu      sync.Mutex // guards the fields below
	objects map[string]*unstructured.Unstructured
	first   int64 // the version before the first event
	events  []watch.Event
	changed chan struct{} // closed and replaced at each event
}

// thingStorage is a storage without bookmarks and streaming lists. If versionless is set, its lists and objects have no
// resourceVersion, and it ignores requests for a streaming list. Otherwise, it refuses them.
type thingStorage struct {
	server      *aggregated
	resource    string
	versionless bool
	rest.TableConvertor
}

// watchedStorage can be watched. Other resources can only be listed.
type watchedStorage struct{ *thingStorage }

// thingList is a list of objects. The encoder requires the order and the tags of its fields.
type thingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []unstructured.Unstructured `json:"items"`
}

// DeepCopyObject returns a copy of the list. The objects in it are never modified.
func (l *thingList) DeepCopyObject() runtime.Object {
	list := *l
	return &list
}

// newAggregated returns a server that is running and registered. Its versions begin after the given one.
func (h *harness) newAggregated(version int64) *aggregated {
	h.Helper()
	gv := schema.GroupVersion{Group: h.newType().Group, Version: "v1"}
	a := &aggregated{
		extension: &extension{gv: gv}, h: h, first: version,
		objects: map[string]*unstructured.Unstructured{}, changed: make(chan struct{}),
	}
	storage := func(resource string, versionless bool) *thingStorage {
		table := rest.NewDefaultTableConvertor(gv.WithResource(resource).GroupResource())
		return &thingStorage{server: a, resource: resource, versionless: versionless, TableConvertor: table}
	}
	a.handler = a.newHandler(map[string]rest.Storage{
		"things":      watchedStorage{storage("things", false)},
		"versionless": watchedStorage{storage("versionless", true)},
		"polled":      storage("polled", false),
		"samples":     storage("samples", true),
	})
	a.listen()
	h.Cleanup(a.stop)
	h.register(a.extension)
	return a
}

func (a *aggregated) newHandler(storage map[string]rest.Storage) http.Handler {
	scheme, unversioned := runtime.NewScheme(), schema.GroupVersion{Version: "v1"}
	scheme.AddKnownTypeWithName(a.gv.WithKind("Thing"), &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(a.gv.WithKind("ThingList"), &thingList{})
	metav1.AddToGroupVersion(scheme, a.gv)
	metav1.AddToGroupVersion(scheme, unversioned)
	group := endpoints.APIGroupVersion{
		Storage: storage, Root: "/apis", GroupVersion: a.gv, OptionsExternalVersion: &unversioned,
		Serializer: serializer.NewCodecFactory(scheme), ParameterCodec: runtime.NewParameterCodec(scheme),
		Creater:   scheme, //nolint:misspell // the name of the field
		Convertor: scheme, UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme), Defaulter: scheme,
		Typer: scheme, Namer: meta.NewAccessor(), TypeConverter: managedfields.NewDeducedTypeConverter(),
		EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(),
	}
	container := restful.NewContainer()
	container.Router(restful.CurlyRouter{})
	_, _, err := group.InstallREST(container)
	a.h.noError(err)
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis")}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := resolver.NewRequestInfo(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		container.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
	})
}

// listen starts to serve at a new address.
func (a *aggregated) listen() {
	a.server = httptest.NewUnstartedServer(a.handler)
	a.server.EnableHTTP2 = true
	a.server.Config.ErrorLog = log.New(io.Discard, "", 0) // discard errors about connections that are closed early
	a.server.StartTLS()
}

// stop ends all requests and closes all connections.
func (a *aggregated) stop() {
	_ = a.server.Listener.Close()
	a.server.CloseClientConnections()
	a.server.Close()
}

// restart starts the server again. It does not store its versions. All objects have new ones, which begin after the
// given one, and earlier events are forgotten.
func (a *aggregated) restart(version int64) {
	a.h.Helper()
	a.mu.Lock()
	a.first, a.events = version, nil
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		a.first++
		a.objects[key] = withVersion(a.objects[key], a.first)
	}
	a.mu.Unlock()
	a.listen()
	address := a.server.Listener.Addr().String()
	port := address[strings.LastIndex(address, ":")+1:]
	_, err := a.h.client.Resource(apiServices).Patch(a.h.Context(), a.apiService(), types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"service":{"port":%s}}}`, port), metav1.PatchOptions{})
	a.h.noError(err)
}

// put creates or changes an object. The key is its name, unless a change removes the name.
func (a *aggregated) put(key string, n int, changes ...func(metadata map[string]any)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old, event, uid := a.objects[key], watch.Added, string(uuid.NewUUID())
	if old != nil {
		event, uid = watch.Modified, string(old.GetUID())
	}
	metadata := map[string]any{
		"name": key, "namespace": a.h.namespace, "uid": uid, "labels": map[string]any{"n": strconv.Itoa(n)},
	}
	for _, change := range changes {
		change(metadata)
	}
	object := map[string]any{
		"apiVersion": a.gv.String(), "kind": "Thing", "metadata": metadata, "spec": map[string]any{"n": int64(n)},
	}
	a.objects[key] = a.addLocked(event, &unstructured.Unstructured{Object: object})
}

func (a *aggregated) remove(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.addLocked(watch.Deleted, a.objects[key])
	delete(a.objects, key)
}

// values returns the label of each object that can be used, and the number of the others. Objects without a name cannot
// be used. The metadata of objects, if requested alone, has only labels that can be used.
func (a *aggregated) values(whole bool) (values map[string]string, unusable int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	values = map[string]string{}
	for _, object := range a.objects {
		_, _, err := unstructured.NestedStringMap(object.Object, "metadata", "labels")
		if object.GetName() == "" || whole && err != nil {
			unusable++
			continue
		}
		values[object.GetName()] = object.GetLabels()["n"]
	}
	return values, unusable
}

// addLocked adds an event and returns the object with the version of that event.
func (a *aggregated) addLocked(event watch.EventType, object *unstructured.Unstructured) *unstructured.Unstructured {
	object = withVersion(object, a.first+int64(len(a.events))+1)
	a.events = append(a.events, watch.Event{Type: event, Object: object})
	close(a.changed)
	a.changed = make(chan struct{})
	return object
}

// withVersion returns a copy of the object with another resourceVersion, or without one if the version is zero.
func withVersion(object *unstructured.Unstructured, version int64) *unstructured.Unstructured {
	object = object.DeepCopy()
	object.SetResourceVersion("")
	if version > 0 {
		object.SetResourceVersion(strconv.FormatInt(version, 10))
	}
	return object
}

// list returns the objects and the current version.
func (a *aggregated) list() (objects []*unstructured.Unstructured, version int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		objects = append(objects, a.objects[key])
	}
	return objects, a.first + int64(len(a.events))
}

// eventsAfter returns the events after a version, and a channel that is closed when there are more. If some of the
// events have been forgotten, it returns false.
func (a *aggregated) eventsAfter(version int64) (events []watch.Event, changed <-chan struct{}, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	index := version - a.first
	return a.events[min(max(index, 0), int64(len(a.events))):], a.changed, index >= 0
}

func (s *thingStorage) New() runtime.Object {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(s.server.gv.WithKind("Thing"))
	return object
}

func (s *thingStorage) NewList() runtime.Object { return &thingList{} }
func (s *thingStorage) Destroy()                {}
func (s *thingStorage) NamespaceScoped() bool   { return true }
func (s *thingStorage) GetSingularName() string { return s.resource }

func (s *thingStorage) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	objects, version := s.server.list()
	list := &thingList{}
	for _, object := range objects {
		list.Items = append(list.Items, *s.output(object))
	}
	if !s.versionless {
		list.ResourceVersion = strconv.FormatInt(version, 10)
	}
	return list, nil
}

// output returns the object as the resource serves it.
func (s *thingStorage) output(object *unstructured.Unstructured) *unstructured.Unstructured {
	if s.versionless {
		return withVersion(object, 0)
	}
	return object
}

func (s watchedStorage) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if options.SendInitialEvents != nil && !s.versionless { // as kube-apiserver does if streaming lists are disabled
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "",
			field.ErrorList{field.Forbidden(field.NewPath("sendInitialEvents"), "streaming lists are disabled")})
	}
	var initial []watch.Event
	version, err := strconv.ParseInt(options.ResourceVersion, 10, 64)
	if options.ResourceVersion == "" {
		var objects []*unstructured.Unstructured
		objects, version = s.server.list()
		for _, object := range objects {
			initial = append(initial, watch.Event{Type: watch.Added, Object: object})
		}
	} else if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if _, _, ok := s.server.eventsAfter(version); !ok {
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	events := make(chan watch.Event)
	go func() {
		defer close(events)
		s.send(ctx, events, initial, version)
	}()
	return watch.NewProxyWatcher(events), nil
}

// send sends the initial events, and then the events after a version, until ctx is cancelled. If the version is in the
// future, it sends nothing until then.
func (s watchedStorage) send(ctx context.Context, to chan<- watch.Event, events []watch.Event, version int64) {
	for {
		for _, event := range events {
			event.Object = s.output(event.Object.(*unstructured.Unstructured))
			select {
			case to <- event:
			case <-ctx.Done():
				return
			}
		}
		more, changed, _ := s.server.eventsAfter(version)
		version += int64(len(more))
		if events = more; len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
