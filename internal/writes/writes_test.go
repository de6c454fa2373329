package writes

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The watch selects objects with the label "in".
func TestMissing(t *testing.T) {
	in := func(version string) State { return State{Version: version, Labels: labels.Set{"in": ""}} }
	out := func(version string) State { return State{Version: version, Labels: labels.Set{"out": version}} }
	scaled := State{Version: "9", Scaled: true}
	for _, test := range []struct {
		what    string
		states  []State
		gone    bool
		reached int // the version up to which the cache contains all changes
		held    bool
		want    bool
	}{
		{what: "created, not yet there", states: []State{in("2")}, reached: 1, want: true},
		{what: "created and there", states: []State{in("2")}, reached: 2, held: true},
		{what: "changed", states: []State{in("2")}, reached: 1, held: true, want: true},
		{what: "left the selection, still there", states: []State{out("2")}, reached: 1, held: true, want: true},
		{what: "left the selection, brought back by another", states: []State{out("2")}, reached: 2, held: true},
		{what: "never selected", states: []State{out("2")}, reached: 1},
		{what: "changed after it has left", states: []State{in("2"), out("3"), out("5")}, reached: 3},
		{what: "changed, and left", states: []State{in("2"), out("3")}, reached: 2, want: true},
		{what: "left, and changed, still there", states: []State{out("2"), out("5")}, reached: 1, held: true, want: true},
		{what: "left, and changed", states: []State{out("2"), out("5")}, reached: 2, held: true},
		{what: "came back", states: []State{in("2"), out("3"), in("5")}, reached: 4, want: true},
		{what: "scaled, there", states: []State{scaled}, reached: 1, held: true, want: true},
		{what: "scaled, perhaps not selected", states: []State{scaled}, reached: 1},
		{what: "created and scaled", states: []State{in("2"), scaled}, reached: 2, held: true, want: true},
		{what: "created, scaled, and left", states: []State{in("2"), scaled, out("10")}, reached: 9, want: true},
		{what: "removed, still there", gone: true, held: true, want: true},
		{what: "removed", gone: true},
		{what: "created and removed, not yet there", states: []State{in("2")}, gone: true, reached: 1, want: true},
		{what: "created and removed, there", states: []State{in("2")}, gone: true, reached: 2, held: true, want: true},
		{what: "created and removed", states: []State{in("2")}, gone: true, reached: 2},
		{what: "created and removed, never selected", states: []State{out("2")}, gone: true, reached: 1},
	} {
		view := View{
			Reached: func(version string) bool {
				n, err := strconv.Atoi(version)
				return err == nil && n <= test.reached
			},
			Selects: func(set labels.Set) bool { return set.Has("in") },
			Has:     func() bool { return test.held },
		}
		if got := (Write{States: test.states, Gone: test.gone}).Missing(view); got != test.want {
			t.Errorf("%s: got %t", test.what, got)
		}
	}
}

func TestTargetOf(t *testing.T) {
	configMap := Target{Server: "api", Resource: schema.GroupResource{Resource: "configmaps"}, Namespace: "x", Name: "a"}
	widget := Target{Server: "api", Resource: schema.ParseGroupResource("widgets.a.b"), Name: "a"}
	behindProxy, status, namespace := widget, widget, Target{
		Server: "api", Resource: schema.GroupResource{Resource: "namespaces"}, Name: "x",
	}
	behindProxy.Server = "api/k8s/clusters/c"
	status.Subresource = "status"
	namespaceStatus := namespace
	namespaceStatus.Subresource = "status"
	for request, want := range map[string]Target{
		"PUT /api/v1/namespaces/x/configmaps/a":       configMap,
		"DELETE /api/v1/namespaces/x/configmaps/a":    configMap,
		"PATCH /k8s/clusters/c/apis/a.b/v1/widgets/a": behindProxy,
		"PUT /apis/a.b/v1/widgets/a/status":           status,
		"POST /apis/a.b/v1/widgets":                   {Server: "api", Resource: widget.Resource},
		"POST /api/v1/namespaces/x/pods/a/eviction": {
			Server: "api", Resource: schema.GroupResource{Resource: "pods"}, Namespace: "x", Name: "a", Subresource: "eviction",
		},
		"PUT /api/v1/namespaces/x":                         namespace,
		"PUT /api/v1/namespaces/x/status":                  namespaceStatus,
		"GET /api/v1/namespaces/x/configmaps/a":            {},
		"PUT /api/v1/namespaces/x/configmaps/a?dryRun=All": {},
		"POST /api/v1/namespaces/x/pods/a/proxy/api":       {},
		"POST /healthz":                                    {},
	} {
		var method, url string
		_, _ = fmt.Sscan(request, &method, &url)
		if got, ok := TargetOf(newRequest(t, method, url, "")); ok && got != want || ok != (want != Target{}) {
			t.Errorf("%s: got %+v, %t, want %+v", request, got, ok, want)
		}
	}
}

// The options of a deletion are in the body, which the request still sends.
func TestTargetOf_DryRunDeletion(t *testing.T) {
	protobuf, err := (&metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]bool{
		`{"kind":"DeleteOptions","dryRun":["All"]}`:                 false,
		`{"kind":"DeleteOptions","propagationPolicy":"Foreground"}`: true,
		string(protobuf): false,
		"":               true,
	} {
		r := newRequest(t, http.MethodDelete, "/api/v1/namespaces/x/configmaps/a", body)
		if _, ok := TargetOf(r); ok != want {
			t.Errorf("%q is a write: %t, want %t", body, ok, want)
		}
		if sent, err := io.ReadAll(r.Body); err != nil || string(sent) != body {
			t.Errorf("sent %q, error %v, want %q", sent, err, body)
		}
	}
}

// The URL of a config and those of its requests name the same server.
func TestServerOf(t *testing.T) {
	for host, want := range map[string]string{
		"https://api:6443": "api:6443", "https://api/": "api", "10.0.0.1": "10.0.0.1", "https://api/k8s/c/": "api/k8s/c",
	} {
		cfg := &rest.Config{Host: host, APIPath: "/api", ContentConfig: rest.ContentConfig{
			GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		}}
		base, _, err := rest.DefaultServerUrlFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		client, err := rest.RESTClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		target, _ := parse(client.Post().Resource("configmaps").Namespace("x").URL())
		if got := ServerOf(base); got != want || target.Server != want {
			t.Errorf("%s: the config has the server %s, the request %s, want %s", host, got, target.Server, want)
		}
	}
}

func newRequest(t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://api"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What a response says about its object, in JSON and in protobuf.
func TestResultOf(t *testing.T) {
	now, none := metav1.NewTime(time.Unix(1, 0)), int64(0)
	grace := int64(30)
	object := func(change func(*corev1.ConfigMap)) *corev1.ConfigMap {
		o := &corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "a", Namespace: "x", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "v"},
			},
			Data: map[string]string{"k": strings.Repeat("v", 100)},
		}
		if change != nil {
			change(o)
		}
		return o
	}
	status := func(details *metav1.StatusDetails) *metav1.Status {
		kind := metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		return &metav1.Status{TypeMeta: kind, Status: "Success", Details: details}
	}
	stored := Write{
		Server: "api", Resource: schema.GroupResource{Resource: "configmaps"}, Namespace: "x", Name: "a", UID: "u",
		States: []State{{Version: "7", Labels: labels.Set{"l": "v"}}},
	}
	with := func(change func(*Write)) Write {
		w := stored
		change(&w)
		return w
	}
	gone := with(func(w *Write) { w.Gone = true })
	const path = "/api/v1/namespaces/x/configmaps/a"
	for name, test := range map[string]struct {
		method, path string
		response     runtime.Object
		want         Write // none if it is the zero value
	}{
		"create":        {http.MethodPost, "/api/v1/namespaces/x/configmaps", object(nil), stored},
		"update":        {http.MethodPut, path, object(nil), stored},
		"patch":         {http.MethodPatch, path, object(nil), stored},
		"a subresource": {http.MethodPut, path + "/status", object(nil), stored},
		"an object without labels": {http.MethodPut, path, object(func(o *corev1.ConfigMap) { o.Labels = nil }),
			with(func(w *Write) { w.States = []State{{Version: "7"}} })},
		"scale, whose response lacks the labels": {
			http.MethodPut, path + "/scale", object(func(o *corev1.ConfigMap) { o.Labels = nil }),
			with(func(w *Write) { w.States = []State{{Version: "7", Scaled: true}} }),
		},
		"delete, answered with the object": {http.MethodDelete, path, object(nil), gone},
		"delete, answered with a Status": {
			http.MethodDelete, path, status(&metav1.StatusDetails{Name: "a", UID: "u"}),
			with(func(w *Write) { w.States, w.Gone = nil, true }),
		},
		"delete, with finalizers": {http.MethodDelete, path, object(func(o *corev1.ConfigMap) {
			o.DeletionTimestamp, o.DeletionGracePeriodSeconds, o.Finalizers = &now, &none, []string{"f"}
		}), stored},
		"delete, with a grace period": {http.MethodDelete, path, object(func(o *corev1.ConfigMap) {
			o.DeletionTimestamp, o.DeletionGracePeriodSeconds = &now, &grace
		}), stored},
		"removal of the last finalizer": {http.MethodPatch, path, object(func(o *corev1.ConfigMap) {
			o.DeletionTimestamp, o.DeletionGracePeriodSeconds = &now, &none
		}), gone},
		"removal of one finalizer": {http.MethodPatch, path, object(func(o *corev1.ConfigMap) {
			o.DeletionTimestamp, o.Finalizers = &now, []string{"f"}
		}), stored},
		"a namespace, whose finalizers are in its spec": {
			http.MethodDelete, "/api/v1/namespaces/a", object(func(o *corev1.ConfigMap) { o.DeletionTimestamp = &now }),
			with(func(w *Write) { w.Resource.Resource, w.Namespace = "namespaces", "" }),
		},
		"a Status of an eviction": {http.MethodPost, path + "/eviction", status(nil), Write{}},
		"a review": {http.MethodPost, "/apis/a.b/v1/reviews", object(func(o *corev1.ConfigMap) {
			o.ObjectMeta = metav1.ObjectMeta{}
		}), Write{}},
		"delete of a collection": {http.MethodDelete, "/api/v1/namespaces/x/configmaps", object(nil), Write{}},
		"a read":                 {http.MethodGet, path, object(nil), Write{}},
	} {
		for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
			body, err := runtime.Encode(info.Serializer, test.response)
			if err != nil {
				t.Fatal(err)
			}
			recorder := &Recorder{}
			response := &http.Response{
				StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {mediaType}},
				Body: io.NopCloser(iotest.OneByteReader(bytes.NewReader(body))),
			}
			r := newRequest(t, test.method, test.path, "").WithContext(carrier{t.Context(), recorder})
			ResultOf(r)(response, nil)
			if read, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(read, body) {
				t.Errorf("%s, %s: the body has changed, error %v", name, mediaType, err)
			}
			got, _ := recorder.Take()
			var want []Write
			if test.want.Name != "" {
				want = []Write{test.want}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: got %+v, want %+v", name, mediaType, got, want)
			}
		}
	}
}

// If a response does not say what was written, or is not read, the outcome is unknown. It is not recorded if the name
// of the object is unknown, too.
func TestResultOf_UnknownOutcomes(t *testing.T) {
	const (
		collection, path = "/api/v1/namespaces/x/configmaps", "/api/v1/namespaces/x/configmaps/a"
		object           = `{"metadata":{"name":"a","resourceVersion":"7"}}`
	)
	object2, err := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	protobuf, err := (&runtime.Unknown{Raw: object2}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	json := http.Header{"Content-Type": {runtime.ContentTypeJSON}}
	compressed := http.Header{"Content-Type": {runtime.ContentTypeJSON}, "Content-Encoding": {"br"}}
	type request struct{ method, path, sent, sentAs string }
	put, post := request{method: http.MethodPut, path: path}, request{method: http.MethodPost, path: collection}
	creating := func(object string) request { post.sent = object; return post }
	for name, test := range map[string]struct {
		request
		header   http.Header // none if there is no response
		status   int         // 0 for 200
		response string
		cut      bool // the connection is lost after the response
		unread   bool
		ended    bool // the context has ended before
		want     bool
	}{
		"no response":               {request: put, want: true},
		"not sent":                  {request: put, ended: true},
		"no response to a deletion": {request: request{method: http.MethodDelete, path: path}, want: true},
		"no response to a creation": {request: creating(object), want: true},
		"no response, protobuf": {
			request: request{http.MethodPost, collection, "k8s\x00" + string(protobuf), runtime.ContentTypeProtobuf}, want: true,
		},
		"no response, generated":   {request: creating(`{"metadata":{"generateName":"a-"}}`)},
		"no response, collection":  {request: request{method: http.MethodDelete, path: collection}},
		"no response to a dry run": {request: request{method: http.MethodPut, path: path + "?dryRun=All"}},
		"no response to a read":    {request: request{method: http.MethodGet, path: path}},
		"an error of the server": {
			request: put, header: json, status: http.StatusGatewayTimeout, response: "x", want: true,
		},
		"a conflict": {request: put, header: json, status: http.StatusConflict, response: "x"},
		"a response": {request: put, header: json, response: object},
		"an eviction": {
			request: request{method: http.MethodPost, path: path + "/eviction"}, header: json,
			response: `{"kind":"Status","metadata":{}}`, want: true,
		},
		"CBOR":       {request: put, header: http.Header{"Content-Type": {"application/cbor"}}, response: "x", want: true},
		"no type":    {request: put, header: http.Header{}, response: "x", want: true},
		"compressed": {request: put, header: compressed, response: "x", want: true},
		"cut":        {request: put, header: json, response: object[:len(object)-2], cut: true, want: true},
		"unread":     {request: put, header: json, response: object, unread: true, want: true},
	} {
		recorder := &Recorder{}
		ctx, cancel := context.WithCancel(carrier{t.Context(), recorder})
		defer cancel()
		if test.ended {
			cancel()
		}
		r := newRequest(t, test.method, test.path, test.sent).WithContext(ctx)
		r.Header.Set("Content-Type", cmp.Or(test.sentAs, runtime.ContentTypeJSON))
		if test.header == nil {
			ResultOf(r)(nil, io.EOF)
		} else {
			var received io.Reader = strings.NewReader(test.response)
			if test.cut {
				received = io.MultiReader(received, iotest.ErrReader(io.ErrUnexpectedEOF))
			}
			response := &http.Response{
				StatusCode: cmp.Or(test.status, http.StatusOK), Header: test.header, Body: io.NopCloser(received),
			}
			ResultOf(r)(response, nil)
			if !test.unread {
				_, _ = io.ReadAll(response.Body)
			}
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
		}
		made, got := recorder.Take()
		want := Target{Server: "api", Resource: schema.GroupResource{Resource: "configmaps"}, Namespace: "x", Name: "a"}
		switch {
		case test.want && (len(got) != 1 || got[0] != want || len(made) > 0), !test.want && len(got) > 0:
			t.Errorf("%s: got the unknown outcomes %+v, and the writes %+v", name, got, made)
		}
	}
}

type carrier struct {
	context.Context
	recorder *Recorder
}

func (c carrier) Value(key any) any {
	if key == (Key{}) {
		return c.recorder
	}
	return c.Context.Value(key)
}

func TestRecorder_CombinesTheWritesToAnObject(t *testing.T) {
	r := &Recorder{}
	ctx := carrier{t.Context(), r}
	a, b := labels.Set{"x": "a"}, labels.Set{"x": "b"}
	state := func(version string, set labels.Set) []State { return []State{{Version: version, Labels: set}} }
	Record(t.Context(), Write{UID: "of no call"})
	for _, w := range []Write{
		{UID: "a", States: state("9", a)},
		{UID: "b", States: state("2", nil), Gone: true},
		{UID: "a", States: state("10", a)},
		{UID: "b", States: state("1", b)}, // the response was read late
		{UID: "a", States: state("8", b)},
		{UID: "a", States: []State{{Version: "11", Scaled: true}}},
		{UID: "a", Gone: true},
		{UID: "a", States: state("20", a), Server: "another"},
		{UID: "c", States: state("x", a)},
		{UID: "c", States: state("w", b)}, // versions that cannot be compared
	} {
		Record(ctx, w)
	}
	want := []Write{
		{UID: "a", States: append(state("8", b), state("11", a)...), Gone: true},
		{UID: "b", States: append(state("1", b), state("2", nil)...), Gone: true},
		{UID: "a", States: state("20", a), Server: "another"},
		{UID: "c", States: append(state("x", a), state("w", b)...)},
	}
	if got, _ := r.Take(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	Record(ctx, Write{UID: "c"}) // after the call has returned
	RecordUnknown(ctx, Target{Name: "d"})
	if got, unknown := r.Take(); len(got)+len(unknown) != 0 {
		t.Errorf("got %v after the writes were taken", got)
	}
}
