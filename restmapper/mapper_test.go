package restmapper

import (
	"context"
	"errors"
	"fmt"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// running is a mapper that runs until the test ends or stop is called.
type running struct {
	*testing.T
	*Mapper
	api  *fakeAPI
	stop func()
}

func run(t *testing.T, opts ...Option) *running {
	t.Helper()
	r := newRunning(t, opts...)
	r.start()
	return r
}

// newRunning returns a mapper that does not run yet.
func newRunning(t *testing.T, opts ...Option) *running {
	t.Helper()
	api := newFakeAPI()
	t.Cleanup(api.close)
	m, err := New(logr.Discard(), api.config(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return &running{T: t, Mapper: m, api: api}
}

// pollSoon is for tests that wait for polls.
const pollSoon = 10 * time.Millisecond

func (r *running) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Mapper.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Error(err)
		}
	})
	r.Cleanup(r.stop)
}

func (r *running) waitFor(gk schema.GroupKind, versions ...string) *meta.RESTMapping {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), testDeadline)
	defer cancel()
	mapping, err := r.WaitForMapping(ctx, gk, versions...)
	if err != nil {
		r.Fatalf("%v; failing: %v", err, r.Errors())
	}
	return mapping
}

func (r *running) eventually(what string, done func() bool) {
	r.Helper()
	over := time.After(testDeadline)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-over:
			r.Fatalf("not within %s: %s; failing: %v", testDeadline, what, r.Errors())
		}
	}
}

func (r *running) hasNot(gk schema.GroupKind, versions ...string) func() bool {
	return func() bool {
		_, err := r.RESTMapping(gk, versions...)
		return meta.IsNoMatchError(err)
	}
}

var (
	pod    = schema.GroupKind{Kind: "Pod"}
	widget = schema.GroupKind{Group: "example.com", Kind: "Widget"}
	metric = schema.GroupKind{Group: "metrics.example.com", Kind: "Metric"}
)

func TestLookupsSayThatTheyDoNotKnowYet(t *testing.T) {
	api := newFakeAPI()
	defer api.close()
	m, err := New(logr.Discard(), api.config())
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrNotSynced) || meta.IsNoMatchError(err) {
			t.Errorf("%s: %v", what, err)
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
		t.Error("New connected to something")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("the caller has gone")
	cancel(because)
	_, err = m.WaitForMapping(ctx, widget, "v1", "v2")
	check("WaitForMapping", err)
	if !errors.Is(err, because) || !strings.Contains(err.Error(), "Widget.example.com in version v1 or v2") {
		t.Errorf("WaitForMapping does not say what it waited for and why not longer: %v", err)
	}
	if len(m.waiters) > 0 {
		t.Error("the waiter is still there")
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	if _, err := New(logr.Discard(), &rest.Config{}, WithPollPeriod(0)); err == nil {
		t.Error("a poll period of 0")
	}
}

func TestRunRunsOnceAtATimeAndAgain(t *testing.T) {
	r := run(t)
	r.waitFor(pod)
	if err := r.Mapper.Run(t.Context()); err == nil {
		t.Error("Run ran twice at once")
	}
	r.stop()
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	if !r.HasSynced() || !r.hasNot(widget)() {
		t.Error("the last answers did not stay")
	}
	r.start()
	r.waitFor(widget)
	r.stop()
	r.api.deleteCRD(widget.Group, widget.Kind)
	r.start()
	r.eventually("what went between two runs is gone", r.hasNot(widget))
}

func TestM2_CRDsCostNoDiscovery(t *testing.T) {
	r := run(t)
	r.waitFor(pod)
	before := r.api.requests("/api") + r.api.requests("/apis")
	for range 20 {
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.waitFor(widget)
		r.api.setCRD(widget.Group, widget.Kind, "v2")
		r.waitFor(widget, "v2")
		if !r.hasNot(widget, "v1")() {
			t.Error("the version that was dropped is still answered")
		}
		r.api.deleteCRD(widget.Group, widget.Kind)
		r.eventually("it is gone", r.hasNot(widget))
	}
	if n := r.api.requests("/api") + r.api.requests("/apis") - before; n > 0 {
		t.Errorf("%d discovery requests", n)
	}
	if n := r.api.requests("/apis/" + widget.Group + "/v1"); n > 0 {
		t.Errorf("%d requests for the group alone", n)
	}
}

// The document trails behind the CRDs: it must not bring back what has gone.
func TestM2_AStaleDocumentBringsNothingBack(t *testing.T) {
	r := run(t, WithPollPeriod(time.Millisecond))
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.waitFor(widget)
	r.api.setGroup(widget.Group, "v1", widget.Kind)
	polls := r.api.requests("/apis")
	r.eventually("the document is read", func() bool { return r.api.requests("/apis") > polls+3 })
	r.api.deleteCRD(widget.Group, widget.Kind)
	r.eventually("it is gone", r.hasNot(widget))
	r.api.setGroup("other.example.com", "v1", "Other") // a new document
	r.waitFor(schema.GroupKind{Group: "other.example.com", Kind: "Other"})
	if !r.hasNot(widget)() {
		t.Error("the document brought the kind back")
	}
}

func TestM2_AnAPIServiceHasItsVersionReadAlone(t *testing.T) {
	r := run(t)
	r.waitFor(pod)
	path := "/apis/metrics.example.com/v1"
	r.api.setAlone(path, serveVersion("metrics.example.com/v1", "Metric"))
	spec := map[string]any{"group": metric.Group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10, "service": map[string]any{"name": "m", "namespace": "n"}}
	r.api.setService("v1."+metric.Group, spec, "")
	r.waitFor(metric)

	// A group that fails keeps its answer, is reported, and tried again alone.
	r.api.setAlone(path, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no backend", http.StatusServiceUnavailable)
	})
	spec["versionPriority"] = 11
	r.api.setService("v1."+metric.Group, spec, "")
	r.eventually("the failure is reported", func() bool { return r.Errors()[metric.Group] != nil })
	tries := r.api.requests(path)
	r.eventually("it is tried again", func() bool { return r.api.requests(path) > tries+1 })
	r.waitFor(metric)
	if len(r.Errors()) != 1 {
		t.Errorf("others fail too: %v", r.Errors())
	}
	if n := r.api.requests("/apis/apps/v1"); n > 0 {
		t.Errorf("%d requests for another group", n)
	}
	r.api.setAlone(path, serveVersion("metrics.example.com/v1", "Gauge"))
	r.waitFor(schema.GroupKind{Group: metric.Group, Kind: "Gauge"})
	r.eventually("the failure is over", func() bool { return len(r.Errors()) == 0 })

	r.api.deleteService("v1." + metric.Group)
	r.eventually("the group is gone", r.hasNot(schema.GroupKind{Group: metric.Group, Kind: "Gauge"}))
}

func TestM2_AStaleVersionKeepsItsLastAnswer(t *testing.T) {
	r := run(t, WithPollPeriod(time.Millisecond))
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	r.api.setGroupAs("apps", "v1", "", "Stale")
	r.eventually("it is reported", func() bool { return r.Errors()["apps"] != nil })
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	r.api.setGroup("apps", "v1", "StatefulSet")
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "StatefulSet"})
	r.eventually("it is not reported any more", func() bool { return r.Errors()["apps"] == nil })
}

func TestM2_ThePollAsksOnlyWhetherTheDocumentHasChanged(t *testing.T) {
	r := run(t, WithPollPeriod(time.Millisecond))
	r.waitFor(pod)
	r.eventually("three polls", func() bool { return r.api.requests("/apis 304") > 2 })
	if full := r.api.requests("/apis") - r.api.requests("/apis 304"); full != 1 {
		t.Errorf("the document was sent %d times", full)
	}
}

func TestM2_ItGoesWithoutAPIServices(t *testing.T) {
	r := newRunning(t)
	r.api.services.broken = http.StatusForbidden
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.start()
	r.waitFor(pod)
	r.waitFor(widget)
	if r.Errors()[serviceGroup] == nil {
		t.Error("it does not tell")
	}
}

func TestM2_WithoutCRDsItDoesNotSync(t *testing.T) {
	r := newRunning(t)
	r.api.crds.broken = http.StatusForbidden
	r.start()
	r.eventually("it says why", func() bool { return r.Errors()[crdGroup] != nil })
	if r.HasSynced() {
		t.Error("it has synced")
	}
	r.api.mu.Lock()
	r.api.crds.broken = 0
	r.api.mu.Unlock()
	r.waitFor(pod)
}

func TestResetReadsTheDocumentOnceInAWhile(t *testing.T) {
	r := run(t)
	r.waitFor(pod)
	before := r.api.requests("/apis")
	for range 100 {
		meta.MaybeResetRESTMapper(r.Mapper)
	}
	r.waitFor(pod)
	if n := r.api.requests("/apis") - before; n > 0 {
		t.Errorf("%d requests at once", n)
	}
}

func TestLookupsAllocateWhatTheyReturn(t *testing.T) {
	w := newWorld()
	for i := range 50 {
		name, c := fmt.Sprintf("widgets.g%d.example.com", i), &crd{group: fmt.Sprintf("g%d.example.com", i), established: true, versions: []string{"v1", "v2"}}
		c.resource = &resource{name: "widgets", singular: "widget", kind: "Widget", shortNames: []string{"w"}, categories: []string{"all"}}
		w.setCRD(name, c, touchedGroups{})
	}
	var m Mapper
	m.now.Store(snapshotOf(w))
	gk, versions := schema.GroupKind{Group: "g7.example.com", Kind: "Widget"}, []string{"v2"}
	full := schema.GroupVersionResource{Group: "g7.example.com", Version: "v1", Resource: "widgets"}
	for _, c := range []struct {
		name string
		most float64
		call func() error
	}{
		{"a kind of a resource", 0, func() error { _, err := m.KindFor(full); return err }},
		{"a kind of a name alone", 0, func() error { _, err := m.KindFor(schema.GroupVersionResource{Resource: "widgets"}); return err }},
		{"a resource by its short name", 0, func() error { _, err := m.ResourceFor(schema.GroupVersionResource{Resource: "w"}); return err }},
		{"all kinds of a name", 1, func() error { _, err := m.KindsFor(schema.GroupVersionResource{Resource: "widgets"}); return err }},
		{"all resources of a name", 1, func() error { _, err := m.ResourcesFor(schema.GroupVersionResource{Resource: "widgets"}); return err }},
		{"a mapping", 1, func() error { _, err := m.RESTMapping(gk); return err }},
		{"a mapping in a version", 1, func() error { _, err := m.RESTMapping(gk, versions...); return err }},
		{"a singular", 0, func() error { _, err := m.ResourceSingularizer("widgets"); return err }},
	} {
		var err error
		if n := testing.AllocsPerRun(100, func() { err = errors.Join(err, c.call()) }); n > c.most || err != nil {
			t.Errorf("M1: %s: %v allocations, error %v", c.name, n, err)
		}
	}
}

// Lookups from many goroutines while CRDs come and go: none answers less than what was seen before it began.
func TestM1_LookupsWhileCRDsChurn(t *testing.T) {
	const readers, leastChanges = 8, 40
	lookups := 1_000_000
	if raceEnabled || testing.Short() {
		lookups = 100_000
	}
	r := run(t)
	r.waitFor(pod)
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.waitFor(widget)
	var seen atomic.Int64
	seen.Store(1)
	stop := make(chan struct{})
	var churn, readersDone sync.WaitGroup
	churn.Go(func() {
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
			r.eventually("it is gone", r.hasNot(other))
		}
	})
	for range readers {
		readersDone.Go(func() {
			for i := 0; i < lookups/readers/2 || seen.Load() < leastChanges; i++ {
				if _, err := r.RESTMapping(pod); err != nil {
					t.Error(err)
					return
				}
				least := seen.Load()
				kind, err := r.KindFor(schema.GroupVersionResource{Resource: "widgets"})
				if err != nil {
					t.Error(err)
					return
				}
				if version, _ := strconv.ParseInt(kind.Version[1:], 10, 64); version < least {
					t.Errorf("a stale answer: %s after v%d was seen", kind.Version, least)
					return
				}
			}
		})
	}
	readersDone.Wait()
	close(stop)
	churn.Wait()
	t.Logf("at least %d lookups during %d changes", lookups, 3*seen.Load())
}

func TestM4_SubscribersHearOfChangesInOrder(t *testing.T) {
	r := run(t)
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.waitFor(widget)
	heard := make(chan string, 100)
	cancel := r.Subscribe(func(c Change) {
		if c.Kind.Group != widget.Group {
			return
		}
		mapping, err := r.RESTMapping(c.Kind)
		if c.Type != Removed && (err != nil || mapping.Resource.Version != c.New[0].Resource.Version) {
			t.Errorf("told of %v, lookups answer %v, %v", c.New[0], mapping, err)
		}
		heard <- fmt.Sprintf("%s %s %s -> %s", c.Type, c.Kind.Kind, versionsOf(c.Old), versionsOf(c.New))
	})
	defer cancel()
	hear := func(want string) {
		t.Helper()
		select {
		case got := <-heard:
			if got != want {
				t.Errorf("heard %q, not %q", got, want)
			}
		case <-time.After(testDeadline):
			t.Fatalf("not heard: %s", want)
		}
	}
	hear("Added Widget [] -> [v1]")
	r.api.setCRD(widget.Group, widget.Kind, "v1", "v2")
	hear("Changed Widget [v1] -> [v2 v1]")
	r.api.setCRD(widget.Group, "Gadget", "v1")
	hear("Added Gadget [] -> [v1]")
	r.api.deleteCRD(widget.Group, widget.Kind)
	hear("Removed Widget [v2 v1] -> []")
	cancel()
	r.api.deleteCRD(widget.Group, "Gadget")
	r.eventually("it is gone", r.hasNot(schema.GroupKind{Group: widget.Group, Kind: "Gadget"}))
	r.stop()
	if len(heard) > 0 {
		t.Error("a call after cancel:", <-heard)
	}
}

func versionsOf(mappings []*meta.RESTMapping) []string {
	versions := []string{}
	for _, m := range mappings {
		versions = append(versions, m.Resource.Version)
	}
	return versions
}

func TestASmallDecodeKeepsWhatMappingNeeds(t *testing.T) {
	r := run(t)
	r.api.setCRD(widget.Group, widget.Kind, "v2", "v1")
	r.waitFor(widget)
	r.mu.Lock()
	got := r.world.crds[widget.Group]["widgets.example.com"]
	r.mu.Unlock()
	want := &crd{
		name: "widgets.example.com", group: widget.Group, established: true, versions: []string{"v2", "v1"},
		resource: &resource{name: "widgets", singular: "widget", kind: "Widget", namespaced: true, shortNames: []string{"Wx"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(crd{}, resource{})); diff != "" {
		t.Error(diff)
	}
}
