package plan_test

import (
	"fmt"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// A replica that leads a shard crashes. The standby leads at once. When the fleet has settled, another replica becomes
// the standby.
func Example() {
	members := []plan.Member{{ID: "b", Warm: []int{0}}, {ID: "c", Warm: []int{1}}}
	crashed := plan.Next(plan.Input{
		Shards:   2,
		Members:  members,
		Holders:  []string{"a", "c"}, // the Lease of a has not expired yet
		Previous: plan.Plan{{Leader: "a", Standby: "b"}, {Leader: "c", Standby: "a"}},
	})
	settled := plan.Next(plan.Input{
		Shards:   2,
		Members:  members,
		Holders:  []string{"b", "c"},
		Settled:  true,
		Previous: crashed,
	})
	fmt.Printf("crashed: leader %q, standby %q\n", crashed[0].Leader, crashed[0].Standby)
	fmt.Printf("settled: leader %q, standby %q\n", settled[0].Leader, settled[0].Standby)
	// Output:
	// crashed: leader "b", standby ""
	// settled: leader "b", standby "c"
}

func ExamplePlan_Encode() {
	p := plan.Plan{{Leader: "b", Standby: "a"}, {Leader: "a", Standby: "b", Warming: "c", Replaces: "a"}, {}}
	s, err := p.Encode()
	fmt.Println(s, err)
	// Output: {"members":["a","b","c"],"shards":[[1,0],[0,1,2,0],[]]} <nil>
}
