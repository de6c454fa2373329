package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

// The size of the benchmarks. What the tests run is small.
var (
	typeCount    = flag.Int("types", 200, "types served")
	objectCount  = flag.Int("objects", 50, "objects a type")
	defineCount  = flag.Int("define", 100, "types defined while the engine runs")
	busyCount    = flag.Int("busy", 20000, "objects of the busy type")
	roundCount   = flag.Int("rounds", 5, "times that the busy type's objects are all queued")
	stopCount    = flag.Int("stops", 1000, "times that a type is stopped under load")
	cycleTime    = flag.Duration("cycle-time", 5*time.Second, "how long types are started and stopped, one after another")
	aloneTime    = flag.Duration("alone-time", 3*time.Second, "how long the quiet type is watched alone, a round")
	tableAgainst = flag.String("against", "dynamicinformer", "the engine that the tables give ratios to")
)

var shared = cluster.NewShared(cluster.Options{})

func TestMain(m *testing.M) {
	if spec := os.Getenv(jobEnv); spec != "" {
		os.Exit(runJob(spec))
	}
	goleak.VerifyTestMain(shared.Main(reporting{m}))
}

// reporting prints the tables after the benchmarks.
type reporting struct{ m *testing.M }

func (r reporting) Run() int {
	code := r.m.Run()
	measured.print(os.Stdout, *tableAgainst)
	return code
}

// BenchmarkTypes is what serving many types costs at rest, how soon all is reconciled, and how fast types come and go.
func BenchmarkTypes(b *testing.B) {
	benchmark(b, job{Scenario: scenarioTypes, Fixture: manyTypes(*typeCount, *objectCount), CycleTime: *cycleTime})
}

// BenchmarkEstablished is how soon a new type is served.
func BenchmarkEstablished(b *testing.B) {
	benchmark(b, job{Scenario: scenarioEstablished, Define: *defineCount})
}

// BenchmarkFairness is what a quiet type notices of a busy one.
func BenchmarkFairness(b *testing.B) {
	benchmark(b, job{Scenario: scenarioFairness, Fixture: quietAndBusy(*busyCount), Rounds: *roundCount, AloneTime: *aloneTime})
}

// BenchmarkStopUnderLoad is what is left when a type is stopped again and again.
func BenchmarkStopUnderLoad(b *testing.B) {
	benchmark(b, job{Scenario: scenarioStop, Fixture: manyTypes(10, *objectCount), Stops: *stopCount})
}

func benchmark(b *testing.B, j job) {
	c := shared.Cluster(b)
	j.Kubeconfig = c.Kubeconfig()
	if err := j.Fixture.create(b.Context(), c.Config()); err != nil {
		b.Fatal(err)
	}
	if err := j.warmUp(b.Context()); err != nil {
		b.Fatal(err)
	}
	fmt.Printf("%s: %s\n", j.Scenario, j.size()) // benchstat takes it for a setting of the run
	for _, name := range engineNames() {
		b.Run("engine="+name, func(b *testing.B) {
			j := j
			j.Engine = name
			samples := map[string][]float64{}
			for b.Loop() {
				measures, err := j.start(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				measured.add(j.Scenario, name, measures)
				for _, m := range measures {
					samples[m.Unit] = append(samples[m.Unit], m.Value)
				}
			}
			b.ReportMetric(0, "ns/op") // of no meaning, and not printed
			for unit, values := range samples {
				b.ReportMetric(median(values), unit)
			}
		})
	}
}

// TestSmoke runs every engine and every scenario once, in small.
func TestSmoke(t *testing.T) {
	small := []job{
		{Scenario: scenarioTypes, Fixture: manyTypes(5, 5), CycleTime: 100 * time.Millisecond},
		{Scenario: scenarioEstablished, Define: 1},
		{Scenario: scenarioFairness, Fixture: quietAndBusy(100), Rounds: 1, AloneTime: 100 * time.Millisecond},
		{Scenario: scenarioStop, Fixture: manyTypes(5, 5), Stops: 4},
	}
	c := shared.Cluster(t)
	for _, j := range small {
		j.Kubeconfig = c.Kubeconfig()
		if err := j.Fixture.create(t.Context(), c.Config()); err != nil {
			t.Fatal(err)
		}
		for _, name := range engineNames() {
			if j.Scenario != scenarioTypes && name != "ours-keys" && name != *tableAgainst {
				continue // for the sake of time
			}
			t.Run(j.Scenario+"/"+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errTooLong)
				defer cancel()
				j := j
				j.Engine = name
				measures, err := j.start(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range measures {
					t.Logf("%s %s", m.Unit, m)
				}
			})
		}
	}
}
