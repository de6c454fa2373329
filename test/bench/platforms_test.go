package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// platform is a controller that serves types that users define.
type platform struct {
	name        string
	module, pkg string // The main package, and the directory of the module in which it is built.
	binary      string // The binary to use instead of building one.
	args        []string
	definitions schema.GroupVersionResource
	definition  string // The definition of the type, with VERSION in the template of a child.
	collections string // The definition of a type whose instances have many children.
	served      string // The condition of a definition that is served.
	isKro       bool
}

// platforms are the platforms that are compared. They have the defaults of their commands, except that kro-10-workers
// has as many workers as ours. None of them elects a leader.
var platforms = []platform{
	{
		name: "ours", module: filepath.Join("..", "..", "cmd", "dynamic-controller"),
		pkg: "github.com/dynamic-controller/engine/cmd/dynamic-controller",
		args: []string{"run", "--allow-platform-identity", "--namespace", platformNamespace, "--leader-elect=false",
			"--health-probe-bind-address", "0"},
		definitions: schema.GroupVersionResource{
			Group: "platform.example.com", Version: "v1alpha1", Resource: "blueprints"},
		definition: blueprint, collections: collectionsBlueprint, served: "Serving",
	},
	kroPlatform("kro"),
	kroPlatform(kroTenWorkers, "--dynamic-controller-concurrent-reconciles", "10"),
}

// againSuffix marks a second measurement of the same binary.
const againSuffix = "-again"

// comparedPlatforms returns the platforms, in the order in which they are measured. With -platform-before and
// -platform-again, ours is followed by its older version and by itself.
func comparedPlatforms() []platform {
	ours := platforms[0]
	compared := []platform{ours}
	if *platformBefore != "" {
		before := ours
		before.name, before.binary = ours.name+beforeSuffix, *platformBefore
		compared = append(compared, before)
	}
	if *platformAgain {
		again := ours
		again.name += againSuffix
		compared = append(compared, again)
	}
	return append(compared, platforms[1:]...)
}

const (
	kroModule     = "github.com/kubernetes-sigs/kro"
	kroTenWorkers = "kro-10-workers"
)

// kroPlatform returns kro's controller. Its log has the level and the format that kro's Helm chart sets. The default of
// the command is the debug level.
func kroPlatform(name string, args ...string) platform {
	return platform{
		name: name, module: ".", pkg: kroModule + "/cmd/controller",
		args: append([]string{"--zap-devel=false", "--zap-log-level", "info", "--zap-encoder", "console",
			"--health-probe-bind-address", "0", "--metrics-bind-address", "0"}, args...),
		definitions: schema.GroupVersionResource{
			Group: "kro.run", Version: "v1alpha1", Resource: "resourcegraphdefinitions"},
		definition: resourceGraph, collections: collectionsGraph, served: "Ready", isKro: true,
	}
}

const blueprint = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: apps}
spec:
  type:
    group: bench.example.com
    version: v1
    kind: App
    schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}
  resources:
    - id: account
      template: {apiVersion: v1, kind: ServiceAccount, metadata: {name: "app-${self.metadata.name}"}}
    - id: config
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "app-${self.metadata.name}"}
        data: {size: "${string(self.spec.size)}", account: "${account.metadata.name}", version: "VERSION"}
    - id: secret
      readyWhen: ["has(secret.data)"]
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "app-${self.metadata.name}"}
        stringData: {name: "${self.metadata.name}"}
`

const resourceGraph = `
apiVersion: kro.run/v1alpha1
kind: ResourceGraphDefinition
metadata: {name: apps}
spec:
  schema:
    group: bench.example.com
    apiVersion: v1
    kind: App
    spec: {size: integer}
  resources:
    - id: account
      template: {apiVersion: v1, kind: ServiceAccount, metadata: {name: "app-${schema.metadata.name}"}}
    - id: config
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "app-${schema.metadata.name}"}
        data: {size: "${string(schema.spec.size)}", account: "${account.metadata.name}", version: "VERSION"}
    - id: secret
      readyWhen: ["${has(secret.data)}"]
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "app-${schema.metadata.name}"}
        stringData: {name: "${schema.metadata.name}"}
`

// platformNamespace contains the instances, their children, and objects that the platform stores.
const platformNamespace = "bench-platform"

const (
	definitionName = "apps"
	pollPause      = 50 * time.Millisecond
)

var (
	apps       = schema.GroupVersionResource{Group: "bench.example.com", Version: "v1", Resource: "apps"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

func instanceName(n int) string { return fmt.Sprintf("n%d", n) }

// childName returns the name of each child of an instance.
func childName(n int) string { return "app-" + instanceName(n) }

// build builds the platform in the directory, unless it has already been built there. The first build can take several
// minutes.
func (p platform) build(tb testing.TB, dir string) (binary string) {
	tb.Helper()
	if p.binary != "" {
		binary, err := filepath.Abs(p.binary)
		if err != nil {
			tb.Fatal(err)
		}
		return binary
	}
	binary = filepath.Join(dir, path.Base(p.pkg))
	if _, err := os.Stat(binary); err == nil {
		return binary
	}
	build := exec.Command("go", "build", "-o", binary, p.pkg)
	build.Dir = p.module
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", p.name, err, out)
	}
	return binary
}

// install creates the namespace, and the CRDs that kro does not create itself.
func (r *platformRun) install(ctx context.Context) error {
	ns := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": platformNamespace},
	}}
	err := r.applyObject(ctx, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, ns)
	if err != nil || !r.isKro {
		return err
	}
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", kroModule).Output()
	if err != nil {
		return fmt.Errorf("find the module of kro: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "helm", "crds", "*.yaml"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &crd.Object); err != nil {
			return err
		}
		if err := r.applyObject(ctx, crdResource, crd); err != nil {
			return err
		}
		if err := awaitCondition(ctx, r.client.Resource(crdResource), crd.GetName(), "Established"); err != nil {
			return err
		}
	}
	return err
}

// define applies the definition of the type.
func (r *platformRun) define(ctx context.Context, version string) error {
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(r.definition, "VERSION", version)), &obj.Object); err != nil {
		return err
	}
	// A platform that has just started may not have created its own types yet.
	return poll(ctx, pollPause, func() error { return r.applyObject(ctx, r.definitions, obj) })
}

func (r *platformRun) applyObject(
	ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured,
) error {
	options := metav1.ApplyOptions{FieldManager: "bench", Force: true}
	_, err := r.client.Resource(gvr).Apply(ctx, obj.GetName(), obj, options)
	return err
}

// createSized creates an instance whose size is its number.
func (r *platformRun) createSized(ctx context.Context, n int) error {
	return r.createInstance(ctx, instanceName(n), map[string]any{"size": int64(n)})
}

func (r *platformRun) createInstance(ctx context.Context, name string, spec map[string]any) error {
	_, err := r.in(apps).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apps.GroupVersion().String(), "kind": "App",
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}, metav1.CreateOptions{})
	return err
}

// in returns a client for the objects in the namespace of the benchmark.
func (r *platformRun) in(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	return r.client.Resource(gvr).Namespace(platformNamespace)
}

// cleanUp deletes the type, its definition and all objects in the namespace. The control plane has no garbage
// collector, and the platform is no longer running.
func (r *platformRun) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errTimeout)
	defer cancel()
	byName := metav1.ListOptions{FieldSelector: "metadata.name=" + definitionName}
	all := metav1.ListOptions{}
	errs := []error{deleteObjects(ctx, r.client.Resource(r.definitions), byName)}
	if r.isKro {
		revisions := schema.GroupVersionResource{
			Group: "internal.kro.run", Version: "v1alpha1", Resource: "graphrevisions"}
		errs = append(errs, deleteObjects(ctx, r.client.Resource(revisions),
			metav1.ListOptions{FieldSelector: "spec.snapshot.name=" + definitionName}))
	} else {
		revisions := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "controllerrevisions"}
		errs = append(errs, deleteObjects(ctx, r.in(revisions), all))
	}
	crds := r.client.Resource(crdResource)
	crd := apps.GroupResource().String()
	errs = append(errs, deleteObjects(ctx, r.in(apps), all),
		ignoreNotFound(crds.Delete(ctx, crd, metav1.DeleteOptions{})),
		poll(ctx, pollPause, func() error {
			_, err := crds.Get(ctx, crd, metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("%s still exists", crd)
			}
			return ignoreNotFound(err)
		}))
	for _, resource := range []string{"configmaps", "secrets", "serviceaccounts"} {
		errs = append(errs, deleteObjects(ctx, r.in(schema.GroupVersionResource{Version: "v1", Resource: resource}), all))
	}
	return errors.Join(errs...)
}

// deleteObjects deletes objects and removes their finalizers.
func deleteObjects(ctx context.Context, client dynamic.ResourceInterface, which metav1.ListOptions) error {
	if err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, which); err != nil {
		return ignoreNotFound(err) // The type does not exist.
	}
	left, err := client.List(ctx, which)
	if err != nil {
		return ignoreNotFound(err)
	}
	for _, obj := range left.Items {
		_, err := client.Patch(ctx, obj.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if ignoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// awaitCondition waits until a condition of the object is true.
func awaitCondition(ctx context.Context, client dynamic.ResourceInterface, name, condition string) error {
	return poll(ctx, pollPause, func() error {
		obj, err := client.Get(ctx, name, metav1.GetOptions{})
		if err == nil && !isTrue(obj, condition) {
			err = fmt.Errorf("%s is not %s: %v", name, condition, obj.Object["status"])
		}
		return err
	})
}

func poll(ctx context.Context, pause time.Duration, check func() error) error {
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

// start starts the platform. The returned context is cancelled when the process exits. The stop function terminates the
// process and returns its CPU time and its peak memory.
func (r *platformRun) start(ctx context.Context, binary string) (
	running context.Context, stop func() (measures, error), err error,
) {
	log, err := os.Create(r.log)
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, binary, append(slices.Clone(r.args), "--kubeconfig", r.kubeconfig)...)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	running, cancel := context.WithCancelCause(ctx)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // ProcessState contains the exit code.
		cancel(fmt.Errorf("the platform exited: %s", cmd.ProcessState))
	}()
	return running, func() (measures, error) {
		_, peak := residentMemory(strconv.Itoa(cmd.Process.Pid))
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return nil, err
		}
		<-exited
		state := cmd.ProcessState
		return measures{
			{"CPU-ns", float64(state.UserTime() + state.SystemTime())},
			{"peak-RSS-B", float64(peak)},
		}, nil
	}, nil
}

// writeVerbs are the verbs of write requests in the metrics of the API server. A server-side apply is an APPLY, and any
// other patch is a PATCH.
var writeVerbs = []string{"APPLY", "POST", "PUT", "PATCH", "DELETE"}

// writeCounts contains numbers of write requests by verb.
type writeCounts map[string]float64

// since returns the difference from earlier numbers.
func (w writeCounts) since(before writeCounts) writeCounts {
	difference := writeCounts{}
	for verb, n := range w {
		difference[verb] = n - before[verb]
	}
	return difference
}

// perInstance returns the number of writes per instance. With byVerb, it also returns the number for each verb.
func (w writeCounts) perInstance(unit string, byVerb bool, instances int) measures {
	var total float64
	var verbs measures
	for _, verb := range writeVerbs {
		total += w[verb]
		verbs = append(verbs, measure{strings.Replace(unit, "writes", verb, 1), w[verb] / float64(instances)})
	}
	m := measures{{unit, total / float64(instances)}}
	if byVerb {
		m = append(m, verbs...)
	}
	return m
}

// writes returns the number of write requests from the platform for instances, children and events, as counted by the
// API server. It counts the creation of children and events, but not of instances, which the benchmark creates.
func (r *platformRun) writes(ctx context.Context) (writeCounts, error) {
	metrics, err := r.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	counts := writeCounts{}
	for line := range strings.Lines(string(metrics)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		i := slices.IndexFunc(writeVerbs, func(verb string) bool { return strings.Contains(line, `verb="`+verb+`"`) })
		isOurs := isAny(line, `group="`+apps.Group+`"`) && !isAny(line, `verb="POST"`) ||
			isAny(line, `resource="configmaps"`, `resource="secrets"`, `resource="serviceaccounts"`, `resource="events"`)
		if i < 0 || !isOurs {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			return nil, err
		}
		counts[writeVerbs[i]] += value
	}
	return counts, nil
}

func isAny(line string, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(line, word) })
}

// waitIdle waits until the platform has written nothing for some time. It returns the number of writes.
func (r *platformRun) waitIdle(ctx context.Context) (written writeCounts, err error) {
	since := time.Now()
	err = poll(ctx, r.still/10, func() error {
		now, err := r.writes(ctx)
		if err != nil {
			return err
		}
		if !maps.Equal(now, written) {
			written, since = now, time.Now()
		}
		if time.Since(since) < r.still {
			return errors.New("the platform is still writing")
		}
		return nil
	})
	return written, err
}
