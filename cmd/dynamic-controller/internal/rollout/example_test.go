package rollout_test

import (
	"fmt"
	"time"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
)

func Example() {
	accepted := time.Now()
	instance := func(name, revision string) rollout.Instance {
		return rollout.Instance{Key: name, Revision: revision, Health: rollout.Ready, Created: accepted.Add(-time.Hour)}
	}
	gate := rollout.New(rollout.Revision{Name: "new", Since: accepted})
	fmt.Println(gate.Survey([]rollout.Instance{instance("shop/a", "old"), instance("shop/b", "old")}))

	gate.Moved("shop/b", "new")
	failing := instance("shop/b", "new")
	failing.Health, failing.Regressed = rollout.Failing, true
	fmt.Println(gate.Survey([]rollout.Instance{failing, instance("shop/a", "old")}))
	progress, _ := gate.Progress()
	fmt.Println(progress.Updated, "of", progress.Total, "updated, stopped:", progress.Stopped)
	// Output:
	// [shop/b]
	// []
	// 1 of 2 updated, stopped: true
}
