package metrics_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
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
		r.Reconciled(gvr, dynamiccontroller.OutcomeSuccess, time.Millisecond)
		r.Reconciled(gvr, dynamiccontroller.OutcomePanic, time.Hour)
	}
	const reconciles, duration = "dynamic_controller_reconciles_total", "dynamic_controller_reconcile_duration_seconds"
	if n := series(t, r); n[reconciles] != 4 || n[duration] != 2 {
		t.Errorf("got series %v before Forget, want 4 reconciles and 2 durations", n)
	}
	r.Forget(widgets)
	if n := series(t, r); n[reconciles] != 2 || n[duration] != 1 {
		t.Errorf("got series %v after Forget, want 2 reconciles and 1 duration", n)
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
	if len(n) != 8 || n["dynamic_controller_queue_items"] != 6 || n["dynamic_controller_type_state"] != 2 {
		t.Errorf("got the series counts %v, want 8 metrics with 6 series for queue_items and 2 for type_state", n)
	}
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
	// Output: 0 <nil>
}
