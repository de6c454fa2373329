package plan_test

import (
	"fmt"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

func TestSimulation(t *testing.T) {
	counts := []int{64, 256, 1024}
	if testing.Short() {
		counts = counts[:1]
	}
	for _, count := range counts {
		t.Run(fmt.Sprint(count, " shards"), func(t *testing.T) {
			total := float64(2 * count)
			f := newFleet(t, count)
			f.startMany(50)
			f.atMost("cold start", f.balance("cold start of 50"), total)

			f.startMany(5)
			f.atMost("50 to 55", f.balance("50 to 55"), total*5/55)

			f.stop(f.ids()[:15]...)
			f.atMost("55 to 40", f.balance("55 to 40"), total*15/55)

			for _, id := range f.ids() { // the next replica stops 15 s after the last one has started
				node := f.replicas[id].node
				f.stop(id)
				f.run(downtime)
				f.start(node)
				f.run(settleTime / 2)
			}
			f.onlyHandovers("rolling restart")
			lists := f.balance("rolling restart of 40")
			if float64(lists) > 1.2*total { // each process lists its own shards
				t.Errorf("rolling restart: %d lists, necessary are %.0f", lists, total)
			}

			crashed := 0.0
			for _, id := range f.ids() {
				var node int
				if _, err := fmt.Sscanf(f.replicas[id].node, "node-%d", &node); err != nil {
					t.Fatal(err)
				}
				if node%3 == 0 {
					f.crash(id)
					crashed++
				}
			}
			f.atMost("zone lost", f.balance("a third lost"), total*crashed/40)
		})
	}
}

// BenchmarkNext measures a plan in which nothing changes, one for which 5 of 50 members have just been replaced, and
// one for which all loads have just become known.
func BenchmarkNext(b *testing.B) {
	for _, count := range []int{256, 1024} {
		f := newFleet(b, count)
		f.startMany(50)
		f.run(600)
		inputs := map[string]plan.Input{"still": f.input()}
		f.loads = reports(shardLoads("log-normal", 1, count))
		inputs["loads"] = f.input()
		f.loads = nil
		f.startMany(5)
		for _, id := range f.ids()[:5] {
			f.crash(id)
		}
		f.now += settleTime
		inputs["changed"] = f.input()
		for name, in := range inputs {
			b.Run(fmt.Sprint(name, " ", count), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					plan.Next(in)
				}
			})
		}
	}
}
