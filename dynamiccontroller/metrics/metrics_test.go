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

// A stopped type leaves no series, and takes no other type's with it.
func TestS1_NoSeriesIsLeftOfAStoppedType(t *testing.T) {
	r := metrics.NewReconciles()
	for _, gvr := range []schema.GroupVersionResource{widgets, gadgets} {
		r.Reconciled(gvr, dynamiccontroller.OutcomeSuccess, time.Millisecond)
		r.Reconciled(gvr, dynamiccontroller.OutcomePanic, time.Hour)
	}
	if n := series(t, r); n["dynamic_controller_reconciles_total"] != 4 || n["dynamic_controller_reconcile_duration_seconds"] != 2 {
		t.Errorf("series: %v", n)
	}
	r.Forget(widgets)
	if n := series(t, r); n["dynamic_controller_reconciles_total"] != 2 || n["dynamic_controller_reconcile_duration_seconds"] != 1 {
		t.Errorf("series after Forget: %v", n)
	}
}

type fixed []dynamiccontroller.TypeStatus

func (f fixed) Status() []dynamiccontroller.TypeStatus { return f }

func TestStatus(t *testing.T) {
	n := series(t, metrics.NewStatus(fixed{
		{GVR: widgets, State: dynamiccontroller.TypeSynced, Objects: 3, Live: 1},
		{GVR: gadgets, State: dynamiccontroller.TypeForbidden},
	}))
	if len(n) != 7 || n["dynamic_controller_queue_items"] != 6 || n["dynamic_controller_type_state"] != 2 {
		t.Errorf("series: %v", n)
	}
}

// A registry gets both: what handlers do, and how the types stand.
func Example() {
	reconciles := metrics.NewReconciles()
	controller := dynamiccontroller.NewDynamicController(logger, dynamiccontroller.Config{}, client, dynamiccontroller.WithMetrics(reconciles))
	registry := prometheus.NewRegistry()
	registry.MustRegister(reconciles, metrics.NewStatus(controller))
	families, err := registry.Gather()
	fmt.Println(len(families), err)
	// Output: 0 <nil>
}
