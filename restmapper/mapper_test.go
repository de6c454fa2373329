package restmapper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

func TestLookups_ReturnErrNotSyncedBeforeTheFirstSync(t *testing.T) {
	api := newFakeAPI()
	defer api.close()
	m, err := New(logr.Discard(), api.config())
	if err != nil {
		t.Fatal(err)
	}
	check := func(method string, err error) {
		t.Helper()
		if !errors.Is(err, ErrNotSynced) || meta.IsNoMatchError(err) {
			t.Errorf("%s: got error %v", method, err)
		}
	}
	_, err = m.KindFor(schema.GroupVersionResource{Resource: "pods"})
	check("KindFor", err)
	_, err = m.KindsFor(schema.GroupVersionResource{Resource: "pods"})
	check("KindsFor", err)
	_, err = m.ResourceFor(schema.GroupVersionResource{Resource: "pods"})
	check("ResourceFor", err)
	_, err = m.ResourcesFor(schema.GroupVersionResource{Resource: "pods"})
	check("ResourcesFor", err)
	_, err = m.RESTMapping(pod)
	check("RESTMapping", err)
	_, err = m.RESTMappings(pod)
	check("RESTMappings", err)
	_, err = m.ResourceSingularizer("pods")
	check("ResourceSingularizer", err)
	if all, ok := m.Expand("all"); ok || all != nil {
		t.Errorf("Expand: %v", all)
	}
	if m.HasSynced() || len(api.served) > 0 {
		t.Error("New has sent a request")
	}
}

func TestM4_WaitForMapping_ReturnsCancellationCause(t *testing.T) {
	m, err := New(logr.Discard(), &rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("shutting down")
	cancel(cause)
	_, err = m.WaitForMapping(ctx, widget, "v1", "v2")
	if !errors.Is(err, cause) || !errors.Is(err, ErrNotSynced) || meta.IsNoMatchError(err) {
		t.Errorf("got error %v", err)
	}
	if err != nil && !strings.Contains(err.Error(), "Widget.example.com in version v1 or v2") {
		t.Errorf("the error does not contain the kind: %v", err)
	}
	if len(m.waiters) > 0 {
		t.Error("the waiter has not been removed")
	}
}

func TestWithPollPeriod_RejectsShortPeriods(t *testing.T) {
	for period, isValid := range map[time.Duration]bool{
		-time.Second: false, 0: false, time.Nanosecond: false, time.Second - 1: false, time.Second: true, time.Hour: true,
	} {
		if _, err := New(logr.Discard(), &rest.Config{}, WithPollPeriod(period)); (err == nil) != isValid {
			t.Errorf("%s: got error %v", period, err)
		}
	}
}

func TestWithPollPeriod_AcceptsTheLongestDuration(t *testing.T) {
	m, err := New(logr.Discard(), &rest.Config{}, WithPollPeriod(math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if period := m.nextPeriod(); period < 24*time.Hour {
			t.Fatalf("the next poll is due after %s", period)
		}
	}
}

func TestRun_RunsOnceAtATimeAndCanBeRepeated(t *testing.T) {
	r := run(t)
	r.waitFor(pod)
	if err := r.Mapper.Run(t.Context()); err == nil {
		t.Error("Run returned no error while it was running")
	}
	r.stop()
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	if !r.HasSynced() || !r.hasNot(widget)() {
		t.Error("lookups do not return the last known results")
	}
	r.start()
	r.waitFor(widget)
	r.stop()
	r.api.deleteCRD(widget.Group, widget.Kind)
	r.start()
	r.eventually("a CRD that was deleted between two runs is removed", r.hasNot(widget))
}

func TestM2_CRDsNeedNoDiscovery(t *testing.T) {
	r := run(t)
	r.waitFor(pod)
	before := r.api.requests("/api") + r.api.requests("/apis")
	for range 20 {
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.waitFor(widget)
		r.api.setCRD(widget.Group, widget.Kind, "v2")
		r.waitFor(widget, "v2")
		if !r.hasNot(widget, "v1")() {
			t.Error("a version that is no longer served is mapped")
		}
		r.api.deleteCRD(widget.Group, widget.Kind)
		r.eventually("the kind is not mapped", r.hasNot(widget))
	}
	if n := r.api.requests("/api") + r.api.requests("/apis") - before; n > 0 {
		t.Errorf("%d discovery requests", n)
	}
	if n := r.api.requests("/apis/" + widget.Group + "/v1"); n > 0 {
		t.Errorf("%d requests for the version", n)
	}
}

func TestM2_APIServiceVersionIsReadSeparately(t *testing.T) {
	r := run(t)
	r.waitFor(pod)
	path := "/apis/metrics.example.com/v1"
	r.api.handle(path, serveVersion("metrics.example.com/v1", "Metric"))
	spec := map[string]any{
		"group": metric.Group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
		"service": map[string]any{"name": "m", "namespace": "n"},
	}
	r.api.setService("v1."+metric.Group, spec, "")
	r.waitFor(metric)

	r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
	spec["versionPriority"] = 11
	r.api.setService("v1."+metric.Group, spec, "")
	r.eventually("the failure is reported", r.fails(SourceDiscovery, metric.Group))
	attempts := r.api.requests(path)
	r.eventually("the request is repeated", func() bool { return r.api.requests(path) > attempts+1 })
	r.waitFor(metric) // the last known result is still returned
	if errs := r.Errors(); len(errs) != 1 {
		t.Errorf("got errors %v, want one", errs)
	}
	if n := r.api.requests("/apis/apps/v1"); n > 0 {
		t.Errorf("%d requests for another group", n)
	}
	if n := r.logs.count("Discovery failed", metric.Group); n != 1 {
		t.Errorf("the failure has been logged %d times, want once", n)
	}
	gauge := schema.GroupKind{Group: metric.Group, Kind: "Gauge"}
	r.api.handle(path, serveVersion("metrics.example.com/v1", "Gauge"))
	r.waitFor(gauge)
	r.eventually("the failure is no longer reported", r.hasNoErrors)

	r.api.deleteService("v1." + metric.Group)
	r.eventually("the group is not mapped", r.hasNot(gauge))
}

// Some aggregated API servers omit the kind of the APIResourceList.
func TestM2_VersionResponseCanOmitItsKind(t *testing.T) {
	for kind, accepted := range map[string]bool{"": true, "APIResourceList": true, "Status": false, "APIGroup": false} {
		t.Run("kind="+kind, func(t *testing.T) {
			inMemory(t, func(r *running) {
				r.api.serveLegacy(metric.Group)
				r.api.handle("/apis/"+metric.Group+"/v1", serveJSON(metav1.APIResourceList{
					TypeMeta: metav1.TypeMeta{Kind: kind}, APIResources: []metav1.APIResource{
						{Name: "metrics", SingularName: "metric", Kind: metric.Kind},
					},
				}))
				r.start()
				if accepted {
					r.waitFor(metric)
				} else {
					r.eventually("the failure is reported", r.fails(SourceDiscovery, metric.Group))
				}
				if _, err := r.RESTMapping(metric); (err == nil) != accepted || accepted && len(r.Errors()) > 0 {
					t.Errorf("got %v for the mapping, and errors %v", err, r.Errors())
				}
			})
		})
	}
}

func TestM2_StaleVersionKeepsItsLastResult(t *testing.T) {
	r := run(t, pollEvery(time.Millisecond))
	r.waitFor(deployment)
	r.api.setGroupAs("apps", "v1", "", "Stale")
	r.eventually("the failure is reported", r.fails(SourceDiscovery, "apps"))
	r.waitFor(deployment)
	r.api.setGroup("apps", "v1", "StatefulSet")
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "StatefulSet"})
	r.eventually("the failure is no longer reported", r.hasNoErrors)
}

func TestM2_PollIsConditional(t *testing.T) {
	r := run(t, pollEvery(time.Millisecond))
	r.waitFor(pod)
	r.eventually("three polls", func() bool { return r.api.requests("/apis 304") > 2 })
	if full := r.api.requests("/apis") - r.api.requests("/apis 304"); full != 1 {
		t.Errorf("the document was sent %d times", full)
	}
}

func TestReset_ReadsTheDocumentsAtMostOncePerPeriod(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		before, began := r.api.requests("/apis"), time.Now()
		for time.Since(began) < 10*resetPeriod {
			meta.MaybeResetRESTMapper(r.Mapper)
			time.Sleep(100 * time.Millisecond)
		}
		if n := r.api.requests("/apis") - before; n < 9 || n > 10 {
			t.Errorf("%d requests within ten periods", n)
		}
	})
}

func TestM1_LookupsAllocateOnlyTheirResults(t *testing.T) {
	w := newCatalog()
	for i := range 50 {
		group := fmt.Sprintf("g%d.example.com", i)
		c := &crd{group: group, established: true, versions: []string{"v1", "v2"}, resource: &resource{
			name: "widgets", singular: "widget", kind: "Widget", shortNames: []string{"w"}, categories: []string{"all"},
		}}
		w.setCRD("widgets."+group, c, touchedGroups{})
	}
	var m Mapper
	m.now.Store(snapshotOf(w))
	gk, versions := schema.GroupKind{Group: "g7.example.com", Kind: "Widget"}, []string{"v2"}
	full := schema.GroupVersionResource{Group: "g7.example.com", Version: "v1", Resource: "widgets"}
	plural, short := schema.GroupVersionResource{Resource: "widgets"}, schema.GroupVersionResource{Resource: "w"}
	for _, c := range []struct {
		name string
		most float64
		call func() error
	}{
		{"KindFor with a full resource", 0, func() error { _, err := m.KindFor(full); return err }},
		{"KindFor with a plural", 0, func() error { _, err := m.KindFor(plural); return err }},
		{"ResourceFor with a short name", 0, func() error { _, err := m.ResourceFor(short); return err }},
		{"KindsFor with a plural", 1, func() error { _, err := m.KindsFor(plural); return err }},
		{"ResourcesFor with a plural", 1, func() error { _, err := m.ResourcesFor(plural); return err }},
		{"RESTMapping", 1, func() error { _, err := m.RESTMapping(gk); return err }},
		{"RESTMapping with a version", 1, func() error { _, err := m.RESTMapping(gk, versions...); return err }},
		{"ResourceSingularizer", 0, func() error { _, err := m.ResourceSingularizer("widgets"); return err }},
	} {
		var err error
		if n := testing.AllocsPerRun(100, func() { err = errors.Join(err, c.call()) }); n > c.most || err != nil {
			t.Errorf("%s: %v allocations, error %v", c.name, n, err)
		}
	}
}

func TestM1_LookupsWithoutMatchAllocateOnlyTheError(t *testing.T) {
	w := newCatalog()
	w.setCRD("widgets.example.com", &crd{
		group: widget.Group, established: true, versions: []string{"v1"},
		resource: &resource{name: "widgets", singular: "widget", kind: "Widget"},
	}, touchedGroups{})
	var m Mapper
	m.now.Store(snapshotOf(w))
	unknown := schema.GroupVersionResource{Group: widget.Group, Version: "v1", Resource: "unknowns"}
	gk := schema.GroupKind{Group: widget.Group, Kind: "Unknown"}
	for name, call := range map[string]func() error{
		"KindFor":     func() error { _, err := m.KindFor(unknown); return err },
		"Verbs":       func() error { _, err := m.Verbs(unknown); return err },
		"RESTMapping": func() error { _, err := m.RESTMapping(gk); return err },
	} {
		var err error
		if n := testing.AllocsPerRun(100, func() { err = call() }); n > 1 || !meta.IsNoMatchError(err) {
			t.Errorf("%s: %v allocations, error %v", name, n, err)
		}
	}
}

// Lookups run concurrently with changes to CRDs. No lookup may return a version older than one that was seen before the
// lookup began.
func TestM1_LookupsDuringChangesOfCRDs(t *testing.T) {
	const readers = 8
	lookups, minChanges := 1_000_000, int64(40)
	if raceEnabled {
		lookups = 100_000
	}
	if testing.Short() {
		lookups, minChanges = 10_000, 5
	}
	r := run(t)
	r.waitFor(pod)
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.waitFor(widget)
	var seen atomic.Int64
	seen.Store(1)
	stop := make(chan struct{})
	var changing, reading sync.WaitGroup
	changing.Go(func() {
		other := schema.GroupKind{Group: "other.example.com", Kind: "Thing"}
		for i := int64(2); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			version := fmt.Sprintf("v%d", i)
			r.api.setCRD(widget.Group, widget.Kind, version)
			r.waitFor(widget, version)
			seen.Store(i)
			r.api.setCRD(other.Group, other.Kind, "v1")
			r.waitFor(other)
			r.api.deleteCRD(other.Group, other.Kind)
			r.eventually("the kind is not mapped", r.hasNot(other))
		}
	})
	for range readers {
		reading.Go(func() {
			for i := 0; i < lookups/readers/2 || seen.Load() < minChanges; i++ {
				if _, err := r.RESTMapping(pod); err != nil {
					t.Error(err)
					return
				}
				oldest := seen.Load()
				kind, err := r.KindFor(schema.GroupVersionResource{Resource: "widgets"})
				if err != nil {
					t.Error(err)
					return
				}
				if version, _ := strconv.ParseInt(kind.Version[1:], 10, 64); version < oldest {
					t.Errorf("got version %s after v%d had been seen", kind.Version, oldest)
					return
				}
			}
		})
	}
	reading.Wait()
	close(stop)
	changing.Wait()
	t.Logf("at least %d lookups during %d changes", lookups, 3*seen.Load())
}

func TestCRDWatcher_KeepsFieldsNeededByMapper(t *testing.T) {
	r := run(t)
	r.api.setCRD(widget.Group, widget.Kind, "v2", "v1")
	r.waitFor(widget)
	r.mu.Lock()
	got := r.catalog.crds[widget.Group]["widgets.example.com"]
	r.mu.Unlock()
	want := &crd{
		name: "widgets.example.com", group: widget.Group, established: true, versions: []string{"v2", "v1"},
		resource: &resource{
			name: "widgets", singular: "widget", kind: "Widget", namespaced: true, shortNames: []string{"Wx"},
			verbs: crdVerbs,
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(crd{}, resource{})); diff != "" {
		t.Error(diff)
	}
}
