package expression

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// comprehensions contains expressions that iterate over self.items, each with a different macro.
var comprehensions = map[string]string{
	"all":          "self.items.all(a, a >= 0)",
	"exists":       "!self.items.exists(a, a < 0)",
	"exists_one":   "!self.items.exists_one(a, a < 0)",
	"filter":       "self.items.filter(a, a > 5).size() > 0",
	"map":          "self.items.map(a, a).size() > 0",
	"transformMap": "self.items.transformMap(i, a, i).size() > 0",
}

func counted(n int) map[string]any {
	items := make([]any, n)
	for i := range items {
		items[i] = int64(i)
	}
	return map[string]any{"self": map[string]any{"items": items}}
}

// The cost of a comprehension is proportional to the number of items, so its evaluation time must be, too. The test
// compares the shortest of several CPU times, which other processes hardly affect.
func TestRun_TakesLinearTime(t *testing.T) {
	const few, many, tries = 1_000, 30_000, 5
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range comprehensions {
		p, err := env.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		perItem := func(n int) (shortest time.Duration) {
			variables := counted(n)
			for range tries {
				start := cpuTime(t)
				if _, _, err := p.Run(t.Context(), variables); err != nil {
					t.Fatal(err)
				}
				if took := (cpuTime(t) - start) / time.Duration(n); shortest == 0 || took < shortest {
					shortest = took
				}
			}
			return shortest
		}
		if a, b := perItem(few), perItem(many); b > 8*a {
			t.Errorf("%s: with %d items, %v per item; with %d items, %v per item", name, few, a, many, b)
		}
	}
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkRun measures the time per item.
func BenchmarkRun(b *testing.B) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range comprehensions {
		p, err := env.Compile(text)
		if err != nil {
			b.Fatal(err)
		}
		for _, n := range []int{100, 10_000} {
			b.Run(fmt.Sprintf("%s/items=%d", name, n), func(b *testing.B) {
				variables, cost := counted(n), uint64(0)
				for b.Loop() {
					if _, cost, err = p.Run(b.Context(), variables); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/item")
				b.ReportMetric(float64(cost)/float64(n), "cost/item")
			})
		}
	}
}
