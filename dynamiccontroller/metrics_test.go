package dynamiccontroller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// completed records the reconciles reported to Metrics.
type completed struct {
	dynamiccontroller.NoMetrics
	reconciles []dynamiccontroller.Reconcile
}

func (c *completed) Reconciled(done dynamiccontroller.Reconcile) {
	c.reconciles = append(c.reconciles, done)
}

// The time in the queue includes neither the handler call nor the delay of a requeue.
func TestMetrics_ReportCauseTimeInQueueAndDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &completed{}
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := w.types[0]
		w.put(gvr, "a")
		w.put(gvr, "b")
		stop := w.run()
		calls := 0
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			calls++
			time.Sleep(2 * time.Second)
			if calls == 1 {
				return dynamiccontroller.RequeueAfter(time.Minute)
			}
			return nil
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		stop()
		if err := m.reconciles[0].Err; err == nil || err.Error() != "requeue after 1m0s" {
			t.Errorf("the error of the requeue is %v", err)
		}
		m.reconciles[0].Err = nil
		var causes []string
		for i := range m.reconciles {
			causes = append(causes, m.reconciles[i].Cause.String())
			m.reconciles[i].Cause = dynamiccontroller.Cause{}
		}
		if want := []string{"initial_list", "initial_list", "requeue"}; !slices.Equal(causes, want) {
			t.Errorf("the causes are %q, want %q", causes, want)
		}
		reconcile := func(outcome dynamiccontroller.Outcome, queued time.Duration) dynamiccontroller.Reconcile {
			return dynamiccontroller.Reconcile{GVR: gvr, Outcome: outcome, Queued: queued, Took: 2 * time.Second}
		}
		want := []dynamiccontroller.Reconcile{
			reconcile(dynamiccontroller.OutcomeRequeue, 0),
			reconcile(dynamiccontroller.OutcomeSuccess, 2*time.Second),
			reconcile(dynamiccontroller.OutcomeSuccess, 0),
		}
		if !slices.Equal(m.reconciles, want) {
			t.Errorf("got %v, want %v", m.reconciles, want)
		}
	})
}

// syncs records the syncs reported to Metrics.
type syncs struct {
	dynamiccontroller.NoMetrics
	mu   sync.Mutex // guards done
	done []dynamiccontroller.Sync
}

func (s *syncs) Synced(done dynamiccontroller.Sync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, done)
}

// A sync is reported once for a watch that two types share, and again after a failure. Changes and watches are counted.
func TestMetrics_ReportSyncsAndCountChangesAndWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &syncs{}
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		child := f.types[2]
		f.failLists(child, errOnPurpose)
		stop := f.run()
		for _, gvr := range f.types[:2] {
			f.serve(gvr, succeed, dynamiccontroller.Owns(child))
		}
		time.Sleep(10 * time.Second)
		f.failLists(child, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		took := map[schema.GroupVersionResource]time.Duration{}
		for _, done := range m.done {
			took[done.GVR] = done.Took
		}
		if len(m.done) != 3 || took[f.types[0]] > time.Second || took[child] < 10*time.Second || took[child] > time.Minute {
			t.Errorf("got the syncs %v, want one for each of the three types", m.done)
		}
		if got := f.controller.WatchCount(); got != 3 {
			t.Errorf("%d watches, want 3", got)
		}
		before := f.status(f.types[0])
		f.put(child, "c", f.id(f.types[0], "w"))
		f.put(child, "c", f.id(f.types[0], "w"))
		f.delete(child, "c")
		after := f.status(f.types[0])
		if n := after.Secondaries[0].Changes - before.Secondaries[0].Changes; n != 3 || after.Changes != before.Changes {
			t.Errorf("counted %d changes of the child and %d of the type itself, want 3 and 0", n, after.Changes-before.Changes)
		}
		stop()
	})
}

// recordingMetrics blocks Forget until it is released.
type recordingMetrics struct {
	dynamiccontroller.NoMetrics
	forgetting, release chan struct{}
	calls               []string
}

func (m *recordingMetrics) Reconciled(dynamiccontroller.Reconcile) {
	m.calls = append(m.calls, "reconciled")
}

func (m *recordingMetrics) Forget(schema.GroupVersionResource) {
	close(m.forgetting)
	<-m.release
	m.calls = append(m.calls, "forget")
}

// A late Forget must not remove the metrics of a type that is served again.
func TestMetrics_ForgetPrecedesALaterRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recordingMetrics{forgetting: make(chan struct{}), release: make(chan struct{})}
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := w.types[0]
		w.put(gvr, "a")
		stop := w.run()
		w.serve(gvr, succeed)
		stopped := make(chan error)
		go func() { stopped <- w.controller.StopServiceGVK(context.Background(), gvr) }()
		<-m.forgetting
		w.serve(gvr, succeed)
		time.Sleep(time.Second)
		synctest.Wait()
		close(m.release)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(m.calls); n != 3 || m.calls[1] != "forget" || m.calls[2] != "reconciled" {
			t.Errorf("the calls are %v, want reconciled, forget and reconciled again", m.calls)
		}
		stop()
	})
}

func TestS1_StopWaitsForForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recordingMetrics{forgetting: make(chan struct{}), release: make(chan struct{})}
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := w.types[0]
		stop := w.run()
		w.serve(gvr, succeed)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := w.controller.StopServiceGVK(ctx, gvr); !strings.Contains(fmt.Sprint(err), "Metrics.Forget") {
			t.Errorf("StopServiceGVK returned %v, want an error that lists Metrics.Forget", err)
		}
		close(m.release)
		if err := w.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// If a hung handler from an earlier registration returns while the type is served again, the type's metrics must be
// kept.
func TestMetrics_AreKeptWhileTheTypeIsServedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recordingMetrics{forgetting: make(chan struct{}), release: make(chan struct{})}
		close(m.release)
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := f.types[0]
		f.put(gvr, "a")
		stop := f.run()
		hang := make(chan struct{})
		f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			return nil
		})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := f.controller.StopServiceGVK(ctx, gvr); err == nil {
			t.Error("StopServiceGVK returned nil while the handler was hanging")
		}
		f.serve(gvr, succeed)
		close(hang)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(m.calls) != 2 || m.calls[0] != "reconciled" || m.calls[1] != "reconciled" {
			t.Errorf("the calls are %v, want two calls to reconciled and none to forget", m.calls)
		}
		stop()
	})
}
