package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Sizes of the sharding benchmark.
var (
	shardTypes    = flag.Int("shard-types", 64, "types in the sharding benchmark")
	shardObjects  = flag.Int("shard-objects", 312, "objects of 2 kB of each type in the sharding benchmark")
	shardReplicas = sizesFlag("shard-replicas", "1,2,3,5", "numbers of replicas in the sharding benchmark")
	shardRounds   = flag.Int("shard-rounds", 4, "how often replicas join and leave, and how often one is killed")
	shardWindow   = flag.Duration("shard-window", 2*time.Second,
		"how long the reconciles are counted; the median of three such times is reported")
)

const (
	shardCount   = 16
	moreShards   = 64
	shardSize    = 2000 // The size of the objects in bytes.
	shardLeader  = 0    // The number of shards of replicas that are registered as without shards.
	handlerSleep = 20 * time.Millisecond
	handlerBurn  = time.Millisecond

	// A replica needs more objects in the queue than it has workers, whichever shards it leads.
	busyPerType = 16
	// The objects of each type while replicas join, leave and are killed, and how often each of them is reconciled. The
	// handlers then use less than a third of the workers of three replicas.
	movingPerType = 20
	movingEvery   = 4 * time.Second
)

// shardCase is a fleet whose costs are measured.
type shardCase struct{ shards, replicas, run int }

func (c shardCase) String() string {
	return fmt.Sprintf("shards=%d/replicas=%d/run=%d", c.shards, c.replicas, c.run)
}

// title is the name of the row in the table.
func (c shardCase) title() string {
	if c.shards == shardLeader {
		return "one leader"
	}
	return fmt.Sprintf("%d shards, %d replicas, run %d", c.shards, c.replicas, c.run)
}

// shardCases returns the fleets in the order in which they are measured. The first is the one that the others are
// compared with. The second is the same with another registration, and the last is one that was already measured. Both
// show the noise.
func shardCases() []shardCase {
	cases := []shardCase{{shardLeader, 1, 1}, {1, 1, 1}}
	for _, n := range *shardReplicas {
		cases = append(cases, shardCase{shardCount, n, 1})
	}
	return append(cases, shardCase{shardCount, 1, 2})
}

// BenchmarkSharding measures fleets of replicas with shards: their throughput, their memory and their requests for
// Leases, and how long shards are not led when replicas join, leave and crash.
func BenchmarkSharding(b *testing.B) {
	c := shared.Cluster(b)
	describeRun(b, c.Config())
	large := job{Kubeconfig: c.Kubeconfig(), Fixture: shardFixture(*shardTypes, *shardObjects, shardSize)}
	small := job{
		Kubeconfig: c.Kubeconfig(), Fixture: shardFixture(*shardTypes, movingPerType, 0),
		Load: shardLoad{Sleep: handlerSleep, Every: movingEvery},
	}
	for _, j := range []job{large, small} {
		if err := j.Fixture.create(b.Context(), c.Config()); err != nil {
			b.Fatal(err)
		}
	}
	burns := calibrate(handlerBurn)
	fmt.Printf("sharding: %d workers, %s, lease %s\n", workers, large.Fixture, quickElection)
	run := func(name, table, row string, measure func(context.Context) (measures, error)) {
		b.Run(name, func(b *testing.B) {
			reportMedians(b, func() (measures, error) {
				m, err := measure(b.Context())
				if err == nil {
					measured.add(table, row, m)
				}
				return m, err
			})
		})
	}
	for _, each := range shardCases() {
		run("measure=fleet/"+each.String(), "sharding", each.title(), func(ctx context.Context) (measures, error) {
			return measureFleet(ctx, c.Config(), large, each, burns)
		})
	}
	for _, count := range []int{shardCount, moreShards} {
		for _, n := range *shardReplicas {
			if n > 2 {
				each := shardCase{count, n, 1}
				run("measure=leases/"+each.String(), "sharding: leases", each.title(), func(ctx context.Context) (measures, error) {
					return measureLeases(ctx, c.Config(), small, each)
				})
			}
		}
	}
	run("measure=moves", "sharding: replicas join and leave", "moves", func(ctx context.Context) (measures, error) {
		return measureMoves(ctx, c.Config(), small, shardCount, *shardRounds)
	})
	run("measure=crash", "sharding: a replica is killed", "crash", func(ctx context.Context) (measures, error) {
		return measureCrashes(ctx, c.Config(), small, shardCount, *shardRounds)
	})
}

// shardFixture returns a fixture of many types. If the size is zero, the objects have no payload.
func shardFixture(types, objects, size int) fixture {
	f := manyTypes(types, objects)
	f.Group, f.Size = fmt.Sprintf("shards%d-%s", size, f.Group), size
	return f
}

// Each measurement runs once, with a few objects. Only numbers that do not depend on the machine are checked.
func TestSharding_Smoke(t *testing.T) {
	const types, count = 32, 8
	c := shared.Cluster(t)
	idle := job{Kubeconfig: c.Kubeconfig(), Fixture: shardFixture(types, busyPerType, 1000)}
	busy := idle
	busy.Load = shardLoad{Sleep: time.Millisecond, Every: time.Second}
	if err := idle.Fixture.create(t.Context(), c.Config()); err != nil {
		t.Fatal(err)
	}
	none := map[string]bool{"LISTs": true, "repeated-calls": true}
	for name, measure := range map[string]func(context.Context) (measures, error){
		"one leader": func(ctx context.Context) (measures, error) {
			return measureFleet(ctx, c.Config(), idle, shardCase{shardLeader, 1, 1}, 1000)
		},
		"fleet": func(ctx context.Context) (measures, error) {
			return measureFleet(ctx, c.Config(), idle, shardCase{count, 2, 1}, 1000)
		},
		"leases": func(ctx context.Context) (measures, error) {
			return measureLeases(ctx, c.Config(), idle, shardCase{count, 2, 1})
		},
		"moves": func(ctx context.Context) (measures, error) { return measureMoves(ctx, c.Config(), busy, count, 1) },
		"crash": func(ctx context.Context) (measures, error) { return measureCrashes(ctx, c.Config(), busy, count, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errTimeout)
			defer cancel()
			ms, err := measure(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range ms {
				t.Logf("%s %s", m.Unit, m)
				if (m.Value == 0) != none[m.Unit] {
					t.Errorf("got %v %s", m.Value, m.Unit)
				}
			}
		})
	}
}

// calibrate returns how often burn must hash a block to take the given time on an idle CPU.
func calibrate(d time.Duration) int {
	const times, trials = 20000, 5
	shortest := time.Hour
	for range trials {
		began := time.Now()
		burn(times)
		shortest = min(shortest, time.Since(began))
	}
	return int(times * d / shortest)
}

// measureFleet measures a fleet that has settled.
func measureFleet(ctx context.Context, config *rest.Config, j job, c shardCase, burns int) (_ measures, err error) {
	f := newShardFleet(config, j, quickElection, c.shards)
	defer func() { err = errors.Join(err, f.end(ctx)) }()
	if err := f.start(ctx, c.replicas); err != nil {
		return nil, err
	}
	if err := errors.Join(f.settle(ctx), f.rest(ctx)); err != nil {
		return nil, err
	}
	m, err := f.footprint(ctx)
	if err != nil {
		return nil, err
	}
	sleep, err := f.rate(ctx, shardLoad{Sleep: handlerSleep, Again: true})
	if err != nil {
		return nil, err
	}
	took, err := f.work(ctx, shardLoad{Sleep: handlerSleep})
	if err != nil {
		return nil, err
	}
	burned, err := f.rate(ctx, shardLoad{Burn: burns, Again: true, Processors: 1})
	if err != nil {
		return nil, err
	}
	return append(m,
		measure{"sleep-reconciles/s", sleep},
		measure{"sleep-work-ns", float64(took)},
		measure{"cpu-reconciles/s", burned},
	), nil
}

// footprint returns the means of all replicas, and the largest heap.
func (f *shardFleet) footprint(ctx context.Context) (measures, error) {
	replies, err := f.do(ctx, memberCommand{Do: commandFootprint})
	if err != nil {
		return nil, err
	}
	mean := func(unit string) float64 {
		return total(replies, func(r memberMessage) float64 { return r.Measures.value(unit) }) / float64(len(replies))
	}
	largest := 0.0
	for _, r := range replies {
		largest = max(largest, r.Measures.value("heap-B"))
	}
	return measures{
		{"watches", mean("watches")}, {"goroutines", mean("goroutines")}, {"heap-B", mean("heap-B")},
		{"largest-heap-B", largest},
	}, nil
}

// rate returns the reconciles per second of all replicas. Objects are reconciled again and again.
func (f *shardFleet) rate(ctx context.Context, load shardLoad) (float64, error) {
	const windows = 3
	if _, err := f.do(ctx, memberCommand{Do: commandLoad, Load: load, Enqueue: busyPerType}); err != nil {
		return 0, err
	}
	var before []memberMessage
	var rates []float64
	for range windows + 1 { // The first window, in which the load begins, is ignored.
		now, err := f.do(ctx, memberCommand{Do: commandCount})
		if err != nil {
			return 0, err
		}
		rate := 0.0
		for i, b := range before {
			rate += float64(now[i].Calls-b.Calls) / now[i].At.Sub(b.At).Seconds()
		}
		rates, before = append(rates, rate), now
		select {
		case <-time.After(*shardWindow):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	return median(rates[1:]), f.rest(ctx)
}

// work returns the time until the same objects have been reconciled once, however many replicas there are. The replica
// whose shards have most types determines it.
func (f *shardFleet) work(ctx context.Context, load shardLoad) (time.Duration, error) {
	began := time.Now()
	_, err := f.do(ctx, memberCommand{Do: commandWork, Load: load, Enqueue: 2 * busyPerType})
	took := time.Since(began)
	return took, errors.Join(err, f.rest(ctx))
}

// measureLeases counts the requests for Leases of a fleet that has settled.
func measureLeases(ctx context.Context, config *rest.Config, j job, c shardCase) (_ measures, err error) {
	const group = "coordination.k8s.io"
	rates := func() (writes, reads float64, err error) {
		began := time.Now()
		before, err := countRequests(ctx, config, group)
		if err != nil {
			return 0, 0, err
		}
		select {
		case <-time.After(4 * *shardWindow):
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		}
		seconds := time.Since(began).Seconds() // Both requests take about the same time.
		n, err := countRequests(ctx, config, group)
		return (n.writes - before.writes) / seconds, (n.gets - before.gets) / seconds, err
	}
	otherWrites, otherReads, err := rates() // The control plane has Leases too.
	if err != nil {
		return nil, err
	}
	f := newShardFleet(config, j, quickElection, c.shards)
	defer func() { err = errors.Join(err, f.end(ctx)) }()
	if err := errors.Join(f.start(ctx, c.replicas), f.settle(ctx)); err != nil {
		return nil, err
	}
	writes, reads, err := rates()
	return measures{{"lease-writes/s", writes - otherWrites}, {"lease-reads/s", reads - otherReads}}, err
}

// movingReplicas is the number of replicas before others join, and before one of them is killed.
const movingReplicas = 3

// measureMoves measures moves of shards: in each round, two replicas join and two others leave.
func measureMoves(ctx context.Context, config *rest.Config, j job, count, rounds int) (_ measures, err error) {
	const joining = 2
	f := newShardFleet(config, j, quickElection, count)
	defer func() { err = errors.Join(err, f.end(ctx)) }()
	if err := errors.Join(f.start(ctx, movingReplicas), f.settle(ctx)); err != nil {
		return nil, err
	}
	repeated, err := f.countRepeated(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for range rounds {
		if err := errors.Join(f.start(ctx, joining), f.settle(ctx)); err != nil {
			return nil, err
		}
		for range joining {
			if err := errors.Join(f.running()[0].terminate(ctx, syscall.SIGTERM), f.cover(ctx)); err != nil {
				return nil, err
			}
		}
		if err := f.settle(ctx); err != nil {
			return nil, err
		}
	}
	again, err := f.countRepeated(ctx)
	if err != nil {
		return nil, err
	}
	all := f.handovers(began)
	var moves, leaves []time.Duration
	for _, h := range all {
		if h.isEnd() {
			leaves = append(leaves, h.took())
		} else {
			moves = append(moves, h.took())
		}
	}
	m := append(measures{{"moves", float64(len(moves))}}, quantiles("move", moves)...)
	m = append(m, measure{"leaves", float64(len(leaves))})
	m = append(m, quantiles("leave", leaves)...)
	lists := listsOf(all)
	return append(m, measure{"LISTs", lists}, measure{"other-LISTs", float64(f.listsSince(began)) - lists},
		measure{"repeated-calls", again - repeated}), nil
}

func listsOf(handovers []handover) (n float64) {
	for _, h := range handovers {
		n += float64(h.lists())
	}
	return n
}

// measureCrashes measures how long shards are not led after their leader was killed. Another replica then takes its
// place.
func measureCrashes(ctx context.Context, config *rest.Config, j job, count, rounds int) (_ measures, err error) {
	f := newShardFleet(config, j, quickElection, count)
	defer func() { err = errors.Join(err, f.end(ctx)) }()
	if err := errors.Join(f.start(ctx, movingReplicas), f.settle(ctx)); err != nil {
		return nil, err
	}
	repeated, err := f.countRepeated(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for range rounds {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(rand.N(2 * f.election.RetryPeriod)): // A random moment between two renewals.
		}
		if err := errors.Join(f.running()[0].terminate(ctx, syscall.SIGKILL), f.cover(ctx)); err != nil {
			return nil, err
		}
		if err := errors.Join(f.start(ctx, 1), f.settle(ctx)); err != nil {
			return nil, err
		}
	}
	again, err := f.countRepeated(ctx)
	if err != nil {
		return nil, err
	}
	unled := slices.DeleteFunc(f.handovers(began), func(h handover) bool { return !h.isEnd() })
	var times []time.Duration
	sum := 0.0
	for _, h := range unled {
		times = append(times, h.took())
		sum += h.took().Seconds()
	}
	m := append(measures{{"shards", float64(len(unled))}}, quantiles("unled", times)...)
	return append(m, measure{"longest-ns", float64(quantile(times, 1))},
		measure{"unled-shard-seconds/crash", sum / float64(rounds)}, measure{"LISTs", listsOf(unled)},
		measure{"repeated-calls", again - repeated}), nil
}
