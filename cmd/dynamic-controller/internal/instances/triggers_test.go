package instances

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// Instances that refer to each other trigger each other with every reconcile.
func TestTriggerThrottle_LimitsMutualTriggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var throttle triggerThrottle
		var mu sync.Mutex // guards the counters
		reconciles := map[string]int{}
		other := map[string]string{"a": "b", "b": "a"}
		count := func(instance string) int {
			mu.Lock()
			defer mu.Unlock()
			return reconciles[instance]
		}
		var reconcile func(instance string)
		reconcile = func(instance string) {
			throttle.started(instance)
			mu.Lock()
			reconciles[instance]++
			isEndless, triggered := reconciles[instance] > 10*triggerBurst, other[instance]
			mu.Unlock()
			if isEndless {
				return
			}
			for _, next := range throttle.admit([]string{triggered}, reconcile) {
				reconcile(next)
			}
		}
		reconcile("a")
		synctest.Wait()
		if got := count("a") + count("b"); got > 2*triggerBurst+1 {
			t.Errorf("%d reconciles without a delay", got)
		}
		before := count("a")
		time.Sleep(10 * triggerInterval)
		synctest.Wait()
		if got := count("a") - before; got < 5 || got > 11 {
			t.Errorf("%d reconciles of a in ten intervals", got)
		}
		mu.Lock() // end the loop
		other["a"], other["b"] = "none", "none"
		mu.Unlock()
		time.Sleep(time.Hour)
		if now := throttle.admit([]string{"a"}, func(string) {}); len(now) != 1 {
			t.Error("the delay was not reset")
		}
	})
}

// enqueuing is an Engine that sends enqueued objects to a channel.
type enqueuing struct {
	*platformtest.Engine
	enqueued chan dynamiccontroller.ObjectIdentifiers
}

func (e enqueuing) Enqueue(ids ...dynamiccontroller.ObjectIdentifiers) {
	for _, id := range ids {
		e.enqueued <- id
	}
}

// Several changes during a delay cause exactly one reconcile.
func TestTriggerThrottle_DelayedChangesCauseOneReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReferrers()
		engine := enqueuing{platformtest.NewEngine(), make(chan dynamiccontroller.ObjectIdentifiers, 10)}
		r.add(flowers.NamespacedKey, target{gvr: configMaps, namespace: "shop", name: "shared"}, nil)
		changed := r.mapFunc(engine, websites, configMaps)
		shared := metadataObject{meta: metav1.ObjectMeta{Namespace: "shop", Name: "shared"}}
		now := 0
		for range 3 * triggerBurst {
			now += len(changed(t.Context(), shared))
			r.triggers.started(flowers.NamespacedKey)
		}
		if now != triggerBurst || len(engine.enqueued) > 0 {
			t.Errorf("%d reconciles at once, and %d enqueued", now, len(engine.enqueued))
		}
		time.Sleep(10 * triggerInterval)
		synctest.Wait()
		if len(engine.enqueued) != 1 {
			t.Fatalf("%d enqueued, want 1", len(engine.enqueued))
		}
		want := dynamiccontroller.ObjectIdentifiers{GVR: websites, NamespacedKey: flowers.NamespacedKey}
		if got := <-engine.enqueued; got != want {
			t.Errorf("enqueued %v, want %v", got, want)
		}
		r.forget(flowers.NamespacedKey)
		if len(r.triggers.instances) > 0 {
			t.Error("the instance was not forgotten")
		}
	})
}

// The queue merges changes until the reconcile starts.
func TestTriggerThrottle_CountsChangesBeforeReconcileOnce(t *testing.T) {
	var throttle triggerThrottle
	for range 2 * triggerBurst {
		if now := throttle.admit([]string{"a"}, func(string) { t.Error("delayed") }); len(now) != 1 {
			t.Fatal("not triggered at once")
		}
	}
	throttle.started("a")
	for range triggerBurst - 1 {
		throttle.admit([]string{"a"}, func(string) { t.Error("delayed") })
		throttle.started("a")
	}
	if now := throttle.admit([]string{"a"}, func(string) {}); len(now) != 0 {
		t.Error("not delayed")
	}
}
