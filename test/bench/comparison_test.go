package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// comparison is a job that is measured with several engines.
type comparison struct {
	job     job
	title   string   // The title of the table. Defaults to the name of the scenario.
	engines []string // Defaults to all engines.
	// less contains units for which the difference from the baseline is also reported. The baseline is measured first.
	less []string
}

// benchmark creates the fixture on the shared cluster, and measures the engines there.
func (c comparison) benchmark(b *testing.B) {
	cluster := shared.Cluster(b)
	describeRun(b, cluster.Config())
	c.job.Kubeconfig = cluster.Kubeconfig()
	if err := c.job.Fixture.create(b.Context(), cluster.Config()); err != nil {
		b.Fatal(err)
	}
	if err := c.job.warmUp(b.Context()); err != nil {
		b.Fatal(err)
	}
	c.run(b)
}

// run measures each engine in a separate process, with the server of the job.
func (c comparison) run(b *testing.B) {
	fmt.Printf("%s: %s\n", c.job.Scenario, c.job.size()) // A configuration line for benchstat.
	for _, name := range c.names() {
		b.Run("engine="+name, func(b *testing.B) {
			reportMedians(b, func() (measures, error) { return c.measure(b, name) })
		})
	}
}

// reportMedians calls measure once in each iteration of the benchmark, and reports the median of each unit.
func reportMedians(b *testing.B, measure func() (measures, error)) {
	samples := map[string][]float64{}
	for b.Loop() {
		ms, err := measure()
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range ms {
			samples[m.Unit] = append(samples[m.Unit], m.Value)
		}
	}
	b.ReportMetric(0, "ns/op") // Meaningless here. Zero is not printed.
	for unit, values := range samples {
		b.ReportMetric(median(values), unit)
	}
}

func (c comparison) measure(b *testing.B, name string) (measures, error) {
	j := c.job
	j.Engine = name
	m, err := j.start(b.Context())
	if err != nil {
		return nil, err
	}
	title := cmp.Or(c.title, j.Scenario)
	m = append(m, measured.lessBaseline(title, name, m, c.less)...)
	measured.add(title, name, m)
	return m, nil
}

// names returns the engines in the order in which they are measured. With -before, each of our engines is followed by
// its older version.
func (c comparison) names() (names []string) {
	engines := c.engines
	if engines == nil {
		engines = engineNames()
	}
	if len(c.less) > 0 {
		names = append(names, baseline)
	}
	for _, name := range engines {
		if slices.Contains(names, name) {
			continue
		}
		names = append(names, name)
		if *beforeBinary != "" && strings.HasPrefix(name, oursPrefix) {
			names = append(names, name+beforeSuffix)
		}
	}
	return names
}
