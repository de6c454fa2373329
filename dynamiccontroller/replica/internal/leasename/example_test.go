package leasename_test

import (
	"fmt"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
)

func Example() {
	const fleet = "my-platform"
	fmt.Println(leasename.Shard(fleet, 3))
	fmt.Println(leasename.Plan(fleet))
	fmt.Println(leasename.Member(fleet, "my-pod_6f1c"))
	fmt.Println(leasename.Labels(fleet, nil))
	// Output:
	// my-platform-shard-3
	// my-platform-plan
	// my-platform-member-f3e7dec236bf88db
	// map[dynamic-controller.github.io/fleet:my-platform]
}
