package attempts_test

import (
	"fmt"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/attempts"
)

func Example() {
	table := attempts.NewTable()
	table.Failed("default/a", "no route to host")
	fmt.Println(table.Failed("default/a", "no route to host"), "failures")
	table.Park("default/a", false)
	failing, parked, newest := table.Summary(10)
	fmt.Println(failing, "failing,", parked, "parked:", newest[0].LastError)
	table.Started("default/a")
	fmt.Println(table.Len(), "entries")
	// Output:
	// 2 failures
	// 0 failing, 1 parked: no route to host
	// 0 entries
}
