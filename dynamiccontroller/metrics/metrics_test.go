package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	gadgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}
)

// series counts the series of each metric.
func series(t *testing.T, from ...prometheus.Collector) map[string]int {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	for _, c := range from {
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, f := range families {
		n[f.GetName()] = len(f.GetMetric())
	}
	return n
}

// Forget removes the series of a stopped type and keeps those of other types.
func TestS1_ForgetRemovesSeriesOfStoppedType(t *testing.T) {
	r := metrics.NewReconciles()
	for _, gvr := range []schema.GroupVersionResource{widgets, gadgets} {
		r.Reconciled(dynamiccontroller.Reconcile{GVR: gvr, Outcome: dynamiccontroller.OutcomeSuccess, Took: time.Millisecond})
		r.Reconciled(dynamiccontroller.Reconcile{GVR: gvr, Outcome: dynamiccontroller.OutcomePanic, Took: time.Hour})
		r.WriteLagged(gvr)
	}
	want := map[string]int{
		"dynamiccontroller_reconciles_total":           4, // each outcome has its own series
		"dynamiccontroller_reconcile_duration_seconds": 2,
		"dynamiccontroller_queue_duration_seconds":     2,
		"dynamiccontroller_sync_duration_seconds":      1, // of all types
		"dynamiccontroller_write_lags_total":           2,
	}
	if diff := cmp.Diff(want, series(t, r)); diff != "" {
		t.Errorf("series before Forget: %s", diff)
	}
	r.Forget(widgets)
	for name := range want {
		want[name] = (want[name] + 1) / 2
	}
	if diff := cmp.Diff(want, series(t, r)); diff != "" {
		t.Errorf("series after Forget: %s", diff)
	}
}

// fixedStatus is a Controller with a constant status.
type fixedStatus []dynamiccontroller.TypeStatus

func (f fixedStatus) Status() []dynamiccontroller.TypeStatus { return f }

func TestNewStatus_HasSeriesForEachType(t *testing.T) {
	synced := dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeSynced, Objects: 3, Bytes: 4096}
	n := series(t, metrics.NewStatus(fixedStatus{
		{GVR: widgets, WatchStatus: synced, Live: 1},
		{GVR: gadgets, WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeForbidden}},
	}))
	if len(n) != 12 || n["dynamiccontroller_queue_items"] != 8 || n["dynamiccontroller_type_state"] != 2 {
		t.Errorf("got the series counts %v, want 12 metrics with 8 series for queue_items and 2 for type_state", n)
	}
}

// wantText fails the test unless the collectors export exactly the given lines. Help and type lines are ignored.
func wantText(t *testing.T, want string, from ...prometheus.Collector) {
	t.Helper()
	wantLines(t, "", want, from...)
}

// wantCauses does the same for the counters of causes.
func wantCauses(t *testing.T, want string, from ...prometheus.Collector) {
	t.Helper()
	wantLines(t, "dynamiccontroller_reconcile_causes_total", want, from...)
}

// wantLines does the same for all lines with the prefix.
func wantLines(t *testing.T, prefix, want string, from ...prometheus.Collector) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(from...)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	var got strings.Builder
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") && strings.HasPrefix(line, prefix) {
			got.WriteString(line)
		}
	}
	if diff := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got.String())); diff != "" {
		t.Error(diff)
	}
}

// types contains the status of two types. The first one has watches for children.
var types = fixedStatus{
	{
		GVR: widgets,
		WatchStatus: dynamiccontroller.WatchStatus{
			State: dynamiccontroller.TypeSynced, Objects: 3, Bytes: 96, Unusable: 7,
		},
		Live: 1, Background: 2, Delayed: 3, Settling: 4, Oldest: time.Second, Running: 4, Failing: 5, Parked: 6,
		Secondaries: []dynamiccontroller.SecondaryStatus{
			{WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeSynced, Objects: 10, Bytes: 100}},
			{WatchStatus: dynamiccontroller.WatchStatus{
				State: dynamiccontroller.TypeSynced, Objects: 20, Bytes: 200, Unusable: 8,
			}},
			{WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeForbidden}},
		},
	},
	{
		GVR: gadgets, WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeSynced, Objects: 1, Bytes: 4},
		Live: 10, Settling: 1, Oldest: time.Minute, Running: 1,
	},
}

func TestNewStatus_ExportsNumbersOfType(t *testing.T) {
	const labels = `group="example.com",resource="widgets",version="v1"`
	wantText(t, strings.ReplaceAll(`
dynamiccontroller_cache_bytes{LABELS} 96
dynamiccontroller_handlers_running{LABELS} 4
dynamiccontroller_objects{LABELS} 3
dynamiccontroller_objects_failing{LABELS} 5
dynamiccontroller_objects_parked{LABELS} 6
dynamiccontroller_objects_unusable{LABELS} 7
dynamiccontroller_queue_items{group="example.com",lane="background",resource="widgets",version="v1"} 2
dynamiccontroller_queue_items{group="example.com",lane="delayed",resource="widgets",version="v1"} 3
dynamiccontroller_queue_items{group="example.com",lane="live",resource="widgets",version="v1"} 1
dynamiccontroller_queue_items{group="example.com",lane="settling",resource="widgets",version="v1"} 4
dynamiccontroller_queue_oldest_seconds{LABELS} 1
dynamiccontroller_secondary_cache_bytes{LABELS} 300
dynamiccontroller_secondary_objects{LABELS} 30
dynamiccontroller_secondary_objects_unusable{LABELS} 8
dynamiccontroller_secondary_watches{group="example.com",resource="widgets",state="Forbidden",version="v1"} 1
dynamiccontroller_secondary_watches{group="example.com",resource="widgets",state="Synced",version="v1"} 2
dynamiccontroller_type_state{group="example.com",resource="widgets",state="Synced",version="v1"} 1
`, "LABELS", labels), metrics.NewStatus(types[:1]))
}

func TestWithoutTypeLabels_AddsUpAllTypes(t *testing.T) {
	wantText(t, `
dynamiccontroller_cache_bytes 100
dynamiccontroller_handlers_running 5
dynamiccontroller_objects 4
dynamiccontroller_objects_failing 5
dynamiccontroller_objects_parked 6
dynamiccontroller_objects_unusable 7
dynamiccontroller_queue_items{lane="background"} 2
dynamiccontroller_queue_items{lane="delayed"} 3
dynamiccontroller_queue_items{lane="live"} 11
dynamiccontroller_queue_items{lane="settling"} 5
dynamiccontroller_queue_oldest_seconds 60
dynamiccontroller_secondary_cache_bytes 300
dynamiccontroller_secondary_objects 30
dynamiccontroller_secondary_objects_unusable 8
dynamiccontroller_secondary_watches{state="Forbidden"} 1
dynamiccontroller_secondary_watches{state="Synced"} 2
dynamiccontroller_type_state{state="Synced"} 2
`, metrics.NewStatus(types, metrics.WithoutTypeLabels()))
}

// Two engines can share a registry if a label distinguishes them.
func TestNewStatus_OfTwoEnginesWithALabelEach(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	register := func(engine string) error {
		r := metrics.NewReconciles()
		r.Reconciled(dynamiccontroller.Reconcile{GVR: widgets})
		labelled := prometheus.WrapRegistererWith(prometheus.Labels{"engine": engine}, registry)
		return errors.Join(labelled.Register(r), labelled.Register(metrics.NewStatus(types)))
	}
	if err := errors.Join(register("a"), register("b")); err != nil {
		t.Fatal(err)
	}
	if err := register("a"); err == nil {
		t.Error("a second engine with the same label was registered")
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if n := len(family.GetMetric()); n%2 != 0 {
			t.Errorf("%s: got %d series, want those of two engines", family.GetName(), n)
		}
	}
	if len(families) == 0 {
		t.Error("no metrics were exported")
	}
}

func TestReconciles_ExportsTimeInQueue(t *testing.T) {
	r := metrics.NewReconciles(metrics.WithoutTypeLabels())
	r.Reconciled(dynamiccontroller.Reconcile{GVR: widgets, Queued: 2 * time.Second, Took: time.Minute})
	r.Reconciled(dynamiccontroller.Reconcile{GVR: gadgets, Queued: 3 * time.Second, Took: time.Hour})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "dynamiccontroller_queue_duration_seconds" {
			if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 5 {
				t.Errorf("got %v, want two values with the sum 5", h)
			}
			return
		}
	}
	t.Error("the metric is missing")
}

// Counters must not decrease, so the reconciles of stopped types remain.
func TestWithoutTypeLabels_KeepsCountersOfStoppedTypes(t *testing.T) {
	r := metrics.NewReconciles(metrics.WithoutTypeLabels())
	for _, gvr := range []schema.GroupVersionResource{widgets, gadgets} {
		r.Reconciled(dynamiccontroller.Reconcile{GVR: gvr, Outcome: dynamiccontroller.OutcomeSuccess, Took: time.Millisecond})
		r.WriteLagged(gvr)
		r.Forget(gvr)
	}
	wantLines(t, "dynamiccontroller_write_lags_total", "dynamiccontroller_write_lags_total 2\n", r)
	n := series(t, r)
	if n["dynamiccontroller_reconciles_total"] != 1 || n["dynamiccontroller_reconcile_duration_seconds"] != 1 {
		t.Errorf("got series %v, want one of each metric", n)
	}
}

// A reconcile with several kinds of cause counts for each. Forget removes the series.
func TestReconciles_CountsKindsOfCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := controllertest.NewServer(controllertest.Type{GVR: widgets, Kind: "Widget"})
		all, each := metrics.NewReconciles(metrics.WithoutTypeLabels()), metrics.NewReconciles()
		controller := controllertest.NewController(t, server, dynamiccontroller.Config{MinRetryDelay: time.Minute},
			dynamiccontroller.WithMetrics(both{all: all, each: each}))
		failed := false
		failOnce := func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			if failed {
				return nil
			}
			failed = true
			return errors.New("on purpose")
		}
		if err := controller.StartServingGVK(t.Context(), widgets, failOnce); err != nil {
			t.Fatal(err)
		}
		stop := controllertest.Run(t, controller.Run)
		controllertest.WaitIdle(t, controller)
		id := dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "default/a"}
		for range 3 { // the second call is an early retry
			controller.Enqueue(id)
			controllertest.WaitIdle(t, controller)
		}
		stop()
		want := `dynamiccontroller_reconcile_causes_total{cause="enqueue"} 3
dynamiccontroller_reconcile_causes_total{cause="retry"} 1`
		wantCauses(t, want, all)
		want = strings.ReplaceAll(want, `"}`, `",group="example.com",resource="widgets",version="v1"}`)
		wantCauses(t, want, each)
		each.Forget(widgets)
		wantCauses(t, "", each)
	})
}

// both passes reconciles to two implementations of Metrics.
type both struct {
	dynamiccontroller.NoMetrics
	all, each *metrics.Reconciles
}

func (b both) Reconciled(done dynamiccontroller.Reconcile) {
	b.all.Reconciled(done)
	b.each.Reconciled(done)
}

type fixedReplica replica.Status

func (f fixedReplica) Status() replica.Status { return replica.Status(f) }

func TestNewLeadership_ExportsLeaderAndTerm(t *testing.T) {
	wantText(t, "dynamiccontroller_leading 1\ndynamiccontroller_term 3",
		metrics.NewLeadership(fixedReplica{Leading: true, Term: 3}))
	wantText(t, "dynamiccontroller_leading 0\ndynamiccontroller_term 4", metrics.NewLeadership(fixedReplica{Term: 4}))
}

// Register both collectors: NewReconciles counts reconciles, and NewStatus reports the status of the types.
func Example() {
	reconciles := metrics.NewReconciles()
	controller := dynamiccontroller.NewDynamicController(logger, dynamiccontroller.Config{}, client,
		dynamiccontroller.WithMetrics(reconciles))
	registry := prometheus.NewRegistry()
	registry.MustRegister(reconciles, metrics.NewStatus(controller))
	families, err := registry.Gather()
	fmt.Println(len(families), err)
	// Output: 1 <nil>
}
