package fairqueue_test

import (
	"fmt"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
)

// Two groups take turns, regardless of how many items they have.
func Example() {
	queue := fairqueue.New[string, byte, string, string](
		func(item string) byte { return item[0] },
		func(item string) string { return item[1:] },
		func(group byte, name string) string { return string(group) + name },
	)
	queue.Open('a', "the a group", fairqueue.Options[string, string]{})
	queue.Open('b', "the b group", fairqueue.Options[string, string]{})
	for _, item := range []string{"a1", "a2", "a3", "b1"} {
		queue.Add(item)
	}
	for queue.Len() > 0 {
		item, group, _, _ := queue.Next(nil)
		fmt.Println(item, "of", group)
		queue.Done(item)
	}
	// Output:
	// a1 of the a group
	// b1 of the b group
	// a2 of the a group
	// a3 of the a group
}
