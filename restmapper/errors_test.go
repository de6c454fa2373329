package restmapper

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/dynamic-controller/engine/internal/listwatch"
)

func TestM2_MapperSyncsWithoutAPIServices(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusNotFound} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			inMemory(t, func(r *running) {
				r.api.services.status = status
				r.api.setCRD(widget.Group, widget.Kind, "v1")
				r.start()
				r.waitFor(pod)
				r.waitFor(widget)
				synctest.Wait() // the failure is reported after the mapper has synced
				if r.failure(SourceAPIServices, "") == nil {
					t.Error("the failure is not reported")
				}
			})
		})
	}
}

func TestM2_MapperSyncsAtOnceWithAnAPIServerWithoutCRDs(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusNotFound })
		began := time.Now()
		r.start()
		r.waitFor(pod)
		waited := time.Since(began)
		synctest.Wait() // the failure is reported after the mapper has synced
		if waited >= time.Second || r.failure(SourceCRDs, "") == nil {
			t.Errorf("synced after %s, errors: %v", waited, r.Errors())
		}
	})
}

// Without the permission to list CRDs, the mapper finds their kinds in the discovery documents.
func TestM2_MapperWorksWithoutPermissionToListCRDs(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusForbidden })
		r.api.setGroup(widget.Group, "v1", widget.Kind)
		began := time.Now()
		r.start()
		r.waitFor(widget)
		r.waitFor(pod)
		if waited := time.Since(began); waited > refusalPeriod+time.Second {
			t.Errorf("synced after %s", waited)
		}
		time.Sleep(10 * time.Minute)
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
		})

		const period = maxPollPeriodWithoutCRDs + maxPollPeriodWithoutCRDs/5
		gadget := schema.GroupKind{Group: "gadgets.example.com", Kind: "Gadget"}
		r.api.setGroup(gadget.Group, "v1", gadget.Kind)
		created := time.Now()
		r.waitFor(gadget)
		if waited := time.Since(created); waited > period {
			t.Errorf("a new kind is mapped after %s", waited)
		}
		r.api.removeGroup(gadget.Group)
		time.Sleep(period + time.Second)
		if !r.hasNot(gadget)() {
			t.Error("a removed kind is mapped")
		}

		r.api.setCRDs(func(crds *fakeType) { crds.status = 0 })
		r.eventually("the failure is no longer reported", r.hasNoErrors)
		synctest.Wait()
		if n := r.logs.count("Watch recovered", "CRDs"); n != 1 {
			t.Errorf("the recovery has been logged %d times, want once", n)
		}
		polls := r.api.requests("/apis")
		r.api.setCRD(gadget.Group, gadget.Kind, "v1")
		r.waitFor(gadget)
		if n := r.api.requests("/apis") - polls; n > 0 {
			t.Errorf("%d reads of the document after the permission was granted", n)
		}
	})
}

// The watch of CRDs takes over the versions that were found in the discovery documents. They are mapped all the time.
func TestM2_PermissionToListCRDsCanBeGrantedWhileTheMapperRuns(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusForbidden })
		r.api.setGroup(widget.Group, "v1", widget.Kind)
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.start()
		r.waitFor(widget)
		var changes []string
		defer r.Subscribe(func(c Change) {
			if c.Kind == widget {
				changes = append(changes, string(c.Type))
			}
		})()
		r.api.setCRDs(func(crds *fakeType) { crds.status = 0 })
		r.eventually("the failure is no longer reported", r.hasNoErrors)
		r.api.deleteCRD(widget.Group, widget.Kind)
		synctest.Wait()
		// The verbs are known only from the CRD.
		if want := []string{"Added", "Changed", "Removed"}; !slices.Equal(changes, want) {
			t.Errorf("got changes %v, want %v", changes, want)
		}
	})
}

// revokeCRDs makes the server refuse lists and watches of CRDs, and ends the open watch.
func (r *running) revokeCRDs() {
	r.api.setCRDs(func(crds *fakeType) { crds.status, crds.endWatches = http.StatusForbidden, true })
	r.eventually("the failure is reported", r.fails(SourceCRDs, ""))
}

func TestM2_PollsFindCRDsAfterThePermissionWasRevoked(t *testing.T) {
	inMemory(t, func(r *running) {
		const period = maxPollPeriodWithoutCRDs + maxPollPeriodWithoutCRDs/5
		r.pollPeriod = time.Hour
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.start()
		r.waitFor(widget)
		time.Sleep(time.Minute)
		r.revokeCRDs()
		for i, status := range []int{
			http.StatusForbidden, http.StatusForbidden, http.StatusServiceUnavailable, http.StatusServiceUnavailable,
		} {
			r.api.setCRDs(func(crds *fakeType) { crds.status = status })
			time.Sleep(time.Duration(i) * time.Minute)
			kind := schema.GroupKind{Group: fmt.Sprintf("g%d.example.com", i), Kind: "Thing"}
			r.api.setGroup(kind.Group, "v1", kind.Kind)
			created := time.Now()
			r.waitFor(kind)
			if waited := time.Since(created); waited > period {
				t.Errorf("new kind %d is mapped after %s", i, waited)
			}
		}
	})
}

// The documents are ignored for the versions of known CRDs, so no new kind can be ruled out.
func TestLookups_VersionsOfCRDsThatCannotBeListedAreUnread(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.start()
		r.waitFor(widget)
		unknown := schema.GroupKind{Group: widget.Group, Kind: "Unknown"}
		r.expectLookups(unknown.WithVersion("v1"), noMatch)
		r.revokeCRDs()
		r.expectLookups(widget.WithVersion("v1"), found)
		r.expectLookups(unknown.WithVersion("v1"), undecided)
		r.expectLookups(unknown.WithVersion(""), undecided)
		r.expectLookups(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Unknown"}, noMatch)
		_, err := r.RESTMapping(unknown)
		groups, _ := discovery.GroupDiscoveryFailedErrorGroups(err)
		gv := schema.GroupVersion{Group: widget.Group, Version: "v1"}
		if !apierrors.IsForbidden(groups[gv]) {
			t.Errorf("got reasons %v", groups)
		}
		err = r.Refresh(r.Context())
		if groups, _ := discovery.GroupDiscoveryFailedErrorGroups(err); len(groups) != 1 || groups[gv] == nil {
			t.Errorf("Refresh: got error %v", err)
		}
		// Another failure does not mean that the permission has been granted.
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusServiceUnavailable })
		time.Sleep(time.Minute)
		r.expectLookups(unknown.WithVersion("v1"), undecided)
		r.api.setCRDs(func(crds *fakeType) { crds.status, crds.endWatches = 0, false })
		r.eventually("the failure is no longer reported", r.hasNoErrors)
		synctest.Wait()
		r.expectLookups(unknown.WithVersion("v1"), noMatch)
		r.mustRefresh()
	})
}

// An API server that has just been started can refuse requests until it has read its RBAC objects.
func TestM2_MapperDoesNotSyncAfterTransientRefusals(t *testing.T) {
	for name, set := range map[string]func(api *fakeAPI, status int){
		"CRDs": func(api *fakeAPI, status int) {
			api.setCRDs(func(crds *fakeType) { crds.status = status })
		},
		"APIServices": func(api *fakeAPI, status int) {
			api.setServices(func(services *fakeType) { services.status = status })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(r *running) {
				r.api.setCRD(widget.Group, widget.Kind, "v1")
				for i, status := range []int{
					http.StatusForbidden, http.StatusServiceUnavailable, http.StatusForbidden, http.StatusServiceUnavailable,
				} {
					set(r.api, status)
					if i == 0 {
						r.start()
						time.Sleep(refusalPeriod - time.Second)
					} else {
						// The request is repeated after a few seconds.
						r.eventually("the new failure is reported", func() bool {
							errs := r.Errors()
							return len(errs) == 1 && apierrors.IsForbidden(errs[0]) == (status == http.StatusForbidden)
						})
						time.Sleep(refusalPeriod - time.Second)
					}
					if r.HasSynced() {
						t.Errorf("the mapper has synced after failure %d", i)
					}
				}
				set(r.api, 0)
				r.waitFor(widget)
				r.waitFor(pod)
			})
		})
	}
}

// The priority of a CRD does not depend on the source that reports it.
func TestM3_CRDsInTheDocumentHaveTheSamePriorityAsWatchedCRDs(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusForbidden })
		r.api.setGroup("example.com", "v1", "Deployment")
		r.api.mu.Lock()
		r.api.ranked = []string{"example.com", "", "apps"}
		r.api.mu.Unlock()
		r.start()
		r.waitFor(schema.GroupKind{Group: "example.com", Kind: "Deployment"})
		resources, err := r.ResourcesFor(schema.GroupVersionResource{Resource: "deployments"})
		if want := "[apps example.com]"; err != nil || groupsOf(resources) != want {
			t.Errorf("got groups %s, error %v, want %s", groupsOf(resources), err, want)
		}
	})
}

func TestM2_MapperDoesNotSyncWhileCRDsFailForAnotherReason(t *testing.T) {
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusUnauthorized} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			inMemory(t, func(r *running) {
				r.api.setCRDs(func(crds *fakeType) { crds.status = status })
				r.start()
				time.Sleep(10 * time.Minute)
				if r.HasSynced() || r.failure(SourceCRDs, "") == nil {
					t.Errorf("synced: %t, errors: %v", r.HasSynced(), r.Errors())
				}
			})
		})
	}
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
