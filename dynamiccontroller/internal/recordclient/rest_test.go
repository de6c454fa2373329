package recordclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// drop is the parameter of KEP-5958 in the Accept header.
const drop = ";drop=metadata.managedFields"

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// methods contains one function for each method of a client. Each function calls its method and returns the error.
var methods = map[string]func(context.Context, listwatch.Requests, metav1.ListOptions) error{
	"list": func(ctx context.Context, c listwatch.Requests, o metav1.ListOptions) error {
		_, err := listWith(ctx, c, o)
		return err
	},
	"watch": func(ctx context.Context, c listwatch.Requests, o metav1.ListOptions) error {
		w, err := c.Watch(ctx, listwatch.RequestOptions{ListOptions: o})
		if err == nil {
			w.Close()
		}
		return err
	},
}

// TestClient_SendsTheSameRequestsAsTheDynamicClient compares URLs and headers. The only allowed differences are that
// this client requests uncompressed responses for watches, and objects without managedFields.
func TestClient_SendsTheSameRequestsAsTheDynamicClient(t *testing.T) {
	var url string
	var header http.Header
	answer := transport(func(r *http.Request) (*http.Response, error) {
		url, header = r.URL.String(), r.Header.Clone()
		return response(http.StatusOK, strings.NewReader("{"+listType+"}")), nil
	})
	cfg := &rest.Config{Host: "http://server/prefix", QPS: -1, UserAgent: "agent"}
	theirs, err := dynamic.NewForConfigAndClient(cfg, &http.Client{Transport: answer})
	if err != nil {
		t.Fatal(err)
	}
	options := metav1.ListOptions{
		LabelSelector: "a=b", FieldSelector: "metadata.name=c", ResourceVersion: "7", Limit: 5, Continue: "d",
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, SendInitialEvents: ptr.To(true),
		AllowWatchBookmarks: true, TimeoutSeconds: ptr.To[int64](9),
	}
	for _, gvr := range []schema.GroupVersionResource{widgets, pods} {
		for _, namespace := range []string{"", "a"} {
			ours := newClientFor(t, cfg, answer, gvr, namespace, objects.Full)
			for name, send := range methods {
				_ = send(t.Context(), ours, options)
				gotURL, gotHeader := url, header
				if name == "list" {
					_, _ = theirs.Resource(gvr).Namespace(namespace).List(t.Context(), options)
				} else if w, err := theirs.Resource(gvr).Namespace(namespace).Watch(t.Context(), options); err == nil {
					w.Stop()
					header.Set("Accept-Encoding", "identity")
				}
				header.Set("Accept", header.Get("Accept")+drop)
				if diff := cmp.Diff(url, gotURL) + cmp.Diff(header, gotHeader); diff != "" {
					t.Errorf("%s of %s in namespace %q: %s", name, gvr, namespace, diff)
				}
			}
		}
	}
}

// TestClient_SendsTheSameRequestsAsTheMetadataClient compares URLs and headers. The only allowed differences are the
// same as above.
func TestClient_SendsTheSameRequestsAsTheMetadataClient(t *testing.T) {
	var url string
	var header http.Header
	answer := transport(func(r *http.Request) (*http.Response, error) {
		url, header = r.URL.String(), r.Header.Clone()
		return response(http.StatusOK, strings.NewReader("{"+listType+"}")), nil
	})
	cfg := &rest.Config{Host: "http://server/prefix", QPS: -1, UserAgent: "agent"}
	metadataClient, err := metadata.NewForConfigAndClient(cfg, &http.Client{Transport: answer})
	if err != nil {
		t.Fatal(err)
	}
	options := metav1.ListOptions{LabelSelector: "a=b", ResourceVersion: "7", SendInitialEvents: ptr.To(true)}
	theirs := metadataClient.Resource(widgets).Namespace("a")
	for name, send := range methods {
		_ = send(t.Context(), newClientFor(t, cfg, answer, widgets, "a", objects.Metadata), options)
		gotURL, gotHeader := url, header
		url, header = "", nil
		if name == "list" {
			_, _ = theirs.List(t.Context(), options)
		} else {
			if w, err := theirs.Watch(t.Context(), options); err == nil {
				w.Stop()
			}
			header.Set("Accept-Encoding", "identity")
		}
		header.Set("Accept", strings.Join(strings.Split(header.Get("Accept"), ","), drop+",")+drop)
		if diff := cmp.Diff(url, gotURL) + cmp.Diff(header, gotHeader); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestClient_RequestsMetadataOnlyForKeysAndMetadata(t *testing.T) {
	partial := map[string]string{
		"list": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
			"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
		"watch": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
			"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
	}
	whole := map[string]string{"list": "application/json", "watch": "application/json"}
	for p, want := range map[objects.Projection]map[string]string{
		objects.Keys: partial, objects.Metadata: partial, objects.Full: whole, objects.Complete: whole,
	} {
		for name, send := range methods {
			var got []string
			client := newClient(t, transport(func(r *http.Request) (*http.Response, error) {
				got = r.Header.Values("Accept")
				return response(http.StatusOK, strings.NewReader("{"+listType+"}")), nil
			}), widgets, "", p)
			_ = send(t.Context(), client, metav1.ListOptions{})
			if len(got) > 0 { // see TestClient_RequestsManagedFieldsOnlyIfTheyAreKept
				got[0] = strings.ReplaceAll(got[0], drop, "")
			}
			if diff := cmp.Diff([]string{want[name]}, got); diff != "" {
				t.Errorf("%s with projection %d: %s", name, p, diff)
			}
		}
	}
}

func TestClient_RejectsInvalidNamespaces(t *testing.T) {
	for name, send := range methods {
		client := newClient(t, respond(http.StatusOK, strings.NewReader("")), widgets, "a/b", objects.Full)
		if err := send(t.Context(), client, metav1.ListOptions{}); !contains(err, `invalid namespace "a/b"`) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestClient_ThrottlesListsButNotWatches(t *testing.T) {
	cfg := &rest.Config{Host: "http://server", RateLimiter: flowcontrol.NewFakeNeverRateLimiter()}
	client := newClientFor(t, cfg, respond(http.StatusOK, strings.NewReader("")), widgets, "", objects.Full)
	throttled := client.(interface{ Throttle(context.Context) error })
	if err := throttled.Throttle(t.Context()); !contains(err, "rate limiter") {
		t.Errorf("list: got %v, want an error from the rate limiter", err)
	}
	if err := methods["watch"](t.Context(), client, metav1.ListOptions{}); err != nil {
		t.Errorf("watch: %v", err)
	}
}

func TestClient_ReturnsTheStatusOfAFailedRequest(t *testing.T) {
	for name, send := range methods {
		for code, test := range map[int]struct {
			reason metav1.StatusReason
			is     func(error) bool
		}{
			http.StatusForbidden:       {metav1.StatusReasonForbidden, apierrors.IsForbidden},
			http.StatusNotFound:        {metav1.StatusReasonNotFound, apierrors.IsNotFound},
			http.StatusGone:            {metav1.StatusReasonExpired, apierrors.IsResourceExpired},
			http.StatusTooManyRequests: {metav1.StatusReasonTooManyRequests, apierrors.IsTooManyRequests},
			http.StatusGatewayTimeout:  {metav1.StatusReasonTimeout, apierrors.IsTimeout},
		} {
			status := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"why",`+
				`"reason":%q,"code":%d,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}`, test.reason, code)
			for _, body := range []string{status, "no JSON"} {
				client := newClient(t, respond(code, strings.NewReader(body)), widgets, "", objects.Metadata)
				err := send(t.Context(), client, metav1.ListOptions{})
				if body == status && (!test.is(err) || err.Error() != "why" || !hasCause(err, "ResourceVersionTooLarge")) {
					t.Errorf("%s answered with status %d: got %v", name, code, err)
				}
				var statusError *apierrors.StatusError
				if !errors.As(err, &statusError) || int(statusError.ErrStatus.Code) != code {
					t.Errorf("%s answered with %d and %q: got %v", name, code, body, err)
				}
			}
		}
	}
}

func hasCause(err error, cause metav1.CauseType) bool {
	_, has := apierrors.StatusCause(err, cause)
	return has
}

// Requests are neither repeated nor delayed. The delay that the server asks for is part of the error.
func TestClient_ReturnsRetryAfter(t *testing.T) {
	for name, send := range methods {
		for _, code := range []int{429, 500, 503, 504} {
			for body, want := range map[string]int{
				"no JSON": 30,
				"{}":      30,
				`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"why","code":503}`:                   30,
				`{"kind":"Status","apiVersion":"v1","status":"Failure","code":429,"details":{"retryAfterSeconds":7}}`: 7,
			} {
				synctest.Test(t, func(t *testing.T) {
					requests := 0
					client := newClient(t, transport(func(*http.Request) (*http.Response, error) {
						requests++
						r := response(code, strings.NewReader(body))
						r.Header.Set("Retry-After", "30")
						return r, nil
					}), widgets, "", objects.Full)
					began := time.Now()
					err := send(t.Context(), client, metav1.ListOptions{})
					seconds, _ := apierrors.SuggestsClientDelay(err)
					if seconds != want || requests != 1 || time.Since(began) > 0 {
						t.Errorf("%s answered with %d and %s: %d s, %d requests, %v", name, code, body, seconds, requests, err)
					}
				})
			}
		}
	}
}

func TestClient_DoesNotRetryAfterLostConnections(t *testing.T) {
	for name, send := range methods {
		requests := 0
		client := newClient(t, transport(func(*http.Request) (*http.Response, error) {
			requests++
			return nil, io.EOF
		}), widgets, "", objects.Full)
		if err := send(t.Context(), client, metav1.ListOptions{}); !errors.Is(err, io.EOF) || requests != 1 {
			t.Errorf("%s: %d requests, %v", name, requests, err)
		}
	}
}

func TestClient_AsksForJSONOnly(t *testing.T) {
	var accept []string
	client := newClient(t, transport(func(r *http.Request) (*http.Response, error) {
		accept = append(accept, r.Header.Get("Accept"))
		return response(http.StatusOK, strings.NewReader("{"+listType+"}")), nil
	}), widgets, "", objects.Keys)
	_, _ = client.List(t.Context(), listwatch.RequestOptions{JSON: true}, nil)
	_, _ = client.Watch(t.Context(), listwatch.RequestOptions{JSON: true})
	if diff := cmp.Diff([]string{"application/json", "application/json"}, accept); diff != "" {
		t.Error(diff)
	}
}

// A timeout of the HTTP client would end watches, and would be sent to the API server.
func TestClient_IgnoresTheTimeoutOfTheConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := transport(func(r *http.Request) (*http.Response, error) {
			if r.URL.Query().Has("timeout") {
				t.Error("the timeout is sent to the server")
			}
			time.Sleep(time.Minute)
			return response(http.StatusOK, strings.NewReader("{"+listType+"}")), r.Context().Err()
		})
		cfg := &rest.Config{Host: "http://server", QPS: -1, Timeout: time.Second}
		source, err := recordclient.NewForConfigAndClient(cfg, &http.Client{Transport: answer, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for name, send := range methods {
			if err := send(t.Context(), source.Requests(widgets, "", objects.Full), metav1.ListOptions{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestWatch_EndsOverNetwork ends watches over real connections. TestMain checks that no goroutine is left.
func TestWatch_EndsOverNetwork(t *testing.T) {
	for name, end := range map[string]func(w listwatch.Stream, cancel context.CancelFunc, server *httptest.Server){
		"by Close":       func(w listwatch.Stream, _ context.CancelFunc, _ *httptest.Server) { w.Close() },
		"by the context": func(_ listwatch.Stream, cancel context.CancelFunc, _ *httptest.Server) { cancel() },
		"by a lost connection": func(_ listwatch.Stream, _ context.CancelFunc, server *httptest.Server) {
			server.CloseClientConnections()
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, frame(watch.Added, widget("one"))+"\n")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}))
			defer server.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client := newClientFor(t, &rest.Config{Host: server.URL}, server.Client().Transport, widgets, "", objects.Full)
			w, err := client.Watch(ctx, listwatch.RequestOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if event, err := w.Next(ctx); event.Type != watch.Added || err != nil {
				t.Errorf("got %v, %v", event, err)
			}
			end(w, cancel, server)
			if event, err := w.Next(ctx); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("got %v, %v", event, err)
			}
		})
	}
}

// An API server that does not know the parameter ignores it. A server that refuses a request with 406 is asked again
// without it.
func TestClient_RequestsManagedFieldsOnlyIfTheyAreKept(t *testing.T) {
	var accept string
	answer := transport(func(r *http.Request) (*http.Response, error) {
		accept = r.Header.Get("Accept")
		return response(http.StatusOK, strings.NewReader("{"+listType+"}")), nil
	})
	for _, p := range []objects.Projection{objects.Keys, objects.Metadata, objects.Full, objects.Complete} {
		client := newClient(t, answer, widgets, "", p)
		for name, send := range methods {
			_ = send(t.Context(), client, metav1.ListOptions{})
			mediaTypes, drops := strings.Count(accept, ",")+1, strings.Count(accept, drop)
			if p == objects.Complete && drops != 0 || p != objects.Complete && drops != mediaTypes {
				t.Errorf("%s, projection %d: Accept is %q", name, p, accept)
			}
		}
		_, _ = client.List(t.Context(), listwatch.RequestOptions{JSON: true}, func(runtime.Object) {})
		if accept != "application/json" {
			t.Errorf("projection %d, after 406: Accept is %q", p, accept)
		}
	}
}
