package bench

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Sizes of the benchmark with a scripted server.
var (
	scriptedTypes   = flag.Int("scripted-types", 10000, "number of types in the scripted benchmark")
	scriptedPerType = flag.Int("scripted-per-type", 10, "objects of each type in the scripted benchmark")
	scriptedObjects = flag.Int("scripted-objects", 1000000, "objects of one type in the scripted benchmark")
	requestTypes    = flag.Int("request-types", 1000, "number of types whose requests are counted")
	requestIdle     = flag.Duration("request-idle", 2*time.Minute, "how long requests are counted while nothing happens")
	requestTime     = flag.Duration("request-time", time.Minute,
		"how long requests are counted after all connections were cut, and after a restart of the server")
	requestDown = flag.Duration("request-down", 5*time.Second, "how long the server refuses connections when it restarts")
)

// scripted is a load that is measured with a scripted server.
type scripted struct {
	name       string
	comparison comparison
	phases     []phase
}

// scriptedLoads returns the loads of the scripted benchmark.
func scriptedLoads(types, perType, objects, requested int, phases []phase) []scripted {
	of := func(name, scenario string, f fixture, engines ...string) scripted {
		return scripted{name: name, comparison: comparison{
			job: job{Scenario: scenario, Fixture: f}, engines: engines, title: fmt.Sprintf("scripted %s: %s", name, f),
		}}
	}
	requests := of("requests", scenarioRequests, manyTypes(requested, perType), "ours-full", "dynamicinformer")
	requests.phases = phases
	return []scripted{
		of("types", scenarioManyTypes, manyTypes(types, perType), "ours-full", "dynamicinformer"),
		of("objects", scenarioSync, withPayload("scripted", objects, 1000), "ours-metadata"),
		requests,
	}
}

// requestPhases returns the phases in which requests are counted.
func requestPhases(idle, after, down time.Duration) []phase {
	return []phase{
		{"idle", func(*scriptedServer) error { return nil }, idle},
		{"cut", (*scriptedServer).cut, after},
		{"restart", func(s *scriptedServer) error { return s.restart(down) }, after},
	}
}

// BenchmarkScripted measures engines that serve more types and objects than an API server on the same machine can have,
// and counts the requests of many types.
func BenchmarkScripted(b *testing.B) {
	describeRun(b, nil)
	phases := requestPhases(*requestIdle, *requestTime, *requestDown)
	for _, load := range scriptedLoads(*scriptedTypes, *scriptedPerType, *scriptedObjects, *requestTypes, phases) {
		b.Run("load="+load.name, func(b *testing.B) {
			c, s := load.comparison, startScripted(b, load.comparison.job.Fixture, load.phases)
			c.job.Kubeconfig, c.job.Control = s.kubeconfig, s.control.URL
			c.run(b)
		})
	}
}

// measureManyTypes measures the same as measureScale, also divided by the number of types.
func measureManyTypes(ctx context.Context, r *run) (measures, error) {
	m, err := measureScale(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, unit := range []string{"goroutines", "heap-B", "stacks-B"} {
		m = append(m, measure{unit + "/type", m.value(unit) / float64(len(r.Fixture.Objects))})
	}
	return m, nil
}

// measureRequests counts the requests of an engine that has reconciled all objects. The scripted server runs the phases
// of the measurement, and counts.
func measureRequests(ctx context.Context, r *run) (measures, error) {
	s, err := r.serve(ctx)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Control, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("run the phases: %s", response.Status)
	}
	var m measures
	if err := json.NewDecoder(response.Body).Decode(&m); err != nil {
		return nil, err
	}
	return m, s.end()
}

// Each load runs with each engine, with a few objects. While nothing happens, our engine sends no requests. After a cut
// and a restart, all its watches are open again.
func TestScripted_Smoke(t *testing.T) {
	const few = 5
	phases := requestPhases(300*time.Millisecond, 3*time.Second, 500*time.Millisecond)
	for _, load := range scriptedLoads(few, few, few, few, phases) {
		for _, name := range load.comparison.names() {
			t.Run(load.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errTimeout)
				defer cancel()
				j := load.comparison.job
				s := startScripted(t, j.Fixture, load.phases)
				j.Engine, j.Kubeconfig, j.Control = name, s.kubeconfig, s.control.URL
				m, err := j.start(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, each := range m {
					t.Logf("%s %s", each.Unit, each)
				}
				if strings.HasPrefix(name, oursPrefix) && load.phases != nil {
					checkRequests(t, m)
				}
			})
		}
	}
}

func checkRequests(t *testing.T, m measures) {
	t.Helper()
	if n := m.value("idle-requests/type"); n != 0 {
		t.Errorf("got %g requests per type while nothing happened, want none", n)
	}
	for _, name := range []string{"cut", "restart"} {
		if n := m.value(name + "-requests/type"); n < 1 {
			t.Errorf("got %g requests per type after the %s, want at least 1", n, name)
		}
		if n := m.value(name + "-watching/type"); n != 1 {
			t.Errorf("got %g open watches per type after the %s, want 1", n, name)
		}
	}
}
