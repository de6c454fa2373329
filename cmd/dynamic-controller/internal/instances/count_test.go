package instances

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
)

// An ignored instance would never move, and its revision would not be loaded.
func TestCountedInstance_MalformedStatus(t *testing.T) {
	for name, test := range map[string]struct {
		status, revision string
		health           rollout.Health
	}{
		"valid": {
			`{"revision": "old", "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}`,
			"old", rollout.Ready,
		},
		"conditions of another type": {`{"conditions": "Ready", "revision": "old"}`, "old", rollout.Waiting},
		"an invalid time": {
			`{"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": "now"}],
				"revision": "old"}`, "old", rollout.Waiting,
		},
		"a revision of another type": {`{"revision": 1}`, "", rollout.Waiting},
		"a status of another type":   {`"Ready"`, "", rollout.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			var i countedInstance
			data := `{"metadata": {"namespace": "shop", "name": "flowers", "generation": 1}, "status": ` + test.status + `}`
			if err := json.Unmarshal([]byte(data), &i); err != nil {
				t.Fatal(err)
			}
			if got := i.state(); got.Key != "shop/flowers" || got.Revision != test.revision || got.Health != test.health {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestCountedInstance_ReportsWhenItChanged(t *testing.T) {
	ready, regressed := metav1.Unix(100, 0), metav1.Unix(200, 0)
	for name, test := range map[string]struct {
		ready, regressed metav1.ConditionStatus
		want             time.Time
	}{
		"ready":     {metav1.ConditionTrue, metav1.ConditionFalse, ready.Time},
		"regressed": {metav1.ConditionFalse, metav1.ConditionTrue, regressed.Time},
		"neither":   {metav1.ConditionFalse, metav1.ConditionFalse, time.Time{}},
	} {
		var i countedInstance
		i.Status.Conditions = []metav1.Condition{
			{Type: conditionReady, Status: test.ready, LastTransitionTime: ready},
			{Type: ConditionRegressed, Status: test.regressed, LastTransitionTime: regressed},
		}
		if got := i.state().Changed; !got.Equal(test.want) {
			t.Errorf("%s: the state changed at %s, want %s", name, got, test.want)
		}
	}
}
