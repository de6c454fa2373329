package restmapper

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

var gauge = schema.GroupKind{Group: metric.Group, Kind: "Gauge"}

// refreshing calls Refresh in another goroutine.
func (r *running) refreshing() <-chan error {
	result := make(chan error, 1)
	go func() { result <- r.Refresh(r.Context()) }()
	return result
}

// mustRefresh calls Refresh, which must return no error.
func (r *running) mustRefresh() {
	r.Helper()
	if err := r.Refresh(r.Context()); err != nil {
		r.Errorf("refresh: %v", err)
	}
}

func TestRefresh_WaitsForChangesThatTheWatchesHaveNotDelivered(t *testing.T) {
	for name, test := range map[string]struct {
		change    func(api *fakeAPI)
		isApplied func(r *running) bool
	}{
		"a new CRD": {
			func(api *fakeAPI) { api.setCRD(widget.Group, "Gadget", "v1") },
			func(r *running) bool { return r.isMapped(schema.GroupKind{Group: widget.Group, Kind: "Gadget"}) },
		},
		"a new version of a CRD": {
			func(api *fakeAPI) { api.setCRD(widget.Group, widget.Kind, "v1", "v2") },
			func(r *running) bool { return r.isMapped(widget, "v2") },
		},
		"a deleted CRD": {
			func(api *fakeAPI) { api.deleteCRD(widget.Group, widget.Kind) },
			func(r *running) bool { return r.hasNot(widget)() },
		},
		"a CRD that is deleted and created again": {
			func(api *fakeAPI) {
				api.deleteCRD(widget.Group, widget.Kind)
				api.setCRD(widget.Group, widget.Kind, "v3")
			},
			func(r *running) bool { return r.isMapped(widget, "v3") && r.hasNot(widget, "v1")() },
		},
		"a new APIService": {
			func(api *fakeAPI) { api.setService("v1."+metric.Group, metricService(), "") },
			func(r *running) bool { return r.isMapped(metric) },
		},
		"a deleted APIService": {
			func(api *fakeAPI) { api.deleteService("v1.old.example.com") },
			func(r *running) bool { return r.hasNot(schema.GroupKind{Group: "old.example.com", Kind: "Old"})() },
		},
	} {
		for _, whole := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", without lists of metadata"}[whole], func(t *testing.T) {
				inMemory(t, func(r *running) {
					setHold := func(hold bool) {
						change := func(of *fakeType) { of.hold, of.whole = hold, whole }
						r.api.setCRDs(change)
						r.api.setServices(change)
					}
					r.api.handle("/apis/metrics.example.com/v1", serveVersion("metrics.example.com/v1", metric.Kind))
					r.api.handle("/apis/old.example.com/v1", serveVersion("old.example.com/v1", "Old"))
					old := metricService()
					old["group"] = "old.example.com"
					r.api.setService("v1.old.example.com", old, "")
					r.api.setCRD(widget.Group, widget.Kind, "v1")
					r.start()
					r.waitFor(widget)
					r.waitFor(schema.GroupKind{Group: "old.example.com", Kind: "Old"})
					setHold(true)
					test.change(r.api)
					refreshed := r.refreshing()
					time.Sleep(requestTimeout - time.Second)
					if len(refreshed) > 0 || test.isApplied(r) {
						t.Errorf("refreshed: %d, applied: %t before the watch has delivered the change",
							len(refreshed), test.isApplied(r))
					}
					setHold(false)
					if err := <-refreshed; err != nil || !test.isApplied(r) {
						t.Errorf("got error %v, applied: %t", err, test.isApplied(r))
					}
					r.api.mu.Lock()
					defer r.api.mu.Unlock()
					if n := len(r.api.crds.lists); n != 1 {
						t.Errorf("%d lists of whole CRDs by the watch, want 1", n)
					}
				})
			})
		}
	}
}

// The API server updates the resources of an aggregated API in the discovery document only once per minute.
func TestRefresh_ReadsAggregatedAPIsFromTheirServers(t *testing.T) {
	inMemory(t, func(r *running) {
		r.pollPeriod = 10 * time.Second
		path := "/apis/metrics.example.com/v1"
		r.api.handle(path, serveVersion("metrics.example.com/v1", metric.Kind))
		r.api.setService("v1."+metric.Group, metricService(), "")
		r.api.setGroup(metric.Group, "v1", metric.Kind)
		r.start()
		r.waitFor(metric)
		r.api.handle(path, serveVersion("metrics.example.com/v1", gauge.Kind))
		time.Sleep(documentLag)
		if r.isMapped(gauge) {
			t.Error("the kind is mapped before the refresh")
		}
		r.mustRefresh()
		if !r.isMapped(gauge) || r.isMapped(metric) {
			t.Error("the kinds are not those of the server")
		}
		r.api.setGroup("other.example.com", "v1", "Other") // the document changes, but not for this version
		time.Sleep(documentLag - 2*r.pollPeriod)
		if !r.isMapped(gauge) {
			t.Error("an outdated document has replaced newer resources")
		}
		time.Sleep(4 * r.pollPeriod)
		if !r.isMapped(metric) {
			t.Error("the document is still ignored")
		}
	})
}

// The resources of a server can change twice between two requests by the API server.
func TestRefresh_DocumentThatHasNotChangedReplacesTheResourcesLater(t *testing.T) {
	inMemory(t, func(r *running) {
		path := "/apis/metrics.example.com/v1"
		r.api.handle(path, serveVersion("metrics.example.com/v1", metric.Kind))
		r.api.setService("v1."+metric.Group, metricService(), "")
		r.api.setGroup(metric.Group, "v1", metric.Kind)
		r.start()
		r.waitFor(metric)
		r.api.handle(path, serveVersion("metrics.example.com/v1", gauge.Kind))
		r.mustRefresh()
		if !r.isMapped(gauge) || r.isMapped(metric) {
			t.Error("the kinds are not those of the server")
		}
		r.api.handle(path, serveVersion("metrics.example.com/v1", metric.Kind))
		time.Sleep(2 * documentLag)
		time.Sleep(2 * r.pollPeriod)
		if !r.isMapped(metric) || r.isMapped(gauge) {
			t.Error("the document is ignored")
		}
		r.expectUnmodifiedPolls()
	})
}

// expectUnmodifiedPolls waits for some polls, which must not download the document.
func (r *running) expectUnmodifiedPolls() {
	r.Helper()
	requests, unmodified := r.api.requests("/apis"), r.api.requests("/apis 304")
	time.Sleep(5 * r.pollPeriod)
	requests, unmodified = r.api.requests("/apis")-requests, r.api.requests("/apis 304")-unmodified
	if requests == 0 || unmodified != requests {
		r.Errorf("%d of %d responses were not modified", unmodified, requests)
	}
}

func TestRefresh_DocumentsWithTheSameResourcesAreNotDownloadedAgain(t *testing.T) {
	inMemory(t, func(r *running) {
		r.pollPeriod = time.Second
		r.api.handle("/apis/metrics.example.com/v1", serveVersion("metrics.example.com/v1", metric.Kind))
		r.api.setService("v1."+metric.Group, metricService(), "")
		r.api.setGroup(metric.Group, "v1", metric.Kind)
		r.start()
		r.waitFor(metric)
		r.mustRefresh()
		r.api.setGroup("other.example.com", "v1", "Other") // the document changes, but not for this version
		time.Sleep(2 * r.pollPeriod)
		r.expectUnmodifiedPolls()
	})
}

// Only a read by Refresh is known to be newer than the documents.
func TestDiscovery_OtherReadsDoNotReplaceDocuments(t *testing.T) {
	inMemory(t, func(r *running) {
		r.pollPeriod = 10 * time.Second
		r.api.handle("/apis/metrics.example.com/v1", serveVersion("metrics.example.com/v1", metric.Kind))
		r.api.setService("v1."+metric.Group, metricService(), "")
		r.api.setGroupAs(metric.Group, "v1", "", "Stale")
		r.start()
		r.waitFor(metric)
		r.api.setGroup(metric.Group, "v1", gauge.Kind)
		time.Sleep(2 * r.pollPeriod)
		if !r.isMapped(gauge) {
			t.Error("the document is ignored")
		}
	})
}

func TestRefresh_DoesNotDelayPolls(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		time.Sleep(time.Minute)
		r.api.setCRDs(func(crds *fakeType) { crds.hold = true })
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		refreshed := r.refreshing()
		synctest.Wait() // the refresh is in progress
		r.api.setGroup(gauge.Group, "v1", gauge.Kind)
		r.Reset()
		synctest.Wait()
		if len(refreshed) > 0 || !r.isMapped(gauge) {
			t.Errorf("refreshed: %d, polled: %t", len(refreshed), r.isMapped(gauge))
		}
		if err := <-refreshed; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v", err)
		}
	})
}

func TestRefresh_EndsTheDelayOfAFailedWatch(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusForbidden })
		r.start()
		r.waitFor(pod)
		time.Sleep(10 * time.Minute)
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.api.setCRDs(func(crds *fakeType) { crds.status = 0 })
		granted := time.Now()
		r.mustRefresh()
		if waited := time.Since(granted); waited > 0 || !r.isMapped(widget) {
			t.Errorf("mapped: %t after %s", r.isMapped(widget), waited)
		}
	})
}

func TestRefresh_DoesNotReportVersionsThatWereAddedLater(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.handle("/apis/metrics.example.com/v1", serveVersion("metrics.example.com/v1", metric.Kind))
		r.api.setService("v1."+metric.Group, metricService(), "")
		r.start()
		r.waitFor(metric)
		release := make(chan struct{})
		r.api.handle("/apis/metrics.example.com/v1", func(w http.ResponseWriter, req *http.Request) {
			<-release
			serveVersion("metrics.example.com/v1", metric.Kind)(w, req)
		})
		refreshed := r.refreshing()
		synctest.Wait() // the version is being read
		later := metricService()
		later["group"] = "later.example.com"
		r.api.handle("/apis/later.example.com/v1", serveNothing)
		r.api.setService("v1.later.example.com", later, "")
		synctest.Wait()
		close(release)
		if err := <-refreshed; err != nil {
			t.Error(err)
		}
	})
}

func TestRefresh_SendsRequestsAtMostOncePerSecondIfItFails(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		time.Sleep(time.Minute)
		r.api.handle("/apis", serveStatus(http.StatusServiceUnavailable))
		before, began := r.api.requests("/apis"), time.Now()
		const seconds = 30
		for time.Since(began) < seconds*time.Second {
			if err := r.Refresh(r.Context()); err == nil {
				t.Error("no error")
			}
		}
		r.api.mu.Lock()
		lists := []int{r.api.crds.metadata, r.api.services.metadata}
		r.api.mu.Unlock()
		// Some polls are retries.
		if n := r.api.requests("/apis") - before; slices.Max(lists) > seconds+2 || n > 2*seconds {
			t.Errorf("%v lists of metadata, and %d requests for the document", lists, n)
		}
	})
}

func TestRefresh_ReadsTheDocuments(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		r.api.setGroup(gauge.Group, "v1", gauge.Kind)
		time.Sleep(time.Minute)
		began := time.Now()
		r.mustRefresh()
		if waited := time.Since(began); waited > 0 || !r.isMapped(gauge) {
			t.Errorf("mapped: %t after %s", r.isMapped(gauge), waited)
		}
	})
}

// A request that is in progress when Refresh is called can return an older document.
func TestRefresh_DoesNotUseADocumentThatWasRequestedEarlier(t *testing.T) {
	inMemory(t, func(r *running) {
		release := make(chan struct{})
		r.start()
		r.waitFor(pod)
		r.api.handle("/apis", func(w http.ResponseWriter, req *http.Request) {
			r.api.handle("/apis", nil)
			r.api.serveDocument(w, req)
			<-release
		})
		r.Reset()
		time.Sleep(resetPeriod) // the request is in progress
		r.api.setGroup(gauge.Group, "v1", gauge.Kind)
		refreshed := r.refreshing()
		synctest.Wait()
		close(release)
		if err := <-refreshed; err != nil || !r.isMapped(gauge) {
			t.Errorf("got error %v, mapped: %t", err, r.isMapped(gauge))
		}
	})
}

func TestRefresh_ReturnsTheVersionsWhoseDiscoveryFails(t *testing.T) {
	inMemory(t, func(r *running) {
		path := "/apis/metrics.example.com/v1"
		r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
		r.api.setService("v1."+metric.Group, metricService(), "")
		r.start()
		r.waitFor(pod)
		time.Sleep(10 * time.Minute) // the delay between the attempts is long
		r.api.setGroup("other.example.com", "v1", "Other")
		err := r.Refresh(r.Context())
		groups, _ := discovery.GroupDiscoveryFailedErrorGroups(err)
		var status *statusError
		if len(groups) != 1 || !errors.As(groups[schema.GroupVersion{Group: metric.Group, Version: "v1"}], &status) {
			t.Errorf("got error %v", err)
		}
		if !r.isMapped(schema.GroupKind{Group: "other.example.com", Kind: "Other"}) {
			t.Error("the other versions have not been refreshed")
		}
		r.api.handle(path, serveVersion("metrics.example.com/v1", metric.Kind))
		time.Sleep(refreshPeriod)
		recovered := time.Now()
		r.mustRefresh()
		if waited := time.Since(recovered); waited > 0 || !r.isMapped(metric) {
			t.Errorf("mapped: %t after %s", r.isMapped(metric), waited)
		}
	})
}

func TestRefresh_ReturnsTheErrorFromTheDocuments(t *testing.T) {
	for _, path := range []string{"/api", "/apis"} {
		t.Run(path, func(t *testing.T) {
			inMemory(t, func(r *running) {
				r.start()
				r.waitFor(pod)
				r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
				var status *statusError
				if err := r.Refresh(r.Context()); !errors.As(err, &status) || status.path != path {
					t.Errorf("got error %v", err)
				}
				r.api.handle(path, nil)
				r.mustRefresh()
			})
		})
	}
}

func TestRefresh_ReturnsAnErrorIfAWatchDeliversNothing(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		r.api.setCRDs(func(crds *fakeType) { crds.hold = true })
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.api.setGroup(gauge.Group, "v1", gauge.Kind)
		err := r.Refresh(r.Context())
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "customresourcedefinitions") {
			t.Errorf("got error %v", err)
		}
		if !r.isMapped(gauge) {
			t.Error("the document has not been read")
		}
	})
}

func TestRefresh_NeedsNoPermissionToListCRDsAndAPIServices(t *testing.T) {
	inMemory(t, func(r *running) {
		refuse := func(of *fakeType) { of.status = http.StatusForbidden }
		r.api.setCRDs(refuse)
		r.api.setServices(refuse)
		r.start()
		r.waitFor(pod)
		r.api.setGroup(widget.Group, "v1", widget.Kind)
		r.mustRefresh()
		if !r.isMapped(widget) {
			t.Error("the document has not been read")
		}
	})
}

// While the watch of CRDs continues, the mapper does not know that it lacks a permission.
func TestRefresh_ReportsAPermissionThatWasRevokedDuringAWatch(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusForbidden })
		if err := r.Refresh(r.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("got error %v, want a Forbidden error", err)
		}
	})
}

// If a watch does not deliver its changes, the error must not suggest that only the failing versions are outdated.
func TestRefresh_FailedWatchIsNotAPartialFailure(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setService("v1."+metric.Group, metricService(), "")
		r.start()
		r.waitFor(pod)
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusServiceUnavailable })
		err := r.Refresh(r.Context())
		if _, isPartial := discovery.GroupDiscoveryFailedErrorGroups(err); err == nil || isPartial {
			t.Errorf("got error %v, which is partial: %t", err, isPartial)
		}
		if !strings.Contains(err.Error(), metric.Group) {
			t.Errorf("the error does not name the failing version: %v", err)
		}
	})
}

func TestRefresh_WaitsForTheFirstSync(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRDs(func(crds *fakeType) { crds.status = http.StatusServiceUnavailable })
		refreshed := r.refreshing()
		r.start()
		time.Sleep(time.Minute)
		if len(refreshed) > 0 {
			t.Error("Refresh has returned before the first sync:", <-refreshed)
		}
		r.api.setCRDs(func(crds *fakeType) { crds.status = 0 })
		if err := <-refreshed; err != nil || !r.HasSynced() {
			t.Errorf("got error %v, synced: %t", err, r.HasSynced())
		}
	})
}

func TestRefresh_ReturnsCancellationCause(t *testing.T) {
	inMemory(t, func(r *running) {
		ctx, cancel := context.WithCancelCause(r.Context())
		cause := errors.New("shutting down")
		cancel(cause)
		if err := r.Refresh(ctx); !errors.Is(err, cause) {
			t.Errorf("got error %v", err)
		}
	})
}

func TestRefresh_IsCompletedByTheNextRun(t *testing.T) {
	for name, interrupt := range map[string]func(r *running) (restore func()){
		"while the documents are read": func(r *running) func() {
			r.api.handle("/apis", serveNothing)
			return func() { r.api.handle("/apis", nil) }
		},
		"while the watches catch up": func(r *running) func() {
			r.api.setCRDs(func(crds *fakeType) { crds.hold = true })
			r.api.setCRD(widget.Group, widget.Kind, "v1")
			return func() { r.api.setCRDs(func(crds *fakeType) { crds.hold = false }) }
		},
		"while a version is read": func(r *running) func() {
			r.api.handle("/apis/metrics.example.com/v1", serveNothing)
			return func() { r.api.handle("/apis/metrics.example.com/v1", serveVersion("metrics.example.com/v1", "Metric")) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(r *running) {
				r.api.handle("/apis/metrics.example.com/v1", serveVersion("metrics.example.com/v1", metric.Kind))
				r.api.setService("v1."+metric.Group, metricService(), "")
				r.start()
				r.waitFor(metric)
				restore := interrupt(r)
				refreshed := r.refreshing()
				time.Sleep(5 * time.Second)
				r.stop()
				time.Sleep(time.Minute)
				if len(refreshed) > 0 {
					t.Error("Refresh has returned without a run:", <-refreshed)
				}
				restore()
				r.start()
				if err := <-refreshed; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestRefresh_ConcurrentCallsShareRequests(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		time.Sleep(time.Minute)
		before, began := r.api.requests("/apis"), time.Now()
		const callers, rounds = 50, 10
		var calling sync.WaitGroup
		for range callers {
			calling.Go(func() {
				for range rounds {
					r.mustRefresh()
				}
			})
		}
		calling.Wait()
		if n := r.api.requests("/apis") - before; n < rounds || n > rounds+1 {
			t.Errorf("%d requests for the document, want %d or %d", n, rounds, rounds+1)
		}
		if waited := time.Since(began); waited < (rounds-1)*refreshPeriod || waited > (rounds+1)*refreshPeriod {
			t.Errorf("%d rounds took %s", rounds, waited)
		}
		r.api.mu.Lock()
		defer r.api.mu.Unlock()
		if n := []int{r.api.crds.metadata, r.api.services.metadata}; slices.Max(n) > rounds+1 {
			t.Errorf("%v lists of metadata", n)
		}
	})
}
