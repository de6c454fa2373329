package dynamiccontroller

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

func TestWatchErrors_AreLimitedLikeTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls int
		w := newWatchErrors(func(WatchError) { calls++ }, func(schema.GroupVersionResource) logr.Logger {
			return logr.Discard()
		})
		expect := func(step string, want int) {
			t.Helper()
			synctest.Wait()
			if calls != want {
				t.Errorf("%s: %d calls, want %d", step, calls, want)
			}
			calls = 0
		}
		a, b := problemKey("as"), problemKey("bs")
		observe := func(key typewatch.Key, phases ...typewatch.Phase) {
			for _, phase := range phases {
				w.observe(key, typewatch.State{Phase: phase})
				synctest.Wait()
			}
		}
		observe(a, typewatch.Syncing, typewatch.Synced)
		expect("a healthy watch", 0)
		observe(a, typewatch.Failing)
		expect("a failure", 1)
		observe(a, typewatch.Synced, typewatch.Failing)
		expect("the same failure again", 0)
		observe(b, typewatch.Failing)
		expect("another watch", 1)
		observe(a, typewatch.Forbidden)
		expect("another failure", 1)
		time.Sleep(repeatAfter)
		observe(a, typewatch.Synced, typewatch.Forbidden)
		expect("ten minutes later", 1)
		observe(a, typewatch.Stopped, typewatch.Forbidden)
		expect("after a restart", 1)
		observe(a, typewatch.Stopped)
		observe(b, typewatch.Stopped)
		if len(w.passed)+len(w.pending)+len(w.order) > 0 || w.running {
			t.Errorf("%+v is left", w)
		}
	})
}
