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
)

// jobEnv holds a job in JSON. A test binary that finds it reconciles parents instead of testing.
const jobEnv = "INTEGRATION_JOB"

// job is what such a process is told.
type job struct {
	Host, Token      string
	CAData           []byte
	Parents, Gadgets gvrType
	Namespace, Far   string // of the parent, and of a child with that namespace's name
}

// What the process says, a line each, and what it is told.
const (
	saysShown = "shown " // and the resourceVersion of the parent that its cache now has
	leadNow   = "lead"
)

// bucketPath is of something outside the cluster, which the test's proxy serves.
const bucketPath = "/bucket"

// reconciler reconciles a parent with handlers made of every part: two named children of two kinds in two stages, one in
// another namespace, two without names, a condition, and a bucket that is no object at all.
type reconciler struct {
	job
	http       *http.Client
	client     dynamic.Interface
	cached     handlers.Reader
	controller *dynamiccontroller.DynamicController
	children   *handlers.Children
	expected   *handlers.Expectations
	conditions handlers.Conditions
}

// reconcileParents is the whole of the process. It ends when it is killed, or with who started it.
func reconcileParents(spec string) int {
	lead := make(chan struct{})
	go func() {
		for words := bufio.NewScanner(os.Stdin); words.Scan(); {
			if words.Text() == leadNow {
				close(lead)
			}
		}
		os.Exit(1) // the test has gone
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
	config := &rest.Config{Host: r.Host, BearerToken: r.Token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: r.CAData}}
	log := funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{LogTimestamp: true, Verbosity: 1})
	if r.http, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	if r.client, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	quick := dynamiccontroller.Config{MinRetryDelay: 10 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond}
	if r.controller, err = dynamiccontroller.NewForConfig(log, quick, config); err != nil {
		return err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind, gvr := range map[string]gvrType{"Platform": r.Parents, "Gadget": r.Gadgets, "ConfigMap": configMaps} {
		mapper.Add(gvr.GroupVersion().WithKind(kind), meta.RESTScopeNamespace)
	}
	r.cached = handlers.Cached(r.controller.Lister)
	r.children, err = handlers.NewChildren(handlers.ChildrenConfig{
		Client: r.client, Cache: r.cached, Mapper: mapper, Name: platformName,
		Kinds: []handlers.ChildKind{
			{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Elsewhere: true},
			{GroupKind: schema.GroupKind{Group: r.Gadgets.Group, Kind: "Gadget"}, Elsewhere: true},
		},
	})
	if err != nil {
		return err
	}
	r.expected = handlers.NewExpectations(r.client, r.cached, 0)
	r.conditions = handlers.Conditions{Client: r.client, FieldManager: platformName + "/status"}
	if err := r.serve(ctx); err != nil {
		return err
	}
	// As a replica does: the watches, and then, when it leads, the workers. Handlers read of other types: those are there.
	ended := make(chan error, 1)
	go func() { ended <- r.controller.RunWatches(ctx) }()
	for _, gvr := range []gvrType{configMaps, r.Gadgets, r.Parents} {
		if err := r.controller.WaitForGVRSync(ctx, gvr); err != nil {
			return err
		}
	}
	go r.show(ctx)
	<-lead
	go func() { ended <- r.controller.Run(ctx) }()
	return <-ended
}

func (r *reconciler) serve(ctx context.Context) error {
	wake := func(_ context.Context, child dynamiccontroller.ObjectIdentifiers) error {
		if child.Namespace() == r.Namespace || child.NamespacedKey == r.Far+"/"+r.Namespace {
			r.controller.Enqueue(dynamiccontroller.ObjectIdentifiers{NamespacedKey: r.Namespace + "/p", GVR: r.Parents})
		}
		return nil
	}
	for _, gvr := range []gvrType{configMaps, r.Gadgets} {
		if err := r.controller.StartServingGVK(ctx, gvr, wake); err != nil {
			return err
		}
	}
	forget := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		r.children.Forget(id)
		r.expected.Forget(id)
		return nil
	}
	handler := handlers.Object(handlers.NewFresh(r.client, r.cached), handlers.Finalizer(r.client, platformName+"/bucket", r.cleanUp, r.reconcile), forget)
	return r.controller.StartServingGVK(ctx, r.Parents, handler, dynamiccontroller.WithNamespace(r.Namespace))
}

// show says what the cache shows of the parent, whenever that changes.
func (r *reconciler) show(ctx context.Context) {
	const pace = 20 * time.Millisecond
	for shown := "nothing"; ; time.Sleep(pace) {
		parents, err := r.cached.List(ctx, r.Parents, r.Namespace, labels.Everything())
		if err != nil {
			panic(err) // it was synced
		}
		now := ""
		for _, parent := range parents {
			now = parent.GetResourceVersion()
		}
		if now != shown {
			fmt.Println(saysShown + now)
			shown = now
		}
	}
}

func (r *reconciler) cleanUp(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
	if _, err := r.children.Reconcile(ctx, id, parent, handlers.Desired{}); err != nil {
		return err
	}
	return r.keepBucket(ctx, false)
}

// keepBucket sees to it that there is a bucket, or none.
func (r *reconciler) keepBucket(ctx context.Context, wanted bool) error {
	is, err := r.askBucket(ctx, http.MethodGet)
	switch {
	case err != nil || is == wanted:
		return err
	case wanted:
		_, err = r.askBucket(ctx, http.MethodPut)
	default:
		_, err = r.askBucket(ctx, http.MethodDelete)
	}
	return err
}

func (r *reconciler) askBucket(ctx context.Context, method string) (is bool, err error) {
	request, err := http.NewRequestWithContext(ctx, method, r.Host+bucketPath, nil)
	if err != nil {
		return false, err
	}
	answer, err := r.http.Do(request)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusNotFound:
		return false, nil
	}
	return false, fmt.Errorf("%s the bucket: %s", method, answer.Status)
}

func (r *reconciler) reconcile(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
	if err := r.keepBucket(ctx, true); err != nil {
		return err
	}
	_, err := r.children.Reconcile(ctx, id, parent, r.wants(parent))
	if err == nil {
		err = r.unnamed(ctx, id, parent)
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

// wants loses one child and a whole kind in the second version, and gains a child.
func (r *reconciler) wants(parent *unstructured.Unstructured) handlers.Desired {
	far := newConfigMap(r.Far, r.Namespace, "x")
	if !isFirst(parent) {
		return stages(newConfigMap("", "b", "x"), far)
	}
	return handlers.Desired{Stages: [][]*unstructured.Unstructured{
		{newConfigMap("", "a", "x")}, {newObject(r.Gadgets, "Gadget", "", "g", map[string]any{"size": "big"}), far},
	}}
}

var unnamed = labels.SelectorFromSet(labels.Set{"kind": "unnamed"})

// unnamed keeps two config maps without names, and one in the second version.
func (r *reconciler) unnamed(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
	if err := r.expected.CatchUp(ctx, id, configMaps, r.Namespace, unnamed); err != nil {
		return err
	}
	if err := r.expected.Await(ctx, id); err != nil {
		return err
	}
	there, err := r.cached.List(ctx, configMaps, r.Namespace, unnamed)
	if err != nil {
		return err
	}
	want := 1
	if isFirst(parent) {
		want = 2
	}
	for i := len(there); i < want; i++ {
		child := newConfigMap(r.Namespace, "", "x")
		child.SetGenerateName("unnamed-")
		child.SetLabels(map[string]string{"kind": "unnamed"})
		child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(parent, parent.GroupVersionKind())})
		if _, err := r.expected.Create(ctx, id, configMaps, child); err != nil {
			return err
		}
	}
	for i := want; i < len(there); i++ {
		if err := r.expected.Delete(ctx, id, configMaps, there[i]); err != nil {
			return err
		}
	}
	return nil
}
