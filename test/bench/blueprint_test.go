package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

var (
	instanceCount  = flag.Int("instances", 1000, "instances of each Blueprint, with three children each")
	blueprintCount = flag.Int("blueprints", 4,
		"number of Blueprints that are served at the same time, after a first measurement with a single one")
	resyncPeriod = flag.Duration("resync", 30*time.Second,
		"resync period of the platform, during which unnecessary writes are counted")
)

// BenchmarkBlueprints measures how soon the instances of Blueprints are ready on the demo platform, the number of
// writes for each instance, and the number of writes when nothing changes. The platform runs in a separate process.
func BenchmarkBlueprints(b *testing.B) {
	binary := buildPlatform(b)
	for _, count := range []int{1, *blueprintCount} {
		b.Run(fmt.Sprintf("blueprints=%d", count), func(b *testing.B) {
			for b.Loop() {
				ctx, cancel := context.WithTimeoutCause(b.Context(), jobTimeout, errTimeout)
				for unit, value := range measureBlueprints(ctx, b, binary, count, *instanceCount, *resyncPeriod) {
					b.ReportMetric(value, unit)
				}
				cancel()
			}
			b.ReportMetric(0, "ns/op") // Meaningless here. Zero is not printed.
		})
	}
}

// The benchmark runs once with a few instances.
func TestBenchmarkBlueprints_Smoke(t *testing.T) {
	binary := buildPlatform(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errTimeout)
	defer cancel()
	got := measureBlueprints(ctx, t, binary, 2, 5, time.Second)
	if got["writes/instance"] < 4 || got["resync-writes"] != 0 {
		t.Errorf("got unexpected measures %v", got)
	}
}

const benchedBlueprint = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: KINDs}
spec:
  deletionPolicy: Delete
  type:
    group: bench.example.com
    version: v1
    kind: KIND
    schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}
  resources:
    - id: account
      template: {apiVersion: v1, kind: ServiceAccount, metadata: {name: "KIND-${self.metadata.name}"}}
    - id: config
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "KIND-${self.metadata.name}"}
        data: {size: "${string(self.spec.size)}", account: "${account.metadata.name}"}
    - id: secret
      readyWhen: ["has(secret.data)"]
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "KIND-${self.metadata.name}"}
        stringData: {name: "${self.metadata.name}"}
`

func benchedKind(i int) string { return fmt.Sprintf("bench%c", 'a'+i) }

func benched(i int) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "bench.example.com", Version: "v1", Resource: benchedKind(i) + "s"}
}

var benchedBlueprints = schema.GroupVersionResource{
	Group: "platform.example.com", Version: "v1alpha1", Resource: "blueprints",
}

// measureBlueprints serves a number of Blueprints, creates the instances of all of them at the same time, and waits
// until they are ready. It then waits for a resync.
func measureBlueprints(
	ctx context.Context, tb testing.TB, binary string, count, instances int, resync time.Duration,
) map[string]float64 {
	tb.Helper()
	c := shared.Cluster(tb)
	cfg := c.Config()
	cfg.QPS = -1
	client, err1 := dynamic.NewForConfig(cfg)
	kube, err2 := kubernetes.NewForConfig(cfg)
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	defer func() { // Runs after the platform has exited, because the platform would recreate deleted objects.
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), time.Minute, errTimeout)
		defer cancel()
		for i := range count { // The cluster has no garbage collector that would delete the children.
			must(removeBenched(ctx, client, kube, i))
		}
	}()
	p := startPlatform(tb, binary, c.Kubeconfig(), resync)
	defer p.stop()
	for i := range count {
		must(applyBenched(ctx, client, i))
	}
	before := p.writes(ctx)
	began := time.Now()
	var wait sync.WaitGroup
	errs := make([]error, count)
	for i := range count {
		wait.Go(func() { errs[i] = createInstances(ctx, client, i, instances) })
	}
	wait.Wait()
	must(errors.Join(errs...))
	for i := range count {
		must(poll(ctx, func() error { return allReady(ctx, client, i, int64(instances)) }))
	}
	took := time.Since(began)
	must(p.quiet(ctx))
	written := p.writes(ctx) - before
	reconciles := p.reconciles(ctx)
	time.Sleep(resync + resync/4) // The writes in this time are measured.
	total := float64(count * instances)
	result := map[string]float64{
		"all-ready-s":     took.Seconds(),
		"instances/s":     total / took.Seconds(),
		"writes/instance": written / total,
		"resync-writes":   p.writes(ctx) - before - written,
	}
	if seen := p.reconciles(ctx) - reconciles; seen < total {
		tb.Errorf("got %g reconciles during a resync, want at least one for each of the %g instances", seen, total)
	}
	return result
}

func applyBenched(ctx context.Context, client dynamic.Interface, i int) error {
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(benchedBlueprint, "KIND", benchedKind(i))),
		&obj.Object); err != nil {
		return err
	}
	return poll(ctx, func() error {
		now, err := client.Resource(benchedBlueprints).Apply(ctx, obj.GetName(), obj,
			metav1.ApplyOptions{FieldManager: "bench", Force: true})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
		for _, c := range conditions {
			if c, _ := c.(map[string]any); c["type"] == "Serving" && c["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("the Blueprint is not served: %v", conditions)
	})
}

func createInstances(ctx context.Context, client dynamic.Interface, i, instances int) error {
	const writers = 4
	next := make(chan int)
	errs := make(chan error, writers)
	var wait sync.WaitGroup
	for range writers {
		wait.Go(func() {
			var err error
			for n := range next {
				if err != nil {
					continue
				}
				obj := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "bench.example.com/v1", "kind": benchedKind(i),
					"metadata": map[string]any{"name": fmt.Sprintf("n%d", n)}, "spec": map[string]any{"size": int64(n)},
				}}
				_, err = client.Resource(benched(i)).Namespace(metav1.NamespaceDefault).Create(ctx, obj, metav1.CreateOptions{})
			}
			errs <- err
		})
	}
	for n := range instances {
		next <- n
	}
	close(next)
	wait.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// allReady checks the count in the Blueprint's status. The count can be out of date by up to a second, but reading it
// is cheap.
func allReady(ctx context.Context, client dynamic.Interface, i int, want int64) error {
	b, err := client.Resource(benchedBlueprints).Get(ctx, benchedKind(i)+"s", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if ready, _, _ := unstructured.NestedInt64(b.Object, "status", "instances", "ready"); ready != want {
		return fmt.Errorf("%d of %d instances are ready", ready, want)
	}
	return nil
}

func removeBenched(ctx context.Context, client dynamic.Interface, kube kubernetes.Interface, i int) error {
	free := []byte(`{"metadata":{"finalizers":null}}`)
	name := benchedKind(i) + "s"
	_, _ = client.Resource(benchedBlueprints).Patch(ctx, name, "application/merge-patch+json", free, metav1.PatchOptions{})
	err1 := client.Resource(benchedBlueprints).Delete(ctx, name, metav1.DeleteOptions{})
	instances, err := client.Resource(benched(i)).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, instance := range instances.Items {
		_, err := client.Resource(benched(i)).Namespace(instance.GetNamespace()).Patch(ctx, instance.GetName(),
			"application/merge-patch+json", free, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	crds := client.Resource(crdResource)
	err2 := crds.Delete(ctx, name+".bench.example.com", metav1.DeleteOptions{})
	err3 := poll(ctx, func() error {
		_, err := crds.Get(ctx, name+".bench.example.com", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("%s still exists", name)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	ours := metav1.ListOptions{LabelSelector: "platform.example.com/parent"}
	core := kube.CoreV1()
	err4 := core.ConfigMaps(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{}, ours)
	err5 := core.Secrets(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{}, ours)
	err6 := core.ServiceAccounts(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{}, ours)
	if apierrors.IsNotFound(err1) {
		err1 = nil
	}
	return errors.Join(err1, err2, err3, err4, err5, err6)
}

func poll(ctx context.Context, check func() error) error {
	const pause = 50 * time.Millisecond
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// platform is the process of the demo platform.
type platform struct {
	tb      testing.TB
	cmd     *exec.Cmd
	address string // The address of its metrics.
	kube    kubernetes.Interface
	ended   chan struct{}
	log     bytes.Buffer
}

// buildPlatform builds the demo platform, which can take several minutes the first time.
func buildPlatform(tb testing.TB) (binary string) {
	tb.Helper()
	binary = filepath.Join(tb.TempDir(), "dynamic-controller")
	build := exec.Command("go", "build", "-o", binary, "./cmd/dynamic-controller")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build the platform: %v\n%s", err, out)
	}
	return binary
}

func startPlatform(tb testing.TB, binary, kubeconfig string, resync time.Duration) *platform {
	tb.Helper()
	kube, err := kubernetes.NewForConfig(shared.Cluster(tb).Config())
	if err != nil {
		tb.Fatal(err)
	}
	p := &platform{tb: tb, kube: kube, ended: make(chan struct{})}
	p.cmd = exec.Command(binary, "run", "--kubeconfig", kubeconfig, "--allow-platform-identity", "--leader-elect=false",
		"--resync-period", resync.String(), "--health-probe-bind-address", "0", "--metrics-bind-address", "127.0.0.1:0")
	p.cmd.Env = os.Environ()
	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	lines, listening := bufio.NewReader(stderr), regexp.MustCompile(`"address":"([^"]+)"`)
	for p.address == "" {
		line, err := lines.ReadString('\n')
		if found := listening.FindStringSubmatch(line); found != nil {
			p.address = found[1]
		}
		if err != nil {
			tb.Fatalf("the platform exited: %v", err)
		}
	}
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(&p.log, lines)
		_ = p.cmd.Wait()
	}()
	return p
}

// stop stops the platform. If the test has failed, the platform prints its goroutines.
func (p *platform) stop() {
	signal := syscall.SIGTERM
	if p.tb.Failed() {
		signal = syscall.SIGQUIT
	}
	_ = p.cmd.Process.Signal(signal)
	<-p.ended
	if p.tb.Failed() {
		p.tb.Logf("log of the platform:\n%s", p.log.String())
	}
}

// writes returns the number of write requests for children and for the status and metadata of instances, as counted by
// the API server. POST requests are not included, because they create the instances and the platform sends none.
func (p *platform) writes(ctx context.Context) float64 {
	p.tb.Helper()
	metrics, err := p.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		p.tb.Fatal(err)
	}
	return sum(metrics, func(line string) bool {
		return strings.HasPrefix(line, "apiserver_request_total{") && isAny(line, `verb="APPLY"`, `verb="PATCH"`,
			`verb="PUT"`, `verb="DELETE"`) &&
			isAny(line, `group="bench.example.com"`, `resource="configmaps"`, `resource="secrets"`, `resource="serviceaccounts"`)
	})
}

func (p *platform) reconciles(ctx context.Context) float64 {
	p.tb.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/metrics", nil)
	if err != nil {
		p.tb.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		p.tb.Fatal(err)
	}
	defer answer.Body.Close()
	metrics, err := io.ReadAll(answer.Body)
	if err != nil {
		p.tb.Fatal(err)
	}
	return sum(metrics, func(line string) bool {
		return strings.HasPrefix(line, "dynamic_controller_reconcile_duration_seconds_count{") && isAny(line,
			`group="bench.example.com"`)
	})
}

// quiet waits until the platform has written nothing for some time.
func (p *platform) quiet(ctx context.Context) error {
	const still = 3 * time.Second
	last, since := p.writes(ctx), time.Now()
	return poll(ctx, func() error {
		if now := p.writes(ctx); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < still {
			return errors.New("the platform is still writing")
		}
		return nil
	})
}

func isAny(line string, words ...string) bool {
	for _, word := range words {
		if strings.Contains(line, word) {
			return true
		}
	}
	return false
}

// sum returns the sum of the metrics on the lines for which wanted returns true.
func sum(metrics []byte, wanted func(string) bool) (total float64) {
	for line := range strings.Lines(string(metrics)) {
		if !wanted(line) {
			continue
		}
		fields := strings.Fields(line)
		if value, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil {
			total += value
		}
	}
	return total
}
