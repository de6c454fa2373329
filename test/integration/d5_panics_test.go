package integration

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// outcomes implements Metrics. It counts the reconciles with each outcome.
type outcomes struct {
	dynamiccontroller.NoMetrics
	mu sync.Mutex
	of map[dynamiccontroller.Outcome]int
}

func (o *outcomes) Reconciled(done dynamiccontroller.Reconcile) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = map[dynamiccontroller.Outcome]int{}
	}
	o.of[done.Outcome]++
}

func (o *outcomes) Forget(schema.GroupVersionResource) {}

func (o *outcomes) count(outcome dynamiccontroller.Outcome) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[outcome]
}

func TestD5_HandlerPanicCountsAsObjectFailure(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	var mu sync.Mutex
	var logged strings.Builder
	log := funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		logged.WriteString(prefix + args + "\n")
	}, funcr.Options{})
	counts := &outcomes{}
	config := dynamiccontroller.Config{Workers: 1, MinRetryDelay: time.Millisecond}
	c, err := dynamiccontroller.NewForConfig(log, config, h.config, dynamiccontroller.WithMetrics(counts))
	h.noError(err)
	h.run(c)
	calls := newRecorder(t, nil)
	calls.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		if id.Name() == "panics" && calls.count(id) < 3 {
			panicInHandler()
		}
		return nil
	}
	h.serve(c, gvr, calls.handle)
	h.apply(gvr, "panics", 0)
	calls.waitFor(h.id(gvr, "panics"), 3)
	h.apply(gvr, "fine", 0)
	calls.waitFor(h.id(gvr, "fine"), 1) // The only worker has survived the panics.
	h.eventually("the panics are counted", func() error {
		if n := counts.count(dynamiccontroller.OutcomePanic); n != 2 || counts.count(dynamiccontroller.OutcomeSuccess) < 1 {
			return context.DeadlineExceeded
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"on purpose", "panicInHandler"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log does not contain %q:\n%s", want, logged.String())
		}
	}
}

func panicInHandler() { panic("on purpose") }
