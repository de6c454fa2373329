package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

var shared = cluster.NewShared(cluster.Options{WithControllers: true})

func TestMain(m *testing.M) {
	if spec := os.Getenv(jobEnv); spec != "" {
		os.Exit(reconcileParents(spec))
	}
	if spec := os.Getenv(rivalEnv); spec != "" {
		os.Exit(compete(spec))
	}
	_ = flag.Set("test.parallel", "4") // The tests mostly wait. The -parallel flag overrides this value.
	goleak.VerifyTestMain(shared.Main(sharedTypes.Main(m)))
}

// every is N if tests with many similar cases run every Nth of them. "make test-long" runs all. It is odd, because two
// kinds of cases often alternate.
var every = flag.Int("every", 7, "run every Nth of the cases of a test with many similar ones")

// sample returns every Nth case, from a random one on, and thus other cases in each run.
func sample[T any](t *testing.T, all []T) (some []T) {
	t.Helper()
	first := rand.N(*every)
	for i := first; i < len(all); i += *every {
		some = append(some, all[i])
	}
	t.Logf("every %dth of %d cases, from case %d on", *every, len(all), first)
	return some
}

// deadline is the time limit for operations that take a few seconds, or a minute while other packages keep a small
// machine busy.
const deadline = 3 * time.Minute

// harness provides clients, a namespace and types for one test.
type harness struct {
	*testing.T
	config    *rest.Config
	client    dynamic.Interface
	clients   kubernetes.Interface
	crds      apiextensions.Interface
	types     *typePool // nil if the cluster is not the shared one
	namespace string
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	config := shared.Cluster(t).Config()
	h := &harness{T: t, config: config, types: sharedTypes}
	h.client = must(dynamic.NewForConfig(config))
	h.clients = must(kubernetes.NewForConfig(config))
	h.crds = must(apiextensions.NewForConfig(config))
	h.namespace = h.newNamespace()
	return h
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (h *harness) noError(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *harness) newNamespace() string {
	h.Helper()
	name := "test-" + utilrand.String(8)
	_, err := h.clients.CoreV1().Namespaces().Create(h.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	h.noError(err)
	h.Cleanup(func() {
		err := h.clients.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			h.Error(err)
		}
	})
	return name
}

// newType returns a unique type. It does not create the type's CRD.
func (h *harness) newType() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: utilrand.String(8) + ".example.com", Version: "v1", Resource: "widgets"}
}

// widgets returns a type without objects that no other test uses.
func (h *harness) widgets() schema.GroupVersionResource {
	h.Helper()
	return h.exclusiveType("Widget", widgetCRD(h.newType()))
}

// define creates the type's CRD and waits until the CRD is established. If neither the time nor the name of the type
// matters to a test, widgets is faster. A type that has been deleted can be defined again.
func (h *harness) define(gvr schema.GroupVersionResource) schema.GroupVersionResource {
	h.Helper()
	crd := widgetCRD(gvr)
	h.recreateCRD(crd)
	h.cleanUpCRD(crd.Name, gvr)
	h.established(crd.Name)
	return gvr
}

func widgetCRD(gvr schema.GroupVersionResource) *apiextensionsv1.CustomResourceDefinition {
	return newCRD(gvr.Group, gvr.Resource, "widget", "Widget", gvr.Version)
}

// established waits until the CRD is established.
func (h *harness) established(name string) {
	h.Helper()
	h.eventually(name+" is established", func() error {
		crd, err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Get(h.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		return errors.New("not established")
	})
}

// undefine deletes the CRD of the type.
func (h *harness) undefine(gvr schema.GroupVersionResource) {
	h.deleteCRD(gvr.GroupResource().String())
}

// deleteCRD deletes the CRD if it exists.
func (h *harness) deleteCRD(name string) {
	err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(context.Background(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		h.Error(err)
	}
}

// cleanUpCRD deletes the CRD when the test ends, after the finalizers of its objects.
func (h *harness) cleanUpCRD(name string, gvr schema.GroupVersionResource) {
	h.Cleanup(func() {
		h.removeFinalizers(gvr)
		h.deleteCRD(name)
	})
}

// removeFinalizers removes the finalizers of all objects of the type. For a CRD whose objects have finalizers, one of
// the API server's five workers that delete CRDs waits for a minute, again and again. A few such CRDs would hold up the
// CRDs that other tests delete.
func (h *harness) removeFinalizers(gvr schema.GroupVersionResource) {
	objects, err := h.client.Resource(gvr).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return // The type is no longer served.
	}
	for _, object := range objects.Items {
		if len(object.GetFinalizers()) == 0 {
			continue
		}
		_, err := h.in(gvr, object.GetNamespace()).Patch(context.Background(), object.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			h.Errorf("remove the finalizers of %s %s/%s: %v", gvr.Resource, object.GetNamespace(), object.GetName(), err)
		}
	}
}

// apply creates or changes an object and returns its resourceVersion. It uses a PATCH because, shortly after a CRD is
// established, the API server delays a POST by two seconds.
func (h *harness) apply(
	gvr schema.GroupVersionResource, name string, generation int, with ...func(*unstructured.Unstructured),
) string {
	h.Helper()
	return h.applyIn(gvr, h.namespace, name, generation, with...)
}

func (h *harness) applyIn(
	gvr schema.GroupVersionResource, namespace, name string, generation int, with ...func(*unstructured.Unstructured),
) string {
	h.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"n": int64(generation)}}}
	object.SetAPIVersion(gvr.GroupVersion().String())
	object.SetKind("Widget")
	object.SetName(name)
	for _, f := range with {
		f(object)
	}
	var applied *unstructured.Unstructured
	h.eventually("apply "+name, func() (err error) {
		applied, err = h.client.Resource(gvr).Namespace(namespace).Apply(h.Context(), name, object,
			metav1.ApplyOptions{FieldManager: "test", Force: true})
		return err
	})
	return applied.GetResourceVersion()
}

func (h *harness) delete(gvr schema.GroupVersionResource, name string) {
	h.Helper()
	h.noError(h.client.Resource(gvr).Namespace(h.namespace).Delete(h.Context(), name, metav1.DeleteOptions{}))
}

func (h *harness) id(gvr schema.GroupVersionResource, name string) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: h.namespace + "/" + name, GVR: gvr}
}

// logger returns a logger that writes to the log of the test.
func (h *harness) logger() logr.Logger { return testr.NewWithOptions(h.T, testr.Options{Verbosity: 0}) }

func (h *harness) controller(
	config dynamiccontroller.Config, opts ...dynamiccontroller.Option,
) *dynamiccontroller.DynamicController {
	h.Helper()
	c, err := dynamiccontroller.NewForConfig(h.logger(), config, h.config, opts...)
	h.noError(err)
	return c
}

// start runs f until the test ends or stop is called. The stop function returns the result of f.
func (h *harness) start(f func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(h.Context()))
	result := make(chan error, 1)
	go func() {
		err := errors.New("the goroutine exited without returning")
		defer func() { result <- err }()
		err = f(ctx)
	}()
	stop = sync.OnceValue(func() error {
		cancel(errTestOver)
		return <-result
	})
	h.Cleanup(func() { _ = stop() })
	return stop
}

var errTestOver = errors.New("the test has ended")

// run runs the controller until the test ends or stop is called.
func (h *harness) run(c *dynamiccontroller.DynamicController) (stop func() error) {
	return h.start(c.Run)
}

func (h *harness) serve(
	c *dynamiccontroller.DynamicController, gvr schema.GroupVersionResource, handler dynamiccontroller.Handler,
	opts ...dynamiccontroller.ServeOption,
) {
	h.Helper()
	h.noError(c.StartServingGVK(h.Context(), gvr, handler, opts...))
}

func (h *harness) synced(c *dynamiccontroller.DynamicController, gvr schema.GroupVersionResource) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), deadline)
	defer cancel()
	h.noError(c.WaitForGVRSync(ctx, gvr))
}

// stopServing stops serving the type. It fails the test if that takes longer than the deadline.
func (h *harness) stopServing(c *dynamiccontroller.DynamicController, gvr schema.GroupVersionResource) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), deadline)
	defer cancel()
	h.noError(c.StopServiceGVK(ctx, gvr))
}

// eventually polls until done returns nil. It fails the test if that takes longer than the deadline.
func (h *harness) eventually(condition string, done func() error) {
	h.Helper()
	h.eventuallyWithin(deadline, condition, done)
}

// eventuallyWithin is eventually with another time limit.
func (h *harness) eventuallyWithin(limit time.Duration, condition string, done func() error) {
	h.Helper()
	testkit.Eventually(h, limit, func() error {
		if err := done(); err != nil {
			return fmt.Errorf("%s: %w", condition, err)
		}
		return nil
	})
}

// recorder is a handler that records its calls. It fails the test if there are concurrent calls for the same object.
type recorder struct {
	t testing.TB
	// do handles a call. It can be nil.
	do func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error

	mu      sync.Mutex
	calls   map[dynamiccontroller.ObjectIdentifiers]int
	inHand  map[dynamiccontroller.ObjectIdentifiers]bool
	total   int
	changed chan struct{} // Closed and replaced at each call.
}

func newRecorder(t testing.TB, do func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error) *recorder {
	return &recorder{
		t: t, do: do,
		calls:   map[dynamiccontroller.ObjectIdentifiers]int{},
		inHand:  map[dynamiccontroller.ObjectIdentifiers]bool{},
		changed: make(chan struct{}),
	}
}

func (r *recorder) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	r.mu.Lock()
	if r.inHand[id] {
		r.t.Errorf("concurrent calls for %s", id)
	}
	r.inHand[id] = true
	r.calls[id]++
	r.total++
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.inHand, id)
	}()
	if r.do == nil {
		return nil
	}
	return r.do(ctx, id)
}

func (r *recorder) count(id dynamiccontroller.ObjectIdentifiers) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[id]
}

func (r *recorder) sum() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

func (r *recorder) counts() map[dynamiccontroller.ObjectIdentifiers]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.calls)
}

// waitFor waits until the handler has been called n times for the object.
func (r *recorder) waitFor(id dynamiccontroller.ObjectIdentifiers, n int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d calls for %s", n, id), func() bool { return r.calls[id] >= n })
}

// waitForTotal waits until the handler has been called n times.
func (r *recorder) waitForTotal(n int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d calls", n), func() bool { return r.total >= n })
}

func (r *recorder) until(condition string, done func() bool) {
	r.t.Helper()
	over := time.After(deadline)
	for {
		r.mu.Lock()
		ok, changed, total := done(), r.changed, r.total
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-over:
			r.t.Fatalf("timed out after %s waiting for %s: got %d calls in total", deadline, condition, total)
		}
	}
}

// fence creates an object and waits until the handler is called for it. By then, all objects of the type that were
// queued earlier have been taken from the queue. With a single worker, their handler calls have also returned.
func (h *harness) fence(gvr schema.GroupVersionResource, r *recorder) {
	h.Helper()
	name := "fence-" + utilrand.String(6)
	h.apply(gvr, name, 0)
	r.waitFor(h.id(gvr, name), 1)
}

// wire counts, intercepts and modifies requests to the API server.
type wire struct {
	interceptor atomic.Pointer[interceptor]
	count       atomic.Int64
	held        atomic.Pointer[heldWatches]

	mu      sync.Mutex
	streams map[io.Closer]string // The response bodies of open watches and their paths.
}

type (
	send        func(*http.Request) (*http.Response, error)
	interceptor func(*http.Request, send) (*http.Response, error)
)

// through returns a harness whose controllers send their requests through the wire.
func (w *wire) through(h *harness) *harness {
	w.streams = map[io.Closer]string{}
	other := *h
	other.config = rest.CopyConfig(h.config)
	other.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			w.count.Add(1)
			answer, err := w.send(r, next.RoundTrip)
			if err == nil && isWatch(r) {
				answer.Body = w.track(answer.Body, r.URL.Path)
			}
			return answer, err
		})
	})
	return &other
}

func (w *wire) send(r *http.Request, send send) (*http.Response, error) {
	if intercept := w.interceptor.Load(); intercept != nil {
		return (*intercept)(r, send)
	}
	return send(r)
}

// set sets the interceptor for all requests. If intercept is nil, requests are no longer intercepted.
func (w *wire) set(intercept interceptor) {
	if intercept == nil {
		w.interceptor.Store(nil)
		return
	}
	w.interceptor.Store(&intercept)
}

// stream is the response body of a watch.
type stream struct {
	io.ReadCloser
	wire *wire
	path string
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if held := s.wire.held.Load(); held != nil && strings.HasPrefix(s.path, "/apis/"+held.group+"/") {
		<-held.released
	}
	return n, err
}

func (s *stream) Close() error {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	delete(s.wire.streams, s.ReadCloser)
	return s.ReadCloser.Close()
}

func (w *wire) track(body io.ReadCloser, path string) io.ReadCloser {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams[body] = path
	return &stream{ReadCloser: body, wire: w, path: path}
}

// heldWatches are watches of a group that receive nothing until released is closed.
type heldWatches struct {
	group    string
	released chan struct{}
}

// hold keeps back what the watches of a type receive until release is called.
func (w *wire) hold(gvr schema.GroupVersionResource) (release func()) {
	held := &heldWatches{gvr.Group, make(chan struct{})}
	w.held.Store(held)
	return sync.OnceFunc(func() {
		w.held.Store(nil)
		close(held.released)
	})
}

// cut closes the open watches of a type, as if the connection were lost. It returns the number of closed watches.
func (w *wire) cut(gvr schema.GroupVersionResource) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for body, path := range w.streams {
		if strings.HasPrefix(path, "/apis/"+gvr.Group+"/") {
			_ = body.Close()
			n++
		}
	}
	return n
}

type gvrType = schema.GroupVersionResource

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// isFor reports whether a request is for a type.
func isFor(r *http.Request, gvr schema.GroupVersionResource) bool {
	return strings.HasPrefix(r.URL.Path, "/apis/"+gvr.Group+"/")
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }
