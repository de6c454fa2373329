package resync_test

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/resync"
)

// In ten periods, each key becomes due about ten times.
func Example() {
	var s resync.Schedule
	now, period := time.Now(), 10*time.Hour
	s.Start(maphash.MakeSeed(), now)
	due := map[string]int{}
	for elapsed := time.Duration(0); elapsed < 10*period; elapsed += period / 1000 {
		for _, key := range s.Due(now.Add(elapsed), period, func() []string { return []string{"default/a", "default/b"} }) {
			due[key]++
		}
	}
	for _, key := range []string{"default/a", "default/b"} {
		fmt.Println(key, due[key] >= 9 && due[key] <= 11)
	}
	// Output:
	// default/a true
	// default/b true
}
