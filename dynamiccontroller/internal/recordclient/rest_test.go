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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// methods contains one function for each method of a client. Each function calls its method and returns the error.
var methods = map[string]func(context.Context, listwatch.Client, metav1.ListOptions) error{
	"list": func(ctx context.Context, c listwatch.Client, o metav1.ListOptions) error {
		_, err := c.List(ctx, o)
		return err
	},
	"watch": func(ctx context.Context, c listwatch.Client, o metav1.ListOptions) error {
		w, err := c.Watch(ctx, o)
		if err == nil {
			w.Stop()
			for range w.ResultChan() {
			}
		}
		return err
	},
}

// TestClient_SendsTheSameRequestsAsTheDynamicClient compares URLs and headers. The only allowed difference is that this
// client requests uncompressed responses for watches.
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
				if diff := cmp.Diff(url, gotURL) + cmp.Diff(header, gotHeader); diff != "" {
					t.Errorf("%s of %s in namespace %q: %s", name, gvr, namespace, diff)
				}
			}
		}
	}
}

// TestClient_SendsTheSameRequestsAsTheMetadataClient compares URLs and headers. The only allowed difference is the same
// as above.
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
	if err := methods["list"](t.Context(), client, metav1.ListOptions{}); !contains(err, "rate limiter") {
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

// TestClient_HonorsRetryAfter covers the cases in which client-go retries a request, and the cases in which
// [listwatch.RetryEarly] leaves retries to the caller.
func TestClient_HonorsRetryAfter(t *testing.T) {
	for name, test := range map[string]struct {
		method  string
		code    int
		options metav1.ListOptions
		waits   bool
	}{
		"list rejected with 429":       {method: "list", code: 429, waits: true},
		"watch rejected with 429":      {method: "watch", code: 429},
		"watch rejected with 503":      {method: "watch", code: 503, waits: true},
		"list at version times out":    {method: "list", code: 504, options: metav1.ListOptions{ResourceVersion: "9"}},
		"watch from version times out": {method: "watch", code: 504, options: metav1.ListOptions{ResourceVersion: "9"}},
		"list at any version times out": {
			method: "list", code: 504, options: metav1.ListOptions{ResourceVersion: "0"}, waits: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refused := false
				client := newClient(t, transport(func(*http.Request) (*http.Response, error) {
					if refused {
						return response(http.StatusOK, strings.NewReader("{"+listType+"}")), nil
					}
					refused = true
					r := response(test.code, strings.NewReader("{}"))
					r.Header.Set("Retry-After", "3")
					return r, nil
				}), widgets, "", objects.Full)
				began := time.Now()
				err := methods[test.method](t.Context(), client, test.options)
				var status apierrors.APIStatus
				if test.waits && (err != nil || time.Since(began) != 3*time.Second) ||
					!test.waits && (!errors.As(err, &status) || int(status.Status().Code) != test.code || time.Since(began) > 0) {
					t.Errorf("got %v after %s", err, time.Since(began))
				}
			})
		})
	}
}

// timeout is a network error.
type timeout struct{ error }

func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

func TestClient_RetriesAfterLostConnections(t *testing.T) {
	refused, late := errors.New("connection refused"), timeout{errors.New("dial timeout")}
	for name, test := range map[string]struct {
		method string
		errs   []error
		want   error
		delay  time.Duration
	}{
		"list once":           {"list", []error{io.EOF}, nil, time.Second},
		"watch once":          {"watch", []error{io.ErrUnexpectedEOF}, nil, time.Second},
		"watch after timeout": {"watch", []error{late, late}, nil, 2 * time.Second},
		"list after timeout":  {"list", []error{late}, late, 0},
		"watch refused":       {"watch", []error{refused}, refused, 0},
		"list too often":      {"list", repeat(io.EOF, 20), io.EOF, 10 * time.Second},
		"watch too often":     {"watch", repeat(io.EOF, 20), io.EOF, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				errs := test.errs
				client := newClient(t, transport(func(*http.Request) (*http.Response, error) {
					if len(errs) == 0 {
						return response(http.StatusOK, strings.NewReader("{"+listType+"}")), nil
					}
					err := errs[0]
					errs = errs[1:]
					return nil, err
				}), widgets, "", objects.Full)
				began := time.Now()
				err := methods[test.method](t.Context(), client, metav1.ListOptions{})
				if !errors.Is(err, test.want) || time.Since(began) != test.delay {
					t.Errorf("got %v after %s, want %v after %s", err, time.Since(began), test.want, test.delay)
				}
			})
		})
	}
}

func repeat(err error, n int) (errs []error) {
	for range n {
		errs = append(errs, err)
	}
	return errs
}

func TestClient_StopsRetryingWhenContextIsCancelled(t *testing.T) {
	for name, send := range methods {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer cancel()
			began := time.Now()
			lost := transport(func(*http.Request) (*http.Response, error) { return nil, io.EOF })
			err := send(ctx, newClient(t, lost, widgets, "", objects.Full), metav1.ListOptions{})
			if !errors.Is(err, io.EOF) || time.Since(began) != 1500*time.Millisecond {
				t.Errorf("%s: got %v after %s", name, err, time.Since(began))
			}
		})
	}
}

// TestWatch_EndsOverNetwork ends watches over real connections. TestMain checks that no goroutine is left.
func TestWatch_EndsOverNetwork(t *testing.T) {
	for name, end := range map[string]func(w watch.Interface, cancel context.CancelFunc, server *httptest.Server){
		"by Stop":        func(w watch.Interface, _ context.CancelFunc, _ *httptest.Server) { w.Stop() },
		"by the context": func(_ watch.Interface, cancel context.CancelFunc, _ *httptest.Server) { cancel() },
		"by a lost connection": func(_ watch.Interface, _ context.CancelFunc, server *httptest.Server) {
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
			w, err := client.Watch(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if event := <-w.ResultChan(); event.Type != watch.Added {
				t.Errorf("got %v", event)
			}
			end(w, cancel, server)
			for event := range w.ResultChan() {
				t.Errorf("got %v", event)
			}
		})
	}
}
