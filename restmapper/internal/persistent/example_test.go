package persistent_test

import (
	"fmt"

	"github.com/dynamic-controller/engine/restmapper/internal/persistent"
)

func ExampleMap() {
	var edit persistent.Edit[int]
	edit.Set("apples", 3)
	edit.Set("pears", 5)
	first := persistent.Map[int]{}.With(&edit)

	edit = persistent.Edit[int]{}
	edit.Set("apples", 4)
	edit.Delete("pears")
	second := first.With(&edit)

	fmt.Println(first.Get("apples"), first.Get("pears"), first.Len())
	fmt.Println(second.Get("apples"), second.Get("pears"), second.Len())
	// Output:
	// 3 5 2
	// 4 0 1
}
