package fairqueue

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests' items are "group/name".
type testQueue = Queue[string, string, string]

func newTestQueue() *testQueue {
	return New[string, string, string](func(item string) string {
		for i := range item {
			if item[i] == '/' {
				return item[:i]
			}
		}
		return item
	})
}

// open opens the groups without limits.
func open(q *testQueue, groups ...string) map[string]Group[string, string, string] {
	opened := map[string]Group[string, string, string]{}
	for _, g := range groups {
		opened[g] = q.Open(g, g, Limits{})
	}
	return opened
}
