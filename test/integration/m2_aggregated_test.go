package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/restmapper"
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// extension is an extension API server for one version of a group. It serves only discovery.
type extension struct {
	gv     schema.GroupVersion
	server *httptest.Server

	mu       sync.Mutex
	kinds    []string
	isBroken bool
}

func (h *harness) newExtension(kinds ...string) *extension {
	h.Helper()
	e := &extension{gv: schema.GroupVersion{Group: h.newType().Group, Version: "v1"}, kinds: kinds}
	e.server = httptest.NewUnstartedServer(e)
	e.server.Config.ErrorLog = log.New(io.Discard, "", 0) // discard errors about connections that are closed early
	e.server.StartTLS()
	h.Cleanup(func() {
		e.server.CloseClientConnections()
		e.server.Close()
	})
	return e
}

func (e *extension) set(isBroken bool, kinds ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.isBroken, e.kinds = isBroken, kinds
}

func (e *extension) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	kinds, isBroken := e.kinds, e.isBroken
	e.mu.Unlock()
	switch {
	case isBroken:
		http.Error(w, "broken by the test", http.StatusServiceUnavailable)
	case r.URL.Path == "/apis/"+e.gv.String():
		list := metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: e.gv.String(),
		}
		for _, kind := range kinds {
			singular := strings.ToLower(kind)
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: singular + "s", SingularName: singular, Kind: kind, Namespaced: true, Verbs: metav1.Verbs{"list"},
			})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	default:
		http.NotFound(w, r)
	}
}

// register creates an APIService and a Service, so that the API server forwards requests to the extension. The Service
// is of type ExternalName, with an IP address as its external name.
func (h *harness) register(e *extension) {
	h.Helper()
	host, port, err := net.SplitHostPort(e.server.Listener.Addr().String())
	h.noError(err)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "extension", Namespace: h.namespace},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: host},
	}
	_, err = h.clients.CoreV1().Services(h.namespace).Create(h.Context(), service, metav1.CreateOptions{})
	h.noError(err)
	number, err := strconv.ParseInt(port, 10, 64)
	h.noError(err)
	_, err = h.client.Resource(apiServices).Create(h.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": e.apiService()},
		"spec": map[string]any{
			"group": e.gv.Group, "version": e.gv.Version, "groupPriorityMinimum": int64(1500), "versionPriority": int64(15),
			"insecureSkipTLSVerify": true,
			"service":               map[string]any{"namespace": h.namespace, "name": "extension", "port": number},
		},
	}}, metav1.CreateOptions{})
	h.noError(err)
	h.Cleanup(func() { h.unregister(e) })
}

// errorOf returns the error that the mapper reports for the discovery of a version, or nil.
func errorOf(m *restmapper.Mapper, gv schema.GroupVersion) error {
	for _, err := range m.Errors() {
		if err.Source == restmapper.SourceDiscovery && err.GroupVersion == gv {
			return err
		}
	}
	return nil
}

func (e *extension) apiService() string { return e.gv.Version + "." + e.gv.Group }

func (h *harness) unregister(e *extension) {
	err := h.client.Resource(apiServices).Delete(context.Background(), e.apiService(), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		h.Error(err)
	}
}

// refresh makes the API server read the extension's discovery immediately, although it normally does so only once a
// minute. To trigger the read, refresh changes an annotation of the APIService. Mappers ignore this change.
func (h *harness) refresh(e *extension, generation int) {
	h.Helper()
	_, err := h.client.Resource(apiServices).Patch(h.Context(), e.apiService(), types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/generation":"%d"}}}`, generation), metav1.PatchOptions{})
	h.noError(err)
}

// The mapper maps an aggregated API as soon as the API is registered, and detects later changes by polling. While the
// API's discovery fails, the mapper keeps the last result, reports the error, and reads this API's discovery
// separately.
func TestM2_AggregatedAPI(t *testing.T) {
	h, w := newHarness(t), &wire{}
	e := h.newExtension("Metric")
	path, documents := "/apis/"+e.gv.String(), [2]string{"/api", "/apis"}
	var separate, others, polls atomic.Int64
	var refuse atomic.Bool
	through := w.through(h)
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		switch p := r.URL.Path; {
		case p == documents[0], p == documents[1]:
			polls.Add(1)
		case p == path:
			separate.Add(1)
			if refuse.Load() {
				return nil, errors.New("refused by the test")
			}
		case isDiscovery(r):
			others.Add(1)
		}
		return send(r)
	})
	m, _ := through.mapper(restmapper.WithPollPeriod(time.Second))
	kind := func(name string) schema.GroupKind { return schema.GroupKind{Group: e.gv.Group, Kind: name} }
	served := h.define(h.newType())
	h.waitForKind(m, schema.GroupKind{Group: served.Group, Kind: "Widget"})

	h.register(e)
	if mapping := h.waitForKind(m, kind("Metric")); mapping.Resource != e.gv.WithResource("metrics") {
		t.Errorf("got mapping %v after the registration", mapping)
	}
	h.eventually("no error is reported", func() error { return errorOf(m, e.gv) })

	// Changes to the resources of an aggregated API produce no events.
	refuse.Store(true)
	e.set(false, "Metric", "Gauge")
	h.refresh(e, 1)
	h.waitForKind(m, kind("Gauge"))
	refuse.Store(false)

	e.set(true)
	h.refresh(e, 2)
	h.eventually("the failure is reported", func() error {
		if errorOf(m, e.gv) == nil {
			return errors.New("no error")
		}
		return nil
	})
	before := separate.Load()
	h.eventually("the version is read again separately", func() error {
		if n := separate.Load() - before; n < 2 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	h.waitForKind(m, kind("Metric"))
	h.waitForKind(m, kind("Gauge"))
	h.waitForKind(m, schema.GroupKind{Group: served.Group, Kind: "Widget"})
	h.waitForKind(m, schema.GroupKind{Group: "apps", Kind: "Deployment"})
	if errs := m.Errors(); len(errs) != 1 {
		t.Errorf("got errors %v, want one", errs)
	}

	e.set(false, "Meter")
	h.refresh(e, 3)
	h.waitForKind(m, kind("Meter"))
	h.untilNoMatch(m, kind("Metric"))
	h.eventually("no error is reported", func() error { return errorOf(m, e.gv) })

	h.unregister(e)
	h.untilNoMatch(m, kind("Meter"))
	if n := others.Load(); n > 0 {
		t.Errorf("got %d requests for single versions of other groups, want none", n)
	}
	t.Logf("%d requests for the single version and %d for the discovery documents", separate.Load(), polls.Load())
}
