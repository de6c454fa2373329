package dynamiccontroller

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// newRecordedProblemLog returns a problemLog, and a function that returns its lines at V(0) since the last call.
func newRecordedProblemLog() (l *problemLog, lines func() []string) {
	var recorded []string
	log := funcr.New(func(_, args string) { recorded = append(recorded, args) }, funcr.Options{})
	l = newProblemLog(func(gvr schema.GroupVersionResource) logr.Logger { return log.WithValues("gvr", gvr.Resource) })
	return l, func() []string {
		lines := recorded
		recorded = nil
		return lines
	}
}

func problemKey(resource string) typewatch.Key {
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: resource}
	return typewatch.Key{Selection: typewatch.Selection{GVR: gvr}}
}

func TestProblemLog_LogsProblemsAndRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newRecordedProblemLog()
		a := problemKey("as")
		expect := func(step string, want ...string) {
			t.Helper()
			got := lines()
			if len(got) != len(want) {
				t.Errorf("%s: got %q", step, got)
				return
			}
			for i, line := range got {
				if !strings.Contains(line, want[i]) {
					t.Errorf("%s: got %q, want %q", step, line, want[i])
				}
			}
		}
		observe := func(phase typewatch.Phase) { l.observe(a, typewatch.State{Phase: phase, Message: "because"}) }
		observe(typewatch.Syncing)
		observe(typewatch.Synced)
		expect("a healthy type")
		observe(typewatch.Failing)
		expect("a failure", `"msg"="Watch failed, will retry" "gvr"="as" "state"="Failing" "message"="because"`)
		observe(typewatch.Synced)
		expect("recovery", `"msg"="Watch recovered"`)
		observe(typewatch.Failing)
		observe(typewatch.Synced)
		expect("the same failure again")
		observe(typewatch.NotFound)
		expect("another failure", `"hint"=`)
		observe(typewatch.Forbidden)
		expect("a missing permission", `"Watch forbidden, will retry"`)
		time.Sleep(repeatAfter)
		observe(typewatch.Forbidden)
		expect("later", `"Watch forbidden, will retry"`)
		observe(typewatch.Stopped)
		observe(typewatch.Synced)
		expect("after a restart")
		if len(l.logged) != 0 {
			t.Errorf("%d watches are remembered", len(l.logged))
		}
	})
}

// An outage of 10,000 types must not write 10,000 lines.
func TestProblemLog_IsBoundedPerOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newRecordedProblemLog()
		const types = 10_000
		all := func(phase typewatch.Phase) {
			for n := range types {
				l.observe(problemKey(fmt.Sprint(n)), typewatch.State{Phase: phase, Message: "no connection"})
			}
		}
		all(typewatch.Failing)
		if diff := cmp.Diff(problemBurst, len(lines())); diff != "" {
			t.Errorf("lines about the outage: %s", diff)
		}
		all(typewatch.Synced)
		if diff := cmp.Diff(problemBurst, len(lines())); diff != "" {
			t.Errorf("lines about the recovery: %s", diff)
		}
		time.Sleep(problemInterval)
		l.observe(problemKey("late"), typewatch.State{Phase: typewatch.Failing})
		got := strings.Join(lines(), "\n")
		if want := fmt.Sprintf(`"suppressed"=%d`, types-problemBurst); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
