package restmapper

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// fakeAPI is an API server for CRDs, APIServices and discovery documents. It is an http.Handler and an
// http.RoundTripper.
type fakeAPI struct {
	server *httptest.Server // nil if requests are served in memory

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced by each event
	crds     fakeType
	services fakeType
	groups   map[string]*apidiscoveryv2.APIGroupDiscovery
	ranked   []string // groups in the order of the document
	handlers map[string]http.HandlerFunc
	served   map[string]int // requests by path, and by path and " 304"
}

// fakeType contains the objects of a type and the events that led to them.
type fakeType struct {
	objects    map[string]map[string]any
	events     []string
	status     int  // if not 0, the status of every response
	endWatches bool // open watches end, and others end as soon as they have been opened
	hold       bool // watches do not deliver events
	whole      bool // the server does not support lists of metadata
	truncate   bool // the bodies of lists end early
	lists      []url.Values
	metadata   int // lists of metadata
}

// newFakeAPI returns an API server that listens on a local port.
func newFakeAPI() *fakeAPI {
	f := newMemoryAPI()
	f.server = httptest.NewServer(f)
	return f
}

// newMemoryAPI returns an API server that serves requests without a network, for tests with a fake clock.
func newMemoryAPI() *fakeAPI {
	f := &fakeAPI{
		changed: make(chan struct{}), groups: map[string]*apidiscoveryv2.APIGroupDiscovery{},
		handlers: map[string]http.HandlerFunc{}, served: map[string]int{},
	}
	f.crds.objects, f.services.objects = map[string]map[string]any{}, map[string]map[string]any{}
	f.setGroup("", "v1", "Pod")
	f.setGroup("apps", "v1", "Deployment")
	f.setGroup("apiregistration.k8s.io", "v1", "APIService") // has no APIService
	f.setService("v1.", map[string]any{
		"group": "", "version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1,
	}, "onstart")
	f.setService("v1.apps", map[string]any{
		"group": "apps", "version": "v1", "groupPriorityMinimum": 17800, "versionPriority": 15,
	}, "onstart")
	return f
}

func (f *fakeAPI) config() *rest.Config {
	if f.server == nil {
		return &rest.Config{Host: "http://api.example.com", Transport: f, QPS: -1}
	}
	return &rest.Config{Host: f.server.URL, QPS: -1}
}

func (f *fakeAPI) close() {
	if f.server == nil {
		return
	}
	f.server.CloseClientConnections()
	f.server.Close()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// RoundTrip serves a request in memory.
func (f *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	reader, writer := io.Pipe()
	w := &memoryResponse{header: http.Header{}, body: writer, started: make(chan struct{})}
	context.AfterFunc(ctx, func() { _ = reader.CloseWithError(ctx.Err()) })
	go func() {
		f.ServeHTTP(w, r.WithContext(ctx))
		w.WriteHeader(http.StatusOK)
		_ = writer.Close()
	}()
	select {
	case <-w.started:
		return &http.Response{
			Status: http.StatusText(w.status), StatusCode: w.status, Header: w.header, Request: r,
			Body: memoryBody{reader, cancel},
		}, nil
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
}

type memoryResponse struct {
	header  http.Header
	status  int
	body    *io.PipeWriter
	started chan struct{}
}

func (w *memoryResponse) Header() http.Header { return w.header }

func (w *memoryResponse) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		close(w.started)
	}
}

func (w *memoryResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

func (w *memoryResponse) Flush() { w.WriteHeader(http.StatusOK) }

type memoryBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b memoryBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.served[r.URL.Path]++
	handler := f.handlers[r.URL.Path]
	f.mu.Unlock()
	switch {
	case handler != nil:
		handler(w, r)
	case r.URL.Path == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions":
		f.serveType(w, r, &f.crds, "CustomResourceDefinition", "apiextensions.k8s.io/v1")
	case r.URL.Path == "/apis/apiregistration.k8s.io/v1/apiservices":
		f.serveType(w, r, &f.services, "APIService", "apiregistration.k8s.io/v1")
	case r.URL.Path == "/api", r.URL.Path == "/apis":
		f.serveDocument(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeAPI) serveType(w http.ResponseWriter, r *http.Request, t *fakeType, kind, apiVersion string) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	f.mu.Lock()
	state, revision := *t, len(t.events)+1
	items := []map[string]any{}
	for _, o := range t.objects {
		items = append(items, o)
	}
	switch wantsMetadata := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"); {
	case wantsMetadata && !t.whole:
		t.metadata++
		kind, apiVersion = "PartialObjectMetadata", "meta.k8s.io/v1"
		for i := range items {
			items[i] = map[string]any{"metadata": items[i]["metadata"]}
		}
	case query.Get("watch") == "" && !wantsMetadata:
		t.lists = append(t.lists, query)
	}
	f.mu.Unlock()
	switch {
	case state.status != 0:
		w.WriteHeader(state.status)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: int32(state.status),
			Reason: statusReasons[state.status], Message: "refused by the test",
		})
	case query.Get("sendInitialEvents") != "":
		http.Error(w, "streaming lists are not supported", http.StatusUnprocessableEntity)
	case query.Get("watch") == "":
		list, err := json.Marshal(map[string]any{
			"kind": kind + "List", "apiVersion": apiVersion,
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(revision)}, "items": items,
		})
		if err != nil {
			panic(err)
		}
		if state.truncate {
			list = list[:len(list)/2]
		}
		_, _ = w.Write(list)
	case !state.endWatches:
		f.serveWatch(w, r, t)
	}
}

var statusReasons = map[int]metav1.StatusReason{
	http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound,
	http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
}

func (f *fakeAPI) serveWatch(w http.ResponseWriter, r *http.Request, t *fakeType) {
	next, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	next--
	for {
		f.mu.Lock()
		events, changed, ends := t.events[next:], f.changed, t.endWatches
		if t.hold {
			events = nil
		}
		f.mu.Unlock()
		if ends {
			return
		}
		for _, e := range events {
			_, _ = w.Write([]byte(e))
		}
		next += len(events)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fakeAPI) serveDocument(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	list := apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList"}}
	for _, name := range f.ranked {
		if (name == "") == (r.URL.Path == "/api") {
			list.Items = append(list.Items, *f.groups[name])
		}
	}
	body, _ := json.Marshal(list)
	etag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(body)))
	same := r.Header.Get("If-None-Match") == etag
	if same {
		f.served[r.URL.Path+" 304"]++
	}
	f.mu.Unlock()
	w.Header().Set("Content-Type", discovery.AcceptV2)
	w.Header().Set("Etag", etag)
	if same {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(body)
}

// requests returns the number of requests for a path.
func (f *fakeAPI) requests(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.served[path]
}

// setCRDs changes the behavior of the server for CRDs.
func (f *fakeAPI) setCRDs(change func(*fakeType)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.crds)
	f.wakeLocked()
}

// setServices changes the behavior of the server for APIServices.
func (f *fakeAPI) setServices(change func(*fakeType)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.services)
	f.wakeLocked()
}

// wakeLocked makes the watches look for events.
func (f *fakeAPI) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeAPI) eventLocked(t *fakeType, kind, name string, object map[string]any) {
	metadata := maps.Clone(object["metadata"].(map[string]any)) // a list may be reading the original
	metadata["resourceVersion"] = strconv.Itoa(len(t.events) + 2)
	object = maps.Clone(object)
	object["metadata"] = metadata
	if kind == "DELETED" {
		delete(t.objects, name)
	} else {
		t.objects[name] = object
	}
	line, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		panic(err)
	}
	t.events = append(t.events, string(line)+"\n")
	f.wakeLocked()
}

func (f *fakeAPI) setService(name string, spec map[string]any, automanaged string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eventLocked(&f.services, "MODIFIED", name, map[string]any{
		"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
		"metadata": map[string]any{"name": name, "labels": map[string]any{labelAutomanaged: automanaged}}, "spec": spec,
	})
}

func (f *fakeAPI) deleteService(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eventLocked(&f.services, "DELETED", name, f.services.objects[name])
}

// setCRD creates or updates an established CRD. The plural and the singular are derived from the kind.
func (f *fakeAPI) setCRD(group, kind string, versions ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	plural := strings.ToLower(kind) + "s"
	served := []any{}
	for _, v := range versions {
		served = append(served, map[string]any{"name": v, "served": true})
	}
	f.eventLocked(&f.crds, "MODIFIED", plural+"."+group, map[string]any{
		"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
		"metadata": map[string]any{"name": plural + "." + group},
		"spec":     map[string]any{"group": group, "scope": "Namespaced", "versions": served},
		"status": map[string]any{
			"acceptedNames": map[string]any{
				"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "shortNames": []any{kind[:1] + "x"},
			},
			"conditions": []any{map[string]any{"type": "Established", "status": "True"}},
		},
	})
}

func (f *fakeAPI) deleteCRD(group, kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := strings.ToLower(kind) + "s." + group
	f.eventLocked(&f.crds, "DELETED", name, f.crds.objects[name])
}

// setGroup adds a group with one kind to the discovery document, or replaces it.
func (f *fakeAPI) setGroup(name, version, kind string) { f.setGroupAs(name, version, kind, "Current") }

func (f *fakeAPI) setGroupAs(name, version, kind string, freshness apidiscoveryv2.DiscoveryFreshness) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := apidiscoveryv2.APIVersionDiscovery{Version: version, Freshness: freshness}
	if kind != "" {
		v.Resources = []apidiscoveryv2.APIResourceDiscovery{{
			Resource: strings.ToLower(kind) + "s", SingularResource: strings.ToLower(kind),
			Scope:        apidiscoveryv2.ScopeNamespace,
			ResponseKind: &metav1.GroupVersionKind{Group: name, Version: version, Kind: kind},
		}}
	}
	if _, ok := f.groups[name]; !ok {
		f.ranked = append(f.ranked, name)
	}
	f.groups[name] = &apidiscoveryv2.APIGroupDiscovery{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: []apidiscoveryv2.APIVersionDiscovery{v},
	}
}

// removeGroup removes a group from the discovery document.
func (f *fakeAPI) removeGroup(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.groups, name)
	f.ranked = slices.DeleteFunc(slices.Clone(f.ranked), func(n string) bool { return n == name })
}

// handle serves all requests for one path with the handler. A nil handler restores the default.
func (f *fakeAPI) handle(path string, handler http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handlers[path] = handler
}

// serveVersion returns a handler for the resources of one version, with one kind.
func serveVersion(gv, kind string) http.HandlerFunc {
	return serveJSON(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: gv, APIResources: []metav1.APIResource{
			{Name: strings.ToLower(kind) + "s", SingularName: strings.ToLower(kind), Kind: kind, Namespaced: true},
		},
	})
}

func serveJSON(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
}

func serveStatus(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "refused by the test", status) }
}

// serveNothing does not respond.
func serveNothing(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// serveLegacy makes the server behave like one without aggregated discovery.
func (f *fakeAPI) serveLegacy(groups ...string) {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}}
	for _, group := range groups {
		v := metav1.GroupVersionForDiscovery{GroupVersion: group + "/v1", Version: "v1"}
		list.Groups = append(list.Groups, metav1.APIGroup{
			Name: group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v,
		})
	}
	core := metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	f.handle("/api", serveJSON(core))
	f.handle("/apis", serveJSON(list))
	f.handle("/api/v1", serveVersion("v1", "Pod"))
	f.handle("/apis/apps/v1", serveVersion("apps/v1", "Deployment"))
}
