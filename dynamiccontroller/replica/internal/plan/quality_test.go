package plan_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
	"github.com/dynamic-controller/engine/internal/shards"
)

// distributions are the weights of shards or types. Their means are about 1.
var distributions = map[string]func(random *rand.Rand, i, count int) float64{
	"equal":      func(*rand.Rand, int, int) float64 { return 1 },
	"log-normal": func(random *rand.Rand, _, _ int) float64 { return math.Exp(random.NormFloat64() - 0.5) },
	"Zipf": func(_ *rand.Rand, i, count int) float64 {
		return float64(count) / float64(i+1) / (math.Log(float64(count)) + 0.58)
	},
}

// shardLoads returns loads of shards. Work and objects are independent of each other.
func shardLoads(name string, seed uint64, count int) []plan.Load {
	random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a test needs no secure numbers
	loads := make([]plan.Load, count)
	objects := random.Perm(count)
	for i := range loads {
		loads[i].Work = int(1000 * distributions[name](random, i, count))
		loads[objects[i]].Objects = int(10_000 * distributions[name](random, i, count))
	}
	return loads
}

// typeLoads returns the loads of shards to which 10,000 types are hashed.
func typeLoads(name string, seed uint64, count int) []plan.Load {
	const types = 10_000
	sums := make([]plan.Load, count)
	for i, load := range shardLoads(name, seed, types) {
		gr := schema.GroupResource{Group: "example.com", Resource: fmt.Sprint("type", i)}
		sum := &sums[shards.Of(gr, count)]
		sum.Work += load.Work
		sum.Objects += load.Objects
	}
	return sums
}

// bestPacking returns a lower bound of the greatest load.
func bestPacking(weights []int, members int) float64 {
	slices.SortFunc(weights, func(a, b int) int { return b - a })
	total := 0
	for _, w := range weights {
		total += w
	}
	best := float64(total) / float64(members)
	for k := 0; k*members < len(weights); k++ { // one member has k+1 of the k*members+1 largest
		sum := 0
		for _, w := range weights[k*members-k : k*members+1] {
			sum += w
		}
		best = max(best, float64(sum))
	}
	return best
}

// quality compares the loads of the members with the best distribution.
type quality struct {
	led, copies  float64 // the greatest load in relation to the lower bound of the best distribution
	fewest, mean float64 // the least copies in relation to the mean, and their mean number
}

// quality returns the quality of the current plan.
func (f *fleet) quality() (q quality) {
	led, copies := map[string]int{}, map[string]int{}
	for id := range f.replicas {
		led[id], copies[id] = 0, 0
	}
	var works, sizes []int
	for i, a := range f.plan {
		load := plan.Load{Work: plan.BaseWork, Objects: plan.BaseObjects}
		if f.loads != nil {
			load.Work += f.loads(i).Work
			load.Objects += f.loads(i).Objects
		}
		if a.Unled != "" {
			continue
		}
		led[a.Leader] += load.Work
		works = append(works, load.Work)
		for _, id := range []string{a.Leader, a.Standby} {
			copies[id] += load.Objects
			sizes = append(sizes, load.Objects)
		}
	}
	n := len(f.replicas)
	q.led = float64(greatest(led)) / bestPacking(works, n)
	q.copies = float64(greatest(copies)) / bestPacking(sizes, n)
	q.mean = float64(2*len(f.plan)) / float64(n)
	q.fewest = float64(slices.Min(slices.Collect(maps.Values(copies)))) * float64(n) / float64(sumOf(sizes))
	return q
}

// reports returns loads for fleet.loads.
func reports(loads []plan.Load) func(int) plan.Load { return func(i int) plan.Load { return loads[i] } }

func TestNext_FullestMemberHasAtMost5PercentMoreThanInTheBestDistribution(t *testing.T) {
	const count = 256
	for _, name := range slices.Sorted(maps.Keys(distributions)) {
		for seed := range uint64(3) {
			for kind, loads := range map[string][]plan.Load{
				"shards": shardLoads(name, seed, count), "types": typeLoads(name, seed, count),
			} {
				t.Run(fmt.Sprint(name, " ", kind, " ", seed), func(t *testing.T) {
					f := newFleet(t, count)
					f.startMany(50)
					f.settle("unknown loads")
					f.reset()
					f.loads = reports(loads)
					f.balance("loads become known")
				})
			}
		}
	}
}
