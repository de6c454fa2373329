package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// jobEnv names an environment variable that contains a job in JSON. If the variable is set, the test binary runs the
// job instead of the tests.
const jobEnv = "INTEGRATION_JOB"

// job describes the work of a process.
type job struct {
	Host, Token      string
	CAData           []byte
	Parents, Gadgets gvrType
	Namespace        string // the namespace of the parent
	Other            string // the namespace of the remote child, whose name is the value of Namespace
}

const (
	// cachedPrefix is the prefix of an output line that reports the resourceVersion of the cached parent.
	cachedPrefix = "cached "
	// leadCommand is an input line that makes the process start reconciling.
	leadCommand = "lead"
)

// bucketPath is the path of the bucket, a resource outside the cluster that the test's proxy serves.
const bucketPath = "/bucket"

// reconciler reconciles a parent and uses all parts of package handlers. The parent has named children of two kinds in
// two stages, a child in another namespace, children without fixed names, a condition, and a bucket outside the
// cluster.
type reconciler struct {
	job
	http         *http.Client
	client       dynamic.Interface
	cached       handlers.Reader
	controller   *dynamiccontroller.DynamicController
	reconciler   *children.Reconciler
	expectations *handlers.Expectations
	conditions   *handlers.Conditions
}

// reconcileParents runs a job. It returns only if the job fails.
func reconcileParents(spec string) int {
	lead := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if lines.Text() == leadCommand {
				close(lead)
			}
		}
		os.Exit(1) // the test has exited
	}()
	r := &reconciler{}
	err := json.Unmarshal([]byte(spec), &r.job)
	if err == nil {
		err = r.run(context.Background(), lead)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func (r *reconciler) run(ctx context.Context, lead <-chan struct{}) (err error) {
	config := &rest.Config{
		Host: r.Host, BearerToken: r.Token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: r.CAData},
	}
	log := funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) },
		funcr.Options{LogTimestamp: true, Verbosity: 1})
	if r.http, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	if r.client, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	retryQuickly := dynamiccontroller.Config{MinRetryDelay: 10 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond}
	if r.controller, err = dynamiccontroller.NewForConfig(log, retryQuickly, config); err != nil {
		return err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind, gvr := range map[string]gvrType{"Platform": r.Parents, "Gadget": r.Gadgets, "ConfigMap": configMaps} {
		mapper.Add(gvr.GroupVersion().WithKind(kind), meta.RESTScopeNamespace)
	}
	r.cached = handlers.Cached(r.controller.Lister)
	r.reconciler, err = children.New(children.Config{
		Client: r.client, Cache: children.Cached(r.controller.Lister), Mapper: mapper, Name: platformName,
		Kinds: []children.Kind{
			{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, CrossNamespace: true},
			{GroupKind: schema.GroupKind{Group: r.Gadgets.Group, Kind: "Gadget"}, CrossNamespace: true},
		},
	})
	if err != nil {
		return err
	}
	r.expectations, err = handlers.NewExpectations(handlers.ExpectationsConfig{Client: r.client, Cache: r.cached})
	if err != nil {
		return err
	}
	r.conditions, err = handlers.NewConditions(handlers.ConditionsConfig{
		Client: r.client, FieldManager: platformName + "/status",
	})
	if err != nil {
		return err
	}
	if err := r.serve(ctx); err != nil {
		return err
	}
	// Like a replica, the process first runs only the watches, as a standby. It starts the workers when it becomes the
	// leader. All types must have synced before that, because the handlers read all of them.
	ended := make(chan error, 1)
	go func() { ended <- r.controller.RunWatches(ctx) }()
	for _, gvr := range []gvrType{configMaps, r.Gadgets, r.Parents} {
		if err := r.controller.WaitForGVRSync(ctx, gvr); err != nil {
			return err
		}
	}
	go r.reportCache(ctx)
	<-lead
	go func() { ended <- r.controller.Run(ctx) }()
	return <-ended
}

func (r *reconciler) serve(ctx context.Context) error {
	enqueueParent := func(_ context.Context, child dynamiccontroller.ObjectIdentifiers) error {
		if child.Namespace() == r.Namespace || child.NamespacedKey == r.Other+"/"+r.Namespace {
			r.controller.Enqueue(dynamiccontroller.ObjectIdentifiers{NamespacedKey: r.Namespace + "/p", GVR: r.Parents})
		}
		return nil
	}
	for _, gvr := range []gvrType{configMaps, r.Gadgets} {
		if err := r.controller.StartServingGVK(ctx, gvr, enqueueParent); err != nil {
			return err
		}
	}
	forget := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		r.expectations.Forget(id)
		return r.reconciler.Forget(ctx, id)
	}
	handler := handlers.Object(
		handlers.Fresh(r.client, r.cached),
		handlers.Finalizer(handlers.FinalizerConfig{
			Client: r.client, Name: platformName + "/bucket", Reconcile: r.reconcile, Cleanup: r.cleanUp,
		}),
		forget,
	)
	return r.controller.StartServingGVK(ctx, r.Parents, handler, dynamiccontroller.WithNamespaces(r.Namespace))
}

// reportCache prints the resourceVersion of the cached parent whenever that version changes.
func (r *reconciler) reportCache(ctx context.Context) {
	const interval = 20 * time.Millisecond
	for reported := "nothing"; ; time.Sleep(interval) {
		parents, err := r.cached.List(ctx, r.Parents, r.Namespace, labels.Everything())
		if err != nil {
			panic(err) // cannot happen, because the cache has synced
		}
		now := ""
		for _, parent := range parents {
			now = parent.GetResourceVersion()
		}
		if now != reported {
			fmt.Println(cachedPrefix + now)
			reported = now
		}
	}
}

func (r *reconciler) cleanUp(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured,
) error {
	if _, err := r.reconciler.Reconcile(ctx, id, parent, children.Desired{}); err != nil {
		return err
	}
	return r.setBucket(ctx, false)
}

// setBucket creates or deletes the bucket.
func (r *reconciler) setBucket(ctx context.Context, exists bool) error {
	existed, err := r.requestBucket(ctx, http.MethodGet)
	switch {
	case err != nil || existed == exists:
		return err
	case exists:
		_, err = r.requestBucket(ctx, http.MethodPut)
	default:
		_, err = r.requestBucket(ctx, http.MethodDelete)
	}
	return err
}

func (r *reconciler) requestBucket(ctx context.Context, method string) (exists bool, err error) {
	request, err := http.NewRequestWithContext(ctx, method, r.Host+bucketPath, nil)
	if err != nil {
		return false, err
	}
	response, err := r.http.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusNotFound:
		return false, nil
	}
	return false, fmt.Errorf("%s the bucket: %s", method, response.Status)
}

func (r *reconciler) reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured,
) error {
	if err := r.setBucket(ctx, true); err != nil {
		return err
	}
	_, err := r.reconciler.Reconcile(ctx, id, parent, r.desired(parent))
	if err == nil {
		err = r.reconcileUnnamed(ctx, id, parent)
	}
	condition := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Done"}
	if err != nil {
		condition = metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NotYet"}
	}
	if _, statusErr := r.conditions.Set(ctx, id, parent, condition); statusErr != nil {
		return statusErr
	}
	return err
}

func isFirst(parent *unstructured.Unstructured) bool {
	version, _, _ := unstructured.NestedString(parent.Object, "spec", "version")
	return version == "first"
}

// desired returns the parent's named children. In the parent's second version, the ConfigMap b replaces the ConfigMap
// a, and the gadget is removed.
func (r *reconciler) desired(parent *unstructured.Unstructured) children.Desired {
	remote := newConfigMap(r.Other, r.Namespace, "x")
	if !isFirst(parent) {
		return oneStage(newConfigMap("", "b", "x"), remote)
	}
	return children.Desired{Stages: [][]children.Child{
		children.Stage(newConfigMap("", "a", "x")),
		children.Stage(newObject(r.Gadgets, "Gadget", "", "g", map[string]any{"size": "big"}), remote),
	}}
}

var unnamedSelector = labels.SelectorFromSet(labels.Set{"kind": "unnamed"})

// reconcileUnnamed reconciles the ConfigMaps without fixed names: two in the parent's first version, and one in its
// second.
func (r *reconciler) reconcileUnnamed(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured,
) error {
	if err := r.expectations.CatchUp(ctx, id, configMaps, r.Namespace, unnamedSelector); err != nil {
		return err
	}
	if err := r.expectations.Await(ctx, id); err != nil {
		return err
	}
	existing, err := r.cached.List(ctx, configMaps, r.Namespace, unnamedSelector)
	if err != nil {
		return err
	}
	want := 1
	if isFirst(parent) {
		want = maxUnnamed
	}
	for i := len(existing); i < want; i++ {
		child := newConfigMap(r.Namespace, "", "x")
		child.SetGenerateName("unnamed-")
		child.SetLabels(map[string]string{"kind": "unnamed"})
		child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(parent, parent.GroupVersionKind())})
		if _, err := r.expectations.Create(ctx, id, configMaps, child); err != nil {
			return err
		}
	}
	for i := want; i < len(existing); i++ {
		if err := r.expectations.Delete(ctx, id, configMaps, existing[i]); err != nil {
			return err
		}
	}
	return nil
}
