package bench

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

var (
	childCount  = flag.Int("children", 200, "children of each instance in the platform children benchmark")
	parentCount = flag.Int("parents", 3,
		"instances that are created one after another, for each number of stages, in the platform children benchmark")
	requestLatency = flag.Duration("request-latency", 10*time.Millisecond,
		"latency of each request in the second part of the platform children benchmark")
)

// BenchmarkPlatformChildren compares the demo platform with kro. Both serve instances with many children, in one stage
// and in three stages, without and with a latency of each request.
func BenchmarkPlatformChildren(b *testing.B) {
	describeRun(b, shared.Cluster(b).Config())
	fmt.Printf("platform-children: %d instances of %d children\n", *parentCount, *childCount)
	compared := slices.DeleteFunc(comparedPlatforms(), func(p platform) bool {
		return p.name == kroTenWorkers // The workers do not share the work for one instance.
	})
	const settled = 3500 * time.Millisecond // Longer than the --instance-requeue-interval of kro, which is 3s.
	binaries := b.TempDir()
	for _, latency := range []time.Duration{0, *requestLatency} {
		for _, p := range compared {
			b.Run(fmt.Sprintf("latency=%s/engine=%s", latency, p.name), func(b *testing.B) {
				binary := p.build(b, binaries)
				reportMedians(b, func() (measures, error) {
					ctx, cancel := context.WithTimeoutCause(b.Context(), jobTimeout, errTimeout)
					defer cancel()
					r := p.prepareChildren(b, *parentCount, *childCount, latency, settled)
					m, err := r.measure(ctx, binary, r.phases())
					if err == nil {
						addChildren(latency, p.name, m)
					}
					return m, err
				})
			})
		}
	}
}

// addChildren adds the measures to a table for each number of stages and a table for the process.
func addChildren(latency time.Duration, name string, ms measures) {
	title := fmt.Sprintf("platform: %d children, latency %s", *childCount, latency)
	for _, m := range ms {
		table := title + ", process"
		for _, s := range stagings {
			if unit, found := strings.CutPrefix(m.Unit, s.name+"-"); found {
				table, m.Unit = title+", "+strings.ReplaceAll(s.name, "-", " "), unit
			}
		}
		measured.add(table, name, measures{m})
	}
}

// The platform and kro are measured once with a few children.
func TestBenchmarkPlatformChildren_Smoke(t *testing.T) {
	const parents, children, latency = 1, 6, 5 * time.Millisecond
	for _, p := range platforms[:2] {
		t.Run(p.name, func(t *testing.T) {
			binary := p.build(t, t.TempDir())
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errTimeout)
			defer cancel()
			r := p.prepareChildren(t, parents, children, latency, 500*time.Millisecond)
			m, err := r.measure(ctx, binary, r.phases())
			if err != nil {
				t.Fatal(err)
			}
			for _, each := range m {
				t.Logf("%s %s", each.Unit, each)
			}
			for _, s := range stagings {
				if ready := m.value(s.name + "-ready-p50-ns"); ready < float64(latency) {
					t.Errorf("%s: the instance was ready after %s, want at least the latency", s.name, time.Duration(ready))
				}
				if writes := m.value(s.name + "-writes/instance"); writes < children+1 {
					t.Errorf("%s: got %v writes/instance, want at least one for each child and one for the status", s.name, writes)
				}
			}
		})
	}
}

// The proxy forwards requests with the credentials of the config, and delays each of them.
func TestSlowKubeconfig_DelaysRequests(t *testing.T) {
	const latency = 50 * time.Millisecond
	config, err := clientcmd.BuildConfigFromFlags("", slowKubeconfig(t, shared.Cluster(t).Config(), latency))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		began := time.Now()
		if _, err := client.CoreV1().Secrets(namespace).List(t.Context(), oneObject); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < latency {
			t.Errorf("a request took %s, want at least %s", took, latency)
		}
	}
}

// stagings are the ways to distribute the children of an instance over the three collections of its type. Each
// collection waits for the one before it, so that the number of collections with children is the number of stages.
var stagings = []struct {
	name   string
	stages int
}{
	{"1-stage", 1},
	{"3-stages", 3},
}

// collectionFields are the fields of an instance that list the children in each stage.
var collectionFields = []string{"first", "second", "third"}

const collectionsBlueprint = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: apps}
spec:
  type:
    group: bench.example.com
    version: v1
    kind: App
    schema:
      type: object
      required: [spec]
      properties:
        spec:
          type: object
          required: [first, second, third]
          properties:
            first: {type: array, items: {type: string}}
            second: {type: array, items: {type: string}}
            third: {type: array, items: {type: string}}
  resources:
    - id: firsts
      forEach: [{child: "${self.spec.first}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${child}"}
        data: {after: none}
    - id: seconds
      forEach: [{child: "${self.spec.second}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${child}"}
        data: {after: "${string(size(firsts))}"}
    - id: thirds
      forEach: [{child: "${self.spec.third}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${child}"}
        data: {after: "${string(size(seconds))}"}
`

const collectionsGraph = `
apiVersion: kro.run/v1alpha1
kind: ResourceGraphDefinition
metadata: {name: apps}
spec:
  schema:
    group: bench.example.com
    apiVersion: v1
    kind: App
    spec: {first: "[]string", second: "[]string", third: "[]string"}
  resources:
    - id: firsts
      forEach: [{child: "${schema.spec.first}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${schema.metadata.name}-${child}"}
        data: {after: none}
    - id: seconds
      forEach: [{child: "${schema.spec.second}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${schema.metadata.name}-${child}"}
        data: {after: "${string(size(firsts))}"}
    - id: thirds
      forEach: [{child: "${schema.spec.third}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${schema.metadata.name}-${child}"}
        data: {after: "${string(size(seconds))}"}
`

// childrenRun measures a platform with instances that have many children.
type childrenRun struct {
	*platformRun
	children int // The number of children of each instance.
}

// prepareChildren is like prepare. The platform sends its requests through a proxy if they have a latency.
func (p platform) prepareChildren(
	tb testing.TB, instances, children int, latency, still time.Duration,
) *childrenRun {
	tb.Helper()
	r := p.prepare(tb, instances, 0, still)
	r.definition = p.collections
	if latency > 0 {
		r.kubeconfig = slowKubeconfig(tb, shared.Cluster(tb).Config(), latency)
	}
	return &childrenRun{platformRun: r, children: children}
}

func (r *childrenRun) phases() []platformPhase {
	phases := []platformPhase{{run: func(ctx context.Context) (measures, error) {
		return nil, r.serveWith(ctx, specOf(childNames(len(collectionFields)), len(collectionFields)))
	}}}
	for _, s := range stagings {
		phases = append(phases, platformPhase{
			run:    func(ctx context.Context) (measures, error) { return r.createParents(ctx, s.name, s.stages) },
			writes: s.name + "-writes/instance", byVerb: true,
		})
	}
	return phases
}

// createParents creates the instances, one after another, and waits for each of them to be ready. The platform is idle
// before each instance is created, because kro reconciles an instance again after it has become ready.
func (r *childrenRun) createParents(ctx context.Context, name string, stages int) (measures, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, err := r.follow(ctx, apps)
	if err != nil {
		return nil, err
	}
	spec := specOf(childNames(r.children), stages)
	times := make([]time.Duration, r.instances)
	for i := range times {
		if i > 0 {
			if _, err := r.waitIdle(ctx); err != nil {
				return nil, err
			}
		}
		parent := fmt.Sprintf("n%d-%s", i, name)
		if err := r.createInstance(ctx, parent, spec); err != nil {
			return nil, err
		}
		for made := (time.Time{}); times[i] == 0; {
			s, err := next(ctx, seen)
			if err != nil {
				return nil, fmt.Errorf("wait for %s: %w", parent, err)
			}
			switch {
			case s.GetName() != parent:
			case made.IsZero():
				made = s.at
			case isTrue(s.Unstructured, "Ready"):
				times[i] = s.at.Sub(made)
			}
		}
		if err := r.checkChildren(ctx, parent); err != nil {
			return nil, err
		}
	}
	return measures{
		{name + "-ready-p50-ns", float64(quantile(times, 0.5))},
		{name + "-ready-max-ns", float64(slices.Max(times))},
	}, nil
}

// checkChildren returns an error if an instance has become ready without all of its children.
func (r *childrenRun) checkChildren(ctx context.Context, parent string) error {
	children, err := r.in(configMaps).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	count := 0
	for i := range children.Items {
		if strings.HasPrefix(children.Items[i].GetName(), parent+"-") {
			count++
		}
	}
	if count != r.children {
		return fmt.Errorf("%s is ready with %d children, want %d", parent, count, r.children)
	}
	return nil
}

func childNames(n int) []any {
	names := make([]any, n)
	for i := range names {
		names[i] = "c" + strconv.Itoa(i)
	}
	return names
}

// specOf returns the spec of an instance whose children are distributed evenly over the stages.
func specOf(children []any, stages int) map[string]any {
	spec := map[string]any{}
	for i, field := range collectionFields {
		spec[field] = []any{}
		if i < stages {
			spec[field] = children[i*len(children)/stages : (i+1)*len(children)/stages]
		}
	}
	return spec
}

// slowKubeconfig starts a proxy that delays each request by the latency, and returns a kubeconfig for it. Any number of
// requests can be delayed at the same time. Watch events are not delayed. The proxy has the permissions of the config.
// It stops at the end of the test.
func slowKubeconfig(tb testing.TB, config *rest.Config, latency time.Duration) (path string) {
	tb.Helper()
	api, err := rest.TransportFor(config)
	if err != nil {
		tb.Fatal(err)
	}
	proxy, err := apiproxy.Start(config, func(http.RoundTripper) http.RoundTripper { return delayed{api, latency} })
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(proxy.Close)
	path = filepath.Join(tb.TempDir(), "kubeconfig")
	c := clientcmdapi.NewConfig()
	c.Clusters["slow"] = &clientcmdapi.Cluster{Server: proxy.URL(), CertificateAuthorityData: proxy.CAData()}
	c.Contexts["slow"], c.CurrentContext = &clientcmdapi.Context{Cluster: "slow"}, "slow"
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		tb.Fatal(err)
	}
	return path
}

// delayed delays each request before it sends it.
type delayed struct {
	http.RoundTripper
	latency time.Duration
}

func (d delayed) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(d.latency):
		return d.RoundTripper.RoundTrip(r)
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}
