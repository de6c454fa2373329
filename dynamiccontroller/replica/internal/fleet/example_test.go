package fleet_test

import (
	"fmt"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

func Example() {
	holder := fleet.Holder{Shards: 8, Leader: "my-platform-5d9f_6f1c"}
	fmt.Println(holder)

	recorded, ok := fleet.ParseHolder("shards=8/")
	fmt.Println(ok, recorded.Shards, recorded.Leader == "")

	_, ok = fleet.ParseHolder("my-platform-5d9f_6f1c") // a replica without shards
	fmt.Println(ok)
	// Output:
	// shards=8/my-platform-5d9f_6f1c
	// true 8 true
	// false
}
