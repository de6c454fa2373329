package restmapper

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/listwatch"
)

func TestM2_MapperSyncsWithoutAPIServices(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusNotFound} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			r := newRunning(t)
			r.api.services.status = status
			r.api.setCRD(widget.Group, widget.Kind, "v1")
			r.start()
			r.waitFor(pod)
			r.waitFor(widget)
			if r.failure(SourceAPIServices, "") == nil {
				t.Error("the failure is not reported")
			}
		})
	}
}

func TestM2_MapperDoesNotSyncWithoutCRDs(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusForbidden })
		began := time.Now()
		r.start()
		time.Sleep(10 * time.Minute)
		if r.HasSynced() {
			t.Error("the mapper has synced")
		}
		failure := r.failure(SourceCRDs, "")
		if failure == nil || !apierrors.IsForbidden(failure) || failure.Since.Sub(began) > time.Second ||
			failure.GroupVersion != (schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}) {
			t.Errorf("got failure %+v", failure)
		}
		if n := r.logs.count("Watch forbidden", "CRDs"); n != 1 {
			t.Errorf("the failure has been logged %d times, want once", n)
		}
		r.api.setCRDs(func(crds *fakeType) {
			if n := len(crds.lists); n < 10 || n > 40 {
				t.Errorf("got %d lists within ten minutes, want between 10 and 40", n)
			}
			crds.status = 0
		})
		r.waitFor(pod)
		r.eventually("the failure is no longer reported", r.hasNoErrors)
		synctest.Wait()
		if n := r.logs.count("Watch recovered", "CRDs"); n != 1 {
			t.Errorf("the recovery has been logged %d times, want once", n)
		}
	})
}

// A missing permission is logged even if the API server was unavailable before.
func TestM2_MissingPermissionIsLoggedOnceAfterAnotherFailure(t *testing.T) {
	inMemory(t, func(r *running) {
		for i, status := range []int{
			http.StatusServiceUnavailable, http.StatusForbidden, http.StatusServiceUnavailable, http.StatusForbidden,
		} {
			r.api.setCRDs(func(crds *fakeType) { crds.status = status })
			if i == 0 {
				r.start()
			}
			time.Sleep(5 * time.Minute)
		}
		if n := r.logs.count("Watch failed", "CRDs"); n != 1 {
			t.Errorf("the failure has been logged %d times, want once", n)
		}
		if n := r.logs.count("Watch forbidden", "CRDs"); n != 1 {
			t.Errorf("the missing permission has been logged %d times, want once", n)
		}
	})
}

func TestM2_WatchEndingImmediatelyIsReportedAndRetriedWithBackoff(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.endWatches = true })
		r.start()
		r.waitFor(pod) // lists are sufficient for the sync
		time.Sleep(10 * time.Minute)
		if failure := r.failure(SourceCRDs, ""); failure == nil || !errors.Is(failure, listwatch.ErrClosedAtOnce) ||
			time.Since(failure.Since) < 9*time.Minute {
			t.Errorf("got failure %+v", failure)
		}
		if n := r.logs.count("Watch failed", "CRDs"); n != 1 {
			t.Errorf("the failure has been logged %d times, want once", n)
		}
		r.api.setCRDs(func(crds *fakeType) {
			if n := len(crds.lists); n < 10 || n > 40 {
				t.Errorf("got %d lists within ten minutes, want between 10 and 40", n)
			}
			crds.endWatches = false
		})
		r.eventually("the failure is no longer reported", r.hasNoErrors)
	})
}

// The stream of a streaming list continues as a watch.
func TestM2_StreamingListEndsAFailure(t *testing.T) {
	inMemory(t, func(r *running) {
		path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
		r.start()
		r.eventually("the failure is reported", r.fails(SourceCRDs, ""))
		crds := &largeCRDs{count: 1, schemas: []byte(`{}`), watchList: true}
		r.api.handle(path, crds.ServeHTTP)
		r.waitFor(schema.GroupKind{Group: "g0.example.com", Kind: "Widget"})
		time.Sleep(10 * time.Second)
		if !r.hasNoErrors() {
			t.Errorf("got errors %v", r.Errors())
		}
	})
}

func TestM2_UnavailableAPIServerIsRetriedWithinSeconds(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusServiceUnavailable })
		r.start()
		time.Sleep(10 * time.Minute)
		r.api.setCRDs(func(crds *fakeType) {
			if n := len(crds.lists); n < 80 || n > 140 {
				t.Errorf("got %d lists within ten minutes, want between 80 and 140", n)
			}
			crds.status = 0
		})
		recovered := time.Now()
		r.waitFor(pod)
		if waited := time.Since(recovered); waited > 2*maxRequestDelay {
			t.Errorf("synced %s after the API server had recovered", waited)
		}
	})
}

func TestM2_TruncatedListIsNotComplete(t *testing.T) {
	inMemory(t, func(r *running) {
		for i := range 10 {
			r.api.setCRD(fmt.Sprintf("g%d.example.com", i), "Widget", "v1")
		}
		r.start()
		r.waitFor(pod)
		r.stop()
		r.api.setCRDs(func(crds *fakeType) { crds.truncate = true })
		r.start()
		r.eventually("the failure is reported", r.fails(SourceCRDs, ""))
		time.Sleep(time.Minute)
		for i := range 10 {
			r.waitFor(schema.GroupKind{Group: fmt.Sprintf("g%d.example.com", i), Kind: "Widget"})
		}
	})
}

// A mapper that runs again must not accept a list that is older than its data.
func TestM2_SecondRunDoesNotAcceptOlderList(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.waitFor(widget)
		r.stop()
		r.start()
		time.Sleep(time.Second)
		r.api.setCRDs(func(crds *fakeType) {
			last := crds.lists[len(crds.lists)-1]
			if last.Get("resourceVersion") != "2" || last.Get("resourceVersionMatch") != "NotOlderThan" {
				t.Errorf("the list was requested with %v", last)
			}
		})
	})
}

func TestM2_InitialDocumentFailureIsRetriedWithinSeconds(t *testing.T) {
	for _, path := range []string{"/api", "/apis"} {
		t.Run(path, func(t *testing.T) {
			inMemory(t, func(r *running) {
				began := time.Now()
				r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
				r.start()
				time.Sleep(time.Second)
				failure := r.failure(SourceDiscovery, "")
				if failure == nil || failure.Since.Sub(began) > time.Second || r.HasSynced() {
					t.Errorf("got failure %+v, synced: %t", failure, r.HasSynced())
				}
				if n := r.logs.count("Discovery failed", "Discovery"); n != 1 {
					t.Errorf("the failure has been logged %d times, want once", n)
				}
				r.api.handle(path, nil)
				r.waitFor(pod)
				if waited := time.Since(began); waited > 2*maxRequestDelay || !r.hasNoErrors() {
					t.Errorf("synced after %s, errors: %v", waited, r.Errors())
				}
			})
		})
	}
}

// A response of an unexpected kind does not count as an empty list or document.
func TestM2_ResponseOfUnexpectedKindIsAnError(t *testing.T) {
	type object = map[string]any
	html := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html></html>"))
	}
	crds := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	for name, test := range map[string]struct {
		path    string
		handler http.HandlerFunc
		source  Source
	}{
		"HTML instead of a document":        {"/apis", html, SourceDiscovery},
		"no kind instead of a document":     {"/apis", serveJSON(object{}), SourceDiscovery},
		"a Status instead of a document":    {"/apis", serveJSON(object{"kind": "Status"}), SourceDiscovery},
		"groups instead of the core group":  {"/api", serveJSON(object{"kind": "APIGroupList"}), SourceDiscovery},
		"a Status instead of a list":        {crds, serveJSON(object{"kind": "Status"}), SourceCRDs},
		"other objects instead of the CRDs": {crds, serveJSON(object{"kind": "PodList", "items": []any{}}), SourceCRDs},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(r *running) {
				r.pollPeriod = time.Second
				r.api.setCRD(widget.Group, widget.Kind, "v1")
				r.start()
				r.waitFor(widget)
				r.stop()
				r.api.handle(test.path, test.handler)
				r.start()
				r.eventually("the failure is reported", r.fails(test.source, ""))
				r.waitFor(pod)
				r.waitFor(deployment)
				r.waitFor(widget)
			})
		})
	}
}

func TestErrors_AreSortedAndUnwrap(t *testing.T) {
	r := newRunning(t)
	refused := errors.New("refused")
	r.setFailure(SourceDiscovery, schema.GroupVersion{}, refused)
	r.setFailure(SourceCRDs, schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}, refused)
	first := r.failure(SourceCRDs, "").Since
	r.setFailure(SourceCRDs, schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}, errors.New("again"))
	gv := schema.GroupVersion{Group: metric.Group, Version: "v1"}
	r.catalog.discover(gv).fail(gv, refused, time.Now())
	errs := r.Errors()
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	want := "[CRDs apiextensions.k8s.io/v1: again Discovery: refused Discovery metrics.example.com/v1: refused]"
	if got := fmt.Sprint(texts); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !errs[0].Since.Equal(first) || !errors.Is(errs[1], refused) {
		t.Errorf("got %+v", errs)
	}
}
