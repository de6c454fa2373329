package restmapper

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// fakeAPI is an API server of CRDs, APIServices and discovery documents, told what to serve.
type fakeAPI struct {
	server *httptest.Server

	mu       sync.Mutex
	changed  chan struct{} // closed and renewed with each event
	crds     fakeType
	services fakeType
	groups   map[string]*apidiscoveryv2.APIGroupDiscovery
	ranked   []string // groups in the document's order
	alone    map[string]http.HandlerFunc
	served   map[string]int // requests by path, and by path and " 304"
}

// fakeType is the objects of a type, and all events that led there.
type fakeType struct {
	objects map[string]map[string]any
	events  []string
	broken  int // a status to answer with
}

func newFakeAPI() *fakeAPI {
	f := &fakeAPI{
		changed: make(chan struct{}), groups: map[string]*apidiscoveryv2.APIGroupDiscovery{},
		alone: map[string]http.HandlerFunc{}, served: map[string]int{},
	}
	f.crds.objects, f.services.objects = map[string]map[string]any{}, map[string]map[string]any{}
	f.server = httptest.NewServer(f)
	f.setGroup("", "v1", "Pod")
	f.setGroup("apps", "v1", "Deployment")
	f.setService("v1.", map[string]any{"group": "", "version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1}, "onstart")
	f.setService("v1.apps", map[string]any{"group": "apps", "version": "v1", "groupPriorityMinimum": 17800, "versionPriority": 15}, "onstart")
	return f
}

func (f *fakeAPI) config() *rest.Config { return &rest.Config{Host: f.server.URL, QPS: -1} }

func (f *fakeAPI) close() {
	f.server.CloseClientConnections()
	f.server.Close()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.served[r.URL.Path]++
	handler := f.alone[r.URL.Path]
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
	broken, sent := t.broken, len(t.events)
	items := []map[string]any{}
	for _, o := range t.objects {
		items = append(items, o)
	}
	f.mu.Unlock()
	switch {
	case broken != 0:
		http.Error(w, "broken", broken)
	case query.Get("sendInitialEvents") != "":
		http.Error(w, "no watch lists", http.StatusUnprocessableEntity)
	case query.Get("watch") == "":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": kind + "List", "apiVersion": apiVersion, "metadata": map[string]any{"resourceVersion": strconv.Itoa(sent + 1)}, "items": items,
		})
	default:
		next, _ := strconv.Atoi(query.Get("resourceVersion"))
		next--
		for {
			f.mu.Lock()
			events, changed := t.events[next:], f.changed
			f.mu.Unlock()
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
}

func (f *fakeAPI) serveDocument(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	list := apidiscoveryv2.APIGroupDiscoveryList{}
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

// requests tells how many requests for a path there were.
func (f *fakeAPI) requests(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.served[path]
}

func (f *fakeAPI) eventLocked(t *fakeType, kind, name string, object map[string]any) {
	object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(len(t.events) + 2)
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
	close(f.changed)
	f.changed = make(chan struct{})
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

// setCRD serves an established CRD of the kind Widget, as the plural widgets.
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
			"acceptedNames": map[string]any{"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "shortNames": []any{kind[:1] + "x"}},
			"conditions":    []any{map[string]any{"type": "Established", "status": "True"}},
		},
	})
}

func (f *fakeAPI) deleteCRD(group, kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := strings.ToLower(kind) + "s." + group
	f.eventLocked(&f.crds, "DELETED", name, f.crds.objects[name])
}

// setGroup puts a group with one kind into the document.
func (f *fakeAPI) setGroup(name, version, kind string) { f.setGroupAs(name, version, kind, "Current") }

func (f *fakeAPI) setGroupAs(name, version, kind string, freshness apidiscoveryv2.DiscoveryFreshness) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := apidiscoveryv2.APIVersionDiscovery{Version: version, Freshness: freshness}
	if kind != "" {
		v.Resources = []apidiscoveryv2.APIResourceDiscovery{{
			Resource: strings.ToLower(kind) + "s", SingularResource: strings.ToLower(kind), Scope: apidiscoveryv2.ScopeNamespace,
			ResponseKind: &metav1.GroupVersionKind{Group: name, Version: version, Kind: kind},
		}}
	}
	if _, ok := f.groups[name]; !ok {
		f.ranked = append(f.ranked, name)
	}
	f.groups[name] = &apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: []apidiscoveryv2.APIVersionDiscovery{v}}
}

// setAlone answers a request for one path.
func (f *fakeAPI) setAlone(path string, handler http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alone[path] = handler
}

// serveVersion answers a request for one version with one kind.
func serveVersion(gv, kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{GroupVersion: gv, APIResources: []metav1.APIResource{
			{Name: strings.ToLower(kind) + "s", SingularName: strings.ToLower(kind), Kind: kind, Namespaced: true},
		}})
	}
}

const testDeadline = time.Minute
