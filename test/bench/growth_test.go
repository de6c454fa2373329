package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Sizes of the growth benchmark.
var (
	growthTypes   = sizesFlag("growth-types", "10,50,200,500,1000,2000", "numbers of types in the growth benchmark")
	growthObjects = sizesFlag("growth-objects", "100,1000,10000,50000,200000",
		"numbers of objects of one type in the growth benchmark")
	growthRates   = sizesFlag("growth-rates", "10,25,50,100,200", "updates per second in the growth benchmark")
	growthPerType = flag.Int("growth-per-type", 5, "objects of each type while the number of types grows")
	growthPeriod  = flag.Duration("growth-period", 5*time.Second, "how long objects are updated at each rate")
	growthLimit   = flag.Duration("growth-limit", 100*time.Second,
		"maximum time of one measurement; if an engine needs more, its larger sizes are not measured")
	growthTime   = flag.Duration("growth-time", 30*time.Minute, "the time after which remaining sizes are left out")
	growthCreate = flag.Bool("growth-create", false,
		"only create the objects of the growth benchmark, which a later run on the same cluster uses")
)

// growthSize is the size of the objects in the growth benchmark, except for the objects of many types.
const growthSize = 1000

// sizes is a flag with a list of ascending numbers.
type sizes []int

func sizesFlag(name, value, usage string) *sizes {
	s := &sizes{}
	if err := s.Set(value); err != nil {
		panic(err) // The default is a valid list.
	}
	flag.Var(s, name, usage)
	return s
}

func (s *sizes) String() string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(*s)), ","), "[]")
}

// Set parses numbers that are separated by commas.
func (s *sizes) Set(text string) error {
	*s = nil
	for number := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		*s = append(*s, n)
	}
	return nil
}

// growth is a load that is measured in several sizes.
type growth struct {
	name    string
	sizes   []int
	engines []string
	job     func(n int) job
	warmUp  bool // Serve the types of each size once before they are measured.
}

// growths returns the loads of the growth benchmark, in the order in which they are measured.
func growths() []growth {
	caching := []string{"ours-full", "ours-metadata", "dynamicinformer", "kro", "controller-runtime-unstructured"}
	return []growth{
		{name: "types", sizes: *growthTypes, engines: caching, warmUp: true, job: func(n int) job {
			// The types of a size include those of the smaller sizes.
			f := manyTypes(n, *growthPerType)
			f.Group = "growth.bench.example.com"
			return job{Scenario: scenarioScale, Fixture: f}
		}},
		{name: "rate", sizes: *growthRates,
			engines: []string{"ours-full", "dynamicinformer", "controller-runtime-unstructured"},
			job: func(n int) job {
				return job{Scenario: scenarioRate, EventTime: *growthPeriod, EventRate: n,
					Fixture: withPayload("growth-rate", 1000, growthSize)}
			}},
		{name: "objects", sizes: *growthObjects, engines: caching, job: func(n int) job {
			return job{Scenario: scenarioScale, Fixture: withPayload(fmt.Sprintf("growth%d-", n), n, growthSize)}
		}},
	}
}

// BenchmarkGrowth measures how the cost grows with the number of types, with the number of objects of one type, and
// with the rate of updates.
func BenchmarkGrowth(b *testing.B) {
	cluster := shared.Cluster(b)
	if *growthCreate {
		for _, g := range growths() {
			for _, n := range g.sizes {
				if f := g.job(n).Fixture; f.Size > 0 {
					if err := f.create(b.Context(), cluster.Config()); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
		return
	}
	describeRun(b, cluster.Config())
	deadline := time.Now().Add(*growthTime)
	for _, g := range growths() {
		b.Run("load="+g.name, func(b *testing.B) { g.benchmark(b, deadline) })
	}
}

func (g growth) benchmark(b *testing.B, deadline time.Time) {
	cluster := shared.Cluster(b)
	slow := map[string]bool{}
	for _, n := range g.sizes {
		if time.Now().After(deadline) {
			note("%s: %d or more were not measured: the run ended after %s", g.name, n, *growthTime)
			return
		}
		j := g.job(n)
		j.Kubeconfig = cluster.Kubeconfig()
		if err := j.Fixture.create(b.Context(), cluster.Config()); err != nil {
			b.Fatal(err)
		}
		if g.warmUp {
			warm := j
			warm.Scenario, warm.Engine = scenarioMemory, baseline
			if _, err := warm.start(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		fmt.Printf("growth-%s: %s\n", g.name, j.size()) // A configuration line for benchstat.
		for _, name := range g.engines {
			if !slow[name] {
				slow[name] = g.isTooSlow(b, j, n, name)
			}
		}
	}
}

// isTooSlow measures an engine and reports whether it exceeded the limit.
func (g growth) isTooSlow(b *testing.B, j job, n int, name string) (slow bool) {
	j.Engine = name
	b.Run(fmt.Sprintf("n=%d/engine=%s", n, name), func(b *testing.B) {
		reportMedians(b, func() (measures, error) {
			ctx, cancel := context.WithTimeoutCause(b.Context(), *growthLimit, errTimeout)
			defer cancel()
			m, err := j.start(ctx)
			if errors.Is(err, errTimeout) {
				slow = true
				b.SkipNow()
			}
			return m, err
		})
	})
	if slow {
		note("%s: %s was not measured with %d or more: one measurement took longer than %s", g.name, name, n, *growthLimit)
	}
	return slow
}

// note prints a line that package report copies from the output into the documentation.
func note(format string, args ...any) { fmt.Printf("note: "+format+"\n", args...) }

func TestSizes(t *testing.T) {
	var s sizes
	if err := s.Set("10,50,2000"); err != nil || s.String() != "10,50,2000" {
		t.Errorf("got %q and the error %v", s.String(), err)
	}
	if err := s.Set("10,many"); err == nil {
		t.Error("a word was accepted")
	}
}

// The loads refer to existing scenarios and engines.
func TestGrowth_Loads(t *testing.T) {
	for _, g := range growths() {
		for _, name := range g.engines {
			if _, ok := scenarios[g.job(1).Scenario]; !ok {
				t.Errorf("%s: the scenario %q is unknown", g.name, g.job(1).Scenario)
			}
			known := false
			for _, e := range engines {
				known = known || e.name == name
			}
			if !known {
				t.Errorf("%s: the engine %q is unknown", g.name, name)
			}
		}
	}
}
