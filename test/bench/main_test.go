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

// Sizes of the benchmarks. The smoke tests use smaller sizes.
var (
	typeCount   = flag.Int("types", 200, "number of types")
	objectCount = flag.Int("objects", 50, "objects of each type")
	defineCount = flag.Int("define", 100, "types that are defined while the engine runs")
	definePause = flag.Duration("define-pause", 0,
		"pause after each definition, so that the API server can complete its work for the type")
	busyCount  = flag.Int("busy", 20000, "objects of the busy type")
	roundCount = flag.Int("rounds", 5, "number of rounds, each of which queues all objects of the busy type")
	stopCount  = flag.Int("stops", 1000, "number of stops under load")
	stopPeriod = flag.Duration("stop-period", 10*time.Millisecond,
		"minimum time from the start of one stop to the start of the next")
	cycleTime = flag.Duration("cycle-time", 5*time.Second,
		"how long the benchmark starts and stops types, one after another")
	aloneTime = flag.Duration("alone-time", 3*time.Second,
		"how long the quiet type is measured alone in each round")
	tableAgainst = flag.String("against", "dynamicinformer", "engine that the ratios in the tables refer to")

	memoryObjects = flag.Int("memory-objects", 5000, "objects of each size in the memory benchmark")
	syncObjects   = flag.Int("sync-objects", 100000, "objects of the type in the sync benchmark")
	eventObjects  = flag.Int("event-objects", 1000, "objects that are updated in turn in the events benchmark")
	eventRate     = flag.Int("event-rate", 200, "updates per second in the events benchmark")
	eventTime     = flag.Duration("event-time", 20*time.Second,
		"how long objects are updated in each of the two measurements, without and with reads")
	scaleTypes   = flag.Int("scale-types", 1000, "number of types in the scale benchmark with many types")
	scalePerType = flag.Int("scale-per-type", 100, "objects of each type in the scale benchmark with many types")
	scaleObjects = flag.Int("scale-objects", 200000, "number of objects in the scale benchmark with one type")
	beforeBinary = flag.String("before", "",
		"test binary with an older engine, which is measured as "+oursPrefix+"…"+beforeSuffix)
)

var shared = cluster.NewShared(cluster.Options{})

func TestMain(m *testing.M) {
	if spec := os.Getenv(jobEnv); spec != "" {
		os.Exit(runJob(spec))
	}
	if err := limitControlPlane(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(shared.Main(reporting{m}))
}

// limitControlPlane sets GOMEMLIMIT for the control plane, so that it leaves memory for the engines. Jobs ignore the
// variable.
func limitControlPlane() error {
	const name, limit = "GOMEMLIMIT", "10GiB"
	if _, set := os.LookupEnv(name); set {
		return nil
	}
	return os.Setenv(name, limit)
}

// reporting prints the tables after the benchmarks.
type reporting struct{ m *testing.M }

func (r reporting) Run() int {
	code := r.m.Run()
	measured.print(os.Stdout, *tableAgainst)
	return code
}

// BenchmarkTypes measures the cost of many types at rest, the time until all objects are reconciled, and how fast types
// can be started and stopped.
func BenchmarkTypes(b *testing.B) {
	j := job{Scenario: scenarioTypes, Fixture: manyTypes(*typeCount, *objectCount), CycleTime: *cycleTime}
	comparison{job: j, less: []string{"heap-B"}}.benchmark(b)
}

// BenchmarkEstablished measures how soon a new type is served.
func BenchmarkEstablished(b *testing.B) {
	comparison{job: job{Scenario: scenarioEstablished, Define: *defineCount, DefinePause: *definePause}}.benchmark(b)
}

// BenchmarkFairness measures the influence of a busy type on a quiet one.
func BenchmarkFairness(b *testing.B) {
	j := job{Scenario: scenarioFairness, Fixture: quietAndBusy(*busyCount), Rounds: *roundCount, AloneTime: *aloneTime}
	comparison{job: j}.benchmark(b)
}

// BenchmarkStopUnderLoad measures what remains after a type has been stopped many times.
func BenchmarkStopUnderLoad(b *testing.B) {
	comparison{job: job{
		Scenario: scenarioStop, Fixture: manyTypes(10, *objectCount), Stops: *stopCount, StopPeriod: *stopPeriod,
	}}.benchmark(b)
}

var (
	payloadSizes = []int{1000, payloadSize, 10000} // Object sizes in bytes for BenchmarkMemory.
	payloadSize  = 2400                            // The object size in bytes for the other benchmarks with payloads.
)

// BenchmarkMemory measures the heap per object at rest, for objects of several sizes, with and without managedFields.
func BenchmarkMemory(b *testing.B) {
	for _, size := range payloadSizes {
		for _, unmanaged := range []bool{false, true} {
			f := withPayload("memory", *memoryObjects, size)
			if unmanaged {
				f = f.withoutManagedFields()
			}
			c := comparison{
				job:     job{Scenario: scenarioMemory, Fixture: f},
				title:   fmt.Sprintf("memory: %s", f),
				engines: []string{baseline, "ours-full", "ours-metadata", "ours-keys", "dynamicinformer", "kro"},
				less:    []string{perObject},
			}
			b.Run(fmt.Sprintf("size=%d/managedFields=%t", size, !unmanaged), c.benchmark)
		}
	}
}

// wholeObjects contains the engines that cache whole objects, and our engine in its other cache modes.
var wholeObjects = []string{"ours-full", "ours-metadata", "ours-keys", "dynamicinformer",
	"controller-runtime-unstructured"}

// BenchmarkSync measures the cost of the initial list of one type with many objects.
func BenchmarkSync(b *testing.B) {
	comparison{
		job:     job{Scenario: scenarioSync, Fixture: withPayload("many", *syncObjects, payloadSize)},
		engines: append([]string{baseline}, wholeObjects...),
	}.benchmark(b)
}

// BenchmarkEvents measures the cost and the latency of watch events.
func BenchmarkEvents(b *testing.B) {
	f := withPayload("events", *eventObjects, payloadSize)
	comparison{
		job:     job{Scenario: scenarioEvents, Fixture: f, EventTime: *eventTime, EventRate: *eventRate},
		engines: []string{"ours-full", "dynamicinformer"},
	}.benchmark(b)
}

// BenchmarkScale measures engines that serve many types, and engines that serve one type with many objects.
func BenchmarkScale(b *testing.B) {
	loads := []struct {
		name    string
		fixture fixture
	}{
		{"types", manyTypes(*scaleTypes, *scalePerType)},
		{"objects", withPayload("many", *scaleObjects, payloadSize)},
	}
	for _, load := range loads {
		c := comparison{
			job:     job{Scenario: scenarioScale, Fixture: load.fixture},
			title:   fmt.Sprintf("scale: %s", load.fixture),
			engines: wholeObjects,
		}
		b.Run("load="+load.name, c.benchmark)
	}
}

// Each engine and each scenario runs at least once, with a few objects.
func TestScenarios_Smoke(t *testing.T) {
	some := []string{"ours-keys", "dynamicinformer"}
	whole := []string{"ours-full", "dynamicinformer"}
	unmanaged := withPayload("memory", 5, payloadSizes[0]).withoutManagedFields()
	small := []comparison{
		{job: job{Scenario: scenarioTypes, Fixture: manyTypes(5, 5), CycleTime: 100 * time.Millisecond}},
		{job: job{Scenario: scenarioEstablished, Define: 1}, engines: some},
		{job: job{
			Scenario: scenarioFairness, Fixture: quietAndBusy(100),
			Rounds: 1, AloneTime: 100 * time.Millisecond,
		}, engines: some},
		{job: job{Scenario: scenarioStop, Fixture: manyTypes(5, 5), Stops: 4}, engines: some},
		{job: job{Scenario: scenarioMemory, Fixture: unmanaged}, engines: []string{"ours-metadata", "kro"}},
		{job: job{Scenario: scenarioSync, Fixture: withPayload("many", 5, payloadSize)}, engines: whole},
		{job: job{
			Scenario: scenarioEvents, Fixture: withPayload("many", 5, payloadSize),
			EventRate: 50, EventTime: 100 * time.Millisecond,
		}, engines: whole},
		{job: job{Scenario: scenarioScale, Fixture: manyTypes(5, 5)}, engines: some[:1]},
		{job: job{
			Scenario: scenarioRate, Fixture: withPayload("many", 5, payloadSize),
			EventRate: 50, EventTime: 100 * time.Millisecond,
		}, engines: []string{"controller-runtime-unstructured"}},
	}
	cluster := shared.Cluster(t)
	for _, c := range small {
		c.job.Kubeconfig = cluster.Kubeconfig()
		if err := c.job.Fixture.create(t.Context(), cluster.Config()); err != nil {
			t.Fatal(err)
		}
		for _, name := range c.names() {
			t.Run(c.job.Scenario+"/"+name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errTimeout)
				defer cancel()
				j := c.job
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
